"""The pictures of the README, drawn from fixtures: ``python -m tests.pictures`` draws them again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from dagpack_cli.drawing import draw, write_picture
from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.pipeline import Execution, TokenizerChoice, build

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
FOLDER = FIXTURES / "pictures"


def _window() -> str:
    """Draw the packed window of three runs of a game of labelled states."""
    with TemporaryDirectory() as folder:
        out = Path(folder, "out")
        build(
            FIXTURES / "tiny" / "transitions",
            out,
            tokenizer=TokenizerChoice(),
            ingest_options=IngestOptions(),
            trie_options=TrieOptions(),
            pack_options=PackOptions(seq_len=8),
            execution=Execution(),
        )
        return draw(out)


PICTURES: dict[str, Callable[[], str]] = {
    "game.svg": lambda: draw(FOLDER / "grid-game"),
    "window.svg": _window,
    "session.svg": lambda: draw(FOLDER / "session.jsonl"),
}

if __name__ == "__main__":
    for name, picture in PICTURES.items():
        write_picture(FOLDER / name, picture())
        print(FOLDER / name)
