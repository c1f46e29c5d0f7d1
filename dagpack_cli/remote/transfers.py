"""Several transfers at a time, the results taken in one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from threading import Event
from typing import TypeVar

__all__ = ["LEAST_AT_A_TIME", "Stopped", "transfer_all"]

# Transfers wait for a network, not for a processor, so that there are some at a time even for one worker.
LEAST_AT_A_TIME = 4
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Stopped(Exception):  # no failure of its own: another transfer failed
    """A transfer was given up, because another one failed."""


def transfer_all(
    work: Callable[[_Item, Event], _Result],
    items: Iterable[_Item],
    done: Callable[[_Item, _Result], None],
    workers: int,
) -> None:
    """Call ``work`` for every item in threads, and ``done`` for every result in this one.

    The first failure ends all: what runs sees the event set and may raise `Stopped`, and has ended when this
    function raises, unless it ends by a signal, which does not wait.

    Args:
        work: does one transfer.
        items: what is transferred.
        done: hears what became of an item.
        workers: transfers at a time, `LEAST_AT_A_TIME` where it is fewer.
    """
    at_a_time = max(workers, LEAST_AT_A_TIME)
    todo = iter(items)
    stop = Event()
    running: dict[Future[_Result], _Item] = {}
    pool = ThreadPoolExecutor(max_workers=at_a_time)
    try:
        while True:
            for item in islice(todo, 2 * at_a_time - len(running)):
                running[pool.submit(work, item, stop)] = item
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                done(running.pop(future), future.result())
    except Exception:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    except BaseException:
        stop.set()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown(wait=True)
