"""Real files, where they are at hand: known counts, and every example given back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dagpack_cli.export import export_examples, export_transitions
from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.pipeline import BuildResult, Execution, TokenizerChoice, build
from dagpack_cli.profile import rows_also_in
from dagpack_cli.trie import open_trie
from dagpack_cli.verify import verify_generation

REAL = Path(__file__).resolve().parents[2] / "shared" / "real"
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real files is not beside the project")


def run(
    source: str,
    out: Path,
    *,
    tokenizer: str = "auto",
    ingest: dict[str, Any] | None = None,
    merge: str = "prefix",
    **pack: Any,
) -> BuildResult:
    """Build a real file and check that it verifies."""
    result = build(
        REAL / source,
        out,
        tokenizer=TokenizerChoice(spec=tokenizer),
        ingest_options=IngestOptions(**(ingest or {})),
        trie_options=TrieOptions(merge="state" if merge == "state" else "prefix"),
        pack_options=PackOptions(**pack),
        execution=Execution(),
    )
    assert verify_generation(result.path, result.manifest).failures == []
    return result


def test_pretokenised_parquet(tmp_path: Path) -> None:
    """40 examples of 162,011 ids give 161,971 pairs in 112,207 distinct rows, and come back as they were."""
    result = run("pretokenised/pretokenized.parquet", tmp_path, seq_len=16384, prune=False)
    total = result.manifest.ledger["total"]
    assert (total["tokens_in"], total["pairs"]["in"], total["examples"]["kept"]) == (162_011, 161_971, 40)
    assert result.manifest.packing["train"]["distinct_rows"] == 112_207
    rows = pq.read_table(REAL / "pretokenised/pretokenized.parquet").to_pylist()
    for record, row in zip(export_examples(result.path, result.manifest), rows, strict=True):
        assert record["input_ids"] == row["input_ids"]
        assert record["labels"][1:] == row["labels"][1:]


@pytest.mark.parametrize("layout", ["walk", "best-fit"])
def test_pretokenised_split_in_small_windows(tmp_path: Path, layout: str) -> None:
    """Cut into windows of 2,048 the same ids come back, as JSONL and as Parquet alike."""
    options: dict[str, Any] = {"seq_len": 2048, "on_long": "split", "layout": layout}
    parquet = run("pretokenised/pretokenized.parquet", tmp_path / "a", **options)
    lines = run("pretokenised/pretokenized.jsonl", tmp_path / "b", **options)
    for result, given in (
        (parquet, pq.read_table(REAL / "pretokenised/pretokenized.parquet").to_pylist()),
        (lines, [json.loads(line) for line in (REAL / "pretokenised/pretokenized.jsonl").read_bytes().splitlines()]),
    ):
        for record, row in zip(export_examples(result.path, result.manifest), given, strict=True):
            assert record["input_ids"] == row["input_ids"]
            assert record["labels"][1:] == row["labels"][1:]


@pytest.mark.parametrize(
    ("source", "num_examples"),
    [("sft/openai_ft.jsonl", 40), ("tau-bench/rl_groups.jsonl", 100), ("sft/hf_messages.parquet", 80)],
)
def test_chat_files(tmp_path: Path, source: str, num_examples: int) -> None:
    """Chats and groups of completions build, verify and come back with every token and label."""
    result = run(source, tmp_path, seq_len=65536)
    records = list(export_examples(result.path, result.manifest))
    total = result.manifest.ledger["total"]
    assert len(records) == total["examples"]["kept"] == num_examples
    assert sum(len(record["input_ids"]) for record in records) == total["tokens_in"]
    supervised = sum(sum(label >= 0 for label in record["labels"][1:]) for record in records)
    assert supervised == result.manifest.packing["train"]["supervised_pairs"] > 0


def test_recorded_games_as_transitions(tmp_path: Path) -> None:
    """Six recorded episodes give every transition back, merged by prefix and by state."""
    ingest = {
        "format": "transitions",
        "episode_field": "data.guid",
        "state_field": "data.frame",
        "action_field": "data.action_input.id",
        "on_error": "skip",
    }
    prefix = run("arc-agi-3", tmp_path / "a", ingest=ingest)
    state = run("arc-agi-3", tmp_path / "b", ingest=ingest, merge="state")
    assert prefix.manifest.ledger["total"]["pairs"]["in"] == 185
    assert prefix.manifest.ledger["reading"]["bad_records"] == 3
    records = list(export_examples(prefix.path, prefix.manifest))
    assert sorted(len(record["input_ids"]) for record in records) == [2, 25, 41, 41, 41, 41]
    pairs: dict[tuple[int, int], int] = {}
    for record in records:
        for pair in zip(record["input_ids"], record["input_ids"][1:], strict=False):
            pairs[pair] = pairs.get(pair, 0) + 1
    found = {(row["input"], row["target"]): row["count"] for row in export_transitions(state.path, state.manifest)}
    assert found == pairs
    assert state.manifest.packing["train"]["rows"] == len(pairs)


TOKENIZER = REAL.parent / "tokenizers" / "qwen3"


def test_chat_with_a_real_tokenizer(tmp_path: Path) -> None:
    """A Hugging Face tokenizer is identified by content, saved with the build, and gives its ids back."""
    result = run("sft/openai_ft.jsonl", tmp_path, tokenizer=str(TOKENIZER), seq_len=16384)
    assert result.manifest.tokenizer["kind"] == "huggingface"
    windows = result.manifest.packing["train"]
    assert windows["rows"] < windows["pairs"]
    lengths = np.array([len(record["input_ids"]) for record in export_examples(result.path, result.manifest)])
    assert int(lengths.sum()) == result.manifest.ledger["total"]["tokens_in"]


def test_a_real_session_weighs_the_same_turn_by_turn(tmp_path: Path) -> None:
    """Branches and compactions: every trained row has weight 1 with one example a leaf and with one a turn."""
    tries = []
    for name, options in (("leaves", {}), ("turns", {"per_turn": True})):
        result = run("pi/compaction-branches.jsonl", tmp_path / name, ingest=options, seq_len=262_144)
        tries.append(open_trie(result.path / "trie" / "train"))
    leaves, turns = tries
    assert set(np.unique(leaves.weights)) == {0.0, 1.0}
    assert leaves.weights.sum() == turns.weights.sum() > 10_000
    assert rows_also_in(leaves, turns) == np.count_nonzero(leaves.weights)
    assert rows_also_in(turns, leaves) == np.count_nonzero(turns.weights)
