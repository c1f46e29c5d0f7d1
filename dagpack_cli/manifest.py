"""The frozen, versioned manifest of a build, its options, and the fingerprints that identify it.

Same inputs, options and versions give the same bytes, so nothing here knows a clock, a host or an
absolute path. Fingerprints hash canonical JSON, never a display string, and are chained: the trie's
contains that of the ingest, the build's that of the trie.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

import dagpack_cli
from dagpack_cli.errors import DamageError, MismatchError, UsageError, shorten
from dagpack_cli.storage import canonical_json

__all__ = [
    "FORMAT_VERSION",
    "LAYOUTS",
    "UNMERGED_LAYOUTS",
    "FileEntry",
    "IngestOptions",
    "InputEntry",
    "Manifest",
    "PackOptions",
    "TrieOptions",
    "fingerprint",
    "library_versions",
    "parse_options",
    "refuse_links",
    "seal_run",
    "unseal_run",
]

FORMAT_VERSION = 2
UNMERGED_LAYOUTS = ("packed", "best-fit", "padded")
LAYOUTS = ("dag", "walk", *UNMERGED_LAYOUTS)
_Options = TypeVar("_Options", "IngestOptions", "TrieOptions", "PackOptions")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestOptions:
    """How the corpus is read. The tokenizer is in the manifest by identity, not by path."""

    format: str | None = None
    on_error: Literal["fail", "skip"] = "fail"
    text_field: str = "text"
    episode_field: str | None = "episode"
    state_field: str = "state"
    action_field: str = "action"
    action_taken: bool = False
    drop_transition: tuple[str, ...] = ()
    predict: Literal["next-state", "action"] = "next-state"
    grid_tokens: bool = False
    group_weight: Literal["none", "reward", "advantage"] = "none"
    supervise: Literal["assistant", "last-turn", "all", "completion"] = "assistant"
    thinking: bool = True
    tool_calls: bool = True
    per_turn: bool = False
    system: str = ""  # the texts themselves: files may change or move
    tools: str = ""
    # Of one file, stored where bad records are skipped and it is not the usual one: else it changes no result.
    max_line_bytes: int | None = None
    max_decompressed_bytes: int | None = None
    max_ratio: int | None = None
    max_depth: int | None = None

    def __post_init__(self) -> None:
        """Check what goes together."""
        if self.per_turn and self.supervise == "all":
            raise UsageError(
                "--per-turn",
                "does not go with --supervise all",
                "an example per turn trains one message, every token of it",
                hint="leave --supervise out",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrieOptions:
    """How examples are split into partitions and merged."""

    merge: Literal["prefix", "state"] = "prefix"
    virtual_root: str | None = None  # "auto" or an id
    strict_markov: bool = False
    min_shared: int = 1
    val_fraction: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Check ranges."""
        if not 0.0 <= self.val_fraction < 1.0:
            raise UsageError("--val-fraction", str(self.val_fraction), "a number from 0 up to, not including, 1")
        if not 1 <= self.min_shared < 2**31:
            raise UsageError(
                "--min-shared", f"{self.min_shared:,}", "a number of tokens, 1 to merge every shared prefix"
            )
        if self.min_shared > 1 and self.merge == "state":
            raise UsageError(
                "--min-shared",
                "does not go with --merge state",
                "states are merged wherever they are met",
                hint="leave one of the two out",
            )
        if self.strict_markov and self.merge != "state":
            raise UsageError(
                "--strict-markov",
                f"has nothing to check under --merge {self.merge}",
                "--merge state",
                hint="add --merge state",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How the trie becomes windows, and windows become files."""

    seq_len: int = 8192  # rows of a path
    window_len: int | None = None  # rows of a window; None: seq_len
    layout: str = "dag"
    on_long: Literal["error", "split", "truncate", "drop"] = "error"
    prune: bool = True
    polish: int | None = None  # ruins a window; None: as windows and bound advise
    objective: Literal["counted", "unique"] = "counted"
    shard_format: Literal["parquet", "npy"] = "parquet"
    compression_level: int = 1

    def __post_init__(self) -> None:
        """Check ranges."""
        if not 1 <= self.seq_len < 2**31:
            raise UsageError("--seq-len", f"{self.seq_len:,}", "a number of rows from 1 to 2,147,483,647")
        if self.window_len is not None and not self.seq_len <= self.window_len < 2**31:
            raise UsageError(
                "--window-len",
                f"{self.window_len:,}",
                f"a number of rows from --seq-len, {self.seq_len:,}, to 2,147,483,647: a window holds whole paths",
            )
        if self.polish is not None and self.polish < 0:
            raise UsageError("--polish", str(self.polish), "a number of attempts a window, 0 for none")
        if self.layout not in LAYOUTS:
            raise UsageError("--layout", self.layout, f"one of {', '.join(LAYOUTS)}")
        if not 1 <= self.compression_level <= 22:
            raise UsageError("--compression-level", str(self.compression_level), "1 to 22, a level of zstd")

    @property
    def capacity(self) -> int:
        """Most rows of a window."""
        return self.seq_len if self.window_len is None else self.window_len


@dataclass(frozen=True, slots=True, kw_only=True)
class InputEntry:
    """One input file: its name below the corpus, and its content's identity."""

    path: str
    size: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {"path": self.path, "size": self.size, "sha256": self.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a generation. ``rows`` counts windows of a shard, examples of the provenance."""

    path: str
    size: int
    sha256: str
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything a reader needs to know about a generation, and everything that identifies it.

    Attributes:
        fingerprint: of the whole build; ``trie_fingerprint`` of its trie.
        versions: of dagpack and the libraries whose version may change bytes.
        ingest, trie, pack: the options.
        tokenizer: its identity: kind, sha256, vocabulary size, BOS and EOS; and, where conversations were
            written, that of the chat template.
        inputs: in canonical order.
        ignored: (name, reason) of what was found and not read.
        files: every file of the generation but this one.
        ledger: per partition and ``total``; see the README.
        packing: per partition: windows, rows, bound, baselines.
        statistics: per partition: profile of the trie; what `stats` prints.
    """

    format_version: int = FORMAT_VERSION
    fingerprint: str
    trie_fingerprint: str
    versions: dict[str, str]
    ingest: IngestOptions
    trie: TrieOptions
    pack: PackOptions
    tokenizer: dict[str, Any]
    inputs: list[InputEntry]
    ignored: list[list[str]]
    files: list[FileEntry]
    ledger: dict[str, Any]
    packing: dict[str, Any]
    statistics: dict[str, Any] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON: sorted keys, one field a line where it helps a reader."""
        text = json.dumps(asdict(self), sort_keys=True, ensure_ascii=False, allow_nan=False, indent=1)
        return text.encode("utf-8", "surrogatepass") + b"\n"

    @classmethod
    def from_bytes(cls, raw: bytes, where: Path) -> Manifest:
        """Return the manifest in ``raw``, through the same constructors that wrote it.

        Raises:
            MismatchError: another format version.
            DamageError: a field is missing, unknown or of another type.
        """
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise DamageError(str(where), f"not JSON ({error})", "a manifest", hint=_REBUILD) from None
        version = value.get("format_version") if isinstance(value, dict) else None
        if version != FORMAT_VERSION or isinstance(version, bool):
            raise MismatchError(
                str(where), f"format version {version}", f"format version {FORMAT_VERSION}", hint=_REBUILD
            )
        _check_fields(cls, value, where)
        try:
            manifest = cls(
                **value
                | {
                    "ingest": parse_options(IngestOptions, value["ingest"], where),
                    "trie": parse_options(TrieOptions, value["trie"], where),
                    "pack": parse_options(PackOptions, value["pack"], where),
                    "inputs": [InputEntry(**entry) for entry in value["inputs"]],
                    "files": [FileEntry(**entry) for entry in value["files"]],
                }
            )
        except (TypeError, UsageError) as error:
            raise DamageError(str(where), str(error), "the fields dagpack writes", hint=_REBUILD) from None
        _check_types(manifest, where)
        return manifest

    @property
    def vocab_size(self) -> int:
        """Number of token ids; every stored id is below it."""
        return int(self.tokenizer["vocab_size"])

    def shards(self, partition: str) -> list[str]:
        """Return the shards of a partition in order, below the generation: files, or folders of ``.npy``."""
        names = {"/".join(entry.path.split("/")[:2]) for entry in self.files if entry.path.startswith("shards/")}
        chosen = [name for name in names if name.split("/")[1].rsplit("-", 1)[0] == partition]
        return sorted(chosen, key=lambda name: (len(name), name))

    @property
    def partitions(self) -> list[str]:
        """The partitions that have windows, train first."""
        return [name for name in ("train", "val") if name in self.packing]


_REBUILD = "build again with this version: dagpack build CORPUS OUT"


def _check_fields(kind: type[Any], value: Mapping[str, Any], where: Path) -> None:
    known = {entry.name for entry in fields(kind)}
    required = {entry.name for entry in fields(kind) if entry.default is MISSING and entry.default_factory is MISSING}
    if missing := sorted(required - value.keys()):
        raise DamageError(str(where), f"field {missing[0]} is missing", "the fields dagpack writes", hint=_REBUILD)
    if unknown := sorted(value.keys() - known):
        raise DamageError(str(where), f"unknown field {unknown[0]}", "the fields dagpack writes", hint=_REBUILD)


def _check_types(manifest: Manifest, where: Path) -> None:
    """Raise unless what a manifest holds is of the kinds that dagpack writes, and names files below it only."""
    for name in ("versions", "tokenizer", "ledger", "packing", "statistics"):
        _expect(isinstance(getattr(manifest, name), dict), where, f"{name} is no object")
    for name in ("fingerprint", "trie_fingerprint"):
        _expect(isinstance(getattr(manifest, name), str), where, f"{name} is no text")
    vocab_size, sha256 = (manifest.tokenizer.get(name) for name in ("vocab_size", "sha256"))
    known = _is_number(vocab_size) and isinstance(sha256, str | None) and "virtual_root" in manifest.tokenizer
    _expect(known, where, "the tokenizer has no identity")
    ignored: Any = manifest.ignored
    _expect(isinstance(ignored, list), where, "ignored is no list")
    for pair in ignored:
        both = isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        _expect(both, where, "an ignored file without its name and reason")
    entries: list[Any] = [*manifest.inputs, *manifest.files]
    for entry in entries:
        whole = isinstance(entry.path, str) and _is_number(entry.size) and isinstance(entry.sha256, str)
        _expect(whole, where, "a file without its path, size and sha256")
    for file in manifest.files:
        parts = file.path.split("/")
        inside = not any(part in ("", ".", "..") for part in parts) and "\0" not in file.path
        _expect(inside, where, f"a file at {shorten(file.path)}, which is not below it")


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _expect(holds: bool, where: Path, found: str) -> None:
    if not holds:
        raise DamageError(str(where), found, "the fields dagpack writes", hint=_REBUILD)


def refuse_links(path: Path, manifest: Manifest) -> None:
    """Raise where a file of a generation is reached through a link: it may lead anywhere. One look a file.

    Raises:
        DamageError: dagpack makes no links in what it publishes.
    """
    seen = set()
    for file in manifest.files:
        at = path
        for part in file.path.split("/"):
            at /= part
            if at not in seen and at.is_symlink():
                raise DamageError(str(at), "a link", "what dagpack wrote: it makes none")
            seen.add(at)


def parse_options(kind: type[_Options], value: Any, where: Path) -> _Options:
    """Return stored options through their constructor.

    Raises:
        DamageError: not an object with exactly the fields of ``kind``.
    """
    if not isinstance(value, dict):
        raise DamageError(str(where), "options are not an object", "the fields dagpack writes", hint=_REBUILD)
    _check_fields(kind, value, where)
    values: dict[str, Any] = {name: tuple(entry) if isinstance(entry, list) else entry for name, entry in value.items()}
    return kind(**values)


_SEAL = "sha256"


def seal_run(run: Mapping[str, Any]) -> bytes:
    """Return the bytes of ``run.json``, the record of a run, with a checksum of the rest in it.

    Nothing but this file says how a build that read the same inputs went; the next build trusts what it
    says of them.
    """
    sealed = {**run, _SEAL: fingerprint(dict(run))}
    return json.dumps(sealed, sort_keys=True).encode() + b"\n"  # with an indent it takes ten times as long


def unseal_run(raw: bytes) -> dict[str, Any] | None:
    """Return the record of a run, None where a byte of it is not as it was written."""
    try:
        run = json.loads(raw)
        sealed = isinstance(run, dict) and run.pop(_SEAL, None) is not None and seal_run(run) == raw
    except (ValueError, RecursionError):
        return None
    return run if sealed else None


def fingerprint(*parts: object) -> str:
    """Return the SHA-256 of the canonical JSON of ``parts``, in hexadecimal."""
    return hashlib.sha256(canonical_json(list(parts))).hexdigest()


def library_versions(*, huggingface: bool) -> dict[str, str]:
    """Return the versions that may change bytes: ours, pyarrow's, zstandard's and, where it is used, tokenizers'."""
    from importlib import metadata  # which loads the modules of e-mail, and only a build asks

    names = ["pyarrow", "zstandard", *(["tokenizers"] if huggingface else [])]
    return {"dagpack": dagpack_cli.__version__} | {name: metadata.version(name) for name in names}
