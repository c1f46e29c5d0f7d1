"""The command line: options -> one call -> print. Data to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

import dagpack_cli
from dagpack_cli.console import Console
from dagpack_cli.errors import DagpackError, UsageError
from dagpack_cli.failpoints import arm_from_environment
from dagpack_cli.options import (
    ActionFieldOpt,
    ActionTakenOpt,
    AdoptOpt,
    BosOpt,
    CacheOpt,
    ChatTemplateOpt,
    CompressionOpt,
    CorpusArg,
    DropOpt,
    Engine,
    EngineOpt,
    EosOpt,
    EpisodeFieldOpt,
    FormatOpt,
    GridTokensOpt,
    GroupWeight,
    GroupWeightOpt,
    JsonOpt,
    KeepOpt,
    Layout,
    LayoutOpt,
    LocalOpt,
    LogJsonOpt,
    MaxDecompressedBytesOpt,
    MaxDepthOpt,
    MaxLineBytesOpt,
    MaxRatioOpt,
    MemoryOpt,
    Merge,
    MergeOpt,
    MinSharedOpt,
    Objective,
    ObjectiveOpt,
    OnError,
    OnErrorOpt,
    OnLong,
    OnLongOpt,
    OutArg,
    PerTurnOpt,
    PolishOpt,
    Precision,
    Predict,
    PredictOpt,
    PruneOpt,
    QuietOpt,
    RehashOpt,
    SeedOpt,
    SeqLenOpt,
    ShardFormat,
    ShardFormatOpt,
    StateFieldOpt,
    StrictMarkovOpt,
    Supervise,
    SuperviseOpt,
    SystemOpt,
    TemplateDateOpt,
    TextFieldOpt,
    ThinkingOpt,
    TokenizerOpt,
    ToolCallsOpt,
    ToolsOpt,
    ValFractionOpt,
    VirtualRootIdOpt,
    VirtualRootOpt,
    WaitOpt,
    WindowLenOpt,
    WorkersOpt,
)

if TYPE_CHECKING:
    from types import FrameType

    from dagpack_cli.manifest import IngestOptions, Manifest, PackOptions, TrieOptions
    from dagpack_cli.pipeline import BuildResult, Execution, TokenizerChoice
    from dagpack_cli.remote import Edge

__all__ = ["app", "main"]

app = typer.Typer(
    name="dagpack",
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


def _ingest_options(values: dict[str, Any]) -> IngestOptions:
    from dagpack_cli.manifest import IngestOptions

    episode = values["episode_field"]
    return IngestOptions(
        format=values["format"],
        on_error=values["on_error"].value,
        text_field=values["text_field"],
        episode_field=None if episode == "none" else episode,
        state_field=values["state_field"],
        action_field=values["action_field"],
        action_taken=values["action_taken"],
        drop_transition=tuple(values["drop_transition"] or ()),
        predict=values["predict"].value,
        grid_tokens=values["grid_tokens"],
        group_weight=values["group_weight"].value,
        supervise=values["supervise"].value,
        thinking=values["thinking"],
        tool_calls=values["tool_calls"],
        per_turn=values["per_turn"],
        system=_text_of("--system", values["system"]),
        tools=_tools_of(values["tools"]),
        max_line_bytes=values["max_line_bytes"],
        max_decompressed_bytes=values["max_decompressed_bytes"],
        max_ratio=values["max_ratio"],
        max_depth=values["max_depth"],
    )


def _text_of(option: str, path: Path | None) -> str:
    """Return the text of a small file that an option names."""
    if path is None:
        return ""
    from dagpack_cli.errors import NoInputError

    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise NoInputError(f"{option} {path}", "does not exist", "a text file") from None
    except IsADirectoryError:
        raise UsageError(f"{option} {path}", "is a directory", "a text file") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{option} {path}", f"byte {error.start + 1:,} is not UTF-8", "a text file") from None
    if not text.strip():
        raise UsageError(f"{option} {path}", "is empty", "a text file")
    return text


def _tools_of(path: Path | None) -> str:
    """Return the tools in a file as JSON text."""
    text = _text_of("--tools", path)
    if text:
        from dagpack_cli.corpora import tools_of

        tools_of(text, f"--tools {path}")
    return text


def _trie_options(values: dict[str, Any], layout: str) -> TrieOptions:
    from dagpack_cli.manifest import TrieOptions
    from dagpack_cli.pipeline import check_merge

    root_id = values["virtual_root_id"]
    root = str(root_id) if root_id is not None else "auto" if values["virtual_root"] else None
    return TrieOptions(
        merge=check_merge(values["merge"], layout),
        virtual_root=root,
        strict_markov=values["strict_markov"],
        min_shared=values["min_shared"],
        val_fraction=values["val_fraction"],
        seed=values["seed"],
    )


def _pack_options(values: dict[str, Any], merge: str) -> PackOptions:
    from dagpack_cli.manifest import PackOptions

    objective = values["objective"]
    return PackOptions(
        seq_len=values["seq_len"],
        window_len=values["window_len"],
        layout=values["layout"].value,
        on_long=values["on_long"].value,
        prune=values["prune"],
        polish=values["polish"],
        objective=("unique" if merge == "state" else "counted") if objective is None else objective.value,
        shard_format=values["shard_format"].value,
        compression_level=values["compression_level"],
    )


def _execution(values: dict[str, Any], console: Console) -> Execution:
    from dagpack_cli.memory import parse_memory
    from dagpack_cli.pipeline import Execution

    return Execution(
        workers=values["workers"],
        engine=values["engine"].value,
        rehash=values.get("rehash", False),
        keep=values.get("keep", 2),
        wait=values.get("wait", 0.0),
        memory=None if values.get("memory") is None else parse_memory(values["memory"]),
        cache=values.get("cache", True),
        listener=console,
    )


def _tokenizer(values: dict[str, Any]) -> TokenizerChoice:
    from dagpack_cli.pipeline import TokenizerChoice

    return TokenizerChoice(
        spec=values["tokenizer"],
        bos=values["bos"],
        eos=values["eos"],
        template=values["chat_template"],
        template_date=values["template_date"],
    )


_GOES_ON = "the current build stays, and the same command goes on where this one stopped"


def _console(ctx: typer.Context, *, quiet: bool = False, after_signal: str = "") -> Console:
    """Return the console that `main` made before the options were known."""
    console: Console = ctx.obj
    console.quiet, console.after_signal = quiet, after_signal
    return console


def _edge(values: dict[str, Any], console: Console | None = None) -> Edge:
    """Return what makes local paths of the places that a command is given, and takes results where they belong."""
    from dagpack_cli.remote import Edge

    return Edge(
        values["local"],
        workers=values.get("workers") or 8,
        wait=values.get("wait", 0.0),
        keep=values.get("keep", 2),
        listener=console,
    )


def _print_result(result: BuildResult, console: Console, where: str) -> None:
    """Print what was built, and where it was published."""
    from dagpack_cli.stats import format_summary

    console.close()
    console.set_result(
        generation=result.path.name,
        path=where,
        unchanged=result.unchanged,
        ledger=result.manifest.ledger["total"],
    )
    if console.quiet:
        return
    if result.unchanged:
        print(f"unchanged: {where} is what this build would write")
    else:
        print(f"{format_summary(result.manifest)}\nwritten: {where}")


@app.command()
def build(
    ctx: typer.Context,
    corpus: CorpusArg,
    out: OutArg,
    tokenizer: TokenizerOpt = "auto",
    bos: BosOpt = None,
    eos: EosOpt = None,
    format: FormatOpt = None,
    on_error: OnErrorOpt = OnError.FAIL,
    text_field: TextFieldOpt = "text",
    episode_field: EpisodeFieldOpt = "episode",
    state_field: StateFieldOpt = "state",
    action_field: ActionFieldOpt = "action",
    action_taken: ActionTakenOpt = False,
    drop_transition: DropOpt = None,
    predict: PredictOpt = Predict.NEXT_STATE,
    grid_tokens: GridTokensOpt = False,
    group_weight: GroupWeightOpt = GroupWeight.NONE,
    chat_template: ChatTemplateOpt = "auto",
    template_date: TemplateDateOpt = None,
    supervise: SuperviseOpt = Supervise.ASSISTANT,
    thinking: ThinkingOpt = True,
    tool_calls: ToolCallsOpt = True,
    per_turn: PerTurnOpt = False,
    system: SystemOpt = None,
    tools: ToolsOpt = None,
    max_line_bytes: MaxLineBytesOpt = None,
    max_decompressed_bytes: MaxDecompressedBytesOpt = None,
    max_ratio: MaxRatioOpt = None,
    max_depth: MaxDepthOpt = None,
    merge: MergeOpt = None,
    virtual_root: VirtualRootOpt = False,
    virtual_root_id: VirtualRootIdOpt = None,
    strict_markov: StrictMarkovOpt = False,
    min_shared: MinSharedOpt = 1,
    val_fraction: ValFractionOpt = 0.0,
    seed: SeedOpt = 0,
    seq_len: SeqLenOpt = 8192,
    window_len: WindowLenOpt = None,
    layout: LayoutOpt = Layout.DAG,
    on_long: OnLongOpt = OnLong.ERROR,
    prune: PruneOpt = True,
    polish: PolishOpt = None,
    objective: ObjectiveOpt = None,
    shard_format: ShardFormatOpt = ShardFormat.PARQUET,
    compression_level: CompressionOpt = 1,
    workers: WorkersOpt = 1,
    engine: EngineOpt = Engine.AUTO,
    keep: KeepOpt = 2,
    rehash: RehashOpt = False,
    memory: MemoryOpt = None,
    cache: CacheOpt = True,
    wait: WaitOpt = 0.0,
    local: LocalOpt = None,
    adopt: AdoptOpt = False,
    quiet: QuietOpt = False,
    log_json: LogJsonOpt = False,
) -> None:
    """Build a corpus into OUT: ingest, dedup, pack, publish."""
    values = dict(locals())
    from dagpack_cli import pipeline

    console = _console(ctx, quiet=quiet, after_signal=_GOES_ON)
    trie_options = _trie_options(values, layout.value)
    options: dict[str, Any] = {
        "tokenizer": _tokenizer(values),
        "ingest_options": _ingest_options(values),
        "trie_options": trie_options,
        "pack_options": _pack_options(values, trie_options.merge),
        "execution": _execution(values, console),
    }
    with _edge(values, console) as edge:
        target = edge.target(out, adopt=adopt)
        source = edge.corpus(corpus, out, skip_bad=on_error is OnError.SKIP, again=rehash)
        result = pipeline.build(source, target, **options)
        _print_result(result, console, edge.publish(result.path))


def _numbers(text: str, option: str) -> list[int]:
    """Return the numbers of a list with commas."""
    words = [word.strip() for word in text.split(",")]
    if bad := [word for word in words if not word.isdecimal()]:
        raise UsageError(option, f'"{bad[0]}" in "{text}"', "whole numbers with commas between them")
    return [int(word) for word in words]


@app.command()
def plan(
    source: Annotated[str, typer.Argument(metavar="CORPUS|OUT", help="A corpus, or the output of a build.")],
    seq_len: Annotated[
        str, typer.Option("--seq-len", metavar="N,N,...", help="Rows of a window, one or several lengths.")
    ] = "2048,8192,32768,131072",
    tokenizer: TokenizerOpt = "auto",
    bos: BosOpt = None,
    eos: EosOpt = None,
    format: FormatOpt = None,
    on_error: OnErrorOpt = OnError.FAIL,
    text_field: TextFieldOpt = "text",
    episode_field: EpisodeFieldOpt = "episode",
    state_field: StateFieldOpt = "state",
    action_field: ActionFieldOpt = "action",
    action_taken: ActionTakenOpt = False,
    drop_transition: DropOpt = None,
    predict: PredictOpt = Predict.NEXT_STATE,
    grid_tokens: GridTokensOpt = False,
    group_weight: GroupWeightOpt = GroupWeight.NONE,
    chat_template: ChatTemplateOpt = "auto",
    template_date: TemplateDateOpt = None,
    supervise: SuperviseOpt = Supervise.ASSISTANT,
    thinking: ThinkingOpt = True,
    tool_calls: ToolCallsOpt = True,
    per_turn: PerTurnOpt = False,
    system: SystemOpt = None,
    tools: ToolsOpt = None,
    max_line_bytes: MaxLineBytesOpt = None,
    max_decompressed_bytes: MaxDecompressedBytesOpt = None,
    max_ratio: MaxRatioOpt = None,
    max_depth: MaxDepthOpt = None,
    workers: WorkersOpt = 1,
    engine: EngineOpt = Engine.AUTO,
    merge: MergeOpt = None,
    virtual_root: VirtualRootOpt = False,
    virtual_root_id: VirtualRootIdOpt = None,
    strict_markov: StrictMarkovOpt = False,
    min_shared: Annotated[
        str | None,
        typer.Option(
            "--min-shared",
            metavar="N,N,...",
            help="Merge no shared prefix of fewer tokens, one or several N; of an output, not fewer than its own.",
        ),
    ] = None,
    val_fraction: ValFractionOpt = 0.0,
    seed: SeedOpt = 0,
    on_long: Annotated[OnLong, typer.Option("--on-long", help="What happens to longer examples.")] = OnLong.SPLIT,
    prune: PruneOpt = True,
    polish: PolishOpt = None,
    local: LocalOpt = None,
    json_: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Say what packing would give at several lengths, without writing shards."""
    values = dict(locals()) | {"min_shared": 1}
    from dagpack_cli import pipeline
    from dagpack_cli.stats import describe_plan, format_plan

    console = Console(quiet=quiet)
    trie_options = _trie_options(values, "dag")
    lengths, shared = (
        [] if text is None else _numbers(text, option)
        for text, option in ((seq_len, "--seq-len"), (min_shared, "--min-shared"))
    )
    more: dict[str, Any] = {"window_len": None, "layout": Layout.DAG, "objective": None, "compression_level": 1}
    listed = [
        _pack_options(values | more | {"seq_len": length, "shard_format": ShardFormat.PARQUET}, trie_options.merge)
        for length in lengths
    ]
    options: dict[str, Any] = {
        "tokenizer": _tokenizer(values),
        "ingest_options": _ingest_options(values),
        "trie_options": trie_options,
        "pack_options": listed,
        "execution": _execution(values, console),
        "min_shared": shared,
    }
    with _edge(values, console) as edge:
        plans = pipeline.plan(edge.source_or_corpus(source, skip_bad=on_error is OnError.SKIP), **options)
    console.close()
    if json_:
        _print_json(describe_plan(plans))
    else:
        print(format_plan(plans))


@app.command()
def ingest(
    ctx: typer.Context,
    corpus: CorpusArg,
    out: OutArg,
    tokenizer: TokenizerOpt = "auto",
    bos: BosOpt = None,
    eos: EosOpt = None,
    format: FormatOpt = None,
    on_error: OnErrorOpt = OnError.FAIL,
    text_field: TextFieldOpt = "text",
    episode_field: EpisodeFieldOpt = "episode",
    state_field: StateFieldOpt = "state",
    action_field: ActionFieldOpt = "action",
    action_taken: ActionTakenOpt = False,
    drop_transition: DropOpt = None,
    predict: PredictOpt = Predict.NEXT_STATE,
    grid_tokens: GridTokensOpt = False,
    group_weight: GroupWeightOpt = GroupWeight.NONE,
    chat_template: ChatTemplateOpt = "auto",
    template_date: TemplateDateOpt = None,
    supervise: SuperviseOpt = Supervise.ASSISTANT,
    thinking: ThinkingOpt = True,
    tool_calls: ToolCallsOpt = True,
    per_turn: PerTurnOpt = False,
    system: SystemOpt = None,
    tools: ToolsOpt = None,
    max_line_bytes: MaxLineBytesOpt = None,
    max_decompressed_bytes: MaxDecompressedBytesOpt = None,
    max_ratio: MaxRatioOpt = None,
    max_depth: MaxDepthOpt = None,
    workers: WorkersOpt = 1,
    engine: EngineOpt = Engine.AUTO,
    rehash: RehashOpt = False,
    wait: WaitOpt = 0.0,
    local: LocalOpt = None,
    adopt: AdoptOpt = False,
    quiet: QuietOpt = False,
    log_json: LogJsonOpt = False,
) -> None:
    """First stage of build: read, render and tokenise into OUT's staging area."""
    values = dict(locals())
    from dagpack_cli import pipeline

    console = _console(ctx, quiet=quiet, after_signal=_GOES_ON)
    options: dict[str, Any] = {
        "tokenizer": _tokenizer(values),
        "ingest_options": _ingest_options(values),
        "execution": _execution(values, console),
    }
    with _edge(values, console) as edge:
        target = edge.target(out, adopt=adopt)
        source = edge.corpus(corpus, out, skip_bad=on_error is OnError.SKIP, again=rehash)
        staged = pipeline.ingest(source, target, **options)
    console.close()
    if not quiet:
        print(f"ingested: {staged}; next: dagpack dedup {out}")


@app.command()
def dedup(
    ctx: typer.Context,
    out: OutArg,
    merge: MergeOpt = None,
    virtual_root: VirtualRootOpt = False,
    virtual_root_id: VirtualRootIdOpt = None,
    strict_markov: StrictMarkovOpt = False,
    min_shared: MinSharedOpt = 1,
    val_fraction: ValFractionOpt = 0.0,
    seed: SeedOpt = 0,
    workers: WorkersOpt = 1,
    engine: EngineOpt = Engine.AUTO,
    memory: MemoryOpt = None,
    wait: WaitOpt = 0.0,
    local: LocalOpt = None,
    quiet: QuietOpt = False,
    log_json: LogJsonOpt = False,
) -> None:
    """Second stage of build: merge what was ingested into OUT last into a trie on disk."""
    values = dict(locals())
    from dagpack_cli import pipeline

    console = _console(ctx, quiet=quiet, after_signal=_GOES_ON)
    layout = "packed" if merge == Merge.NONE else "dag"
    trie_options, execution = _trie_options(values, layout), _execution(values, console)
    with _edge(values, console) as edge:
        trie = pipeline.dedup(edge.target(out, check=False), trie_options=trie_options, execution=execution)
    console.close()
    if not quiet:
        print(f"merged: {trie}; next: dagpack pack {out}")


@app.command()
def pack(
    ctx: typer.Context,
    out: OutArg,
    new_out: Annotated[
        str | None,
        typer.Argument(metavar="NEW_OUT", help="Where to publish, if not in OUT itself."),
    ] = None,
    seq_len: SeqLenOpt = 8192,
    window_len: WindowLenOpt = None,
    layout: LayoutOpt = Layout.DAG,
    on_long: OnLongOpt = OnLong.ERROR,
    prune: PruneOpt = True,
    polish: PolishOpt = None,
    objective: ObjectiveOpt = None,
    shard_format: ShardFormatOpt = ShardFormat.PARQUET,
    compression_level: CompressionOpt = 1,
    workers: WorkersOpt = 1,
    engine: EngineOpt = Engine.AUTO,
    keep: KeepOpt = 2,
    memory: MemoryOpt = None,
    cache: CacheOpt = True,
    wait: WaitOpt = 0.0,
    local: LocalOpt = None,
    adopt: AdoptOpt = False,
    quiet: QuietOpt = False,
    log_json: LogJsonOpt = False,
) -> None:
    """Last stage of build: pack OUT's trie into windows, without touching text."""
    values = dict(locals())
    from dagpack_cli import pipeline

    console = _console(ctx, quiet=quiet, after_signal=_GOES_ON)
    execution = _execution(values, console)
    with _edge(values, console) as edge:
        target = edge.target(out if new_out is None else new_out, adopt=adopt)
        source = target if new_out is None else edge.trie(out)
        pack_options = _pack_options(values, pipeline.stored_merge(source))
        result = pipeline.pack(source, target, pack_options=pack_options, execution=execution)
        _print_result(result, console, edge.publish(result.path))


@app.command()
def stats(out: OutArg, local: LocalOpt = None, json_: JsonOpt = False) -> None:
    """Print what the build stored: ledger, windows and bound, savings, profile, shared prefixes."""
    values = dict(locals())
    from dagpack_cli.stats import describe, format_stats

    with _edge(values) as edge, _open(edge.source(out, only_manifest=True)) as (generation, manifest):
        if json_:
            _print_json(describe(manifest, generation.name))
        else:
            print(format_stats(manifest, generation.name))


@app.command()
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

    console = _console(ctx, quiet=quiet)
    with _edge(values, console) as edge, _open(edge.source(out)) as (generation, manifest):
        console.set_result(generation=generation.name, path=str(generation.path), ledger=manifest.ledger["total"])
        report = verify_generation(generation.path, manifest)
    if json_:
        _print_json(asdict(report) | {"ok": not report.failures})
    elif not report.failures and not quiet:
        print(f"ok: {report.files:,} files, {report.windows:,} windows, {report.rows:,} rows verified")
    if report.failures:
        if not json_:
            print("\n".join(report.failures))
        more = f" (and {len(report.failures) - 1:,} more)" if len(report.failures) > 1 else ""
        where, _, found = report.failures[0].partition(": ")
        raise DamageError(where, f"{found}{more}")


@app.command()
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

    with _edge(values) as edge, _open(edge.source(out)) as (generation, manifest):
        facts = describe_window(
            generation.path, manifest, partition, window, first_row=first_row, num_rows=rows or None
        )
    if json_:
        _print_json(facts)
    else:
        print(format_window(facts))


@app.command()
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

    with _edge(values) as edge:
        source = edge.source_or_corpus(what, skip_bad=True)
        picture = drawing.draw(source, window=window, trie=trie, partition=partition, max_nodes=max_nodes)
    if output is not None:
        drawing.write_picture(output, picture)
    else:
        sys.stdout.buffer.write(picture.encode())  # UTF-8 wherever it goes
        sys.stdout.buffer.flush()


@app.command()
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
    local: LocalOpt = None,
    log_json: LogJsonOpt = False,
) -> None:
    """Print the examples of a build as JSONL, after checking that the windows hold exactly them."""
    values = dict(locals())
    from dagpack_cli import export as exporting

    if sequences and transitions:
        raise UsageError("--sequences", "--transitions is given too", "one of the two")
    console = _console(ctx)
    with _edge(values, console) as edge, _open(edge.source(out)) as (generation, manifest):
        console.set_result(generation=generation.name, path=str(generation.path), ledger=manifest.ledger["total"])
        if transitions:
            _print_lines(exporting.export_transitions(generation.path, manifest))
        elif sequences:
            _print_lines(exporting.export_sequences(generation.path, manifest))
        else:
            _print_lines(exporting.export_examples(generation.path, manifest))


@app.command()
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
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the windows, without --steps.")] = 1,
    steps: Annotated[int | None, typer.Option("--steps", help="Optimiser steps in all.")] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Most windows of a forward pass.")] = 1,
    max_cells: Annotated[int | None, typer.Option("--max-cells", help="Most cells of a forward pass.")] = None,
    accumulate: Annotated[int, typer.Option("--accumulate", help="Forward passes of a step.")] = 1,
    learning_rate: Annotated[float, typer.Option("--learning-rate", help="The highest.")] = 3e-4,
    warmup_steps: Annotated[int, typer.Option("--warmup-steps", help="Steps in which it rises.")] = 0,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Of AdamW.")] = 0.1,
    clip: Annotated[float, typer.Option("--clip", help="Largest gradient norm; 0 for none.")] = 1.0,
    validate_every: Annotated[int, typer.Option("--validate-every", help="Steps between; 0: at the end.")] = 0,
    checkpoint_every: Annotated[int, typer.Option("--checkpoint-every", help="Steps between; 0: at the end.")] = 0,
    width: Annotated[int, typer.Option("--width", help="Of the built-in decoder.")] = 256,
    heads: Annotated[int, typer.Option("--heads", help="Of its attention.")] = 4,
    feed_forward: Annotated[int, typer.Option("--feed-forward", help="Its inner width.")] = 768,
    layers: Annotated[int, typer.Option("--layers", help="Its depth.")] = 4,
    precision: Annotated[Precision, typer.Option("--precision", help="Of activations.")] = Precision.AUTO,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Of the order and the first weights.")] = 0,
    workers: Annotated[int, typer.Option("--workers", help="Processes that read ahead.")] = 0,
    local: LocalOpt = None,
    quiet: QuietOpt = False,
    log_json: LogJsonOpt = False,
) -> None:
    """Train the built-in decoder on shards: supervised, exact, on a CPU or a GPU."""
    values = dict(locals())
    from dagpack_cli import training

    if resume and run is None:
        raise UsageError("--resume", "no --run is given", "the folder of the run to go on with", hint="--run DIR")
    resumed = "the same command with --resume goes on from the newest checkpoint"
    console = _console(ctx, quiet=quiet, after_signal=resumed if run is not None else "")
    chosen: Literal["counted", "unique"] | None = None
    if objective is not None:
        chosen = "unique" if objective is Objective.UNIQUE else "counted"
    with _edge(values, console) as edge:
        outs = [edge.source(out) for out in shards]
    windows = training.PackedWindows(*outs, objective=chosen)
    has_val = all("val" in training.PackedWindows(out).manifest.partitions for out in outs)
    names = training.TrainOptions.__dataclass_fields__.keys() & values.keys()
    result = training.train(
        windows,
        training.DecoderConfig(
            vocab_size=windows.vocab_size, width=width, heads=heads, feed_forward=feed_forward, layers=layers
        ),
        training.TrainOptions(**{name: values[name] for name in names} | {"precision": precision.value}),
        val=training.PackedWindows(*outs, partition="val", objective=chosen) if has_val else None,
        run=run,
        resume=resume,
        log=None if run is not None else sys.stdout,
        listener=console,
    )
    if run is None:
        console.tell(training.summary(result))
    elif not quiet:
        console.close()
        print(training.summary(result))


@app.command()
def path(out: OutArg, local: LocalOpt = None) -> None:
    """Print the directory of the current generation."""
    values = dict(locals())
    with _edge(values) as edge, _open(edge.source(out)) as (generation, _):
        print(generation.path)


class _open:  # used like a function, as contextlib's are
    """The current generation of an output and its manifest, share-locked while they are in use."""

    def __init__(self, out: Path) -> None:
        from dagpack_cli.manifest import Manifest, refuse_links
        from dagpack_cli.storage import open_current

        self._generation = open_current(out)
        self._where = self._generation.path / "manifest.json"
        try:
            self._manifest: Manifest = Manifest.from_bytes(self._generation.manifest_bytes, self._where)
            refuse_links(self._generation.path, self._manifest)
        except DagpackError:
            self._generation.close()
            raise

    def __enter__(self) -> tuple[Any, Manifest]:
        """Return the generation and its manifest."""
        return self._generation, self._manifest

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Release the generation; what stored values that nobody wrote so lead to is their damage."""
        self._generation.close()
        if isinstance(error, LookupError | TypeError | ValueError | AttributeError | ArithmeticError):
            from dagpack_cli.errors import DamageError

            raise DamageError(str(self._where), f"leads to {error!r}", "what dagpack wrote") from error


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1, sort_keys=True))


def _print_lines(records: Iterable[dict[str, Any]]) -> None:
    import orjson

    for record in records:
        sys.stdout.buffer.write(orjson.dumps(record) + b"\n")
    sys.stdout.buffer.flush()


class _Terminated(BaseException):
    """A signal that ends the process, raised so that locks and partial files are let go first."""

    def __init__(self, number: int) -> None:
        self.number = number


_ENDING = (signal.SIGINT, signal.SIGTERM)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    for ending in _ENDING:  # a second one does not wait for what the first lets go
        signal.signal(ending, signal.SIG_DFL)
    sys.unraisablehook = _end_all_the_same
    raise _Terminated(number)


def _end_all_the_same(unraised: sys.UnraisableHookArgs) -> None:
    """After a signal: what was thrown in a destructor goes nowhere; where it was the signal itself, end now."""
    if isinstance(unraised.exc_value, _Terminated):
        _reraise(unraised.exc_value.number)


def _reraise(number: int) -> NoReturn:
    """End by the signal itself, so that the caller sees 130 or 143 and knows why."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)  # only where the signal is blocked


def _stop_writing() -> NoReturn:
    """End as a writer does whose reader has enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    _reraise(signal.SIGPIPE)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; the one place where errors are rendered."""
    _open_streams()
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and background jobs have it
            signal.signal(number, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = given[: given.index("--")] if "--" in given else given
    console = Console(log_json="--log-json" in options, command=next((word for word in given if word[:1] != "-"), ""))
    try:
        with warnings.catch_warnings():
            if console.log_json:
                warnings.showwarning = console.warn
            code = _answer(given, console)
    except _Terminated as stop:
        console.stop(stop.number)
        _reraise(stop.number)
    except KeyboardInterrupt:
        console.stop(signal.SIGINT)
        _reraise(signal.SIGINT)
    sys.exit(code)


def _answer(given: list[str], console: Console) -> int:
    """Run a command; return its exit code, the errors printed."""
    try:
        code = _run(given, console)
        sys.stdout.flush()
    except BrokenPipeError:
        _stop_writing()
    except SystemExit as stop:  # what the option parser makes of a broken pipe
        if isinstance(stop.__context__, BrokenPipeError):
            _stop_writing()
        raise
    except DagpackError as error:
        return _fail(error, console)
    except OSError as error:
        from dagpack_cli.storage import translate_os_error

        return _fail(translate_os_error(error), console)
    except Exception as error:
        console.report_bug(error)
        return DagpackError.exit_code
    console.end(code)
    _flush_or_discard(sys.stderr, 2)
    return code


def _fail(error: DagpackError, console: Console) -> int:
    """Print an error; return its exit code, whatever becomes of the streams."""
    console.fail(error)
    _flush_or_discard(sys.stderr, 2)
    _flush_or_discard(sys.stdout, 1)
    return error.exit_code


def _flush_or_discard(stream: Any, descriptor: int) -> None:
    """Flush a stream; what cannot be written goes nowhere, or it would be tried again at exit."""
    try:
        stream.flush()
    except OSError:
        pass
    else:
        return
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    with suppress(OSError):
        stream.flush()


def _open_streams() -> None:
    """Open the standard streams a caller has closed, so that no file of ours takes their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  # for the whole process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  # likewise


def _run(arguments: list[str], console: Console) -> int:
    command = typer.main.get_command(app)
    arm_from_environment()
    if "" in arguments:
        raise UsageError("dagpack", "an empty argument", "a path or a value", hint="is a variable of the shell unset?")
    if not arguments:
        command.main(["--help"], prog_name="dagpack", standalone_mode=False)
        return UsageError.exit_code
    try:
        result = command.main(arguments, prog_name="dagpack", standalone_mode=False, obj=console)
    except (DagpackError, OSError):
        raise
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of the option parser
            raise _usage_error(error) from None
        raise
    return result if isinstance(result, int) else 0


def _usage_error(error: Any) -> UsageError:
    """Return what the option parser found in the shape of all errors: lower case, no full stop."""
    context = getattr(error, "ctx", None)
    command = "dagpack" if context is None else context.command_path
    message = error.format_message().rstrip(".")
    value = re.fullmatch(r"Invalid value for '([^']+)': (?:Value error, )?(.+)", message, re.DOTALL)
    where, found = value.groups() if value else (command, message)
    return UsageError(where, found[:1].lower() + found[1:], hint=f"{command} --help")
