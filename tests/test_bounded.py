"""What a build holds: looked at a few entries at a time and kept in files, the same bytes, in bounded memory."""

from __future__ import annotations

import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import FIXTURES
from killed import contents
from test_determinism import game_files, token_files, write

import dagpack_cli.examples.splits
import dagpack_cli.examples.writing
import dagpack_cli.provenance.columns
import dagpack_cli.provenance.rewriting
import dagpack_cli.sequences
import dagpack_cli.shards.files
import dagpack_cli.shards.merged
import dagpack_cli.stages.ingest
import dagpack_cli.stages.partition_trie
import dagpack_cli.stages.symbol_lines
import dagpack_cli.tokenizing.symbol_table
from dagpack_cli import memory
from dagpack_cli.manifest import IngestOptions, Manifest, PackOptions, TrieOptions
from dagpack_cli.pipeline import BuildResult, Execution, TokenizerChoice, build, dedup, ingest
from dagpack_cli.provenance import read_columns
from dagpack_cli.stages.receipts import SilentListener
from dagpack_cli.verify import verify_generation


def run(corpus: Path, out: Path, pack: PackOptions, trie: TrieOptions, **how: Any) -> BuildResult:
    """Build a corpus."""
    return build(
        corpus,
        out,
        tokenizer=TokenizerChoice(),
        ingest_options=IngestOptions(),
        trie_options=trie,
        pack_options=pack,
        execution=Execution(cache=False, **how),
    )


def look_at_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everything done three entries at a time, and every array in a file."""
    monkeypatch.setattr(memory, "SPAN", 3)
    monkeypatch.setattr(memory, "_SHARE", 1 << 62)
    monkeypatch.setattr(dagpack_cli.sequences, "_SPAN", 3)
    monkeypatch.setattr(dagpack_cli.shards.merged, "_PIECES", 2)
    monkeypatch.setattr(dagpack_cli.examples.writing, "_META_ROWS", 3)
    monkeypatch.setattr(dagpack_cli.examples.splits, "_KEPT_ROWS", 4)
    monkeypatch.setattr(dagpack_cli.examples.splits, "_COARSE", 2)
    monkeypatch.setattr(dagpack_cli.stages.partition_trie, "_BLOCK_TOKENS", 20)  # weights whose sums are exact
    monkeypatch.setattr(dagpack_cli.stages.symbol_lines, "_BLOCK", 7)
    monkeypatch.setattr(dagpack_cli.tokenizing.symbol_table, "_BATCH_ROWS", 2)
    monkeypatch.setattr(dagpack_cli.tokenizing.symbol_table, "_KEPT_BYTES", 64)
    monkeypatch.setattr(dagpack_cli.provenance.columns, "BATCH_ROWS", 2)
    monkeypatch.setattr(dagpack_cli.provenance.rewriting, "BATCH_ROWS", 2)


@pytest.mark.parametrize(
    ("pack", "trie"),
    [
        (PackOptions(seq_len=16, on_long="split", polish=0), TrieOptions(val_fraction=0.3)),
        (PackOptions(seq_len=40, on_long="drop", polish=0), TrieOptions(min_shared=4)),
        (PackOptions(seq_len=64, on_long="split", layout="walk"), TrieOptions(virtual_root="0")),
        (PackOptions(seq_len=48, on_long="truncate", layout="best-fit"), TrieOptions(val_fraction=0.5)),
    ],
)
@pytest.mark.parametrize("engine", ["numpy", "numba"])
def test_a_little_at_a_time_gives_the_same_bytes(
    pack: PackOptions, trie: TrieOptions, engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where arrays lie nor how much of them is looked at changes a byte, and `verify` agrees."""
    corpus = write(tmp_path / "corpus", token_files(4))
    monkeypatch.setattr(dagpack_cli.stages.ingest, "_SPLIT_BYTES", 9_000)  # several splits
    whole = run(corpus, tmp_path / "whole", pack, trie, engine="numpy")
    look_at_little(monkeypatch)
    little = run(corpus, tmp_path / "little", pack, trie, engine=engine, memory=64 << 20)
    assert contents(tmp_path / "little") == contents(tmp_path / "whole")
    assert little.manifest == whole.manifest
    assert verify_generation(little.path, little.manifest).failures == []


@pytest.mark.parametrize(("make", "merge"), [(game_files, "state"), (game_files, "prefix"), (None, "prefix")])
def test_games_and_sessions_a_little_at_a_time(
    make: Any, merge: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is with symbols, and with sessions, whose messages have keys and whose examples have families."""
    corpus = FIXTURES / "claude-code" if make is None else write(tmp_path / "corpus", make(2))
    pack, trie = PackOptions(seq_len=512, on_long="split", polish=0), TrieOptions(merge=merge, val_fraction=0.4)
    if make is not None:
        monkeypatch.setattr(dagpack_cli.stages.ingest, "_SPLIT_BYTES", 5_000)  # several splits
    run(corpus, tmp_path / "whole", pack, trie)
    look_at_little(monkeypatch)
    run(corpus, tmp_path / "little", pack, trie)
    assert contents(tmp_path / "little") == contents(tmp_path / "whole")


def test_row_groups_of_the_provenance_are_those_of_the_file_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the rows come, a row group holds so many, and equal groups have equal bytes."""
    corpus = write(tmp_path / "corpus", token_files(5))
    monkeypatch.setattr(dagpack_cli.provenance.rewriting, "_GROUP_ROWS", 16)
    options = PackOptions(seq_len=64, on_long="split", polish=0), TrieOptions()
    whole = run(corpus, tmp_path / "whole", *options)
    monkeypatch.setattr(dagpack_cli.provenance.rewriting, "BATCH_ROWS", 5)
    monkeypatch.setattr(dagpack_cli.examples.writing, "_META_ROWS", 7)
    little = run(corpus, tmp_path / "little", *options)
    assert contents(tmp_path / "little") == contents(tmp_path / "whole")
    with pq.ParquetFile(little.path / "examples.parquet") as file:
        sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert sizes == [16, 16, 16, 16, 8]
    table = pq.read_table(whole.path / "examples.parquet")
    columns = read_columns(whole.path / "examples.parquet", ["val", "train"], windows=True)
    assert columns.partitions.tolist() == [1] * 72
    assert columns.runs.ravel().tolist() == [number for runs in table["supervised_runs"].to_pylist() for number in runs]
    assert np.diff(columns.run_offsets).tolist() == [len(runs) // 2 for runs in table["supervised_runs"].to_pylist()]
    windows = [
        columns.windows[low:high].tolist()
        for low, high in zip(columns.window_offsets[:-1], columns.window_offsets[1:], strict=True)
    ]
    assert windows == table["windows"].to_pylist()


def short_examples(folder: Path, num: int) -> Path:
    """Write ``num`` short examples of ids, some of which share a beginning, as Parquet."""
    draw = np.random.default_rng(3)
    lengths = draw.integers(13, 18, num)
    tokens = draw.integers(0, 3_000, int(lengths.sum()), dtype=np.int32)
    folder.mkdir()
    column = pa.LargeListArray.from_arrays(pa.array(np.concatenate(([0], np.cumsum(lengths)))), pa.array(tokens))
    pq.write_table(pa.table({"input_ids": column}), folder / "ids.parquet", row_group_size=1 << 14)
    return folder


def test_what_is_held_of_an_example_before_packing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly twice as many examples take no more than some bytes each: arrays of theirs lie in files by then."""
    monkeypatch.setattr(memory, "SPAN", 1 << 14)  # or what is looked at at a time would be all of the smaller corpus
    peaks = []
    for num in (1_000, 290_000, 500_000):  # the first only loads what is not loaded yet
        corpus, out = short_examples(tmp_path / f"{num}", num), tmp_path / f"out-{num}"
        execution = Execution(engine="numba", memory=64 << 20)
        ingest(corpus, out, tokenizer=TokenizerChoice(), ingest_options=IngestOptions(), execution=execution)
        memory.give_back()
        tracemalloc.start()
        dedup(out, trie_options=TrieOptions(), execution=execution)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[2] - peaks[1]) / 210_000 < 16, peaks


def games_of_long_states(folder: Path, num: int) -> Path:
    """Write ``num`` states of 4 kB, all different, in runs of 50, as transition records."""
    folder.mkdir()
    draw = random.Random(4)
    for number in range(0, num, 1_000):
        lines = []
        for at in range(number, number + 1_000):
            state = f"{draw.getrandbits(16_000):x}"
            lines.append(json.dumps({"episode": at // 50, "state": state, "action": draw.choice("udlr")}) + "\n")
        (folder / f"games-{number:06d}.jsonl").write_text("".join(lines))
    return folder


@pytest.mark.parametrize(("merge", "span", "most"), [("state", 1 << 10, 64), ("prefix", memory.SPAN, 1_000)])
def test_what_is_held_of_a_state(
    merge: Any, span: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many states take no more than some bytes each, and even where all are in one span never their text."""
    monkeypatch.setattr(memory, "SPAN", span)
    monkeypatch.setattr(memory, "_SHARE", 1 << 14)
    monkeypatch.setattr(dagpack_cli.stages.ingest, "_SPLIT_BYTES", 8 << 20)
    monkeypatch.setattr(dagpack_cli.stages.partition_trie, "_BLOCK_TOKENS", 1 << 10)
    monkeypatch.setattr(dagpack_cli.tokenizing.symbol_table, "_KEPT_BYTES", 1 << 20)
    peaks = []
    for num in (1_000, 3_000, 6_000):  # the first only loads what is not loaded yet
        corpus, out = games_of_long_states(tmp_path / f"{num}", num), tmp_path / f"out-{num}"
        execution = Execution(memory=64 << 20, workers=1)
        ingest(corpus, out, tokenizer=TokenizerChoice(), ingest_options=IngestOptions(), execution=execution)
        memory.give_back()
        tracemalloc.start()
        dedup(out, trie_options=TrieOptions(merge=merge), execution=execution)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[2] - peaks[1]) / 3_000 < most, peaks


class _Heard(SilentListener):
    def __init__(self, shards: Path) -> None:
        self._shards = shards
        self.heard: list[tuple[str, int, int, int]] = []

    def progress(self, stage: str, done: int, total: int) -> None:
        written = len([path for path in self._shards.rglob("*.parquet") if path.stat().st_size])
        self.heard.append((stage, done, total, written))


@pytest.mark.parametrize("workers", [1, 3])
def test_packing_tells_of_windows_that_are_written(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each partition: none when it is planned, then those of every file that is there, then all."""
    monkeypatch.setattr(dagpack_cli.shards.files, "_FILE_ROWS", 256)  # four windows
    corpus = write(tmp_path / "corpus", token_files(6))
    listener = _Heard(tmp_path / "out" / ".staging")
    pack, trie = PackOptions(seq_len=64, on_long="split", polish=0), TrieOptions(val_fraction=0.3)
    manifest: Manifest = run(corpus, tmp_path / "out", pack, trie, workers=workers, listener=listener).manifest
    files = 0
    for part, stage in (("train", "pack"), ("val", "pack val")):
        windows = manifest.packing[part]["windows"]
        told = [entry for entry in listener.heard if entry[0] == stage]
        assert windows > 8
        assert [entry[1] for entry in told] == [*range(0, windows, 4), windows]
        assert {entry[2] for entry in told} == {windows}
        for _, done, _, written in told:
            assert written >= files + -(-done // 4) + 1  # examples.parquet of the trie is one too
        files += len(manifest.shards(part))


def test_the_largest_of_many_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal values come in their order, whichever blocks they stand in."""
    from dagpack_cli.profile import largest

    draw = random.Random(1)
    for size in (1, 2, 5):
        monkeypatch.setattr(memory, "SPAN", size)
        for _ in range(20):
            values = np.array([draw.randrange(4) for _ in range(draw.randrange(12))], dtype=np.int64)
            expected = sorted(enumerate(values.tolist()), key=lambda pair: (-pair[1], pair[0]))[:4]
            assert largest(len(values), lambda span, values=values: values[span], 4) == expected  # type: ignore[misc]
