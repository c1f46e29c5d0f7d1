"""Windows for other trainers: which form fits which build, what stands beside the rows, and the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

import dagpack_cli
from dagpack_cli.errors import DamageError, MismatchError, UsageError
from dagpack_cli.export.lists import Lists
from dagpack_cli.export.tree import TREE_COLUMNS, TREE_LABELS, tree_rows
from dagpack_cli.export.trl import TRL_COLUMNS, TRL_LABELS, WEIGHT_COLUMN, check_documents, trl_rows
from dagpack_cli.manifest import FORMAT_VERSION, UNMERGED_LAYOUTS, Manifest
from dagpack_cli.shards import ROW_COLUMNS, WindowRows
from dagpack_cli.verify import iter_windows
from dagpack_cli.verify.windows import check_windows

__all__ = ["FORMS", "Batch", "Survey", "WindowExport"]

FORM_VERSION = 1  # of the columns and of what they mean
PARTITION_COLUMN = "partition"
_BATCH_ROWS = 1 << 18  # about 10 MB of columns; a window that is longer comes alone

_Rows = Callable[[WindowRows, npt.NDArray[np.float32]], dict[str, Lists]]


class _Form(NamedTuple):
    columns: Mapping[str, type[np.generic]]
    labels: str
    rows: _Rows


FORMS = {"trl": _Form(TRL_COLUMNS, TRL_LABELS, trl_rows), "tree": _Form(TREE_COLUMNS, TREE_LABELS, tree_rows)}


class Batch(NamedTuple):
    """Consecutive windows of one partition, a list of each column for every window."""

    partition: str
    num_windows: int
    columns: dict[str, Lists]


@dataclass(slots=True)
class Survey:
    """What an export will hold: totals over its windows.

    Attributes:
        documents: whole token sequences; 0 in a form that has none.
        tokens: of all rows of the export, as long as ``input_ids`` are.
        targets: labels other than -100.
        longest: tokens of the longest row of the export.
        longer: rows of the export with more tokens than a window has rows.
        other_weights: targets whose weight is neither 0 nor 1.
        first_weight: the first of these weights.
    """

    windows: int = 0
    documents: int = 0
    tokens: int = 0
    targets: int = 0
    longest: int = 0
    longer: int = 0
    other_weights: int = 0
    first_weight: float = 1.0

    def __str__(self) -> str:
        """Return the totals in one line, for people."""
        documents = f"{self.documents:,} documents, " if self.documents else ""
        return (
            f"{self.windows:,} windows, {documents}{self.tokens:,} tokens, {self.targets:,} targets; "
            f"the longest has {self.longest:,} tokens"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowExport:
    """The windows of one generation in the form of another trainer.

    Args:
        path: of the generation.
        manifest: of it.
        form: ``trl`` (whole token sequences; of layouts that do not merge) or ``tree`` (intervals; of any layout).
        partition: ``train``, ``val``, or ``all`` for both, with a column that says which.
        weights: in form ``trl``, ``one`` to refuse weights other than 0 and 1, which it has no place for, or
            ``column`` to give them as a column of their own, ``loss_weights``.

    Raises:
        UsageError: no such form, partition or choice.
        MismatchError: the form cannot say what the windows hold.
    """

    path: Path
    manifest: Manifest
    form: str
    partition: str = "train"
    weights: str | None = None

    def __post_init__(self) -> None:
        """Check what goes together."""
        _check_choice("--to", self.form, FORMS)
        _check_choice("--partition", self.partition, [*self.manifest.partitions, "all"])
        if self.weights is not None:
            if self.form != "trl":
                raise UsageError(
                    "--weights",
                    f"does not go with --to {self.form}",
                    "its rows always have theirs",
                    hint="leave it out",
                )
            _check_choice("--weights", self.weights, ["one", "column"])
        if self.form == "trl":
            _refuse_trees(self.path, self.manifest)

    @property
    def partitions(self) -> list[str]:
        """The partitions in the order of the rows."""
        return self.manifest.partitions if self.partition == "all" else [self.partition]

    @property
    def columns(self) -> dict[str, type[np.generic]]:
        """The columns of lists and the types of their values, in order."""
        more: dict[str, type[np.generic]] = {WEIGHT_COLUMN: np.float32} if self.weights == "column" else {}
        return {**FORMS[self.form].columns, **more}

    @property
    def has_partition_column(self) -> bool:
        """Whether every row says which partition it is of."""
        return self.partition == "all"

    @property
    def metadata(self) -> dict[str, str]:
        """What a reader of the rows must know: the form and its version, the build, and what labels mean."""
        pack, tokenizer = self.manifest.pack, self.manifest.tokenizer
        return {
            "dagpack.form": self.form,
            "dagpack.form_version": str(FORM_VERSION),
            "dagpack.format_version": str(FORMAT_VERSION),
            "dagpack.version": dagpack_cli.__version__,
            "dagpack.fingerprint": self.manifest.fingerprint,
            "dagpack.partition": self.partition,
            "dagpack.layout": pack.layout,
            "dagpack.objective": pack.objective,
            "dagpack.seq_len": str(pack.seq_len),
            "dagpack.window_len": str(pack.capacity),
            "dagpack.vocab_size": str(self.manifest.vocab_size),
            "dagpack.tokenizer_sha256": str(tokenizer["sha256"]),
            "dagpack.labels": FORMS[self.form].labels,
        }

    @property
    def num_windows(self) -> int:
        """Windows of the partitions, as the manifest says."""
        return sum(int(self.manifest.packing[part]["windows"]) for part in self.partitions)

    def survey(self, done: Callable[[int], None] = lambda _: None) -> Survey:
        """Read every window, check it as `verify` does, and return the totals; ``done`` hears of windows read.

        Raises:
            DamageError: a window is not what was written.
            MismatchError: a weight that the form has no place for.
        """
        found = Survey()
        for part in self.partitions:
            before = found.windows
            for shard, windows in iter_windows(self.path, self.manifest, part):
                check_windows(shard, windows, self.manifest)
                if self.form == "trl":
                    check_documents(shard, windows)
                self._add(found, windows)
                done(windows.num_windows)
            stored = self.manifest.packing[part]["windows"]
            if found.windows - before != stored:
                raise DamageError(
                    str(self.path / "shards"), f"{found.windows - before:,} windows of {part}", f"{stored:,}"
                )
        if found.other_weights and self.form == "trl" and self.weights != "column":
            raise MismatchError(
                str(self.path),
                f"{found.other_weights:,} of {found.targets:,} targets have another weight than 1, the first "
                f"{found.first_weight:g}",
                "weights 0 and 1: this form has labels alone, and its trainers weigh them alike",
                hint=f"--weights column adds them as a column {WEIGHT_COLUMN}, for a loss of your own",
            )
        return found

    def _add(self, found: Survey, windows: WindowRows) -> None:
        weights = self._weights(windows)
        others = weights[(weights != 0) & (weights != 1)]
        if len(others) and not found.other_weights:
            found.first_weight = float(others[0])
        found.other_weights += len(others)
        lengths = np.diff(windows.row_offsets)
        if self.form == "trl":
            heads = np.concatenate(([0], np.cumsum(windows.parents < 0)))[windows.row_offsets]
            found.documents += int(heads[-1])
            lengths = lengths + np.diff(heads)
        found.windows += windows.num_windows
        found.tokens += int(lengths.sum())
        found.targets += int(np.count_nonzero(weights))
        found.longest = max(found.longest, int(lengths.max(initial=0)))
        found.longer += int(np.count_nonzero(lengths > self.manifest.pack.capacity))

    def _weights(self, windows: WindowRows) -> npt.NDArray[np.float32]:
        """Return the weights of the rows as the objective of the build has them."""
        if self.manifest.pack.objective == "unique":
            return np.asarray(windows.owned & (windows.weights != 0), dtype=np.float32)
        return windows.weights

    def batches(self) -> Iterator[Batch]:
        """Yield the windows in order, some at a time. At most one shard is in memory, and a batch of columns."""
        for part in self.partitions:
            for _, windows in iter_windows(self.path, self.manifest, part):
                for some in _parts(windows):
                    rows = FORMS[self.form].rows(some, self._weights(some))
                    yield Batch(part, some.num_windows, {name: rows[name] for name in self.columns})


def _check_choice(option: str, value: str, choices: Mapping[str, object] | list[str]) -> None:
    if value not in choices:
        raise UsageError(option, value, f"one of {', '.join(choices)}")


def _refuse_trees(path: Path, manifest: Manifest) -> None:
    if manifest.pack.layout in UNMERGED_LAYOUTS:
        return
    pack = manifest.pack
    on_long = "" if pack.on_long == "error" else f" --on-long {pack.on_long}"
    hint = f"dagpack pack OUT NEW --layout best-fit --seq-len {pack.seq_len}{on_long}; or --to tree"
    if manifest.trie.merge == "state":
        hint = "dagpack build CORPUS NEW --merge none --layout best-fit; or --to tree"
    raise MismatchError(
        str(path),
        f"layout {pack.layout}: its windows are trees, not documents one after the other",
        f"layout {', '.join(UNMERGED_LAYOUTS[:-1])} or {UNMERGED_LAYOUTS[-1]}",
        hint=hint,
    )


def _parts(windows: WindowRows) -> Iterator[WindowRows]:
    """Yield consecutive windows with about `_BATCH_ROWS` rows together, at least one at a time."""
    first, offsets = 0, windows.row_offsets
    while first < windows.num_windows:
        last = int(np.searchsorted(offsets, offsets[first] + _BATCH_ROWS, side="right")) - 1
        last = max(last, first + 1)
        low, high = int(offsets[first]), int(offsets[last])
        yield WindowRows(
            row_offsets=offsets[first : last + 1] - low,
            **{name: getattr(windows, name)[low:high] for name in ROW_COLUMNS},
            num_supervised=windows.num_supervised[first:last],
            weight_sum=windows.weight_sum[first:last],
            attention_edges=windows.attention_edges[first:last],
            blocks=windows.blocks[first:last],
        )
        first = last
