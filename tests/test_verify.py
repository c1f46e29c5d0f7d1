"""`verify` finds what is wrong: damaged bytes by checksum, wrong windows by their meaning."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from builds import write_examples
from oracle import Example

from dagpack_cli.manifest import FileEntry, IngestOptions, Manifest, PackOptions, TrieOptions
from dagpack_cli.pipeline import Execution, TokenizerChoice, build
from dagpack_cli.shards import WindowRows, read_shard
from dagpack_cli.shards.npy import write_npy
from dagpack_cli.shards.parquet import write_parquet
from dagpack_cli.storage import sha256_file
from dagpack_cli.verify import verify_generation

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
        (_swap("num_supervised", 0, 17), "supervised_pairs"),
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
