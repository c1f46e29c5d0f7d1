"""What `stats` and `show` print, recomputed from the corpus and from shards read back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import oracle
import pytest
from builds import UNMERGED, Built, Window, built
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from oracle import Example, Policy
from strategies import corpora, policies
from test_profile import count_blocks, dense_mask
from test_supervision import runs_of

from dagpack_cli import profile
from dagpack_cli.errors import NoInputError
from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.shards import window as window_module
from dagpack_cli.show import describe_window, format_window
from dagpack_cli.stats import describe, format_stats, format_summary

BLOCK = 3
UNITS = ("windows", "rows", "attention_edges", "blocks")
layouts = st.sampled_from(["dag", "dag", "walk", *UNMERGED])
few = settings(max_examples=30, deadline=None)

TURNS = [
    Example((1, 2, 3, 4, 5, 6), frozenset({2, 3, 5}), 2.0),
    Example((1, 2, 3, 4, 7), frozenset({2, 4}), 0.5),
    Example((1, 2, 3, 4, 7), frozenset({2, 4}), 0.5),
    Example((8, 9), frozenset({1}), 1.0),
    Example((5,), frozenset(), 1.0),
    Example((), frozenset(), 1.0),
]


def start(
    stack: ExitStack, examples: Sequence[Example], policy: Policy, layout: str, val_fraction: float = 0.0
) -> Built:
    """Build with small blocks; a corpus with nothing to train on is not of interest."""
    for module in (profile, window_module):
        stack.enter_context(mock.patch.object(module, "BLOCK_SIZE", BLOCK))
    options = PackOptions(
        seq_len=policy.seq_len,
        layout=layout,
        on_long=policy.on_long,  # type: ignore[arg-type]
        prune=policy.prune,
    )
    root = None if policy.virtual_root is None else str(policy.virtual_root)
    try:
        return stack.enter_context(
            built(examples, options, TrieOptions(virtual_root=root, val_fraction=val_fraction, seed=1))
        )
    except NoInputError:
        assume(False)
        raise


def costs_of_chains(lengths: Sequence[int]) -> dict[str, int]:
    """Return what chains cost one a window, counted in their masks."""
    parents = [list(range(-1, length - 1)) for length in lengths]
    return {
        "windows": len(lengths),
        "rows": sum(lengths),
        "attention_edges": sum(int(dense_mask(one).sum()) for one in parents),
        "blocks": sum(count_blocks(one, BLOCK) for one in parents),
    }


def costs_of_windows(windows: Sequence[Window]) -> dict[str, int]:
    """Return what stored windows cost, counted in their masks."""
    parents = [window.column("parent") for window in windows]
    return {
        "windows": len(windows),
        "rows": sum(len(one) for one in parents),
        "attention_edges": sum(int(dense_mask(one).sum()) for one in parents),
        "blocks": sum(count_blocks(one, BLOCK) for one in parents),
    }


def lengths_as_given(examples: Sequence[Example], policy: Policy) -> list[int]:
    """Return the pairs of every example, or of every piece of a split one, before anything is pruned."""
    shift = 0 if policy.virtual_root is None else 1
    lengths = []
    for one in examples:
        pairs = len(one.tokens) - 1 + shift if one.tokens else 0
        if policy.on_long == "drop" and pairs > policy.seq_len:
            continue
        pairs = min(pairs, policy.seq_len) if policy.on_long == "truncate" else pairs
        lengths += [min(policy.seq_len, pairs - at) for at in range(0, pairs, policy.seq_len)]
    return lengths


@few
@given(examples=corpora(), policy=policies(on_long=("split", "truncate", "drop")), layout=layouts)
def test_described_numbers_are_those_of_the_shards(examples: list[Example], policy: Policy, layout: str) -> None:
    """Windows, rows, edges, blocks, pairs, weights, fill and ratios follow from windows read back."""
    with ExitStack() as stack:
        build = start(stack, examples, policy, layout)
        windows = build.windows["train"]
        facts = describe(build.result.manifest, "name")["partitions"]["train"]
    here = costs_of_windows(windows)
    assert {unit: facts[unit] for unit in UNITS} == here
    rows = [row for window in windows for row in window.rows]
    assert facts["pairs"] == sum(row.count for row in rows)
    assert facts["distinct_rows"] == sum(row.owned for row in rows)
    assert facts["supervised_pairs"] == sum(window.num_supervised for window in windows)
    assert facts["weight_sum"] == pytest.approx(sum(row.weight for row in rows), rel=1e-9, abs=1e-9)
    seq_len = policy.seq_len
    assert (facts["cells"], facts["dense_pairs"]) == (len(windows) * seq_len, len(windows) * seq_len**2)
    assert facts["fill"] == here["rows"] / (len(windows) * seq_len)
    bound = facts["bound"]
    assert facts["windows_over_bound"] == here["windows"] / bound["windows"] >= 1
    assert facts["rows_over_bound"] == here["rows"] / bound["rows"] >= 1
    assert facts["attention_over_bound"] == here["attention_edges"] / bound["attention_edges"] >= 1
    assert facts["unavoidable_replay"] == bound["rows"] / facts["distinct_rows"] >= 1


@few
@given(examples=corpora(), policy=policies(on_long=("split", "truncate", "drop")), layout=layouts)
def test_every_saving_is_its_baseline_over_what_is_here(examples: list[Example], policy: Policy, layout: str) -> None:
    """Savings are quotients of costs recomputed from the corpus and of costs of the windows read back."""
    with ExitStack() as stack:
        build = start(stack, examples, policy, layout)
        here = costs_of_windows(build.windows["train"])
        facts = describe(build.result.manifest, "name")["partitions"]["train"]
    lengths = lengths_as_given(examples, policy)
    baselines = facts["baselines"]
    assert baselines["examples_as_given"] == costs_of_chains(lengths)
    if not policy.prune:
        assert baselines["best_fit"]["windows"] == oracle.best_fit_count(lengths, policy.seq_len)
        assert baselines["best_fit"]["rows"] == sum(lengths)
        assert baselines["best_fit"]["attention_edges"] == baselines["examples_as_given"]["attention_edges"]
    if layout == "best-fit":
        assert facts["savings"]["best_fit"] == dict.fromkeys(UNITS, 1.0)
    assert facts["savings"].keys() == baselines.keys()
    for name, costs in baselines.items():
        assert facts["savings"][name] == {unit: costs[unit] / here[unit] for unit in UNITS}


@pytest.mark.parametrize("virtual_root", [None, 0])
def test_one_example_per_turn_is_every_prefix_that_ends_a_run(virtual_root: int | None) -> None:
    """The baseline of turns has one chain for each supervised run of each example, up to its end."""
    with ExitStack() as stack:
        build = start(stack, TURNS, Policy(seq_len=8, on_long="error", virtual_root=virtual_root), "dag")
        facts = describe(build.result.manifest, "name")["partitions"]["train"]
    shift = 0 if virtual_root is None else 1
    turns = [high - 1 + shift for one in TURNS for _, high in runs_of(one.trained)]
    assert facts["baselines"]["one_example_per_turn"] == costs_of_chains(turns)


def test_without_a_second_run_there_is_no_baseline_of_turns() -> None:
    """Where no example has more than one supervised run there is nothing a turn each would repeat."""
    with ExitStack() as stack:
        build = start(stack, [Example((1, 2, 3), frozenset({1, 2}))], Policy(seq_len=4), "dag")
        facts = describe(build.result.manifest, "name")["partitions"]["train"]
        page = format_stats(build.result.manifest, "name")
    assert facts["savings"].keys() == {"examples_as_given", "best_fit", "walk", "first_fit", "shared_best_fit"}
    assert "per assistant turn" not in page


def cells(page: str, label: str) -> list[str]:
    """Return the columns of the only line of a page that begins with a label."""
    lines = [line for line in page.splitlines() if re.match(rf"\s*{re.escape(label)}  +", line)]
    assert len(lines) == 1, (label, page)
    return lines[0].strip()[len(label) :].split()


def test_the_page_prints_the_numbers_described() -> None:
    """Every number on the page of `stats` is that of its JSON, and the summary repeats them."""
    policy = Policy(seq_len=5, on_long="error")
    with ExitStack() as stack:
        build = start(stack, TURNS, policy, "dag")
        manifest = build.result.manifest
        page, summary, facts = format_stats(manifest, "000001-x"), format_summary(manifest), describe(manifest, "n")
        windows = build.windows["train"]
    part = facts["partitions"]["train"]
    assert part["distinct_rows"] < part["rows"], "some rows stand in several windows"
    here, bound = costs_of_windows(windows), part["bound"]
    assert "generation   000001-x" in page
    assert "layout       dag, merge prefix, seq-len 5, objective counted" in page
    names = {"windows": "windows", "rows computed": "rows", "attention edges": "attention_edges"}
    for label, unit in names.items():
        ratio = f"{here[unit] / bound[unit]:.4f}"
        assert cells(page, label) == [str(here[unit]), str(bound[unit]), ratio]
    labels = {
        "examples as given, one a window": "examples_as_given",
        "one example per assistant turn": "one_example_per_turn",
        "best-fit packing of the examples": "best_fit",
    }
    for label, name in labels.items():
        assert cells(page, label) == [f"{part['baselines'][name][unit] / here[unit]:.3f}x" for unit in UNITS]
    total = facts["ledger"]["total"]
    for unit in ("examples", "pairs"):
        assert cells(page, f"{unit} in") == [str(total[unit]["in"])] * 2
    assert cells(page, "kept") == ["4"] * 2
    assert cells(page, "empty") == cells(page, "single token") == ["1"] * 2
    assert cells(page, "in windows") == [str(total["pairs"]["in_windows"])] * 2
    merged = sum(row.count for window in windows for row in window.rows) - part["distinct_rows"]
    assert cells(page, "duplicate pairs merged") == [str(merged)] * 2
    assert f"fill {here['rows'] / (here['windows'] * 5):.2%} of {here['windows'] * 5:,} cells" in page
    assert f"{part['distinct_rows']} distinct rows stand for {part['pairs']} pairs" in page
    assert f"dense attention would score {here['windows'] * 25} pairs a head" in page
    saving = part["savings"]["best_fit"]
    assert f"train: 4 examples, {part['pairs']} pairs in {here['windows']} window" in summary
    assert f"{saving['rows']:.2f}x fewer rows, {saving['attention_edges']:.2f}x fewer attention edges" in summary
    pairs = total["pairs"]
    assert (
        f"nothing lost: {pairs['in']} pairs in = {pairs['in_windows']} in windows + {pairs['pruned']} pruned" in summary
    )


def test_the_page_has_a_column_a_partition_and_says_what_leaks() -> None:
    """Ledger lines add up, rows also in train are those of sets, and a window shows its own side's examples."""
    generator = np.random.default_rng(0)
    examples = [
        Example((1, *generator.integers(0, 2, 3).tolist(), number), frozenset(range(1, 5)), 1.0, group=f"g{number}")
        for number in range(24)
    ]
    with ExitStack() as stack:
        build = start(stack, examples, Policy(seq_len=8, on_long="error"), "dag", val_fraction=0.4)
        page = format_stats(build.result.manifest, "name")
        summary = format_summary(build.result.manifest)
        sides = {part: [examples[number].tokens for number in build.of(part)] for part in ("train", "val")}
        for part in ("train", "val"):
            facts = describe_window(build.result.path, build.result.manifest, part, 0)
            own = [build.provenance[number] for number in build.of(part)]
            assert [one["id"] for one in facts["occurrences"]] == [one["id"] for one in own if 0 in one["windows"]]
    train, val = ({tokens[:end] for tokens in sides[part] for end in range(2, 6)} for part in ("train", "val"))
    assert val
    sentence = f"{len(train & val)} of {len(val)} supervised val rows also occur in train"
    assert sentence in page
    assert sentence in summary
    table = page.split("\n\n")[1].splitlines()
    assert table[0].split() == ["ledger", "train", "val", "total"]
    for line in table[1:]:
        first, second, total = (int(cell.replace(",", "")) for cell in line.split()[-3:])
        assert first + second == total


def ranges_as_mask(facts: dict[str, Any]) -> npt.NDArray[np.bool_]:
    """Return the permission matrix that the ranges of shown queries say, over all keys of the window."""
    mask = np.zeros((len(facts["allowed_keys"]), facts["num_rows"]), dtype=bool)
    for query, ranges in enumerate(facts["allowed_keys"]):
        assert all(0 <= low < high <= facts["num_rows"] for low, high in ranges)
        assert all(left[1] <= right[0] for left, right in pairwise(ranges))
        for low, high in ranges:
            mask[query, low:high] = True
    return mask


@few
@given(
    examples=corpora(),
    policy=policies(on_long=("split", "truncate", "drop")),
    layout=layouts,
    number=st.integers(0, 9),
    first=st.integers(0, 9),
    num_rows=st.none() | st.integers(1, 9),
)
@example(examples=TURNS, policy=Policy(seq_len=8), layout="dag", number=0, first=3, num_rows=None)
@example(examples=TURNS, policy=Policy(seq_len=8), layout="dag", number=0, first=0, num_rows=4)
def test_a_window_is_shown_as_it_is_stored(
    examples: list[Example], policy: Policy, layout: str, number: int, first: int, num_rows: int | None
) -> None:
    """Columns, facts, subtree ends and allowed keys are those of the stored rows, from whichever row on."""
    with ExitStack() as stack:
        build = start(stack, examples, policy, layout)
        number %= len(build.windows["train"])
        window = build.windows["train"][number]
        first %= len(window.rows)
        facts = describe_window(
            build.result.path, build.result.manifest, "train", number, first_row=first, num_rows=num_rows
        )
        own = [row["id"] for row in build.provenance if number in row["windows"]]
    last = len(window.rows) if num_rows is None else min(first + num_rows, len(window.rows))
    for name in ("input", "target", "segment", "depth", "parent", "count", "weight"):
        assert facts["rows"][f"{name}s"] == window.column(name)[first:last]
    assert facts["rows"]["owned"] == window.column("owned")[first:last]
    assert facts["num_rows"] == len(window.rows)
    assert facts["num_supervised"] == window.num_supervised
    assert (facts["weight_sum"], facts["attention_edges"]) == (window.weight_sum, window.attention_edges)
    mask = dense_mask(window.column("parent"))
    assert np.array_equal(ranges_as_mask(facts), mask[first:last])
    assert facts["subtree_ends"] == [int(np.flatnonzero(mask[:, key])[-1]) + 1 for key in range(first, last)]
    assert [one["id"] for one in facts["occurrences"]] == own
    check_page(format_window(facts), facts, mask[first:last, first:last])


def check_page(page: str, facts: dict[str, Any], mask: npt.NDArray[np.bool_]) -> None:
    """Check the drawn matrix and the first columns of a shown window."""
    lines = page.splitlines()
    assert lines[0].startswith(f"train window {facts['window']}: {facts['num_rows']:,} of {facts['window_len']:,} rows")
    assert lines[1].split()[:6] == ["row", "input", "target", "segment", "depth", "parent"]
    drawn = [line.split() for line in lines[2 : 2 + len(mask)]]
    assert [words[-1] for words in drawn] == ["".join("x" if cell else "." for cell in row) for row in mask]
    for at, words in enumerate(drawn):
        names = ("inputs", "targets", "segments", "depths", "parents", "counts")
        assert words[:7] == [str(facts["first_row"] + at), *(str(facts["rows"][name][at]) for name in names)]
    assert (len(lines) > 2 + len(mask)) == (len(mask) < facts["num_rows"])


def test_control_characters_are_shown_by_name() -> None:
    """A token's text never moves the cursor: line feeds, tabs and escapes are written out, and the ends have names."""
    corpus = {"a.txt": "a\n\tb\x1b[2J\x07é"}
    with built(corpus, PackOptions(seq_len=64), tokenizer="bytes") as build:
        facts = describe_window(build.result.path, build.result.manifest, "train", 0)
    texts = facts["rows"]["text"]
    assert texts[:5] == ["<bos>", "a", "\\n", "\\t", "b"]
    assert texts[5:10] == ["\\x1b", "[", "2", "J", "\\x07"]
    assert all(char.isprintable() for text in texts for char in text)
    page = format_window(facts)
    assert len(page.splitlines()) == 2 + facts["num_rows"]
    assert all(char.isprintable() for line in page.splitlines() for char in line)


def test_control_characters_of_shared_prefixes_stay_on_their_line() -> None:
    """The page of `stats` shows a shared prefix with line feeds on one line, cut at 60 characters."""
    corpus = {"a.txt": "one\ntwo\x1b[31m" + "x" * 90 + "1", "b.txt": "one\ntwo\x1b[31m" + "x" * 90 + "2"}
    with built(corpus, PackOptions(seq_len=256), tokenizer="bytes") as build:
        page = format_stats(build.result.manifest, "name")
    line = next(line for line in page.splitlines() if "examples share" in line)
    assert "one two [31mxxx" in line
    assert all(char.isprintable() for char in line)


def test_states_of_a_game_are_shown_by_their_value() -> None:
    """The text of a symbol is the JSON value it stands for, and a virtual root has one of its own."""
    lines = [f'{{"episode": 1, "state": "s{number}"}}\n' for number in range(3)]
    options = IngestOptions()
    with built(
        {"a.jsonl": "".join(lines)},
        PackOptions(seq_len=8),
        TrieOptions(virtual_root="auto"),
        ingest=options,
        tokenizer="symbols",
    ) as build:
        path: Path = build.result.path
        facts = describe_window(path, build.result.manifest, "train", 0)
    assert [text.count(f"s{number}") for number, text in enumerate(facts["rows"]["text"][1:])] == [1, 1]
    assert "s0" not in facts["rows"]["text"][0]
