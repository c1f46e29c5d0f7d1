"""`--min-shared` of a trie that is there: against the trie merged with it, `stats` and `plan` against builds."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from builds import built
from commands import AGENTS, FIXTURES, run
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from oracle import Example, Policy
from strategies import corpora as example_corpora
from strategies import policies

from dagpack_cli.errors import DataError, NoInputError
from dagpack_cli.manifest import PackOptions, TrieOptions
from dagpack_cli.shards import window as window_module
from dagpack_cli.stages import apart
from dagpack_cli.trie import NodeTable, Trie, build_trie, end_nodes_of, part_prefixes

Corpus = list[list[int]]
corpora = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=14)
COLUMNS = ("offsets", "parents", "depths")


def trie_of(sequences: Corpus, min_shared: int) -> tuple[Trie, npt.NDArray[np.int64]]:
    """Return the trie of sequences and the node where each ends."""
    tokens = np.array([token for sequence in sequences for token in sequence], dtype=np.int32)
    offsets = np.cumsum([0] + [len(sequence) for sequence in sequences], dtype=np.int64)
    return build_trie(tokens, offsets, min_shared=min_shared)


def same_nodes(nodes: NodeTable, trie: Trie) -> bool:
    """Tell whether a table has a trie's nodes, dtypes included."""
    return all(
        getattr(nodes, name).tobytes() == getattr(trie, name).tobytes()
        and getattr(nodes, name).dtype == getattr(trie, name).dtype
        for name in COLUMNS
    )


@pytest.mark.parametrize("engine", ["numpy", "numba"])
@given(sequences=corpora, merged=st.integers(1, 10), more=st.integers(0, 10))
def test_a_trie_tells_the_nodes_of_a_larger_min_shared(engine: Any, sequences: Corpus, merged: int, more: int) -> None:
    """Whatever it was merged with, the nodes and the ends are those of the sequences merged with the larger one."""
    trie, ends = trie_of(sequences, merged)
    nodes, moved = part_prefixes(trie, merged + more, engine=engine)
    wanted, wanted_ends = trie_of(sequences, merged + more)
    assert same_nodes(nodes, wanted)
    assert moved[ends].tolist() == wanted_ends.tolist()
    assert end_nodes_of(trie).tolist() == np.unique(ends).tolist()
    assert np.flatnonzero(moved >= 0).tolist() == end_nodes_of(trie).tolist()


def test_every_min_shared_of_a_trunk() -> None:
    """Of four sequences that share 2, 3 and 5 tokens, every N gives as many trees and tokens as counted by hand."""
    sequences = [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 2], [1, 1, 1, 2], [1, 1, 2], [1, 1]]
    trie, ends = trie_of(sequences, 1)
    found = []
    for number in range(1, 8):
        nodes, moved = part_prefixes(trie, number)
        found.append((int((nodes.parents < 0).sum()), int(nodes.offsets[-1])))
        spelled = nodes.depths[moved[ends]] + np.diff(nodes.offsets)[moved[ends]]
        assert spelled.tolist() == [len(sequence) for sequence in sequences]
    # [1, 1] comes first and shares 2 with the next; then 5, 3 and 2.
    assert found == [(1, 9), (1, 9), (3, 13), (4, 16), (4, 16), (5, 21), (5, 21)]


few = settings(max_examples=40, deadline=None)


def options_of(policy: Policy, layout: str = "dag") -> PackOptions:
    """Return the packing a policy asks for."""
    return PackOptions(
        seq_len=policy.seq_len,
        layout=layout,
        on_long=policy.on_long,  # type: ignore[arg-type]
        prune=policy.prune,
    )


@few
@given(
    examples=example_corpora(max_examples=8, alphabet=2),
    policy=policies(on_long=("split", "truncate", "drop")),
    merged=st.integers(1, 4),
    data=st.data(),
)
def test_estimates_are_what_best_fit_gives_of_a_build(
    examples: list[Example], policy: Policy, merged: int, data: st.DataObject
) -> None:
    """For its own N and for larger ones a build foretells what best fit then needs, and trees, rows and edges."""
    number = data.draw(st.integers(merged, 7))
    packings = []
    with mock.patch.object(apart, "COMPARED", tuple(range(1, 9))), mock.patch.object(window_module, "BLOCK_SIZE", 2):
        for one in (merged, number):
            try:
                with built(examples, options_of(policy), TrieOptions(min_shared=one)) as build:
                    manifest = build.result.manifest
                    packings.append((manifest.packing["train"], manifest.statistics["trie"]["train"]))
            except (NoInputError, DataError):
                assume(False)
                raise
    estimates = packings[0][0]["min_shared"]
    assert [entry["min_shared"] for entry in estimates] == list(range(merged, 9))
    estimate = estimates[number - merged]
    packing, profile = packings[1]
    tried = packing["tried"]["best fit"]
    assert estimate["packed"] | {"blocks": 0} == {
        "windows": tried["windows"],
        "rows": tried["rows"],
        "attention_edges": tried["attention"],
        "blocks": 0,
    }
    if packing["strategy"] == "best fit":
        assert estimate["packed"]["blocks"] == packing["blocks"]
    assert estimate["packed"]["windows"] >= packing["windows"]
    assert (estimate["trie"]["trees"], estimate["trie"]["rows"]) == (profile["roots"], profile["rows"])
    assert packing["min_shared"] == estimates[number - merged :], "the same from either trie"


IDS = [[1, 2, *range(number, number + 6)] for number in (10, 20, 30)] + [[1, 2, 10, 11, 12, 99]]


@pytest.fixture
def ids(tmp_path: Path) -> Path:
    """A corpus of four examples that share 2 tokens, two of them 5."""
    source = tmp_path / "ids.jsonl"
    source.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in IDS))
    return source


def train_of(out: Path) -> dict[str, Any]:
    """Return what `stats` says of the training partition."""
    facts: dict[str, Any] = json.loads(run("stats", out, "--json").out)["partitions"]["train"]
    return facts


def test_stats_compare_by_hand(ids: Path, tmp_path: Path) -> None:
    """In windows of 13 rows: merged, 8 and 13 rows; apart, 7 and 5, 7, 7, and the same for every larger N."""
    assert run("build", ids, tmp_path / "out", "--seq-len", "7", "--window-len", "13").code == 0
    merged, *apart_from_8 = train_of(tmp_path / "out")["min_shared"]
    # Rows behind 1: 2; then 6 of the first example and 3 of the last, which shares 10, 11 and 12; 6; 6.
    assert merged["trie"] == {"trees": 1, "rows": 1 + 6 + 1 + 6 + 6, "attention_edges": 1 + 27 + 5 + 27 + 27}
    assert merged["packed"] == {"windows": 2, "rows": 21, "attention_edges": 1 + 87, "blocks": 2}
    assert [entry["min_shared"] for entry in apart_from_8] == [8, 32, 128, 512]
    for entry in apart_from_8:
        assert entry["trie"] == {"trees": 4, "rows": 7 + 5 + 7 + 7, "attention_edges": 28 + 15 + 28 + 28}
        assert entry["packed"] == {"windows": 3, "rows": 26, "attention_edges": 99, "blocks": 3}


def test_the_page_of_stats_compares_and_says_how(ids: Path, tmp_path: Path) -> None:
    """One line for each N that can be told, beginning with the build's own; what is not estimated is a dash."""
    out = tmp_path / "out"
    assert run("build", ids, out, "--min-shared", "4").code == 0
    page = run("stats", out).out
    lines = page.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("--min-shared"))
    heads = "--min-shared trees trie rows trie edges windows rows attention edges 128-blocks"
    assert " ".join(lines[at].split()) == heads
    rows = [line.split() for line in lines[at + 1 : at + 6]]
    assert [row[0] for row in rows] == ["4", "8", "32", "128", "512"]
    for row, entry in zip(rows, train_of(out)["min_shared"], strict=True):
        alone = [entry["trie"][unit] for unit in ("trees", "rows", "attention_edges")]
        packed = [entry["packed"][unit] for unit in ("windows", "rows", "attention_edges", "blocks")]
        numbers = [entry["min_shared"], *alone, *packed]
        assert row == [f"{number:,}" for number in numbers]
    assert "an estimate by one cheap rule, bottom-up best fit alone" in lines[at + 6]
    assert "not estimated" not in page
    with mock.patch.object(apart, "ESTIMATED_NODES", 2):
        assert run("build", ids, tmp_path / "large").code == 0
    page = run("stats", tmp_path / "large").out
    assert all(entry["packed"] is None for entry in train_of(tmp_path / "large")["min_shared"])
    assert [line.split()[4:] for line in page.splitlines() if line.startswith("512 ")] == [["-"] * 4]
    assert "-: not estimated, the trie is too large for a glance" in page
    # Cut every two tokens, three trees of 42 tokens have more nodes than one trunk of 40: the limit lies between.
    long = tmp_path / "long.jsonl"
    long.write_text("".join(json.dumps({"input_ids": [*range(40), 50 + at, 60 + at]}) + "\n" for at in range(3)))
    with mock.patch.object(apart, "ESTIMATED_NODES", 40):
        assert run("build", long, tmp_path / "cut", "--seq-len", "2", "--on-long", "split").code == 0
    assert [entry["packed"] is None for entry in train_of(tmp_path / "cut")["min_shared"]] == [False] * 3 + [True] * 2
    assert "-: not estimated" in run("stats", tmp_path / "cut").out


@pytest.mark.parametrize(
    ("limit", "words", "estimated"),
    [
        (6, ("64", "split"), True),
        (5, ("64", "split"), False),
        (6, ("2", "split"), False),
        (5, ("1", "truncate"), False),
    ],
)
def test_the_limit_of_estimates(limit: int, words: tuple[str, str], estimated: bool, ids: Path, tmp_path: Path) -> None:
    """It holds for the nodes of the trie, even if few are left in windows, and after cutting, which makes many."""
    out = tmp_path / "out"
    with mock.patch.object(apart, "ESTIMATED_NODES", limit):
        assert run("build", ids, out, "--seq-len", words[0], "--on-long", words[1]).code == 0
    assert train_of(out)["trie"]["nodes"] == 6
    assert (train_of(out)["min_shared"][0]["packed"] is not None) == estimated


def test_without_merging_prefixes_nothing_is_compared(ids: Path, tmp_path: Path) -> None:
    """Layouts that merge nothing have no such table, nor have states; the walk has that of the dag."""
    states = FIXTURES / "tiny" / "transitions"
    assert run("build", ids, tmp_path / "packed", "--layout", "packed").code == 0
    assert run("build", states, tmp_path / "state", "--merge", "state").code == 0
    for name in ("packed", "state"):
        assert "min_shared" not in train_of(tmp_path / name)
        assert "--min-shared" not in run("stats", tmp_path / name).out
    found = []
    for layout in ("walk", "dag"):
        assert run("build", ids, tmp_path / layout, "--layout", layout, "--seq-len", "12").code == 0
        found.append(train_of(tmp_path / layout)["min_shared"])
    assert found[0] == found[1]


@pytest.mark.parametrize("on_long", ["split", "truncate", "drop"])
def test_plans_of_a_corpus_and_of_an_output_agree_with_builds(on_long: str, ids: Path, tmp_path: Path) -> None:
    """For several N and lengths, whatever the output was merged with: what a build with that N then stores."""
    numbers, lengths = (3, 1, 6), (5, 12)
    for number in (1, 3):
        assert run("build", ids, tmp_path / f"out{number}", "--min-shared", str(number)).code == 0
    common = ("--seq-len", "5,12", "--on-long", on_long, "--json")
    corpus = json.loads(run("plan", ids, "--min-shared", "3,1,6", *common).out)
    assert [(entry["seq_len"], entry["min_shared"]) for entry in corpus] == [
        (length, number) for length in lengths for number in numbers
    ]
    assert json.loads(run("plan", tmp_path / "out1", "--min-shared", "3,1,6", *common).out) == corpus
    later = json.loads(run("plan", tmp_path / "out3", "--min-shared", "3,6", *common).out)
    assert later == [entry for entry in corpus if entry["min_shared"] > 1]
    assert json.loads(run("plan", tmp_path / "out3", *common).out) == [
        entry for entry in corpus if entry["min_shared"] == 3
    ]
    assert json.loads(run("plan", ids, *common).out) == [entry for entry in corpus if entry["min_shared"] == 1]
    assert any(one["partitions"] != other["partitions"] for one, other in pairwise(corpus[3:]))
    for entry in corpus:
        out = tmp_path / "build"
        words = ("--seq-len", str(entry["seq_len"]), "--min-shared", str(entry["min_shared"]), "--on-long", on_long)
        assert run("build", ids, out, *words).code == 0
        stored = train_of(out)
        assert {name: stored[name] for name in entry["partitions"]["train"]} == entry["partitions"]["train"]


def test_plan_of_agents_compares_min_shared(tmp_path: Path) -> None:
    """Of long trunks and two partitions too, an output tells what its corpus does."""
    options = ("--val-fraction", "0.4")
    assert run("build", AGENTS, tmp_path / "out", *options).code == 0
    common = ("--min-shared", "1,3600", "--seq-len", "4096", *options)
    found = [run("plan", source, *common).out for source in (AGENTS, tmp_path / "out")]
    assert found[0] == found[1]
    heads = [line.split() for line in found[0].splitlines() if "unavoidable replay" in line]
    assert [head[:3] for head in heads] == [["train", "--min-shared", "rows"], ["val", "--min-shared", "rows"]]
    assert "fewer rows, against               4,096, N 1  4,096, N 3,600" in found[0]
    one, other = (line.split()[:4] for line in found[0].splitlines()[1:3])
    assert (one[:2], other[:2]) == (["4,096", "1"], ["4,096", "3,600"])
    assert int(one[2].replace(",", "")) <= int(other[2].replace(",", ""))
    assert "--min-shared" not in run("plan", tmp_path / "out", "--min-shared", "3600", "--seq-len", "2048,4096").out


def test_plan_refuses_what_it_cannot_tell(ids: Path, tmp_path: Path) -> None:
    """Of an output nothing below what it was merged with, of states nothing; and an N is a number of tokens."""
    out = tmp_path / "out"
    assert run("build", ids, out, "--min-shared", "3").code == 0
    ran = run("plan", out, "--min-shared", "3,2")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == (
        f"error: --min-shared: 2, but {out} was merged with 3, and what it left apart is not joined; at least 3\n"
        "hint: give the corpus, of which any N can be planned\n"
    )
    for source in (ids, out):
        for words, found in (("0", "0; a number of tokens"), ("8,x", '"x" in "8,x"; whole numbers')):
            ran = run("plan", source, "--min-shared", words)
            assert (ran.code, ran.out) == (2, "")
            assert ran.err.startswith(f"error: --min-shared: {found}")
    ran = run("plan", out, "--min-shared", "8", "--val-fraction", "0.5")
    assert ran.err.startswith(f"error: {out}: is an output, which has been read and merged with options of its own")
    states = FIXTURES / "tiny" / "transitions"
    assert run("build", states, tmp_path / "state", "--merge", "state").code == 0
    for source, merge in ((states, ["--merge", "state"]), (tmp_path / "state", [])):
        ran = run("plan", source, *merge, "--min-shared", "1,8")
        assert (ran.code, ran.out) == (2, "")
        assert ran.err.startswith("error: --min-shared: does not go with --merge state")
    assert run("plan", tmp_path / "state", "--min-shared", "1").code == 0
