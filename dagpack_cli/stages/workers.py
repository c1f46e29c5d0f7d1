"""Processes that do a stage's jobs: they end with the build, however it ends, and alone it answers signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection, resource_tracker
from typing import TypeVar

from dagpack_cli.errors import DiskError
from dagpack_cli.failpoints import arm_from_environment

__all__ = ["run_jobs"]

Job = TypeVar("Job")
Result = TypeVar("Result")

_ENDING = (signal.SIGINT, signal.SIGTERM)  # signals that end a build


def run_jobs(function: Callable[[Job], Result], jobs: Sequence[Job], workers: int) -> Iterator[Result]:
    """Yield what a function returns for every job, in order: called here, or in processes where that pays.

    Args:
        function: of a module, so that a process can find it.
        jobs: what it is called with.
        workers: processes; 1 for none.

    Raises:
        DiskError: a process was ended from outside.
    """
    if workers == 1 or len(jobs) < 2:
        for job in jobs:
            yield function(job)
        return
    # Not fork: a copy of a process whose threads hold locks may never wake up.
    context = multiprocessing.get_context("spawn")
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=context, initializer=_follow_parent)
    try:
        with _signals_held_back():  # a worker starts with them blocked, and ignores them before it looks
            results = pool.map(function, jobs)
        yield from results
    except BaseException as error:
        # Neither a signal nor a failure waits for what is being read, and no worker may outlive the lock.
        for process in set(multiprocessing.active_children()) - set(others):
            process.kill()
            process.join()
        pool.shutdown(wait=False, cancel_futures=True)
        if isinstance(error, BrokenProcessPool):
            raise DiskError(
                f"--workers {workers}",
                "a process that read the corpus was ended from outside, perhaps for want of memory",
                "all of them to end by themselves",
                hint="the same command with --workers 1 reads in one process",
            ) from None
        raise
    pool.shutdown()


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Answer signals that end a build only after the body; what is started in it inherits that."""
    resource_tracker.ensure_running()  # it would let signals through once it has been started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _follow_parent() -> None:
    """End this worker when its build does, however that ends; the build alone answers signals."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    arm_from_environment()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
