"""What a command does at the edge: places given as text become local paths, and results go where they belong."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dagpack_cli.errors import DagpackError, OutputError, UsageError
from dagpack_cli.locks import lock_output
from dagpack_cli.remote.folders import folder_of
from dagpack_cli.remote.uris import RemoteUri, locate
from dagpack_cli.stages.receipts import Listener, SilentListener
from dagpack_cli.storage import STAGING

if TYPE_CHECKING:
    from dagpack_cli.remote.publishing import Publisher

__all__ = ["Edge", "local_output"]

_READ_WAIT = 600.0  # seconds, for another reader that fetches the same


class Edge:
    """The places of one command, from its first look at them to its end; a context manager, for it holds locks.

    Args:
        local: where the folders of remote places are; None for the user's cache.
        workers: transfers at a time.
        wait: seconds to wait at most while another build uses the same folder.
        keep: generations that stay where one is published.
        listener: hears progress and notes.
    """

    def __init__(
        self,
        local: Path | None = None,
        *,
        workers: int = 1,
        wait: float = 0.0,
        keep: int = 2,
        listener: Listener | None = None,
    ) -> None:
        self._local, self._workers, self._wait, self._keep = local, workers, wait, keep
        self._listener = SilentListener() if listener is None else listener
        self._stack = ExitStack()
        self._publisher: Publisher | None = None
        self._copies: list[tuple[Path, RemoteUri]] = []

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let go of the folders; what is wrong with a copy is told of the object that it is of."""
        if isinstance(error, DagpackError):
            for path, uri in self._copies:
                for name in ("where", "found", "expected", "hint"):
                    setattr(error, name, getattr(error, name).replace(str(path), str(uri)))
        self._stack.__exit__(kind, error, traceback)

    def corpus(self, text: str | Path, out: str | Path | None = None, *, skip_bad: bool, again: bool = False) -> Path:
        """Return a corpus as a local folder or file; of a URI, a copy that is as its store is now.

        Args:
            text: the corpus.
            out: the output, which is never input.
            skip_bad: leave out objects that cannot be files.
            again: fetch unchanged objects too.

        Raises:
            UsageError: it is the output too, or no place.
            DagpackError: as `mirror_corpus`, or another build reads it (BusyError).
        """
        place = locate(text)
        if isinstance(place, Path):
            return place
        target = None if out is None else locate(out)
        below = target.below(place) if isinstance(target, RemoteUri) else None
        if below == "":
            raise UsageError("OUT", f"{place} is CORPUS too", "another place", hint="name a new one for the output")
        from dagpack_cli.remote.corpus import mirror_corpus
        from dagpack_cli.remote.stores import open_store

        folder = folder_of(place, self._local) / "corpus"
        store = open_store(place)
        self._stack.enter_context(lock_output(folder, wait=self._wait, tell=self._listener.note))
        copy = mirror_corpus(
            store,
            folder,
            exclude=[] if below is None else [below],
            skip_bad=skip_bad,
            again=again,
            workers=self._workers,
            listener=self._listener,
        )
        self._copies.append((copy, place))
        return copy

    def target(self, text: str | Path, *, check: bool = True, adopt: bool = False) -> Path:
        """Return the local output in which to build what is to be published at a place.

        Args:
            text: the output.
            check: compare what is published there with what was published from here.
            adopt: where that differs, fetch it and go on from it.

        Raises:
            MismatchError: somebody else published there.
            DagpackError: as `Publisher.check`, or another build holds the folder (BusyError).
        """
        place = locate(text)
        if isinstance(place, Path):
            return place
        from dagpack_cli.remote.publishing import Publisher
        from dagpack_cli.remote.stores import open_store

        folder = folder_of(place, self._local) / "build"
        store = open_store(place, OutputError)
        self._stack.enter_context(lock_output(folder, wait=self._wait, tell=self._listener.note))
        self._publisher = Publisher(store, folder, workers=self._workers, listener=self._listener)
        if check:
            self._publisher.check(adopt=adopt)
        return self._publisher.out

    def publish(self, generation: Path) -> str:
        """Publish what was built in `target`, where that is a URI; return where the generation is.

        Raises:
            DagpackError: as `Publisher.publish`; the local build is kept, and the next one goes on with it.
        """
        return str(generation) if self._publisher is None else self._publisher.publish(keep=self._keep)

    def source(self, text: str | Path, *, only_manifest: bool = False) -> Path:
        """Return a local output to read; of a URI, a copy of what is published there.

        Args:
            text: the output.
            only_manifest: nothing but CURRENT and the manifest will be read.

        Raises:
            DagpackError: as `fetch_output`.
        """
        place = locate(text)
        if isinstance(place, Path):
            return place
        from dagpack_cli.remote.output import fetch_output
        from dagpack_cli.remote.stores import open_store

        return fetch_output(
            open_store(place),
            folder_of(place, self._local) / "read" / "out",
            only_manifest=only_manifest,
            workers=self._workers,
            wait=max(self._wait, _READ_WAIT),
            listener=self._listener,
        )

    def trie(self, text: str | Path) -> Path:
        """Return a local output whose trie is to be packed: with one that is staged here, else what is published.

        Raises:
            DagpackError: as `source`.
        """
        place = locate(text)
        if isinstance(place, RemoteUri):
            staged = folder_of(place, self._local) / "build" / "out"
            if any((staged / STAGING).glob("next.json")):
                return staged
        return self.source(text)

    def source_or_corpus(self, text: str | Path, *, skip_bad: bool) -> Path:
        """Return a local copy of what a place is: an output, if something is published there, else a corpus.

        Raises:
            DagpackError: as `source` and `corpus`.
        """
        place = locate(text)
        if isinstance(place, Path):
            return place
        from dagpack_cli.remote.output import published
        from dagpack_cli.remote.stores import open_store

        if published(open_store(place)) is not None:
            return self.source(text)
        return self.corpus(text, skip_bad=skip_bad)


def local_output(out: str | Path, local: Path | None = None) -> Path:
    """Return an output as a local folder: a path as it is, a URI fetched into the user's cache or ``local``.

    Raises:
        NoInputError: nothing is published there.
        DagpackError: as `Edge.source`.
    """
    with Edge(local, workers=8) as edge:
        return edge.source(out)
