"""The command line: options -> one call -> print. Data to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

import dagpack_cli
from dagpack_cli.console import Console, print_error
from dagpack_cli.errors import DagpackError, UsageError

if TYPE_CHECKING:
    from types import FrameType

    from dagpack_cli.manifest import IngestOptions, Manifest, PackOptions, TrieOptions
    from dagpack_cli.pipeline import BuildResult, Execution, TokenizerChoice

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


class Layout(StrEnum):
    """How examples become windows."""

    DAG = "dag"
    WALK = "walk"
    PACKED = "packed"
    BEST_FIT = "best-fit"
    PADDED = "padded"


class Merge(StrEnum):
    """What is merged."""

    PREFIX = "prefix"
    STATE = "state"
    NONE = "none"


class OnLong(StrEnum):
    """What happens to examples longer than a window."""

    ERROR = "error"
    SPLIT = "split"
    TRUNCATE = "truncate"
    DROP = "drop"


class OnError(StrEnum):
    """What happens to bad records."""

    FAIL = "fail"
    SKIP = "skip"


class ShardFormat(StrEnum):
    """The files windows are written to."""

    PARQUET = "parquet"
    NPY = "npy"


class Objective(StrEnum):
    """How often a distinct row counts."""

    COUNTED = "counted"
    UNIQUE = "unique"


class Format(StrEnum):
    """How every input is read."""

    TEXT = "text"
    JSONL_TEXT = "jsonl-text"
    CHAT = "chat"
    SHAREGPT = "sharegpt"
    ALPACA = "alpaca"
    PREFERENCE = "preference"
    RL_GROUPS = "rl-groups"
    PRETOKENISED = "pretokenised"
    PI = "pi"
    CLAUDE_CODE = "claude-code"
    CODEX = "codex"
    GEMINI = "gemini"
    SWE_AGENT = "swe-agent"
    MINI_SWE_AGENT = "mini-swe-agent"
    OPENHANDS = "openhands"
    ATIF = "atif"
    ATIF_IDS = "atif-ids"
    TAU_BENCH = "tau-bench"
    ARC_AGI_3 = "arc-agi-3"
    TRANSITIONS = "transitions"


class Supervise(StrEnum):
    """Which parts of a conversation are targets."""

    ASSISTANT = "assistant"
    LAST_TURN = "last-turn"
    ALL = "all"
    COMPLETION = "completion"


class GroupWeight(StrEnum):
    """What a completion of a group with rewards weighs."""

    NONE = "none"
    REWARD = "reward"
    ADVANTAGE = "advantage"


class Predict(StrEnum):
    """What is learnt from a game."""

    NEXT_STATE = "next-state"
    ACTION = "action"


class Precision(StrEnum):
    """What activations are computed in."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT64 = "float64"


class Engine(StrEnum):
    """What runs the loops."""

    AUTO = "auto"
    NUMPY = "numpy"
    NUMBA = "numba"


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


CorpusArg = Annotated[
    Path, typer.Argument(metavar="CORPUS", readable=False, help="A folder, read recursively, or one file.")
]
OutArg = Annotated[Path, typer.Argument(metavar="OUT", readable=False, help="The output directory.")]
TokenizerOpt = Annotated[
    str,
    typer.Option(
        "--tokenizer",
        metavar="NAME|PATH",
        help="bytes, symbols (every JSON state an id), grid (a token a cell), none (ids are given), "
        "or a Hugging Face directory or tokenizer.json. auto: bytes for text and chat, symbols for games, "
        "none for ids.",
    ),
]
BosOpt = Annotated[str | None, typer.Option("--bos", metavar="ID|none", help="Override the tokenizer's BOS.")]
EosOpt = Annotated[str | None, typer.Option("--eos", metavar="ID|none", help="Override the tokenizer's EOS.")]
FormatOpt = Annotated[Format | None, typer.Option("--format", help="Read every file so; else its content tells.")]
OnErrorOpt = Annotated[OnError, typer.Option("--on-error", help="Stop at a bad record, or skip, count and list it.")]
TextFieldOpt = Annotated[str, typer.Option("--text-field", help="The field that holds a JSONL record's text.")]
EpisodeFieldOpt = Annotated[
    str, typer.Option("--episode-field", help="Transitions: dotted path of the episode; none: a file is one.")
]
StateFieldOpt = Annotated[str, typer.Option("--state-field", help="Transitions: dotted path of the state.")]
ActionFieldOpt = Annotated[str, typer.Option("--action-field", help="Transitions: dotted path of the action.")]
ActionTakenOpt = Annotated[
    bool,
    typer.Option("--action-taken", help="Transitions: an action is taken in its record's state."),
]
DropOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--drop-transition",
        metavar="RULE",
        help="Leave out transitions: self (the state stays), action=JSON, state=JSON. May be repeated.",
    ),
]
PredictOpt = Annotated[
    Predict, typer.Option("--predict", help="Games: the next state (a world model) or the action (a policy).")
]
GridTokensOpt = Annotated[
    bool, typer.Option("--grid-tokens", help="Games of grids: a token a cell instead of a symbol a state.")
]
GroupWeightOpt = Annotated[GroupWeight, typer.Option("--group-weight", help="RL groups: what each completion weighs.")]
ChatTemplateOpt = Annotated[
    str,
    typer.Option(
        "--chat-template",
        metavar="auto|builtin|PATH",
        help="How conversations are written: a Jinja file, a Hugging Face directory, or the built-in template.",
    ),
]
TemplateDateOpt = Annotated[
    str | None, typer.Option("--template-date", metavar="YYYY-MM-DD", help="What the template takes for today.")
]
SuperviseOpt = Annotated[
    Supervise, typer.Option("--supervise", help="Which messages are targets; completion: what follows the prompt.")
]
ThinkingOpt = Annotated[bool, typer.Option("--thinking/--no-thinking", help="Train thinking, or keep it as context.")]
ToolCallsOpt = Annotated[
    bool, typer.Option("--tool-calls/--no-tool-calls", help="Train tool calls, or keep them as context.")
]
PerTurnOpt = Annotated[
    bool, typer.Option("--per-turn", help="One example for every trained message, not one for every path.")
]
SystemOpt = Annotated[
    Path | None,
    typer.Option("--system", metavar="FILE", readable=False, help="The system prompt of sessions that store none."),
]
ToolsOpt = Annotated[
    Path | None,
    typer.Option("--tools", metavar="FILE", readable=False, help="The tools, a JSON list, of sessions without."),
]
MergeOpt = Annotated[
    Merge | None,
    typer.Option("--merge", help="prefix (default), state (Markov games only), none (packed, best-fit, padded)."),
]
VirtualRootOpt = Annotated[
    bool, typer.Option("--virtual-root", help="Join all trees under one root, the tokenizer's BOS.")
]
VirtualRootIdOpt = Annotated[
    int | None, typer.Option("--virtual-root-id", metavar="ID", help="Join all trees under this id.")
]
StrictMarkovOpt = Annotated[
    bool, typer.Option("--strict-markov", help="Fail where one (state, action) has two next states.")
]
MinSharedOpt = Annotated[
    int,
    typer.Option("--min-shared", metavar="N", help="Merge no shared prefix of fewer tokens; stats compares some N."),
]
ValFractionOpt = Annotated[float, typer.Option("--val-fraction", help="Share of the groups kept for validation.")]
SeedOpt = Annotated[int, typer.Option("--seed", help="Which groups those are.")]
SeqLenOpt = Annotated[int, typer.Option("--seq-len", help="Most rows of a path, and of a window.")]
WindowLenOpt = Annotated[
    int | None, typer.Option("--window-len", help="Most rows of a window, where it is to be more than of a path.")
]
LayoutOpt = Annotated[Layout, typer.Option("--layout", help="How examples become windows.")]
OnLongOpt = Annotated[OnLong, typer.Option("--on-long", help="What happens to examples longer than --seq-len.")]
PruneOpt = Annotated[bool, typer.Option("--prune/--no-prune", help="Leave out rows that train nothing.")]
PolishOpt = Annotated[
    int | None,
    typer.Option("--polish", metavar="N", help="Attempts a window to improve the packing; else as the bound advises."),
]
ObjectiveOpt = Annotated[
    Objective | None,
    typer.Option("--objective", help="counted: as often as in the corpus; unique: each transition once (state)."),
]
ShardFormatOpt = Annotated[ShardFormat, typer.Option("--shard-format", help="Parquet files, or folders of .npy.")]
CompressionOpt = Annotated[int, typer.Option("--compression-level", help="Of zstd, 1 to 22.")]
WorkersOpt = Annotated[int, typer.Option("--workers", help="Processes that read, threads that write.")]
EngineOpt = Annotated[Engine, typer.Option("--engine", help="numba compiles; auto only where that pays.")]
KeepOpt = Annotated[int, typer.Option("--keep", help="Generations that stay, the new one included.")]
RehashOpt = Annotated[bool, typer.Option("--rehash", help="Read inputs again even if size and times are unchanged.")]
QuietOpt = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print JSON.")]


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
    from dagpack_cli.pipeline import Execution

    return Execution(
        workers=values["workers"],
        engine=values["engine"].value,
        rehash=values.get("rehash", False),
        keep=values.get("keep", 2),
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


def _print_result(result: BuildResult, *, quiet: bool) -> None:
    from dagpack_cli.stats import format_summary

    if quiet:
        return
    if result.unchanged:
        print(f"unchanged: {result.path} is what this build would write")
    else:
        print(f"{format_summary(result.manifest)}\nwritten: {result.path}")


@app.command()
def build(
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
    quiet: QuietOpt = False,
) -> None:
    """Build a corpus into OUT: ingest, dedup, pack, publish."""
    values = dict(locals())
    from dagpack_cli import pipeline

    console = Console(quiet=quiet)
    trie_options = _trie_options(values, layout.value)
    result = pipeline.build(
        corpus,
        out,
        tokenizer=_tokenizer(values),
        ingest_options=_ingest_options(values),
        trie_options=trie_options,
        pack_options=_pack_options(values, trie_options.merge),
        execution=_execution(values, console),
    )
    console.close()
    _print_result(result, quiet=quiet)


@app.command()
def plan(
    source: Annotated[
        Path, typer.Argument(metavar="CORPUS|OUT", readable=False, help="A corpus, or the output of a build.")
    ],
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
    workers: WorkersOpt = 1,
    engine: EngineOpt = Engine.AUTO,
    merge: MergeOpt = None,
    virtual_root: VirtualRootOpt = False,
    virtual_root_id: VirtualRootIdOpt = None,
    strict_markov: StrictMarkovOpt = False,
    min_shared: MinSharedOpt = 1,
    val_fraction: ValFractionOpt = 0.0,
    seed: SeedOpt = 0,
    on_long: Annotated[OnLong, typer.Option("--on-long", help="What happens to longer examples.")] = OnLong.SPLIT,
    prune: PruneOpt = True,
    polish: PolishOpt = None,
    json_: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Say what packing would give at several lengths, without writing shards."""
    values = dict(locals())
    from dagpack_cli import pipeline
    from dagpack_cli.stats import describe_plan, format_plan

    console = Console(quiet=quiet)
    trie_options = _trie_options(values, "dag")
    lengths = [int(word) if word.strip().isdecimal() else 0 for word in seq_len.split(",")]
    more: dict[str, Any] = {"window_len": None, "layout": Layout.DAG, "objective": None, "compression_level": 1}
    listed = [
        _pack_options(values | more | {"seq_len": length, "shard_format": ShardFormat.PARQUET}, trie_options.merge)
        for length in lengths
    ]
    found = pipeline.plan(
        source,
        tokenizer=_tokenizer(values),
        ingest_options=_ingest_options(values),
        trie_options=trie_options,
        pack_options=listed,
        execution=_execution(values, console),
    )
    console.close()
    plans = list(zip(listed, found, strict=True))
    if json_:
        _print_json(describe_plan(plans))
    else:
        print(format_plan(plans))


@app.command()
def ingest(
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
    workers: WorkersOpt = 1,
    engine: EngineOpt = Engine.AUTO,
    rehash: RehashOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """First stage of build: read, render and tokenise into OUT's staging area."""
    values = dict(locals())
    from dagpack_cli import pipeline

    console = Console(quiet=quiet)
    staged = pipeline.ingest(
        corpus,
        out,
        tokenizer=_tokenizer(values),
        ingest_options=_ingest_options(values),
        execution=_execution(values, console),
    )
    console.close()
    if not quiet:
        print(f"ingested: {staged}; next: dagpack dedup {out}")


@app.command()
def dedup(
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
    quiet: QuietOpt = False,
) -> None:
    """Second stage of build: merge what was ingested into OUT last into a trie on disk."""
    values = dict(locals())
    from dagpack_cli import pipeline

    console = Console(quiet=quiet)
    layout = "packed" if merge == Merge.NONE else "dag"
    trie = pipeline.dedup(out, trie_options=_trie_options(values, layout), execution=_execution(values, console))
    console.close()
    if not quiet:
        print(f"merged: {trie}; next: dagpack pack {out}")


@app.command()
def pack(
    out: OutArg,
    new_out: Annotated[
        Path | None, typer.Argument(metavar="NEW_OUT", readable=False, help="Where to publish, if not in OUT itself.")
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
    quiet: QuietOpt = False,
) -> None:
    """Last stage of build: pack OUT's trie into windows, without touching text."""
    values = dict(locals())
    from dagpack_cli import pipeline

    console = Console(quiet=quiet)
    result = pipeline.pack(
        out,
        new_out,
        pack_options=_pack_options(values, pipeline.stored_merge(out)),
        execution=_execution(values, console),
    )
    console.close()
    _print_result(result, quiet=quiet)


@app.command()
def stats(out: OutArg, json_: JsonOpt = False) -> None:
    """Print what the build stored: ledger, windows and bound, savings, profile, shared prefixes."""
    from dagpack_cli.stats import describe, format_stats

    with _open(out) as (generation, manifest):
        if json_:
            _print_json(describe(manifest, generation.name))
        else:
            print(format_stats(manifest, generation.name))


@app.command()
def verify(out: OutArg, json_: JsonOpt = False) -> None:
    """Check every checksum and every invariant of the windows; exit 76 if anything is wrong."""
    from dataclasses import asdict

    from dagpack_cli.errors import DamageError
    from dagpack_cli.verify import verify_generation

    with _open(out) as (generation, manifest):
        report = verify_generation(generation.path, manifest)
    if json_:
        _print_json(asdict(report) | {"ok": not report.failures})
    elif not report.failures:
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
    json_: JsonOpt = False,
) -> None:
    """Show one window as aligned columns beside its mask."""
    from dagpack_cli.show import describe_window, format_window

    with _open(out) as (generation, manifest):
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
        Path,
        typer.Argument(metavar="WHAT", readable=False, help="An output of build, a session, or recordings of a game."),
    ],
    window: Annotated[int | None, typer.Option("--window", help="Of a build, this window; 0 if not --trie.")] = None,
    trie: Annotated[bool, typer.Option("--trie", help="Of a build, its trie.")] = False,
    partition: Annotated[str | None, typer.Option("--partition", help="Of a build, train (default) or val.")] = None,
    max_nodes: Annotated[int | None, typer.Option("--max-nodes", help="Most nodes of a tree, graph or trie.")] = None,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE.svg", help="Else SVG to stdout.")] = None,
) -> None:
    """Draw a build's window or trie, a session's tree or a game's graph as self-contained SVG."""
    from dagpack_cli import drawing

    picture = drawing.draw(what, window=window, trie=trie, partition=partition, max_nodes=max_nodes)
    if output is not None:
        drawing.write_picture(output, picture)
    else:
        sys.stdout.buffer.write(picture.encode())  # UTF-8 wherever it goes
        sys.stdout.buffer.flush()


@app.command()
def export(
    out: OutArg,
    sequences: Annotated[
        bool, typer.Option("--sequences", help="Distinct sequences with counts, from the shards alone.")
    ] = False,
    transitions: Annotated[
        bool,
        typer.Option("--transitions", help="Rows with counts and weights, window by window, from the shards alone."),
    ] = False,
) -> None:
    """Print the examples of a build as JSONL, after checking that the windows hold exactly them."""
    from dagpack_cli import export as exporting

    if sequences and transitions:
        raise UsageError("--sequences", "--transitions is given too", "one of the two")
    with _open(out) as (generation, manifest):
        if transitions:
            _print_lines(exporting.export_transitions(generation.path, manifest))
        elif sequences:
            _print_lines(exporting.export_sequences(generation.path, manifest))
        else:
            _print_lines(exporting.export_examples(generation.path, manifest))


@app.command()
def train(
    shards: Annotated[list[Path], typer.Option("--shards", metavar="OUT", help="An output of build. May be repeated.")],
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
    quiet: QuietOpt = False,
) -> None:
    """Train the built-in decoder on shards: supervised, exact, on a CPU or a GPU."""
    values = dict(locals())
    from dagpack_cli import training

    if resume and run is None:
        raise UsageError("--resume", "no --run is given", "the folder of the run to go on with", hint="--run DIR")
    console = Console(quiet=quiet)
    chosen: Literal["counted", "unique"] | None = None
    if objective is not None:
        chosen = "unique" if objective is Objective.UNIQUE else "counted"
    windows = training.PackedWindows(*shards, objective=chosen)
    has_val = all("val" in training.PackedWindows(out).manifest.partitions for out in shards)
    names = training.TrainOptions.__dataclass_fields__.keys() & values.keys()
    result = training.train(
        windows,
        training.DecoderConfig(
            vocab_size=windows.vocab_size, width=width, heads=heads, feed_forward=feed_forward, layers=layers
        ),
        training.TrainOptions(**{name: values[name] for name in names} | {"precision": precision.value}),
        val=training.PackedWindows(*shards, partition="val", objective=chosen) if has_val else None,
        run=run,
        resume=resume,
        log=None if run is not None else sys.stdout,
        listener=console,
    )
    console.close()
    if not quiet:
        print(training.summary(result), file=sys.stderr if run is None else sys.stdout)


@app.command()
def path(out: OutArg) -> None:
    """Print the directory of the current generation."""
    with _open(out) as (generation, _):
        print(generation.path)


class _open:  # used like a function, as contextlib's are
    """The current generation of an output and its manifest, share-locked while they are in use."""

    def __init__(self, out: Path) -> None:
        from dagpack_cli.manifest import Manifest
        from dagpack_cli.storage import open_current

        self._generation = open_current(out)
        try:
            self._manifest: Manifest = Manifest.from_bytes(
                self._generation.manifest_bytes, self._generation.path / "manifest.json"
            )
        except DagpackError:
            self._generation.close()
            raise

    def __enter__(self) -> tuple[Any, Manifest]:
        """Return the generation and its manifest."""
        return self._generation, self._manifest

    def __exit__(self, *_: object) -> None:
        """Release the generation."""
        self._generation.close()


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


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    raise _Terminated(number)


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
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and background jobs have it
            signal.signal(number, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given)
        sys.stdout.flush()
    except _Terminated as stop:
        _reraise(stop.number)
    except KeyboardInterrupt:
        _reraise(signal.SIGINT)
    except BrokenPipeError:
        _stop_writing()
    except SystemExit as stop:  # what the option parser makes of a broken pipe
        if isinstance(stop.__context__, BrokenPipeError):
            _stop_writing()
        raise
    except DagpackError as error:
        code = _fail(error)
    except OSError as error:
        from dagpack_cli.storage import translate_os_error

        code = _fail(translate_os_error(error))
    sys.exit(code)


def _fail(error: DagpackError) -> int:
    """Print an error; return its exit code, whatever becomes of the streams."""
    try:
        print_error(error)
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr, 2)
    try:
        sys.stdout.flush()
    except OSError:  # what could not be written is not tried again at exit
        _discard(sys.stdout, 1)
    return error.exit_code


def _discard(stream: Any, descriptor: int) -> None:
    """Send what a stream still holds nowhere."""
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


def _run(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    if "" in arguments:
        raise UsageError("dagpack", "an empty argument", "a path or a value", hint="is a variable of the shell unset?")
    if not arguments:
        command.main(["--help"], prog_name="dagpack", standalone_mode=False)
        return UsageError.exit_code
    try:
        result = command.main(arguments, prog_name="dagpack", standalone_mode=False)
    except (DagpackError, OSError):
        raise
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of the option parser
            raise _usage_error(error) from None
        return _report_bug(error)
    return result if isinstance(result, int) else 0


def _usage_error(error: Any) -> UsageError:
    """Return what the option parser found in the shape of all errors: lower case, no full stop."""
    context = getattr(error, "ctx", None)
    command = "dagpack" if context is None else context.command_path
    message = error.format_message().rstrip(".")
    value = re.fullmatch(r"Invalid value for '([^']+)': (?:Value error, )?(.+)", message, re.DOTALL)
    where, found = value.groups() if value else (command, message)
    return UsageError(where, found[:1].lower() + found[1:], hint=f"{command} --help")


def _report_bug(error: Exception) -> int:
    traceback.print_exception(error)
    print(f"error: dagpack: {type(error).__name__}, a bug in dagpack; the lines above say where", file=sys.stderr)
    print("hint: nothing was published; please report it with the command and these lines", file=sys.stderr)
    return DagpackError.exit_code
