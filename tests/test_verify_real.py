"""Real files, where they are at hand: what is built of them in ways that cut, keep apart and repeat verifies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.pipeline import Execution, TokenizerChoice, build
from dagpack_cli.verify import verify_generation

REAL = Path(__file__).resolve().parents[2] / "shared" / "real"
GAMES: dict[str, Any] = {
    "format": "transitions",
    "episode_field": "data.guid",
    "state_field": "data.frame",
    "action_field": "data.action_input.id",
    "on_error": "skip",
}
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real files is not beside the project")


@pytest.mark.parametrize(
    ("source", "pack", "trie", "ingest"),
    [
        ("tau-bench/rl_groups.jsonl", {"layout": "dag"}, {"min_shared": 32}, {}),
        ("pretokenised/pretokenized.parquet", {"layout": "walk"}, {"min_shared": 32}, {}),
        ("codex", {"layout": "dag", "prune": False}, {"virtual_root": "auto", "min_shared": 32}, {}),
        ("sft/hf_messages.parquet", {"layout": "best-fit"}, {"val_fraction": 0.3}, {}),
        ("arc-agi-3", {"layout": "walk", "seq_len": 16}, {"merge": "state"}, GAMES),
    ],
)
def test_builds_of_real_files_verify(source: str, pack: Any, trie: Any, ingest: Any, tmp_path: Path) -> None:
    """Cut into short windows, with short prefixes apart, or with each row trained once."""
    result = build(
        REAL / source,
        tmp_path / "out",
        tokenizer=TokenizerChoice(),
        ingest_options=IngestOptions(**ingest),
        trie_options=TrieOptions(**trie),
        pack_options=PackOptions(**({"seq_len": 1024, "on_long": "split"} | pack)),
        execution=Execution(),
    )
    report = verify_generation(result.path, result.manifest)
    assert report.failures == []
    assert report.rows == sum(facts["rows"] for facts in result.manifest.packing.values())
