"""The table beside every packing: costs recounted row by row, and `plan` against what a build then gives."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import numpy as np
import oracle_packing as oracle
import pytest
from commands import AGENTS, FIXTURES, run
from hypothesis import given, settings
from oracle_packing import Case
from test_profile import count_blocks

from dagpack_cli.comparison import compare_packers, placement_costs
from dagpack_cli.packing import best_fit_apart, first_fit, pack_leaves, place_leaves
from dagpack_cli.shards import window as window_module

BLOCK = 3


def arranged(case: Case, window: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return a window's rows, at every node the child with most rows below it first."""
    nodes = {above for node, _ in window for above in oracle.path_nodes(case.parents, node)}

    def below(top: int) -> list[tuple[int, int]]:
        return [row for row in window if top in oracle.path_nodes(case.parents, row[0])]

    def rows_of(top: int) -> list[tuple[int, int]]:
        found = sorted(row for row in window if row[0] == top)
        children = sorted(node for node in nodes if case.parents[node] == top)
        for child in sorted(children, key=lambda node: -len(below(node))):
            found += rows_of(child)
        return found

    return rows_of(-1)


def counted(case: Case, windows: list[set[tuple[int, int]]], *, arrange: bool = True) -> dict[str, int]:
    """Return the costs of windows given as sets of (node, row of its run), counted cell by cell."""
    depths = oracle.row_depths(case)
    edges = blocks = 0
    for window in windows:
        rows = arranged(case, window) if arrange else sorted(window)  # a preorder both
        parents = []
        for node, row in rows:
            above = node if row else case.parents[node]
            last = row - 1 if row else case.lengths[above] - 1 if above >= 0 else -1
            while above >= 0 and last < 0:  # a root without rows
                above = case.parents[above]
                last = case.lengths[above] - 1 if above >= 0 else -1
            parents.append(rows.index((above, last)) if above >= 0 else -1)
        edges += sum(depths[row] + 1 for row in rows)
        blocks += count_blocks(parents, BLOCK)
    return {"windows": len(windows), "rows": sum(map(len, windows)), "attention_edges": edges, "blocks": blocks}


def windows_of(case: Case, leaf_windows: list[int]) -> list[set[tuple[int, int]]]:
    """Return the rows of every window that holds whole paths."""
    found: list[set[tuple[int, int]]] = [set() for _ in range(max(leaf_windows, default=-1) + 1)]
    for leaf, window in zip(oracle.leaves_of(case.parents), leaf_windows, strict=True):
        found[window] |= oracle.path_rows(case, leaf)
    return found


@settings(max_examples=150, deadline=None)
@given(oracle.cases())
def test_costs_are_those_of_the_rows(case: Case) -> None:
    """Windows, rows, edges and blocks of every packer, counted from sets of rows; the walk from its own oracle."""
    forest = case.forest()
    arrival = np.random.default_rng(len(case.parents)).permutation(len(forest.leaves))
    # A few instances at a time, as of a large forest.
    with mock.patch.object(window_module, "BLOCK_SIZE", BLOCK), mock.patch("dagpack_cli.comparison._STEP", 5):
        first_seen = np.zeros(forest.num_nodes, dtype=np.int64)
        first_seen[forest.leaves[arrival]] = np.arange(len(arrival))
        found = compare_packers(forest, case.seq_len, first_seen)
        packed = pack_leaves(forest, case.seq_len).leaf_windows
        ours = placement_costs(forest, place_leaves(forest, packed))
    assert ours == counted(case, windows_of(case, packed.tolist()))
    fitted = first_fit(forest, case.seq_len, arrival)
    assert found["first_fit"] == counted(case, windows_of(case, fitted.tolist()))
    apart = best_fit_apart(forest, case.seq_len)
    assert found["shared_best_fit"] == counted(case, windows_of(case, apart.tolist()))
    walked = [set(context) | set(fresh) for context, fresh in oracle.naive_walk(case)]
    assert found["walk"] == counted(case, walked, arrange=False)
    # What the portfolio promises.
    for name in ("walk", "shared_best_fit"):
        assert ours["windows"] <= found[name]["windows"]


@pytest.mark.parametrize("seq_len", [2048, 16384])
def test_plan_says_what_a_build_gives(seq_len: int, tmp_path: Path) -> None:
    """Of a corpus and of a build, at any length: the costs, bounds and savings of the build that follows."""
    options = ("--on-long", "split", "--val-fraction", "0.4")
    assert run("build", AGENTS, tmp_path / "out", "--seq-len", str(seq_len), *options).code == 0
    built = json.loads(run("stats", tmp_path / "out", "--json").out)["partitions"]
    for source in (AGENTS, tmp_path / "out"):
        ran = run("plan", source, "--seq-len", f"4096,{seq_len}", "--val-fraction", "0.4", "--json")
        assert ran.code == 0, ran.err
        planned = json.loads(ran.out)
        assert [entry["seq_len"] for entry in planned] == [4096, seq_len]
        for part, facts in planned[1]["partitions"].items():
            for name, value in facts.items():
                assert built[part][name] == value, name
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_plan_of_an_output_takes_no_other_reading(tmp_path: Path) -> None:
    """What an output was read and merged with is its own: another option is refused, not passed over."""
    assert run("build", FIXTURES / "tiny" / "chat", tmp_path / "out").code == 0
    for option in (("--val-fraction", "0.5"), ("--per-turn",), ("--tokenizer", "bytes")):
        ran = run("plan", tmp_path / "out", *option)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith(f"error: {tmp_path / 'out'}: is an output, which has been read and merged")


def test_plan_prints_a_table_of_each_saving() -> None:
    """One line a length, and windows, rows, edges and blocks apart, each against every baseline."""
    page = run("plan", FIXTURES / "tiny" / "chat", "--seq-len", "64,128").out
    assert page.startswith("train  windows  bound   ratio  rows/bound  attention/bound  unavoidable replay")
    for unit in ("windows", "rows", "attention edges", "128-blocks"):
        assert f"fewer {unit}, against" in page
    for name in ("depth-first walk", "shared first fit in input order", "best-fit packing of the examples"):
        assert page.count(name) == 4


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ("0", "0; a number of rows"),
        ("8192,x", '"x" in "8192,x"; whole numbers with commas between them'),
        ("4,,8", '"" in "4,,8"; whole numbers with commas between them'),
    ],
)
def test_plan_refuses_lengths_that_are_none(lengths: str, found: str) -> None:
    """A length is a number of rows."""
    ran = run("plan", FIXTURES / "tiny" / "chat", "--seq-len", lengths)
    assert ran.code == 2
    assert ran.err.startswith(f"error: --seq-len: {found}")


def test_windows_may_be_longer_than_paths(tmp_path: Path) -> None:
    """--window-len packs many short paths into long windows; it is never less than --seq-len."""
    assert run("build", AGENTS, tmp_path / "out", "--window-len", "32768").code == 0
    facts = json.loads(run("stats", tmp_path / "out", "--json").out)
    assert (facts["seq_len"], facts["window_len"], facts["partitions"]["train"]["windows"]) == (8192, 32768, 1)
    assert run("verify", tmp_path / "out").code == 0
    ran = run("build", AGENTS, tmp_path / "no", "--window-len", "4096")
    assert ran.code == 2
    assert ran.err.startswith("error: --window-len: 4,096; a number of rows from --seq-len, 8,192")
    ran = run("build", AGENTS, tmp_path / "no", "--polish", "-1")
    assert ran.err.startswith("error: --polish: -1; a number of attempts a window")


def test_short_shared_prefixes_are_left_apart(tmp_path: Path) -> None:
    """A build with --min-shared verifies, gives back its examples, and has the rows that stats foretold."""
    rows = [{"input_ids": [1, 2, *range(number, number + 6)]} for number in (10, 20, 30)]
    rows += [{"input_ids": [1, 2, 10, 11, 12, 99]}, rows[0]]
    source = tmp_path / "ids.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = {}
    for number in (1, 8):
        out = tmp_path / f"out{number}"
        assert run("build", source, out, "--min-shared", str(number)).code == 0
        assert run("verify", out).code == 0
        given = [json.loads(line)["input_ids"] for line in run("export", out).out.splitlines()]
        assert given == [row["input_ids"] for row in rows]
        found[number] = json.loads(run("stats", out, "--json").out)["partitions"]["train"]
    foretold = {entry["min_shared"]: entry["trie"] for entry in found[1]["min_shared"]}
    assert foretold[8]["trees"] == found[8]["trie"]["roots"] == 4
    assert foretold[8]["rows"] == found[8]["trie"]["rows"] == found[8]["distinct_rows"]
    assert found[1]["distinct_rows"] < found[8]["distinct_rows"]
    assert "--min-shared" in run("stats", tmp_path / "out1").out
    ran = run("build", FIXTURES / "tiny" / "transitions", tmp_path / "no", "--merge", "state", "--min-shared", "2")
    assert ran.code == 2
    assert ran.err.startswith("error: --min-shared: does not go with --merge state")
