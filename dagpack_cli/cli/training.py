"""`train` and `check`: the commands that need torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dagpack_cli.cli.shared import open_build, open_edge, print_json, reading, take_console
from dagpack_cli.cli.usage import SIZES, check_check, check_partition, check_train, has_validation
from dagpack_cli.cli.values import given
from dagpack_cli.options import (
    CheckPrecision,
    JsonOpt,
    LocalOpt,
    LogJsonOpt,
    Objective,
    ObjectiveOpt,
    OutArg,
    Parallel,
    Precision,
    QuietOpt,
)

if TYPE_CHECKING:
    from dagpack_cli.training import PretrainedOptions

__all__ = ["check", "train"]


def check(
    ctx: typer.Context,
    out: OutArg,
    model: Annotated[
        str | None, typer.Option("--model", metavar="DIR|NAME", help="A Hugging Face causal LM; else the built-in one.")
    ] = None,
    windows: Annotated[int, typer.Option("--windows", help="How many, chosen by --seed.")] = 4,
    partition: Annotated[str, typer.Option("--partition", help="train or val.")] = "train",
    precision: Annotated[CheckPrecision, typer.Option("--precision", help="Of everything.")] = CheckPrecision.FLOAT64,
    attention: Annotated[
        str | None, typer.Option("--attention", help="Of --model; by itself the one that training takes.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Of the choice, and of the built-in model's weights.")] = 0,
    local: LocalOpt = None,
    json_: JsonOpt = False,
    quiet: QuietOpt = False,
    log_json: LogJsonOpt = False,
) -> None:
    """Prove on your shards and model: windows give the logits, loss and gradients of their examples alone."""
    values = dict(locals())
    from dataclasses import asdict

    check_check(values)
    console = take_console(ctx, quiet=quiet)
    with open_edge(values, console) as edge:
        source = edge.source(out)
        with open_build(source) as (_, manifest):
            check_partition(partition, manifest)
        from dagpack_cli import training  # seconds, for which no mistake waits that can be seen without
        from dagpack_cli.errors import MismatchError
        from dagpack_cli.stages.dedup import TrieInfo

        with reading(source):
            shards = training.PackedWindows(source, partition=partition, objective="counted")
            TrieInfo.from_manifest(shards.manifest)  # which the check goes by, far from here
    chosen = training.PretrainedOptions(path=model, attention=attention or "auto") if model is not None else None
    small = training.DecoderConfig(vocab_size=shards.vocab_size, width=64, heads=2, feed_forward=128, layers=2)
    options = training.CheckOptions(windows=windows, seed=seed, precision=precision.value, device=device)
    found = []
    for checked in training.check_windows(shards, chosen or small, options):
        found.append(checked)
        console.progress("check", len(found), min(windows, len(shards)))
        if not quiet and not json_:
            console.close()
            print(training.describe(checked))
    failed = [checked for checked in found if not checked.passed]
    if json_:
        print_json({"ok": not failed, "windows": [asdict(checked) | {"ok": checked.passed} for checked in found]})
    elif not quiet and not failed:
        print(training.conclude(found, precision.value))
    if failed:
        raise MismatchError(
            f"window {failed[0].window:,} of {out}",
            training.describe(failed[0]).partition(": ")[2],
            f"at most {failed[0].tolerance:g} of each, and a control above that",
            hint="dagpack verify OUT says whether the shards are as they were written",
        )


def _model_of(values: dict[str, Any]) -> PretrainedOptions | None:
    """Return the model to fine-tune; None for the built-in decoder."""
    from dagpack_cli.training import LoraOptions, PretrainedOptions

    if values["model"] is None:
        return None
    lora = None
    if values["lora"] is not None:
        targets = tuple(name.strip() for name in (values["lora_targets"] or "all-linear").split(",") if name.strip())
        lora = LoraOptions(rank=values["lora"], alpha=values["lora_alpha"], targets=targets)
    return PretrainedOptions(
        path=values["model"],
        attention=values["attention"] or "auto",
        lora=lora,
        gradient_checkpointing=values["gradient_checkpointing"],
    )


def train(
    ctx: typer.Context,
    shards: Annotated[
        list[str],
        typer.Option("--shards", metavar="OUT", help="An output of build. May be repeated."),
    ],
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Folder for steps.jsonl and checkpoints; else steps go to stdout."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --run.")] = False,
    objective: ObjectiveOpt = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Passes over the windows; else 1.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Optimiser steps in all, in place of --epochs.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Most windows of a forward pass.")] = 1,
    max_cells: Annotated[int | None, typer.Option("--max-cells", help="Most cells of a forward pass.")] = None,
    accumulate: Annotated[int, typer.Option("--accumulate", help="Forward passes of a step.")] = 1,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="The highest.")] = 3e-4,
    warmup_steps: Annotated[int, typer.Option("--warmup-steps", help="Steps in which it rises.")] = 0,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Of AdamW.")] = 0.1,
    clip: Annotated[float, typer.Option("--clip", help="Largest gradient norm; 0 for none.")] = 1.0,
    validate_every: Annotated[int, typer.Option("--validate-every", help="Steps between; 0: at the end.")] = 0,
    checkpoint_every: Annotated[int, typer.Option("--checkpoint-every", help="Steps between; 0: at the end.")] = 0,
    keep_checkpoints: Annotated[
        int, typer.Option("--keep-checkpoints", metavar="N", help="Newest ones that stay; 0: all.")
    ] = 0,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="DIR|NAME", help="A Hugging Face causal LM to fine-tune; saved in --run."),
    ] = None,
    attention: Annotated[
        str | None, typer.Option("--attention", help="Of --model; by itself the fastest exact one.")
    ] = None,
    lora: Annotated[int | None, typer.Option("--lora", metavar="RANK", help="Train adapters of --model alone.")] = None,
    lora_alpha: Annotated[
        float | None, typer.Option("--lora-alpha", help="Their scale x rank; else twice the rank.")
    ] = None,
    lora_targets: Annotated[
        str | None, typer.Option("--lora-targets", metavar="NAMES", help="Modules, by comma; else all-linear.")
    ] = None,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Of --model: less memory, a third more work.")
    ] = False,
    width: Annotated[int | None, typer.Option("--width", help="Of the built-in decoder; else 256.")] = None,
    heads: Annotated[int | None, typer.Option("--heads", help="Of its attention; else 4.")] = None,
    feed_forward: Annotated[int | None, typer.Option("--feed-forward", help="Its inner width; else 768.")] = None,
    layers: Annotated[int | None, typer.Option("--layers", help="Its depth; else 4.")] = None,
    parallel: Annotated[
        Parallel, typer.Option("--parallel", help="With torchrun: the model whole in each process, or sharded.")
    ] = Parallel.DDP,
    precision: Annotated[Precision, typer.Option("--precision", help="Of activations.")] = Precision.AUTO,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Of the order and the first weights.")] = 0,
    workers: Annotated[int, typer.Option("--workers", help="Processes that read ahead.")] = 0,
    local: LocalOpt = None,
    quiet: QuietOpt = False,
    log_json: LogJsonOpt = False,
) -> None:
    """Train on shards, exactly: the built-in decoder, or a model of yours; alone or under torchrun."""
    values = dict(locals()) | {"epochs": epochs or 1}
    check_train(values | {"epochs": epochs})
    resumed = "the same command with --resume goes on from the newest checkpoint, if --checkpoint-every has written one"
    console = take_console(ctx, quiet=quiet, after_signal=resumed if run is not None else "")
    console.leave_to_first()
    chosen: Literal["counted", "unique"] | None = None
    if objective is not None:
        chosen = "unique" if objective is Objective.UNIQUE else "counted"
    with open_edge(values, console) as edge:
        outs = [edge.source(out) for out in shards]
    has_val = has_validation(shards, outs, validate_every, console)
    from dagpack_cli import training  # seconds, for which no mistake waits that can be seen without

    chosen_model = _model_of(values)
    for source in outs:  # each alone, so that what is wrong with one is told of it
        with reading(source):
            training.PackedWindows(source, objective=chosen)
            if has_val:
                training.PackedWindows(source, partition="val", objective=chosen)
    windows = training.PackedWindows(*outs, objective=chosen)
    names = training.TrainOptions.__dataclass_fields__.keys() & values.keys()
    result = training.train(
        windows,
        chosen_model or training.DecoderConfig(vocab_size=windows.vocab_size, **given(values, SIZES)),
        training.TrainOptions(
            **{name: values[name] for name in names} | {"precision": precision.value, "parallel": parallel.value}
        ),
        val=training.PackedWindows(*outs, partition="val", objective=chosen) if has_val else None,
        run=run,
        resume=resume,
        log=None if run is not None else sys.stdout,
        listener=console,
    )
    if run is None:
        console.tell(training.summary(result))
    elif not console.silent:
        console.close()
        print(training.summary(result))
