"""Commands that look at what is there: `stats`, `verify`, `show`, `draw`, `path`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from dagpack_cli.cli.shared import open_build, open_edge, print_json, reading, take_console
from dagpack_cli.options import (
    JsonOpt,
    LocalOpt,
    LogJsonOpt,
    OutArg,
    QuietOpt,
)

__all__ = ["draw", "path", "show", "stats", "verify"]


def stats(out: OutArg, local: LocalOpt = None, json_: JsonOpt = False) -> None:
    """Print what the build stored: ledger, windows and bound, savings, profile, shared prefixes."""
    values = dict(locals())
    from dagpack_cli.stats import describe, format_stats

    with open_edge(values) as edge, open_build(edge.source(out, only_manifest=True)) as (generation, manifest):
        if json_:
            print_json(describe(manifest, generation.name))
        else:
            print(format_stats(manifest, generation.name))


def verify(
    ctx: typer.Context,
    out: OutArg,
    local: LocalOpt = None,
    json_: JsonOpt = False,
    quiet: QuietOpt = False,
    log_json: LogJsonOpt = False,
) -> None:
    """Check every checksum and every invariant of the windows; exit 76 if anything is wrong."""
    values = dict(locals())
    from dataclasses import asdict

    from dagpack_cli.errors import DamageError
    from dagpack_cli.verify import verify_generation

    console = take_console(ctx, quiet=quiet)
    with open_edge(values, console) as edge, open_build(edge.source(out)) as (generation, manifest):
        console.set_result(generation=generation.name, path=str(generation.path), ledger=manifest.ledger["total"])
        report = verify_generation(generation.path, manifest)
    if json_:
        print_json(asdict(report) | {"ok": not report.failures})
    elif not report.failures and not quiet:
        print(f"ok: {report.files:,} files, {report.windows:,} windows, {report.rows:,} rows verified")
    if report.failures:
        if not json_:
            print("\n".join(report.failures))
        more = f" (and {len(report.failures) - 1:,} more)" if len(report.failures) > 1 else ""
        where, _, found = report.failures[0].partition(": ")
        raise DamageError(where, f"{found}{more}")


def show(
    out: OutArg,
    window: Annotated[int, typer.Option("--window", help="Its number in the partition.")] = 0,
    partition: Annotated[str, typer.Option("--partition", help="train or val.")] = "train",
    first_row: Annotated[int, typer.Option("--first-row", help="The first row shown.")] = 0,
    rows: Annotated[int, typer.Option("--rows", help="How many rows are shown; 0 for all.")] = 48,
    local: LocalOpt = None,
    json_: JsonOpt = False,
) -> None:
    """Show one window as aligned columns beside its mask."""
    values = dict(locals())
    from dagpack_cli.show import describe_window, format_window

    with open_edge(values) as edge, open_build(edge.source(out)) as (generation, manifest):
        facts = describe_window(
            generation.path, manifest, partition, window, first_row=first_row, num_rows=rows or None
        )
    if json_:
        print_json(facts)
    else:
        print(format_window(facts))


def draw(
    what: Annotated[
        str,
        typer.Argument(metavar="WHAT", help="An output of build, a session, or recordings of a game."),
    ],
    window: Annotated[int | None, typer.Option("--window", help="Of a build, this window; 0 if not --trie.")] = None,
    trie: Annotated[bool, typer.Option("--trie", help="Of a build, its trie.")] = False,
    partition: Annotated[str | None, typer.Option("--partition", help="Of a build, train (default) or val.")] = None,
    max_nodes: Annotated[int | None, typer.Option("--max-nodes", help="Most nodes of a tree, graph or trie.")] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE.svg", help="Else SVG to stdout.")] = None,
    local: LocalOpt = None,
) -> None:
    """Draw a build's window or trie, a session's tree or a game's graph as self-contained SVG."""
    values = dict(locals())
    from dagpack_cli import drawing

    with open_edge(values) as edge:
        source = edge.source_or_corpus(what, skip_bad=True)
        with reading(source):
            picture = drawing.draw(source, window=window, trie=trie, partition=partition, max_nodes=max_nodes)
    if output is not None:
        drawing.write_picture(output, picture)
    else:
        sys.stdout.buffer.write(picture.encode())  # UTF-8 wherever it goes
        sys.stdout.buffer.flush()


def path(out: OutArg, local: LocalOpt = None) -> None:
    """Print the directory of the current generation."""
    values = dict(locals())
    with open_edge(values) as edge, open_build(edge.source(out)) as (generation, _):
        print(generation.path)
