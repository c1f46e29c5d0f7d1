"""What is drawn of what: a build, a session or recordings, told apart by their content."""

from __future__ import annotations

from pathlib import Path

from dagpack_cli.corpora.discover import discover
from dagpack_cli.corpora.files.sources import read_source_rows, stat_source
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import BadRecords
from dagpack_cli.corpora.sniff import format_of_file
from dagpack_cli.drawing.events import is_pi
from dagpack_cli.drawing.graph import draw_game
from dagpack_cli.drawing.recordings import is_recording
from dagpack_cli.drawing.tree import draw_session
from dagpack_cli.drawing.trie import draw_trie
from dagpack_cli.drawing.window import draw_window
from dagpack_cli.errors import NoInputError, OutputError, UsageError
from dagpack_cli.storage import is_output, open_current, write_atomic

__all__ = ["draw", "write_picture"]

_GAMES = ("arc-agi-3", "transitions")


def draw(
    what: Path,
    *,
    window: int | None = None,
    trie: bool = False,
    partition: str | None = None,
    max_nodes: int | None = None,
    options: ReadOptions | None = None,
) -> str:
    """Return the picture of whatever ``what`` is, as the text of an SVG file.

    Args:
        what: the output directory of a build (one window or the trie is drawn), a session file, or a
            file or folder of recordings of a game.
        window: of a build, the window's number; 0 where neither it nor ``trie`` is given.
        trie: of a build, draw the trie.
        partition: of a build, train (also for None) or val.
        max_nodes: most nodes of a tree, graph or trie; None for what fits a page.
        options: which fields of transitions hold episode, state and action.

    Raises:
        UsageError: options that do not go together or with what is drawn.
        NoInputError: nothing in it can be drawn.
        DataError, DamageError, PermissionDeniedError, DiskError: it cannot be read.
    """
    if max_nodes is not None and max_nodes < 1:
        raise UsageError("--max-nodes", f"{max_nodes:,}", "at least 1")
    if window is not None and trie:
        raise UsageError("--window", "--trie is given too", "one of the two")
    limit = {} if max_nodes is None else {"max_nodes": max_nodes}
    if is_output(what):
        with open_current(what) as generation:
            if trie:
                return draw_trie(generation.path, partition or "train", **limit)
            if max_nodes is not None:
                raise UsageError("--max-nodes", "a window is drawn whole", "--trie", hint="add --trie")
            return draw_window(generation.path, window or 0, partition or "train")
    given = {"--window": window is not None, "--trie": trie, "--partition": partition is not None}
    for option, is_given in given.items():
        if is_given:
            hint = f"build it first: dagpack build {what} OUT, then dagpack draw OUT"
            raise UsageError(option, f"{what} is no output of build", "a build has windows and a trie", hint=hint)
    if what.is_dir():
        return draw_game(_recordings(what, options), options=options, **limit)
    if _is_game(what, options):
        return draw_game([what], options=options, **limit)
    return draw_session(what, **limit)


def _recordings(folder: Path, options: ReadOptions | None) -> list[Path]:
    """Return the recordings in a folder, which holds nothing else that is input."""
    inputs = discover(folder, options=options, on_bad=BadRecords()).inputs
    other = next((source for source in inputs if source.format not in _GAMES), None)
    if other is not None:
        hint = f"draw one session: dagpack draw {other.path}; or build the folder and draw the build"
        raise NoInputError(
            str(folder), f"{other.name} is {other.format}", "a folder of recordings of a game", hint=hint
        )
    return [source.path for source in inputs]


def _is_game(path: Path, options: ReadOptions | None) -> bool:
    if not path.exists():
        raise NoInputError(str(path), "does not exist", "an output of build, a session, or recordings of a game")
    if is_pi(path):
        return False
    if format_of_file(path, path.name, ReadOptions() if options is None else options)[0] in _GAMES:
        return True
    first = next(read_source_rows(stat_source(path, path.name, ""), BadRecords()), None)
    return first is not None and is_recording(first[1])


def write_picture(path: Path, picture: str) -> None:
    """Write a picture to a file, whole or not at all.

    Raises:
        OutputError: its folder does not exist, or it is a folder itself.
    """
    if path.is_dir() or not path.parent.is_dir():
        found = "is a folder" if path.is_dir() else "its folder does not exist"
        raise OutputError(str(path), found, "a file in a folder that exists", hint="name a file: --output picture.svg")
    write_atomic(path, picture.encode("utf-8"))
