"""`build` and its stages: `ingest`, `dedup`, `pack`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dagpack_cli.cli.shared import open_edge, reading, take_console
from dagpack_cli.cli.values import (
    make_execution,
    make_ingest_options,
    make_pack_options,
    make_tokenizer,
    make_trie_options,
)
from dagpack_cli.console import Console
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
    ObjectiveOpt,
    OnError,
    OnErrorOpt,
    OnLong,
    OnLongOpt,
    OutArg,
    PerTurnOpt,
    PolishOpt,
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
    from dagpack_cli.pipeline import BuildResult

__all__ = ["build", "dedup", "ingest", "pack"]


_GOES_ON = "the current build stays, and the same command goes on where this one stopped"


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

    console = take_console(ctx, quiet=quiet, after_signal=_GOES_ON)
    trie_options = make_trie_options(values, layout.value)
    options: dict[str, Any] = {
        "tokenizer": make_tokenizer(values),
        "ingest_options": make_ingest_options(values),
        "trie_options": trie_options,
        "pack_options": make_pack_options(values, trie_options.merge),
        "execution": make_execution(values, console),
    }
    with open_edge(values, console) as edge:
        target = edge.target(out, adopt=adopt)
        source = edge.corpus(corpus, out, skip_bad=on_error is OnError.SKIP, again=rehash)
        result = pipeline.build(source, target, **options)
        _print_result(result, console, edge.publish(result.path))


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

    console = take_console(ctx, quiet=quiet, after_signal=_GOES_ON)
    options: dict[str, Any] = {
        "tokenizer": make_tokenizer(values),
        "ingest_options": make_ingest_options(values),
        "execution": make_execution(values, console),
    }
    with open_edge(values, console) as edge:
        target = edge.target(out, adopt=adopt)
        source = edge.corpus(corpus, out, skip_bad=on_error is OnError.SKIP, again=rehash)
        staged = pipeline.ingest(source, target, **options)
    console.close()
    if not quiet:
        print(f"ingested: {staged}; next: dagpack dedup {out}")


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

    console = take_console(ctx, quiet=quiet, after_signal=_GOES_ON)
    layout = "packed" if merge == Merge.NONE else "dag"
    trie_options, execution = make_trie_options(values, layout), make_execution(values, console)
    with open_edge(values, console) as edge:
        trie = pipeline.dedup(edge.target(out, check=False), trie_options=trie_options, execution=execution)
    console.close()
    if not quiet:
        print(f"merged: {trie}; next: dagpack pack {out}")


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

    console = take_console(ctx, quiet=quiet, after_signal=_GOES_ON)
    execution = make_execution(values, console)
    with open_edge(values, console) as edge:
        target = edge.target(out if new_out is None else new_out, adopt=adopt)
        source = target if new_out is None else edge.trie(out)
        with reading(source):
            pack_options = make_pack_options(values, pipeline.stored_merge(source))
            result = pipeline.pack(source, target, pack_options=pack_options, execution=execution)
        _print_result(result, console, edge.publish(result.path))


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
