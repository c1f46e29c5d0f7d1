"""`plan`: what packing would give, without writing shards."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dagpack_cli.cli.shared import open_edge, print_json, reading
from dagpack_cli.cli.values import (
    make_execution,
    make_ingest_options,
    make_pack_options,
    make_tokenizer,
    make_trie_options,
)
from dagpack_cli.console import Console
from dagpack_cli.errors import UsageError
from dagpack_cli.options import (
    ActionFieldOpt,
    ActionTakenOpt,
    BosOpt,
    ChatTemplateOpt,
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
    Layout,
    LocalOpt,
    MaxDecompressedBytesOpt,
    MaxDepthOpt,
    MaxLineBytesOpt,
    MaxRatioOpt,
    MergeOpt,
    OnError,
    OnErrorOpt,
    OnLong,
    PerTurnOpt,
    PolishOpt,
    Predict,
    PredictOpt,
    PruneOpt,
    QuietOpt,
    SeedOpt,
    ShardFormat,
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
    WorkersOpt,
)

__all__ = ["plan"]


def _numbers(text: str, option: str) -> list[int]:
    """Return the numbers of a list with commas."""
    words = [word.strip() for word in text.split(",")]
    if bad := [word for word in words if not word.isdecimal()]:
        raise UsageError(option, f'"{bad[0]}" in "{text}"', "whole numbers with commas between them")
    return [int(word) for word in words]


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
    trie_options = make_trie_options(values, "dag")
    lengths, shared = (
        [] if text is None else _numbers(text, option)
        for text, option in ((seq_len, "--seq-len"), (min_shared, "--min-shared"))
    )
    more: dict[str, Any] = {"window_len": None, "layout": Layout.DAG, "objective": None, "compression_level": 1}
    listed = [
        make_pack_options(values | more | {"seq_len": length, "shard_format": ShardFormat.PARQUET}, trie_options.merge)
        for length in lengths
    ]
    options: dict[str, Any] = {
        "tokenizer": make_tokenizer(values),
        "ingest_options": make_ingest_options(values),
        "trie_options": trie_options,
        "pack_options": listed,
        "execution": make_execution(values, console),
        "min_shared": shared,
    }
    with open_edge(values, console) as edge:
        place = edge.source_or_corpus(source, skip_bad=on_error is OnError.SKIP)
        with reading(place):
            plans = pipeline.plan(place, **options)
    console.close()
    if json_:
        print_json(describe_plan(plans))
    else:
        print(format_plan(plans))
