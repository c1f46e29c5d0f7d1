"""`verify` finds what is wrong: damaged bytes by checksum, wrong windows by their meaning."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from builds import built, write_examples
from commands import TINY, run
from flips import flip_bits
from oracle import Example

from dagpack_cli import memory
from dagpack_cli.errors import DamageError
from dagpack_cli.manifest import FileEntry, IngestOptions, Manifest, PackOptions, TrieOptions
from dagpack_cli.pipeline import Execution, TokenizerChoice, build
from dagpack_cli.shards import WindowRows, read_shard
from dagpack_cli.shards.npy import write_npy
from dagpack_cli.shards.parquet import write_parquet
from dagpack_cli.storage import sha256_file
from dagpack_cli.verify import tries, verify_generation
from dagpack_cli.verify.owned import OwnershipCheck

EXAMPLES = [
    Example((1, 2, 3, 4), frozenset({1, 2, 3}), 1.0),
    Example((1, 2, 3, 5), frozenset({2, 3}), 2.0),
    Example((1, 2, 6, 7), frozenset({3}), 0.5),
    Example((8, 9, 1), frozenset({1, 2}), 1.0),
]


@pytest.fixture
def generation(tmp_path: Path) -> tuple[Path, Manifest]:
    """A build of a few examples in several windows."""
    write_examples(tmp_path / "corpus", EXAMPLES)
    result = build(
        tmp_path / "corpus",
        tmp_path / "out",
        tokenizer=TokenizerChoice(spec="none"),
        ingest_options=IngestOptions(),
        trie_options=TrieOptions(),
        pack_options=PackOptions(seq_len=4, prune=False),
        execution=Execution(),
    )
    return result.path, result.manifest


def test_a_build_verifies(generation: tuple[Path, Manifest]) -> None:
    """An untouched generation has no failures, and everything was looked at."""
    path, manifest = generation
    report = verify_generation(path, manifest)
    assert report.failures == []
    assert report.files == len(manifest.files)
    assert report.windows == manifest.packing["train"]["windows"] == 3
    assert report.rows == manifest.packing["train"]["rows"]


def test_every_flipped_byte_is_found_and_its_file_named(generation: tuple[Path, Manifest]) -> None:
    """Flipping any one byte of any file but the manifest's own is a failure that names the file."""
    path, manifest = generation
    generator = np.random.default_rng(0)
    for entry in manifest.files:
        file = path / entry.path
        original = file.read_bytes()
        for position in generator.integers(0, len(original), 3).tolist() if original else []:
            damaged = bytearray(original)
            damaged[position] ^= 1 << int(generator.integers(8))
            file.write_bytes(damaged)
            failures = verify_generation(path, manifest).failures
            assert len(failures) == 1
            assert failures[0].startswith(f"{file}: sha256 ")
        file.write_bytes(original)


def test_missing_shortened_and_foreign_files_are_named(generation: tuple[Path, Manifest]) -> None:
    """A file that is gone, shorter, or not of the build is a failure that names it."""
    path, manifest = generation
    shard = path / "shards/train-00000.parquet"
    data = shard.read_bytes()
    shard.write_bytes(data[:-1])
    assert verify_generation(path, manifest).failures == [
        f"{shard}: {len(data) - 1:,} bytes; {len(data):,} as the manifest says"
    ]
    shard.unlink()
    assert verify_generation(path, manifest).failures == [f"{shard}: the file is missing; {len(data):,} bytes"]
    shard.write_bytes(data)
    (path / "shards/train-00001.parquet").write_bytes(data)
    assert verify_generation(path, manifest).failures == [
        f"{path / 'shards/train-00001.parquet'}: not in the manifest; only files the build wrote"
    ]


def test_flipped_bits_anywhere_in_an_output_are_found(tmp_path: Path) -> None:
    """One bit of any file of two generations, of their runs' records or of CURRENT: verify names it."""
    for options in ((), ("--shard-format", "npy")):
        assert run("build", TINY / "pretokenised", tmp_path / "out", *options).code == 0
    found = flip_bits(tmp_path / "out", 90)
    assert found.files > 30
    assert found.missed == []
    assert run("verify", tmp_path / "out").code == 0


def _swap(name: str, row: int, value: float) -> Callable[[WindowRows], WindowRows]:
    def change(windows: WindowRows) -> WindowRows:
        column = getattr(windows, name).copy()
        column[row] = value
        return replace(windows, **{name: column})

    return change


def _flip_owned(windows: WindowRows) -> WindowRows:
    # The trunk row stands in two windows: hand it from the first to the second.
    owned = windows.owned.copy()
    repeated = [
        row
        for row in range(len(owned))
        if windows.parents[row] == -1 and (windows.inputs[row], windows.targets[row]) == (1, 2)
    ]
    assert len(repeated) > 1
    owned[repeated[0]], owned[repeated[1]] = owned[repeated[1]], owned[repeated[0]]
    return replace(windows, owned=owned)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_swap("parents", 1, -1), "a depth that is not the number of its ancestors"),
        (_swap("parents", 0, 1), "a parent that is not an earlier row of the window"),
        (_swap("depths", 1, 2), "a depth that is not the number of its ancestors"),
        (_swap("inputs", 1, 3), "an input that is not its parent's target"),
        (_swap("segments", 1, 1), "a segment that is not its parent's"),
        (_swap("targets", 2, 99), "targets outside the vocabulary"),
        (_swap("counts", 0, 0), "a count below that of the rows that follow"),
        (_swap("counts", 2, -1), "a negative count"),
        (_swap("counts", 2, 7), "a count below that of the rows that follow"),
        (_swap("weights", 1, float("nan")), "a weight that is not finite"),
        (_swap("weights", 1, 17.0), "weight_sum is not the sum of the weights"),
        (_swap("attention_edges", 0, 17), "attention_edges is not the sum of depth + 1"),
        (_swap("num_supervised", 0, 17), "num_supervised 17; 5, of the window's examples"),
        (_flip_owned, "a row is not owned by exactly the window that should own it"),
    ],
)
@pytest.mark.parametrize("shard_format", ["parquet", "npy"])
def test_wrong_windows_with_right_checksums_are_found(
    generation: tuple[Path, Manifest], change: Callable[[WindowRows], WindowRows], message: str, shard_format: str
) -> None:
    """Windows that break their meaning fail, even when every checksum fits."""
    path, manifest = generation
    shard = path / "shards/train-00000.parquet"
    windows = change(read_shard(shard))
    if shard_format == "npy":
        shard.unlink()
        write_npy(path / "shards/train-00000", windows, 4)
    else:
        write_parquet(shard, windows, 4, {}, 1)
    files = [
        FileEntry(path=file.relative_to(path).as_posix(), size=file.stat().st_size, sha256=sha256_file(file))
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name not in ("manifest.json", "run.json")
    ]
    failures = verify_generation(path, replace(manifest, files=files)).failures
    assert len(failures) == 1
    assert message in failures[0]


def test_a_ledger_that_does_not_balance_is_found(generation: tuple[Path, Manifest]) -> None:
    """Numbers of the manifest that do not add up are a failure."""
    path, manifest = generation
    ledger = json.loads(json.dumps(manifest.ledger))
    ledger["train"]["pairs"]["pruned"] += 1
    failures = verify_generation(path, replace(manifest, ledger=ledger)).failures
    assert len(failures) == 1
    assert "the ledger of train does not balance" in failures[0]


def test_the_manifest_reads_back_as_it_was_written(generation: tuple[Path, Manifest]) -> None:
    """A manifest goes through the same constructors both ways, and its bytes are those on disk."""
    path, manifest = generation
    raw = (path / "manifest.json").read_bytes()
    assert asdict(Manifest.from_bytes(raw, path)) == asdict(manifest)
    assert manifest.to_bytes() == raw
    current = json.loads((path.parent.parent / "CURRENT").read_bytes())
    assert current == {"generation": path.name, "manifest_sha256": hashlib.sha256(raw).hexdigest()}


@pytest.mark.parametrize("span", [1, 3, 100])
def test_a_forest_in_preorder_is_told_from_all_others(span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all parents and ends of up to three nodes, and of larger forests with one wrong entry, only the right pass."""
    monkeypatch.setattr(memory, "SPAN", span)

    def check(parents: Sequence[int], ends: Sequence[int]) -> None:
        columns = np.array(parents, dtype=np.int32), np.array(ends, dtype=np.int32)
        trie: Any = SimpleNamespace(num_nodes=len(parents), parents=columns[0], subtree_ends=columns[1])
        below = [[node for node in range(len(parents)) if at in _path(parents, node)] for at in range(len(parents))]
        right = all(
            parent < node and nodes == list(range(node, end))
            for node, (parent, end, nodes) in enumerate(zip(parents, ends, below, strict=True))
        )
        assert tries._is_preorder(trie) == right, (parents, ends)

    for num in range(4):
        for parents in product(range(-1, num), repeat=num):
            for ends in product(range(num + 2), repeat=num):
                check(parents, ends)
    draw = random.Random(2)
    for _ in range(60):
        path, found = [-1], []
        for node in range(7):
            found.append(draw.choice(path))
            path = [*path[: path.index(found[-1]) + 1], node]
        stops = [max(node for node in range(7) if at in _path(found, node)) + 1 for at in range(7)]
        check(found, stops)
        for at, column in product(range(7), (found, stops)):
            kept, column[at] = column[at], draw.randrange(-1, 9)
            check(found, stops)
            column[at] = kept


def _path(parents: Sequence[int], node: int) -> list[int]:
    """Return a node and those above it, as far as a node's parent stands before it."""
    nodes = [node]
    while 0 <= parents[node] < node:
        node = parents[node]
        nodes.append(node)
    return nodes


@pytest.mark.parametrize("layout", ["dag", "best-fit"])
def test_an_example_of_weight_0_supervises_nothing(layout: str) -> None:
    """It is in a window with its rows and its counts, and no pair of it is supervised; the others' are."""
    examples = [Example((5, 6, 7), frozenset({1, 2}), weight) for weight in (0.0, 1.0, 0.0)]
    pack = PackOptions(seq_len=4, prune=False, layout=layout)
    with built(examples, pack, TrieOptions()) as made:
        assert sum(window.num_supervised for window in made.windows["train"]) == 2
        assert verify_generation(made.result.path, made.result.manifest).failures == []


MANY = [
    Example((1, 2, *range(3, 3 + length), 90 + length), frozenset(range(2, length + 3)), 1.0 + length / 4)
    for length in (1, 1, 2, 3, 5, 8, 8, 13)
]


def _shifted(windows: WindowRows, name: str) -> WindowRows:
    """Hand a share of one row to another so that whatever is checked of rows and windows alone still holds."""
    column = getattr(windows, name).copy()
    if name == "weights":
        row = int(np.argmax((windows.weights[:-1] > 0) & (windows.parents[1:] == np.arange(len(column) - 1))))
        column[row] -= 0.25
        column[row + 1] += 0.25
        return replace(windows, weights=column)
    bases = np.repeat(windows.row_offsets[:-1], np.diff(windows.row_offsets))
    leaves = np.setdiff1d(np.arange(len(column)), (windows.parents + bases)[windows.parents >= 0])
    for row, step in ((int(leaves[0]), 1), (int(leaves[-1]), -1)):
        while True:
            column[row] += step
            if windows.parents[row] < 0:
                break
            row = int(windows.parents[row] + bases[row])
    return replace(windows, counts=column)


@pytest.mark.parametrize("layout", ["dag", "best-fit"])
@pytest.mark.parametrize("name", ["weights", "counts"])
def test_shares_are_computed_again(name: str, layout: str) -> None:
    """Counts and weights that fit one another and are those of no example are found."""
    with built(MANY, PackOptions(seq_len=16, layout=layout)) as made:
        path, manifest = made.result.path, made.result.manifest
        assert verify_generation(path, manifest).failures == []
        shard = path / "shards/train-00000.parquet"
        write_parquet(shard, _shifted(read_shard(shard), name), 16, {}, 1)
        files = [
            replace(entry, size=(path / entry.path).stat().st_size, sha256=sha256_file(path / entry.path))
            for entry in manifest.files
        ]
        [failure] = verify_generation(path, replace(manifest, files=files)).failures
        assert "of the window's examples" in failure


@pytest.mark.parametrize("trains", [(0, 1), (1, 1), (0, 0), (1, 0)])
def test_owner_is_the_first_window_that_trains_a_row(trains: tuple[int, int], tmp_path: Path) -> None:
    """Of two windows with one row: the first whose weight is not 0, else the first."""
    ints = np.zeros(2, dtype=np.int32)
    for owner in (0, 1):
        windows = WindowRows(
            row_offsets=np.array([0, 1, 2]),
            inputs=ints,
            targets=ints,
            depths=ints,
            parents=ints - 1,
            counts=ints,
            segments=ints,
            weights=np.array(trains, dtype=np.float32),
            owned=np.arange(2) == owner,
            num_supervised=np.zeros(2, dtype=np.int64),
            weight_sum=np.array(trains, dtype=np.float64),
            attention_edges=np.ones(2, dtype=np.int64),
            blocks=np.zeros(2, dtype=np.int64),
        )
        with OwnershipCheck(2, once=False) as check:
            check.add(tmp_path, windows, np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64))
            if owner == (1 if trains == (0, 1) else 0):
                check.finish(tmp_path, "train", 1)
            else:
                with pytest.raises(DamageError, match="not owned by exactly"):
                    check.finish(tmp_path, "train", 1)


def test_pointer_that_is_written_otherwise_is_found(generation: tuple[Path, Manifest]) -> None:
    """CURRENT has no checksum, so it is held against the one way in which it is written."""
    path, manifest = generation
    current = path.parent.parent / "CURRENT"
    current.write_bytes(current.read_bytes().replace(b":", b": "))
    assert verify_generation(path, manifest).failures == [
        f"{current}: not as it was written; one line of JSON by dagpack"
    ]


@pytest.mark.parametrize("layout", ["dag", "walk"])
def test_ownership_is_checked_in_parts(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many small temporary files the answer is the one of a single file: the shard with the wrong row is named."""
    monkeypatch.setattr("dagpack_cli.verify.owned._BUCKET_ROWS", 2)
    with built(MANY, PackOptions(seq_len=16, prune=False, layout=layout)) as made:
        assert verify_generation(made.result.path, made.result.manifest).failures == []
        windows = read_shard(made.result.path / "shards/train-00000.parquet")
        positions = np.unique(
            [hash(path) & ~(1 << 63) for window in made.windows["train"] for path in window.paths()],
            return_inverse=True,
        )[1]
        distinct = made.result.manifest.packing["train"]["distinct_rows"]
        for row in [None, *range(len(positions))]:
            with OwnershipCheck(64, once=layout == "walk") as check:
                owned = windows.owned.copy()
                owned[slice(0) if row is None else row] ^= True
                check.add(Path("shard"), replace(windows, owned=owned), positions, np.zeros(0, dtype=np.int64))
                if row is None:
                    check.finish(Path("x"), "train", distinct)
                    continue
                with pytest.raises(DamageError, match="shard: train: a row is not owned by exactly"):
                    check.finish(Path("x"), "train", distinct)


def test_memory_does_not_grow_with_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of a long chain, read in blocks of a few tokens, are those of its windows' rows."""
    monkeypatch.setattr("dagpack_cli.verify.keys._BLOCK", 3)
    with built(MANY, PackOptions(seq_len=16)) as made:
        assert verify_generation(made.result.path, made.result.manifest).failures == []
