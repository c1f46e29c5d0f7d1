"""The options that commands share, each with its words and its help, and the values some of them take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "ActionFieldOpt",
    "ActionTakenOpt",
    "AdoptOpt",
    "BosOpt",
    "CacheOpt",
    "ChatTemplateOpt",
    "CheckPrecision",
    "CompressionOpt",
    "CorpusArg",
    "DropOpt",
    "Engine",
    "EngineOpt",
    "EosOpt",
    "EpisodeFieldOpt",
    "Format",
    "FormatOpt",
    "GridTokensOpt",
    "GroupWeight",
    "GroupWeightOpt",
    "JsonOpt",
    "KeepOpt",
    "Layout",
    "LayoutOpt",
    "LocalOpt",
    "LogJsonOpt",
    "MaxDecompressedBytesOpt",
    "MaxDepthOpt",
    "MaxLineBytesOpt",
    "MaxRatioOpt",
    "MemoryOpt",
    "Merge",
    "MergeOpt",
    "MinSharedOpt",
    "Objective",
    "ObjectiveOpt",
    "OnError",
    "OnErrorOpt",
    "OnLong",
    "OnLongOpt",
    "OutArg",
    "Parallel",
    "PerTurnOpt",
    "PolishOpt",
    "Precision",
    "Predict",
    "PredictOpt",
    "PruneOpt",
    "QuietOpt",
    "RehashOpt",
    "SeedOpt",
    "SeqLenOpt",
    "ShardFormat",
    "ShardFormatOpt",
    "StateFieldOpt",
    "StrictMarkovOpt",
    "Supervise",
    "SuperviseOpt",
    "SystemOpt",
    "TemplateDateOpt",
    "TextFieldOpt",
    "ThinkingOpt",
    "TokenizerOpt",
    "ToolCallsOpt",
    "ToolsOpt",
    "ValFractionOpt",
    "VirtualRootIdOpt",
    "VirtualRootOpt",
    "WaitOpt",
    "WindowLenOpt",
    "WorkersOpt",
]


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


class CheckPrecision(StrEnum):
    """What a check computes in."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"


class Parallel(StrEnum):
    """How several processes share a model."""

    DDP = "ddp"
    FSDP = "fsdp"


class Engine(StrEnum):
    """What runs the loops."""

    AUTO = "auto"
    NUMPY = "numpy"
    NUMBA = "numba"


CorpusArg = Annotated[
    str, typer.Argument(metavar="CORPUS", help="A folder, read recursively, one file, or a URI of either.")
]
OutArg = Annotated[str, typer.Argument(metavar="OUT", help="The output directory, or its URI.")]
LocalOpt = Annotated[
    Path | None,
    typer.Option("--local", metavar="DIR", readable=False, help="Folder for copies of URIs; else the user's cache."),
]
AdoptOpt = Annotated[bool, typer.Option("--adopt", help="OUT as URI: go on from what somebody else published there.")]
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
MaxLineBytesOpt = Annotated[
    int | None, typer.Option("--max-line-bytes", metavar="N", help="Most bytes of a line or record; else 256 MiB.")
]
MaxDecompressedBytesOpt = Annotated[
    int | None, typer.Option("--max-decompressed-bytes", metavar="N", help="Most bytes of an archive; else 64 GiB.")
]
MaxRatioOpt = Annotated[
    int | None, typer.Option("--max-ratio", metavar="N", help="Most bytes for a byte of an archive; else 1,000.")
]
MaxDepthOpt = Annotated[
    int | None, typer.Option("--max-depth", metavar="N", help="Most levels of brackets in a record; else 256.")
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
MemoryOpt = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="What a build may hold, such as 512M; else half of the machine's.",
    ),
]
CacheOpt = Annotated[
    bool, typer.Option("--cache/--no-cache", help="Keep what has been read, so that the next build reads what is new.")
]
WaitOpt = Annotated[
    float,
    typer.Option(
        "--wait", metavar="SECONDS", help="Wait so long at most while another build holds the lock; 0: exit 75 at once."
    ),
]
LogJsonOpt = Annotated[
    bool, typer.Option("--log-json", help="Log to stderr as JSON, an object a line, the last a summary.")
]
QuietOpt = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print JSON.")]
