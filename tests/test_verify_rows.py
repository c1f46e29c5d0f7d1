"""`verify` computes every number of every row again, whatever the options: one that is wrong is found."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builds import Built, built
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import Example
from strategies import ANY_WEIGHT, MERGED_LAYOUTS, UNMERGED_LAYOUTS, corpora, graphs

import dagpack_cli.shards.files
from dagpack_cli.errors import DamageError, NoInputError
from dagpack_cli.manifest import Manifest, PackOptions, TrieOptions, seal_run, unseal_run
from dagpack_cli.provenance import read_columns
from dagpack_cli.shards import WindowRows, read_shard
from dagpack_cli.shards.parquet import write_parquet
from dagpack_cli.storage import canonical_json, sha256_file
from dagpack_cli.trie import open_trie
from dagpack_cli.verify import verify_generation
from dagpack_cli.verify.examples import Rules
from dagpack_cli.verify.transitions import check_transitions

LAYOUTS = [*MERGED_LAYOUTS, *UNMERGED_LAYOUTS]


def verified(made: Built) -> list[str]:
    """Return what is wrong with a build."""
    return verify_generation(made.result.path, made.result.manifest).failures


@given(
    examples=corpora(weights=ANY_WEIGHT),
    layout=st.sampled_from(LAYOUTS),
    on_long=st.sampled_from(["split", "split", "truncate", "drop"]),
    seq_len=st.integers(1, 8) | st.sampled_from([12, 40]),
    more=st.sampled_from([0, 0, 3, 20]),
    prune=st.booleans(),
    root=st.sampled_from([None, None, "0", "11"]),
    min_shared=st.sampled_from([1, 2, 3, 6]),
    val_fraction=st.sampled_from([0.0, 0.0, 0.5]),
)
@settings(max_examples=50)
def test_every_build_of_prefixes_verifies(
    examples: list[Example],
    layout: str,
    on_long: Any,
    seq_len: int,
    more: int,
    prune: bool,
    root: str | None,
    min_shared: int,
    val_fraction: float,
) -> None:
    """Whatever the corpus and the options, what a build wrote is what its examples ask for."""
    pack = PackOptions(seq_len=seq_len, window_len=seq_len + more, on_long=on_long, prune=prune, layout=layout)
    trie = TrieOptions(virtual_root=root, min_shared=min_shared, val_fraction=val_fraction)
    try:
        with built(examples, pack, trie) as made:
            assert verified(made) == []
    except NoInputError:
        assume(False)


@given(
    examples=graphs(),
    layout=st.sampled_from(MERGED_LAYOUTS),
    on_long=st.sampled_from(["split", "truncate"]),
    seq_len=st.integers(1, 8),
    prune=st.booleans(),
    root=st.sampled_from([None, None, "0", "11"]),
    val_fraction=st.sampled_from([0.0, 0.0, 0.5]),
)
@settings(max_examples=25)
def test_every_build_of_states_verifies(
    examples: list[Example],
    layout: str,
    on_long: Any,
    seq_len: int,
    prune: bool,
    root: str | None,
    val_fraction: float,
) -> None:
    """So it is where states are merged."""
    pack = PackOptions(seq_len=seq_len, on_long=on_long, prune=prune, layout=layout)
    trie = TrieOptions(merge="state", virtual_root=root, val_fraction=val_fraction)
    try:
        with built(examples, pack, trie) as made:
            assert verified(made) == []
    except NoInputError:
        assume(False)


# Long shared beginnings and short ones, equal pieces behind different ones, equal examples, weights that are
# no sums of powers of two, and one below 0.
_TRUNK, _TAIL = tuple(range(1, 9)), (20, 21, 22, 23, 24, 25, 26, 27)
CORPUS = [
    Example((*_TRUNK, 10, *_TAIL), frozenset(range(5, 17)), 0.1),
    Example((*_TRUNK, 11, *_TAIL), frozenset(range(9, 17)), 0.7),
    Example((*_TRUNK, 11, *_TAIL), frozenset({3, 4, 15}), 1.3),
    Example((*_TRUNK[:3], 12, 13, 14), frozenset({2, 3, 4, 5}), 0.3),
    Example((*_TRUNK[:3], 12, 13, 15), frozenset({4}), 2.5),
    Example((*_TRUNK[:2], 16, 17), frozenset({1, 2, 3}), 1.1),
    Example((1, 18, 19, 10, *_TAIL), frozenset({1, 2, 8, 9, 10, 11}), 0.9),
    Example((1, 18, 19), frozenset({1, 2}), 0.0),
    Example((*_TAIL, *_TAIL, 28), frozenset(range(3, 17)), 0.6),
    Example((*_TAIL, *_TAIL, 29), frozenset(range(17)), -0.4),
    Example((30,), frozenset({0}), 1.0),
    Example((), frozenset(), 1.0),
]
GAMES = [
    Example(walk, frozenset(range(1, len(walk))) - {number}, 0.1 + number)
    for number, walk in enumerate([(1, 2, 3, 4, 5), (1, 2, 4, 3, 2), (6, 2, 3, 7), (6, 8, 8, 9, 1), (1, 2, 3, 4, 5)])
]
SHORT: dict[str, Any] = {"seq_len": 8, "on_long": "split"}
BUILDS: dict[str, tuple[PackOptions, TrieOptions]] = {
    "dag": (PackOptions(seq_len=20), TrieOptions()),
    "dag kept whole": (PackOptions(seq_len=20, window_len=31, prune=False), TrieOptions(virtual_root="0")),
    "dag split": (PackOptions(**SHORT), TrieOptions()),
    "dag split whole": (PackOptions(**SHORT, prune=False), TrieOptions(virtual_root="0", min_shared=3)),
    "dag apart": (PackOptions(seq_len=20), TrieOptions(min_shared=4)),
    "dag truncate": (PackOptions(seq_len=8, on_long="truncate"), TrieOptions(min_shared=3)),
    "dag drop": (PackOptions(seq_len=12, on_long="drop", prune=False), TrieOptions()),
    "dag two": (PackOptions(**SHORT), TrieOptions(val_fraction=0.5, seed=3)),
    "walk": (PackOptions(seq_len=20, layout="walk"), TrieOptions()),
    "walk split": (PackOptions(**SHORT, layout="walk"), TrieOptions(min_shared=2)),
    "walk drop": (PackOptions(seq_len=12, on_long="drop", layout="walk"), TrieOptions(virtual_root="0")),
    "walk truncate": (PackOptions(seq_len=9, on_long="truncate", layout="walk", prune=False), TrieOptions()),
    "packed split": (PackOptions(**SHORT, layout="packed"), TrieOptions()),
    "best-fit split": (PackOptions(**SHORT, layout="best-fit", prune=False), TrieOptions(min_shared=4)),
    "padded split": (PackOptions(**SHORT, layout="padded"), TrieOptions(virtual_root="0")),
    "packed truncate": (PackOptions(seq_len=9, on_long="truncate", layout="packed"), TrieOptions()),
    "state": (PackOptions(seq_len=6), TrieOptions(merge="state")),
    "state split": (PackOptions(seq_len=2, on_long="split", prune=False), TrieOptions(merge="state")),
    "state walk": (PackOptions(seq_len=3, on_long="truncate", layout="walk"), TrieOptions(merge="state")),
    "state whole": (
        PackOptions(seq_len=4, layout="walk", on_long="split"),
        TrieOptions(merge="state", virtual_root="0"),
    ),
}

Change = Callable[[WindowRows, int], WindowRows | None]


def _with(windows: WindowRows, name: str, at: int, value: Any) -> WindowRows | None:
    column = getattr(windows, name).copy()
    if column[at] == value:
        return None
    column[at] = value
    return replace(windows, **{name: column})


def _next_weight(windows: WindowRows, row: int) -> WindowRows | None:
    """Change a weight to the next number there is; 0 to a number that matters."""
    weight = windows.weights[row]
    return _with(windows, "weights", row, np.nextafter(weight, np.float32(9)) if weight else np.float32(0.125))


def _less(name: str) -> Change:
    return lambda windows, row: _with(windows, name, row, getattr(windows, name)[row] - 1)


def _more(name: str) -> Change:
    return lambda windows, row: _with(windows, name, row, getattr(windows, name)[row] + 1)


def _other_target(windows: WindowRows, row: int) -> WindowRows | None:
    """Change a target, and the inputs of rows below to it, so that the window still goes together."""
    bases = np.repeat(windows.row_offsets[:-1], np.diff(windows.row_offsets))
    below = (windows.parents >= 0) & (windows.parents + bases == row)
    inputs, targets = windows.inputs.copy(), windows.targets.copy()
    inputs[below] = targets[row] = 3 if targets[row] != 3 else 4
    return replace(windows, inputs=inputs, targets=targets)


def _other_start(windows: WindowRows, row: int) -> WindowRows | None:
    """Change the input of a row that begins a tree."""
    return _with(windows, "inputs", row, 7 if windows.inputs[row] != 7 else 6) if windows.parents[row] < 0 else None


def _other_tree(windows: WindowRows, row: int) -> WindowRows | None:
    """Give a tree of a window another number."""
    owners = np.repeat(np.arange(windows.num_windows), np.diff(windows.row_offsets))
    mine = (owners == owners[row]) & (windows.segments == windows.segments[row])
    return replace(windows, segments=np.where(mine, windows.segments + 1, windows.segments).astype(np.int32))


def _supervised(windows: WindowRows, row: int) -> WindowRows | None:
    window = int(np.searchsorted(windows.row_offsets, row, side="right")) - 1
    return _with(windows, "num_supervised", window, windows.num_supervised[window] + 1)


def _last_window_cut(windows: WindowRows, row: int) -> WindowRows | None:
    """Leave a leaf at the end of a window out, with all that is known of it."""
    window = int(np.searchsorted(windows.row_offsets, row, side="right")) - 1
    low, high = windows.row_offsets[window : window + 2].tolist()
    if row != high - 1 or high - low == 1:
        return None
    columns = {name: np.delete(getattr(windows, name), row) for name in _COLUMNS}
    offsets = np.where(np.arange(len(windows.row_offsets)) > window, windows.row_offsets - 1, windows.row_offsets)
    return replace(windows, row_offsets=offsets, **columns)


_COLUMNS = ("inputs", "targets", "depths", "parents", "counts", "segments", "weights", "owned")
CHANGES: dict[str, Change] = {
    "weights": _next_weight,
    "counts": _more("counts"),
    "fewer counts": _less("counts"),
    "owned": lambda windows, row: _with(windows, "owned", row, not windows.owned[row]),
    "num_supervised": _supervised,
    "depths": _more("depths"),
    "parents": _less("parents"),
    "targets": _other_target,
    "inputs": _other_start,
    "segments": _other_tree,
    "rows": _last_window_cut,
}


def _forged(path: Path, shard: str, windows: WindowRows) -> Manifest:
    """Write windows over a shard of an output, with every sum and every checksum that follows from them."""
    owners = np.repeat(np.arange(windows.num_windows), np.diff(windows.row_offsets))
    windows = replace(
        windows,
        weight_sum=np.bincount(owners, weights=windows.weights, minlength=windows.num_windows).astype(np.float64),
        attention_edges=np.bincount(owners, weights=windows.depths + 1, minlength=windows.num_windows).astype(np.int64),
    )
    manifest = Manifest.from_bytes((path / "manifest.json").read_bytes(), path)
    write_parquet(path / shard, windows, manifest.pack.capacity, {}, 1)
    packing, ledger = (json.loads(json.dumps(value)) for value in (manifest.packing, manifest.ledger))
    part = Path(shard).stem.rsplit("-", 1)[0]
    stored = [read_shard(path / name) for name in manifest.shards(part)]
    pairs = sum(int(one.counts.sum()) for one in stored)
    packing[part] |= {
        "rows": sum(len(one.inputs) for one in stored),
        "pairs": pairs,
        "supervised_pairs": sum(int(one.num_supervised.sum()) for one in stored),
        "attention_edges": sum(int(one.attention_edges.sum()) for one in stored),
        "weight_sum": sum(float(one.weight_sum.sum()) for one in stored),
    }
    for one in (part, "total"):
        more = pairs - manifest.packing[part]["pairs"]
        ledger[one]["pairs"]["in_windows"] += more
        ledger[one]["pairs"]["pruned"] -= more
        ledger[one]["merged"] += more
    return _sealed(path, replace(manifest, packing=packing, ledger=ledger))


def _sealed(path: Path, manifest: Manifest) -> Manifest:
    """Write a manifest with the checksums of all files, and what holds its own."""
    files = [
        replace(entry, size=(path / entry.path).stat().st_size, sha256=sha256_file(path / entry.path))
        for entry in manifest.files
    ]
    manifest = replace(manifest, files=files)
    raw = manifest.to_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    (path / "manifest.json").write_bytes(raw)
    run = unseal_run((path / "run.json").read_bytes())
    assert run is not None
    (path / "run.json").write_bytes(seal_run(run | {"manifest_sha256": digest}))
    current = {"generation": path.name, "manifest_sha256": digest}
    (path.parent.parent / "CURRENT").write_bytes(canonical_json(current) + b"\n")
    return manifest


def _tried(made: Built, change: Change) -> Iterator[tuple[str, WindowRows]]:
    """Yield shards with one thing changed, at two rows of a build."""
    path, manifest = made.result.path, made.result.manifest
    shards = {name: read_shard(path / name) for name in manifest.shards("train") + manifest.shards("val")}
    rows = [(name, row) for name, windows in shards.items() for row in range(len(windows.inputs))]
    found = ((name, change(shards[name], row)) for name, row in random.Random(1).sample(rows, len(rows)))
    yield from islice(((name, windows) for name, windows in found if windows is not None), 2)


@pytest.mark.parametrize("name", BUILDS)
def test_any_wrong_value_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One value of one row, with every sum and checksum that goes with it: the shard is named, and nothing else."""
    pack, trie = BUILDS[name]
    monkeypatch.setattr(dagpack_cli.shards.files, "_FILE_ROWS", 2 * pack.capacity)  # two windows
    with built(GAMES if trie.merge == "state" else CORPUS, pack, trie) as made:
        path, manifest = made.result.path, made.result.manifest
        assert verified(made) == []
        for label, change in CHANGES.items():
            tried = 0
            for shard, windows in _tried(made, change):
                original = (path / shard).read_bytes()
                [failure] = verify_generation(path, _forged(path, shard, windows)).failures
                # Of a row that is nowhere no shard is to blame.
                where = path / shard if label != "rows" or manifest.pack.layout == "dag" else path / "shards"
                assert failure.startswith(f"{where}"), (label, failure)
                tried += 1
                (path / shard).write_bytes(original)
                _sealed(path, manifest)
            assert tried == 2, label
        assert verified(made) == []


def _row_of(windows: WindowRows, window: int, target: int) -> int:
    """Return the first row of a window with a target."""
    low, high = windows.row_offsets[window : window + 2].tolist()
    return int(low + np.flatnonzero(windows.targets[low:high] == target)[0])


def _changed(windows: WindowRows, **columns: dict[int, Any]) -> WindowRows:
    """Return windows with some entries of some columns changed."""
    found = {name: getattr(windows, name).copy() for name in columns}
    for name, entries in columns.items():
        for at, value in entries.items():
            found[name][at] = value
    return replace(windows, **found)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("count", [0, 1])
def test_a_row_that_trains_nothing_is_found(layout: str, count: int) -> None:
    """Pruned rows put back, with a count or without: nothing needs them."""
    examples = [Example((1, 2, 3), frozenset({1})), Example((1, 2, 4, 5), frozenset({2, 3}))]
    with built(examples, PackOptions(seq_len=9, layout=layout), TrieOptions()) as made:
        assert verified(made) == []
        path, shard = made.result.path, "shards/train-00000.parquet"
        windows = read_shard(path / shard)
        first = 0 if layout in UNMERGED_LAYOUTS else _row_of(windows, 0, 2)
        after = int(windows.row_offsets[1]) if layout not in UNMERGED_LAYOUTS else 1
        row = {"inputs": 2, "targets": 3, "depths": 1, "parents": first, "counts": count, "segments": 0, "weights": 0}
        columns = {name: np.insert(getattr(windows, name), after, (row | {"owned": True})[name]) for name in _COLUMNS}
        offsets = np.where(np.arange(len(windows.row_offsets)) > 0, windows.row_offsets + 1, windows.row_offsets)
        parents = columns["parents"]
        if layout in UNMERGED_LAYOUTS and layout != "padded":  # the window's other rows move
            parents[2:] = np.where(parents[2:] >= 0, parents[2:] + 1, -1)
        manifest = _forged(path, shard, replace(windows, row_offsets=offsets, **columns))
        packing = manifest.packing | {"train": manifest.packing["train"] | {"distinct_rows": len(columns["inputs"])}}
        failures = verify_generation(path, _sealed(path, replace(manifest, packing=packing))).failures
        assert any(failure.startswith(f"{path / shard}: ") for failure in failures)


@pytest.mark.parametrize("layout", MERGED_LAYOUTS)
def test_a_row_that_stands_twice_in_its_window_is_found(layout: str) -> None:
    """A leaf once more behind itself, as context that trains nothing."""
    examples = [Example((1, 2, last), frozenset({1, 2})) for last in (3, 4)]
    with built(examples, PackOptions(seq_len=9, layout=layout), TrieOptions()) as made:
        path, shard = made.result.path, "shards/train-00000.parquet"
        windows = read_shard(path / shard)
        again = {name: getattr(windows, name)[-1] for name in _COLUMNS} | {"counts": 0, "weights": 0, "owned": False}
        columns = {name: np.append(getattr(windows, name), again[name]) for name in _COLUMNS}
        columns = {name: column.astype(getattr(windows, name).dtype) for name, column in columns.items()}
        manifest = _forged(path, shard, replace(windows, row_offsets=np.array([0, 4]), **columns))
        [failure] = verify_generation(path, manifest).failures
        assert failure.startswith(f"{path / shard}: row 3 stands a second time in its window")


BRANCHES = [
    Example((1, 2, 3), frozenset({1, 2}), 0.5),
    Example((1, 2, 3, *range(10, 16)), frozenset(range(1, 9)), 1.0),
    Example((1, 2, 3, *range(20, 26)), frozenset(range(1, 9)), 2.0),
]


@pytest.mark.parametrize(
    ("window", "found"),
    [
        (1, "shards/train-00000.parquet: train: an example belongs to a window that is not the first"),
        (99, "examples.parquet: train: 1 examples in windows that are none"),
    ],
)
def test_an_example_in_another_window_is_found(window: int, found: str) -> None:
    """A window that is not the first with an example's last row, or none, and all shares as if it were."""
    with built(BRANCHES, PackOptions(seq_len=8), TrieOptions()) as made:
        path, shard = made.result.path, "shards/train-00000.parquet"
        windows = read_shard(path / shard)
        assert made.provenance[0]["windows"] == [0]
        moves = [(0, -1), (window, 1)][: windows.num_windows if window == 1 else 1]
        trunks = [(_row_of(windows, number, target), sign) for number, sign in moves for target in (2, 3)]
        moved = _changed(
            windows,
            counts={row: windows.counts[row] + sign for row, sign in trunks},
            weights={row: windows.weights[row] + sign / 2 for row, sign in trunks},
            num_supervised={number: windows.num_supervised[number] + 2 * sign for number, sign in moves},
        )
        table = pq.read_table(path / "examples.parquet")
        column = pa.array([[window], *table["windows"].to_pylist()[1:]], table.schema.field("windows").type)
        table = table.set_column(table.schema.get_field_index("windows"), table.schema.field("windows"), column)
        pq.write_table(table, path / "examples.parquet", write_page_checksum=True)
        [failure] = verify_generation(path, _forged(path, shard, moved)).failures
        assert failure.startswith(f"{path}/{found}")


def test_a_transition_left_out_is_found() -> None:
    """A leaf of a graph that no window has, where no sum of the manifest knows of it either."""
    with built(GAMES, PackOptions(seq_len=20), TrieOptions(merge="state")) as made:
        path, shard = made.result.path, "shards/train-00000.parquet"
        windows = read_shard(path / shard)
        without = _last_window_cut(windows, len(windows.inputs) - 1)
        assert without is not None
        whole = made.result.manifest
        rows = whole.packing["train"]["distinct_rows"] - 1
        supervised = int(open_trie(path / "trie/train").supervised[-1])
        manifest = _forged(path, shard, replace(without, num_supervised=windows.num_supervised - supervised))
        packing = {"train": manifest.packing["train"] | {"distinct_rows": rows}}
        merged = {"merged": packing["train"]["pairs"] - rows}
        ledger = manifest.ledger | {part: manifest.ledger[part] | merged for part in ("train", "total")}
        forged = _sealed(path, replace(manifest, packing=packing, ledger=ledger))
        assert verify_generation(path, forged).failures == [
            f"{path / 'manifest.json'}: train: {rows} distinct rows, as the manifest says; {rows + 1}, of the examples"
        ]


@pytest.mark.parametrize(
    ("column", "at", "step", "file"),
    [
        ("supervised", 1, -1, "supervised.npy"),
        ("supervised", 1, 9, "supervised.npy"),
        ("counts", 0, 1, "counts.npy"),
        ("weights", 1, 0.125, "weights.npy"),
        ("weights", 0, 1, "weights.npy"),
        ("tokens", -2, -1, "tokens.npy"),
    ],
)
def test_totals_of_a_graph_are_those_of_its_examples(column: str, at: int, step: float, file: str) -> None:
    """Though no example says which transitions it is, what all of them are together is known."""
    with built(GAMES, PackOptions(seq_len=6), TrieOptions(merge="state")) as made:
        path = made.result.path
        trie = open_trie(path / "trie/train")
        columns = read_columns(path / "examples.parquet", ["train"])
        given = (columns, np.arange(columns.num_examples), Rules.of(made.result.manifest))
        check_transitions(path, trie, *given)
        changed = getattr(trie, column).copy()
        changed[at] = changed[at] + step
        with pytest.raises(DamageError, match=file):
            check_transitions(path, replace(trie, **{column: changed}), *given)


def test_a_path_over_a_cut_is_found() -> None:
    """Pieces of a split example as one path: longer than any, where the window would hold it."""
    pack = PackOptions(seq_len=2, window_len=9, on_long="split", layout="walk")
    with built([Example((1, 2, 3, 4, 5), frozenset(range(5)))], pack, TrieOptions()) as made:
        path, shard = made.result.path, "shards/train-00000.parquet"
        windows = read_shard(path / shard)
        assert windows.depths.tolist() == [0, 1, 0, 1]
        joined = _changed(windows, depths={2: 2, 3: 3}, parents={2: 1}, segments={2: 0, 3: 0})
        [failure] = verify_generation(path, _forged(path, shard, joined)).failures
        assert failure.startswith(f"{path / shard}: a path of more than 2 rows")


def test_a_row_trained_in_a_later_window_of_the_walk_is_found() -> None:
    """A row that is trained once is so in the first window that holds it, not where it is repeated."""
    with built(BRANCHES, PackOptions(seq_len=8, layout="walk"), TrieOptions()) as made:
        path, shard = made.result.path, "shards/train-00000.parquet"
        windows = read_shard(path / shard)
        first, second = (_row_of(windows, window, 3) for window in (0, 1))
        numbers = {name: getattr(windows, name) for name in ("counts", "weights", "owned")}
        moved = _changed(
            windows,
            **{name: {first: column[second], second: column[first]} for name, column in numbers.items()},
            num_supervised={0: windows.num_supervised[0] - 3, 1: windows.num_supervised[1] + 3},
        )
        [failure] = verify_generation(path, _forged(path, shard, moved)).failures
        assert failure.startswith(f"{path / shard}: train: a row is not owned by exactly the window")


def _check_every_number_of_the_ledger(made: Built) -> None:
    path, manifest = made.result.path, made.result.manifest
    assert verified(made) == []
    for part, unit in product(sorted({"train", "total", *manifest.partitions}), ("examples", "pairs", "")):
        stored = manifest.ledger[part][unit] if unit else manifest.ledger[part]
        for entry in [entry for entry, value in stored.items() if isinstance(value, int)]:
            ledger = json.loads(json.dumps(manifest.ledger))
            changed = ledger[part][unit] if unit else ledger[part]
            changed[entry] += 1
            if unit:
                changed["pruned" if unit == "pairs" else "empty"] += 1 if entry == "in" else -1
                if changed == stored:
                    continue  # the one that balances
            failures = verify_generation(path, _sealed(path, replace(manifest, ledger=ledger))).failures
            assert len(failures) == 1, (part, unit, entry, failures)
            assert failures[0].startswith(f"{path / 'manifest.json'}: the ledger of {part}: "), failures


@pytest.mark.parametrize("name", ["dag split", "walk drop", "dag truncate", "state walk", "dag two"])
def test_every_number_of_the_ledger_is_counted_again(name: str) -> None:
    """One number of the ledger, and a second where something has to balance it."""
    pack, trie = BUILDS[name]
    with built(GAMES if trie.merge == "state" else CORPUS, pack, trie) as made:
        _check_every_number_of_the_ledger(made)


def test_conversations_that_train_nothing_are_in_the_ledger() -> None:
    """They count as dropped."""
    chats = [[("user", "a"), ("assistant", "b")], [("user", "c")], [("user", "d"), ("user", "e")]]
    lines = [json.dumps({"messages": [{"role": role, "content": text} for role, text in chat]}) for chat in chats]
    with built({"chats.jsonl": "\n".join(lines)}, PackOptions(seq_len=64), TrieOptions(), tokenizer="bytes") as made:
        assert made.ledger["train"]["examples"]["dropped"] == 2
        _check_every_number_of_the_ledger(made)


@pytest.mark.parametrize("name", ["dag split whole", "dag apart", "walk drop", "state split", "state walk"])
def test_a_wrong_value_in_a_trie_is_found(name: str) -> None:
    """One value of one column of the trie: a file of the trie is named, or what does not fit it."""
    pack, trie = BUILDS[name]
    with built(GAMES if trie.merge == "state" else CORPUS, pack, trie) as made:
        path, manifest = made.result.path, made.result.manifest
        stored = open_trie(path / "trie/train")
        # Of a row that is pruned, or of dropped examples, no window tells; nor does any of how many start at a state.
        nowhere = set(np.flatnonzero((stored.depths == 0) & (np.diff(stored.offsets) == 1)).tolist())
        passed_over = {("counts.npy", at) for at in (nowhere if trie.merge == "state" else ())}
        if pack.prune or pack.on_long == "drop":
            passed_over |= {("tokens.npy", at) for at in range(len(stored.tokens))}
        tried = 0
        for file in sorted((path / "trie/train").glob("*.npy")):
            original, column = file.read_bytes(), np.load(file)
            for at in range(0, len(column), 1 + len(column) // 12):
                changed = column.copy()
                # What examples weigh is known to the last bit, what transitions do only in all.
                exact = column.dtype == np.float32 and trie.merge == "prefix"
                changed[at] = np.nextafter(column[at], np.float32(9)) if exact else column[at] + 1
                np.save(file, changed)
                failures = verify_generation(path, _sealed(path, manifest)).failures
                assert failures or (file.name, at) in passed_over, (file.name, at)
                tried += 1
            file.write_bytes(original)
        _sealed(path, manifest)
        assert verified(made) == []
        assert tried > 40


@pytest.mark.parametrize("name", ["dag split", "dag apart", "walk drop", "padded split", "state"])
def test_a_wrong_value_of_an_example_is_found(name: str) -> None:
    """One value that windows follow from, in the examples: something that does not fit it is named."""
    pack, trie = BUILDS[name]
    changes: dict[str, Callable[[Any], Any]] = {
        "num_tokens": lambda value: value + 1,
        "end_node": lambda value: value + 1,
        "weight": lambda value: value + 0.25,
        "supervised_runs": lambda value: [*value[:-1], value[-1] - 1] if value else [0, 1],
        "windows": lambda value: [value[0] + 1, *value[1:]] if value else [0],
        "status": lambda value: "empty" if value == "kept" else "kept",
    }
    with built(GAMES if trie.merge == "state" else CORPUS, pack, trie) as made:
        path, manifest = made.result.path, made.result.manifest
        file = path / "examples.parquet"
        original, table = file.read_bytes(), pq.read_table(file)
        for column, change in changes.items():
            for row in (0, 1, 4, min(9, len(table) - 1)):
                values = table[column].to_pylist()
                values[row] = change(values[row])
                field = table.schema.field(column)
                changed = table.set_column(table.schema.get_field_index(column), field, pa.array(values, field.type))
                pq.write_table(changed, file, write_page_checksum=True)
                assert verify_generation(path, _sealed(path, manifest)).failures, (column, row)
        file.write_bytes(original)
        _sealed(path, manifest)
        assert verified(made) == []
