"""The GPU's script at toy size: everything in it runs on a CPU, and its checks can fail."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bench.forests import grow_forest
from gpu import __main__ as script
from gpu import exact, graphs, models
from gpu.clock import Budget
from gpu.corpora import LAYOUTS, Recipe, build_layouts
from gpu.report import print_report

from dagpack_cli.provenance import read_provenance
from dagpack_cli.training import PackedWindows, collate, tree_block_mask, tree_bool_mask
from dagpack_cli.training.attention import compiled_flex_attention
from dagpack_cli.training.causal_lm import BuiltIn

ROOT = Path(__file__).resolve().parent.parent
CPU = torch.device("cpu")
LENGTHS = (256, 384)


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> PackedWindows:
    """Return windows with branches, long enough for segments."""
    recipe = Recipe(family="gw", seq_len=384, rows=3 * 384, vocabulary=64)
    return PackedWindows(build_layouts(recipe, tmp_path_factory.mktemp("shards"), ("dag",))["dag"])


def test_every_line_of_the_script_has_something_to_say(tmp_path: Path) -> None:
    """As it is called on a GPU, but small: all checks pass, all measures have numbers, nothing is left out."""
    path = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "--toy", "--traced", "--json", str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    assert found["skipped"] == []
    names = {f"{name}, {what}" for name in ("decoder", "llama") for what in ("float32", "bfloat16", "one graph")}
    assert set(found["checks"]) == names | {"block masks", "static masks", "FlexAttention in float64"}
    assert all(check["passed"] is True for check in found["checks"].values())
    corpora = [
        f"{family} {length} {layout}" for length in LENGTHS for family in ("agent", "grpo") for layout in LAYOUTS
    ]
    for kind in ("layers", "attention"):
        for corpus in corpora:
            step = found["speed"].pop(f"{kind}, {corpus}")
            assert step["pairs"] >= step["rows"] > 0, corpus
            assert step["pairs_per_second"] == pytest.approx(1_000 * step["pairs"] / step["ms"])
            assert step["rows_per_second"] == pytest.approx(1_000 * step["rows"] / step["ms"])
            assert f"{corpus.split()[0]} {int(corpus.split()[1]):,} {corpus.split()[2]}" in done.stdout
    masks = {
        f"mask, {length} {kind}" for length in LENGTHS for kind in ("inputs", "tree_block_mask", "create_block_mask")
    }
    causal = {f"causal {length}" for length in LENGTHS}
    assert set(found["speed"]) == masks | causal | {f"mask, {LENGTHS[-1]} compiled"}
    assert all(step[name] > 0 for step in found["speed"].values() for name in step if name.endswith("ms"))


def test_what_there_is_no_time_for_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With no minutes nothing is started, and everything is listed; that is no failure."""
    path = tmp_path / "found.json"
    assert script.main(["--toy", "--minutes", "0", "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["checks"] == found["speed"] == {}
    assert len(found["skipped"]) == 9 + 2 * (12 + 1 + 3) + 1
    assert "skipped, no time left: speed: layers, agent 256 dag" in capsys.readouterr().out


def test_layouts_hold_the_same_pairs(tmp_path: Path) -> None:
    """So that rates compare: of every path to a leaf, which the merged one holds in fewer rows."""
    for family in ("agent", "grpo"):
        outs = build_layouts(Recipe(family=family, seq_len=256, rows=1), tmp_path)
        pairs, rows = {}, {}
        for layout, out in outs.items():
            held = PackedWindows(out)
            pairs[layout] = sum(int(held[number]["counts"].sum()) for number in range(len(held)))
            rows[layout] = sum(int(held[number]["num_rows"]) for number in range(len(held)))
            assert held.window_len == 256
            leaves = len(grow_forest(family, 8_192, 0, num_rows=32).leaves)
            assert read_provenance(held.paths[0] / "examples.parquet").num_rows == leaves
        assert len(set(pairs.values())) == 1
        assert rows["dag"] < rows["best-fit"] == rows["padded"]


def test_a_wrong_mask_fails_the_check(windows: PackedWindows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast side that sees too much, be it a branch, does not pass in float32; neither do controls that are right."""
    lm = models.small_decoder(windows, CPU)
    assert exact.check_exact(lm, windows, "float32", CPU)["passed"]
    right = lm.logits

    def leaking(call: Any, batch: dict[str, Any]) -> Any:
        return right(call, exact.mutants(batch)["leaking"])

    monkeypatch.setattr(lm, "logits", leaking)
    found = exact.check_exact(lm, windows, "float32", CPU)
    assert not found["passed"]
    assert min(found["off"][side]["gradients"] for side in ("SDPA", "alone")) > 10 * exact.LIMITS["gradients"]
    monkeypatch.setattr(lm, "logits", right)
    monkeypatch.setattr(exact, "mutants", lambda batch: {"no mutant": batch})
    assert not exact.check_exact(lm, windows, "float32", CPU)["passed"]


def test_mutants_are_trees_and_each_is_wrong_in_its_way(windows: PackedWindows) -> None:
    """The causal one sees all before; the leaking one only more; intervals stay nested, as segments need them."""
    number = next(
        n for n in range(len(windows)) if (windows[n]["parents"][1:] < range(len(windows[n]["parents"]) - 1)).any()
    )
    batch = collate([windows[number]], 384)
    rows = int(batch["num_rows"])
    right = tree_bool_mask(batch["subtree_ends"])[0, 0]
    causal, leaking = (tree_bool_mask(mutant["subtree_ends"])[0, 0] for mutant in exact.mutants(batch).values())
    assert torch.equal(causal[:rows, :rows], torch.ones(rows, rows, dtype=torch.bool).tril())
    assert (right & ~leaking).sum() == 0 < (leaking & ~right).sum() < (causal & ~right).sum()
    for mutant in exact.mutants(batch).values():
        ends = mutant["subtree_ends"][0]
        assert all(int(ends[row:end].max()) == end for row, end in enumerate(ends.tolist()))


def test_more_graphs_than_one_are_seen(windows: PackedWindows, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask whose code is new in every step is compiled anew, and the check says so."""

    def anew(ends: torch.Tensor) -> Any:
        mask = tree_block_mask(ends)
        scope: dict[str, Any] = {"ends": ends}
        exec("def mod(b, h, q, k): return (k <= q) & (q < ends[b, k])", scope)
        mask.mask_mod = scope["mod"]
        return mask

    eager = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **options: eager(function, **options | {"backend": "eager"}))
    compiled_flex_attention.cache_clear()
    lm = models.small_decoder(windows, CPU)
    assert isinstance(lm, BuiltIn)
    try:
        assert graphs.check_one_graph(lm, windows, 3, CPU)["passed"]
        monkeypatch.setattr(graphs, "tree_block_mask", anew)
        found = graphs.check_one_graph(lm, windows, 3, CPU)
    finally:
        compiled_flex_attention.cache_clear()
    assert (found["graphs"], found["passed"]) == (3, False)


def test_other_block_lists_are_seen(windows: PackedWindows, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows whose mask another builder would make otherwise are named."""
    assert graphs.check_block_masks(windows, 2, CPU)["passed"]
    monkeypatch.setattr(graphs, "tree_block_mask", lambda ends: tree_block_mask(ends.clamp(max=128)))
    assert graphs.check_block_masks(windows, 2, CPU)["wrong"] == [0, 1]

    def other_columns(ends: torch.Tensor) -> Any:
        mask = tree_block_mask(ends)
        mask.kv_indices = mask.kv_indices.flip(-1)
        return mask

    monkeypatch.setattr(graphs, "tree_block_mask", other_columns)
    assert graphs.check_block_masks(windows, 2, CPU)["wrong"] == [0, 1]


def test_errors_and_failures_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """What broke and what failed is told, and does not hide what went well."""
    results = {
        "machine": {"device": "cpu"},
        "checks": {"one": {"windows": 2, "passed": False}, "two": {"error": "RuntimeError: no"}},
        "speed": {"layers, agent 256 dag": {"error": "MemoryError: all of it"}},
        "skipped": ["speed: causal 256"],
        "seconds": 1.0,
    }
    print_report(results)
    printed = capsys.readouterr().out
    for line in ("FAILED: one: windows 2", "broke: two: RuntimeError: no", "broke: layers, agent 256 dag: MemoryError"):
        assert line in printed
    assert not Budget(0.0).allows(0.1)
    assert Budget(1.0).allows(30.0)
