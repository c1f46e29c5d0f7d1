"""The command line: options -> one call -> print. Data to stdout, everything else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import dagpack_cli
from dagpack_cli.cli.building import build, dedup, ingest, pack
from dagpack_cli.cli.exporting import export
from dagpack_cli.cli.looking import draw, path, show, stats, verify
from dagpack_cli.cli.planning import plan
from dagpack_cli.cli.quick import QuickCommand, QuickGroup
from dagpack_cli.cli.running import run
from dagpack_cli.cli.training import check, train

__all__ = ["app", "main"]

app = typer.Typer(
    name="dagpack",
    cls=QuickGroup,
    help="Merge shared prefixes of a corpus once, pack the trie into training windows, lose nothing.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    # One width everywhere, so that the README can show the help and a test can hold it there.
    context_settings={"help_option_names": ["-h", "--help"], "terminal_width": 100},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"dagpack {dagpack_cli.__version__}")
        raise typer.Exit


@app.callback()
def dagpack(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Merge shared prefixes of a corpus once, pack the trie into training windows, lose nothing."""


for command in (build, plan, ingest, dedup, pack, stats, verify, show, draw, export, check, train, path):
    app.command(cls=QuickCommand)(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    run(app, sys.argv[1:] if arguments is None else arguments)
