"""`export`: the examples of a build again, or its windows for another trainer."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dagpack_cli.cli.shared import open_build, open_edge, take_console
from dagpack_cli.errors import UsageError
from dagpack_cli.options import (
    LocalOpt,
    LogJsonOpt,
    OutArg,
)

__all__ = ["export"]


def export(
    ctx: typer.Context,
    out: OutArg,
    sequences: Annotated[
        bool, typer.Option("--sequences", help="Distinct sequences with counts, from the shards alone.")
    ] = False,
    transitions: Annotated[
        bool,
        typer.Option("--transitions", help="Rows with counts and weights, window by window, from the shards alone."),
    ] = False,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="trl|tree", help="Windows for another trainer: token sequences, or intervals."),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", metavar="train|val|all", help="With --to; else train.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            "--weights", metavar="one|column", help="With --to trl: refuse weights other than 0 and 1, or add them."
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help=".jsonl, or with --to .parquet; else JSONL to stdout."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it exists.")] = False,
    local: LocalOpt = None,
    log_json: LogJsonOpt = False,
) -> None:
    """Print a build's examples, after checking that its windows hold exactly them; or its windows."""
    values = dict(locals())
    from dagpack_cli import export as exporting

    _check_export(values)
    console = take_console(ctx)
    destination = exporting.Destination(output, force=force)
    with open_edge(values, console) as edge, open_build(edge.source(out)) as (generation, manifest):
        console.set_result(generation=generation.name, path=str(generation.path), ledger=manifest.ledger["total"])
        if to is not None:
            chosen = exporting.WindowExport(
                path=generation.path, manifest=manifest, form=to, partition=partition or "train", weights=weights
            )
            found = destination.write_windows(chosen, console)
        elif transitions:
            destination.write_records(exporting.export_transitions(generation.path, manifest))
        elif sequences:
            destination.write_records(exporting.export_sequences(generation.path, manifest))
        else:
            destination.write_records(exporting.export_examples(generation.path, manifest))
    console.close()
    if output is not None:
        print(f"{found}\nwritten: {output}" if to is not None else f"written: {output}")


def _check_export(values: dict[str, Any]) -> None:
    """Raise where options of an export exclude each other."""
    chosen = [f"--{name}" for name in ("to", "sequences", "transitions") if values[name]]
    if len(chosen) > 1:
        raise UsageError(chosen[0], f"{chosen[1]} is given too", "one of the two")
    for name in ("partition", "weights"):
        if values[name] is not None and values["to"] is None:
            raise UsageError(
                f"--{name}", "is given without --to", "it speaks of windows", hint="add --to trl, or leave it out"
            )
