"""The law of windows, against an oracle that knows only the examples: counts, weights, owners, ledger, walk, graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import oracle
import pytest
from builds import UNMERGED, Built, Window, built
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from oracle import Example, Plan, Policy, Row, TooLong, Total
from strategies import ANY_WEIGHT, DYADIC, corpora, graphs, policies

from dagpack_cli.errors import DataError, NoInputError, UsageError
from dagpack_cli.manifest import PackOptions, TrieOptions
from dagpack_cli.pipeline import Execution


def tries(number: int) -> settings:
    """Return settings for so many corpora; a build takes some 30 ms, and the whole file less than a minute."""
    return settings(max_examples=number, deadline=None, suppress_health_check=[HealthCheck.too_slow])


layouts = st.sampled_from(["dag", "dag", "dag", *UNMERGED])
all_layouts = st.sampled_from(["dag", "walk", *UNMERGED])


def options_of(policy: Policy, layout: str, shard_format: str = "parquet") -> PackOptions:
    """Return the policy as the packer's options."""
    assert policy.on_long in ("error", "split", "truncate", "drop")
    assert shard_format in ("parquet", "npy")
    return PackOptions(
        seq_len=policy.seq_len,
        layout=layout,
        on_long=policy.on_long,  # type: ignore[arg-type]
        prune=policy.prune,
        shard_format=shard_format,  # type: ignore[arg-type]
    )


def trie_options(policy: Policy, val_fraction: float = 0.0) -> TrieOptions:
    """Return the policy as the trie's options."""
    root = None if policy.virtual_root is None else str(policy.virtual_root)
    merge = "state" if policy.merge == "state" else "prefix"
    return TrieOptions(merge=merge, virtual_root=root, val_fraction=val_fraction)  # type: ignore[arg-type]


def plan_for(examples: Sequence[Example], policy: Policy, layout: str) -> Plan:
    """Return the oracle's plan for a layout."""
    return oracle.plan(examples, replace(policy, merge="none") if layout in UNMERGED else policy)


def planned(examples: Sequence[Example], policy: Policy, layout: str) -> Plan:
    """Return the oracle's plan; what cannot be built is not of interest here."""
    try:
        plan = plan_for(examples, policy, layout)
    except TooLong:
        assume(False)
        raise
    assume(plan.supervised > 0)
    return plan


def occurrence_trees(plan: Plan, layout: str) -> list[tuple[int, ...]]:
    """Return the trees in the order of their numbers."""
    return [piece.tree for piece in plan.pieces] if layout in UNMERGED else plan.trees


def named_windows(windows: Sequence[Window], plan: Plan, layout: str) -> list[list[Row]]:
    """Return every window's rows by name, checking that trees are numbered as told and start with their token."""
    trees = occurrence_trees(plan, layout)
    names = []
    for window in windows:
        assert all(0 <= row.segment < len(trees) for row in window.rows)
        for row in window.rows:
            assert row.parent >= 0 or row.input == plan.first_tokens[trees[row.segment]]
        names.append(window.named(trees))
    return names


def check_structure(window: Window, seq_len: int) -> None:
    """Check one window alone: lengths, parents, depths, inputs, segments, preorder, and no row twice."""
    rows = window.rows
    assert 1 <= len(rows) <= seq_len
    stack: list[int] = []
    for number, row in enumerate(rows):
        assert -1 <= row.parent < number
        if row.parent == -1:
            assert row.depth == 0
        else:
            above = rows[row.parent]
            assert (row.depth, row.input, row.segment) == (above.depth + 1, above.target, above.segment)
        while stack and stack[-1] != row.parent:
            stack.pop()
        assert row.parent == -1 or stack, "a subtree is not contiguous"
        stack.append(number)
        assert row.count >= 0
    assert window.attention_edges == sum(row.depth + 1 for row in rows)
    assert window.weight_sum == pytest.approx(sum(row.weight for row in rows), rel=1e-12, abs=1e-12)


def check_weight(stored: float, total: Total, *, exact: bool) -> None:
    """Check a stored float32 against the exact sum: equal for small dyadic weights, else within rounding."""
    rounded = float(np.float32(float(total.weight)))
    if exact:
        assert stored == rounded
    else:
        assert abs(Fraction(stored) - total.weight) <= Fraction(6e-8) * abs(total.weight) + total.scale / 2**45


def is_dyadic(examples: Sequence[Example]) -> bool:
    """Return whether float64 adds these weights without rounding, and float32 holds the sums."""
    return all(float(example.weight * 2).is_integer() and abs(example.weight) < 1000 for example in examples)


def homes(plan: Plan, names: Sequence[Sequence[Row]]) -> list[int]:
    """Return the lowest-numbered window that holds the last row of each piece."""
    sets = [set(rows) for rows in names]
    return [next(number for number, rows in enumerate(sets) if piece.rows[-1] in rows) for piece in plan.pieces]


def check_law(windows: Sequence[Window], plan: Plan, layout: str, *, exact: bool) -> None:
    """Check that every window is its own examples run alone and added, and nothing else."""
    names = named_windows(windows, plan, layout)
    owner = homes(plan, names)
    for number, (window, rows) in enumerate(zip(windows, names, strict=True)):
        assert len(set(rows)) == len(rows), "a row stands twice in a window"
        own = oracle.total_rows(piece for piece, home in zip(plan.pieces, owner, strict=True) if home == number)
        assert set(rows) == set(own)
        assert window.column("count") == [own[row].count for row in rows]
        for row, stored in zip(rows, window.column("weight"), strict=True):
            check_weight(stored, own[row], exact=exact)
        assert window.num_supervised == sum(total.supervised for total in own.values())


def check_owned(windows: Sequence[Window], plan: Plan, layout: str) -> None:
    """Check that every distinct row is owned once, where the rule says."""
    names = named_windows(windows, plan, layout)
    weights = [
        dict(zip(rows, window.column("weight"), strict=True)) for rows, window in zip(names, windows, strict=True)
    ]
    owner = oracle.owners(weights)
    assert set(owner) == set(plan.totals)
    for number, (window, rows) in enumerate(zip(windows, names, strict=True)):
        assert window.column("owned") == [owner[row] == number for row in rows]


def check_totals(windows: Sequence[Window], plan: Plan, layout: str, *, exact: bool) -> None:
    """Check that over all windows counts add up to the pairs kept and weights to each row's total."""
    counts: Counter[Row] = Counter()
    weights: dict[Row, float] = {}
    for rows, window in zip(named_windows(windows, plan, layout), windows, strict=True):
        for row, stored in zip(rows, window.rows, strict=True):
            counts[row] += stored.count
            weights[row] = weights.get(row, 0.0) + stored.weight
    assert {row: total.count for row, total in plan.totals.items()} == dict(counts)
    assert counts.total() == plan.ledger["pairs"]["in_windows"]
    if exact:
        assert weights == {row: float(total.weight) for row, total in plan.totals.items()}
    else:
        for row, total in plan.totals.items():
            assert abs(Fraction(weights[row]) - total.weight) <= total.scale * Fraction(1e-7)
    assert sum(window.num_supervised for window in windows) == plan.supervised


def check_provenance(build: Built, plan: Plan, layout: str, partition: str = "train") -> None:
    """Check statuses, and that each example lists the home of each of its pieces with rows."""
    names = named_windows(build.windows[partition], plan, layout)
    numbers = build.of(partition)
    listed: dict[int, list[int]] = {number: [] for number in range(len(numbers))}
    for piece, home in zip(plan.pieces, homes(plan, names), strict=True):
        listed[piece.example].append(home)
    assert [build.provenance[number]["windows"] for number in numbers] == list(listed.values())
    assert [build.provenance[number]["status"] for number in numbers] == plan.statuses


def check_ledger(build: Built, plans: dict[str, Plan], layout: str) -> None:
    """Check every number of the ledger, that it balances, and what the manifest says of the windows."""
    manifest = build.result.manifest
    for partition, plan in plans.items():
        if not plan.ledger["pairs"]["in"] and partition not in manifest.packing:
            continue  # nothing was built; the total below still counts its examples
        ledger = manifest.ledger[partition]
        assert {unit: ledger[unit] for unit in ("examples", "pairs")} == plan.ledger
        assert ledger["merged"] == plan.ledger["pairs"]["in_windows"] - len(plan.totals)
        packing = manifest.packing[partition]
        windows = build.windows[partition]
        rows = [row for window in windows for row in window.rows]
        assert packing["windows"] == len(windows)
        assert packing["rows"] == len(rows)
        assert packing["distinct_rows"] == len(plan.totals) == sum(row.owned for row in rows)
        assert packing["pairs"] == plan.ledger["pairs"]["in_windows"]
        assert packing["supervised_pairs"] == plan.supervised
        assert packing["attention_edges"] == sum(row.depth + 1 for row in rows)
        assert packing["weight_sum"] == pytest.approx(sum(row.weight for row in rows), rel=1e-12, abs=1e-12)
        assert packing["bound"]["windows"] <= len(windows)
        assert packing["bound"]["rows"] <= len(rows)
        assert packing["bound"]["attention_edges"] <= packing["attention_edges"]
    total = manifest.ledger["total"]
    for unit in ("examples", "pairs"):
        assert total[unit] == {key: sum(plan.ledger[unit][key] for plan in plans.values()) for key in total[unit]}
        assert total[unit]["in"] == sum(value for key, value in total[unit].items() if key != "in")


def check_everything(build: Built, examples: Sequence[Example], policy: Policy, layout: str) -> None:
    """Check a merged or unmerged build of one partition, whole."""
    plan = plan_for(examples, policy, layout)
    windows = build.windows["train"]
    for window in windows:
        check_structure(window, policy.seq_len)
    check_law(windows, plan, layout, exact=is_dyadic(examples))
    check_owned(windows, plan, layout)
    check_provenance(build, plan, layout)
    check_ledger(build, {"train": plan}, layout)


# --- windows ----------------------------------------------------------------------------------------


@tries(40)
@given(examples=corpora(), policy=policies(), layout=all_layouts)
def test_every_window_is_a_valid_forest_in_preorder(examples: list[Example], policy: Policy, layout: str) -> None:
    """Parents stand before their rows, depths, inputs and segments follow from them, subtrees are contiguous."""
    planned(examples, policy, layout)
    with built(examples, options_of(policy, layout), trie_options(policy)) as build:
        assert build.windows["train"]
        for window in build.windows["train"]:
            check_structure(window, policy.seq_len)


@tries(100)
@given(examples=corpora(), policy=policies(), layout=layouts)
def test_every_window_equals_its_own_examples_alone(examples: list[Example], policy: Policy, layout: str) -> None:
    """A window is the union of its examples' paths, and its numbers are theirs, to the last bit."""
    plan = planned(examples, policy, layout)
    with built(examples, options_of(policy, layout), trie_options(policy)) as build:
        check_law(build.windows["train"], plan, layout, exact=True)


@tries(40)
@given(examples=corpora(weights=ANY_WEIGHT), policy=policies(on_long=("split", "truncate", "drop")), layout=layouts)
def test_any_weights_are_summed_within_float32(examples: list[Example], policy: Policy, layout: str) -> None:
    """Weights that float32 does not hold are off by one rounding of the sum, and ownership follows what is stored."""
    plan = planned(examples, policy, layout)
    with built(examples, options_of(policy, layout), trie_options(policy)) as build:
        check_law(build.windows["train"], plan, layout, exact=False)
        check_totals(build.windows["train"], plan, layout, exact=False)
        check_owned(build.windows["train"], plan, layout)


@tries(60)
@given(examples=corpora(max_examples=14), policy=policies(on_long=("split",)))
def test_long_examples_split_at_fixed_depths(examples: list[Example], policy: Policy) -> None:
    """Pieces start with the token at depth k * seq_len and merge no further than their true prefixes."""
    policy = replace(policy, seq_len=1 + policy.seq_len % 4)
    plan = planned(examples, policy, "dag")
    with built(examples, options_of(policy, "dag"), trie_options(policy)) as build:
        check_everything(build, examples, policy, "dag")
        assert plan.ledger["pairs"]["truncated"] == plan.ledger["pairs"]["dropped"] == 0


@tries(30)
@given(examples=corpora(), policy=policies(), layout=all_layouts)
def test_totals_over_all_windows_are_those_of_the_corpus(examples: list[Example], policy: Policy, layout: str) -> None:
    """Counts add up to the pairs kept and the weights of a distinct row to its total, in every layout."""
    plan = planned(examples, policy, layout)
    with built(examples, options_of(policy, layout), trie_options(policy)) as build:
        check_totals(build.windows["train"], plan, layout, exact=True)


@tries(60)
@given(examples=corpora(max_examples=14), policy=policies(), layout=layouts)
def test_each_distinct_row_is_owned_once(examples: list[Example], policy: Policy, layout: str) -> None:
    """The owner is the first window in which the row's weight is not 0, else the first that holds it."""
    plan = planned(examples, policy, layout)
    with built(examples, options_of(policy, layout), trie_options(policy)) as build:
        check_owned(build.windows["train"], plan, layout)


@pytest.mark.parametrize("trains", range(4))
def test_ownership_passes_over_windows_where_a_row_does_not_train(trains: int) -> None:
    """Of four windows that repeat a trunk, the one whose example trains it owns it, whichever that is."""
    examples = [Example((1, 2, 3 + at), frozenset({1, 2} if at == trains else {2})) for at in range(4)]
    policy = Policy(seq_len=2)
    with built(examples, options_of(policy, "dag"), trie_options(policy)) as build:
        check_everything(build, examples, policy, "dag")
        found = {window.rows[1].target - 3: window.column("owned") for window in build.windows["train"]}
        assert found == {at: [at == trains, True] for at in range(4)}


@tries(40)
@given(examples=corpora(), policy=policies(), layout=all_layouts)
def test_examples_list_the_lowest_window_with_their_last_row(
    examples: list[Example], policy: Policy, layout: str
) -> None:
    """The provenance gives every kept piece exactly one window, and every example what became of it."""
    plan = planned(examples, policy, layout)
    with built(examples, options_of(policy, layout), trie_options(policy)) as build:
        check_provenance(build, plan, layout)


@tries(30)
@given(examples=corpora(), policy=policies(), layout=st.sampled_from(UNMERGED))
def test_unmerged_layouts_place_pieces_as_their_packers_say(
    examples: list[Example], policy: Policy, layout: str
) -> None:
    """Packed is next-fit in input order, padded has one piece a window, best-fit takes as many as the textbook's."""
    plan = planned(examples, policy, layout)
    lengths = [len(piece.path) for piece in plan.pieces]
    with built(examples, options_of(policy, layout), trie_options(policy)) as build:
        windows = build.windows["train"]
        where = {row.segment: number for number, window in enumerate(windows) for row in window.rows}
        found = [where[number] for number in range(len(lengths))]
        if layout == "packed":
            assert found == oracle.next_fit(lengths, policy.seq_len)
        elif layout == "padded":
            assert found == list(range(len(lengths)))
        else:
            assert len(windows) == oracle.best_fit_count(lengths, policy.seq_len)


@tries(12)
@given(examples=corpora(), policy=policies(), layout=all_layouts)
def test_both_shard_formats_hold_the_same_windows(examples: list[Example], policy: Policy, layout: str) -> None:
    """Parquet and NPY shards read back as equal rows and equal numbers of each window."""
    planned(examples, policy, layout)
    with (
        built(examples, options_of(policy, layout, "parquet"), trie_options(policy)) as one,
        built(examples, options_of(policy, layout, "npy"), trie_options(policy)) as other,
    ):
        assert one.windows == other.windows
        assert one.ledger == other.ledger


# --- the walk ---------------------------------------------------------------------------------------


@tries(60)
@given(examples=corpora(max_examples=14), policy=policies())
def test_the_walk_is_the_stack_walk_row_for_row(examples: list[Example], policy: Policy) -> None:
    """Windows fill depth-first and replay the current path; a row trains once, in full, where it is fresh."""
    plan = planned(examples, policy, "walk")
    expected = oracle.walk(plan.totals, plan.first_tokens, policy.seq_len)
    with built(examples, options_of(policy, "walk"), trie_options(policy)) as build:
        check_trained_once(build.windows["train"], plan, expected)


def check_trained_once(windows: Sequence[Window], plan: Plan, expected: list[list[oracle.WalkedRow]]) -> None:
    """Check windows row for row: all counts and weights where a row is fresh, 0 where it is repeated."""
    assert len(windows) == len(expected)
    for window, walked in zip(windows, expected, strict=True):
        for stored, want in zip(window.rows, walked, strict=True):
            assert (stored.input, stored.target, stored.depth, stored.parent) == want[:4]
            assert plan.trees[stored.segment] == want.row.tree
            total = plan.totals[want.row]
            assert stored.owned == want.fresh
            assert stored.count == (total.count if want.fresh else 0)
            assert stored.weight == (float(total.weight) if want.fresh else 0.0)
        assert window.num_supervised == sum(plan.totals[want.row].supervised for want in walked if want.fresh)


# --- merge state ------------------------------------------------------------------------------------

state_policies = policies(merge="state", on_long=("split", "truncate", "error"))


@tries(100)
@given(examples=graphs(), policy=state_policies)
def test_a_graph_is_its_breadth_first_tree(examples: list[Example], policy: Policy) -> None:
    """Every distinct transition is one row below the parent reached first, cycles and self loops included."""
    plan = planned(examples, policy, "dag")
    with built(examples, options_of(policy, "dag"), trie_options(policy)) as build:
        windows = build.windows["train"]
        names = named_windows(windows, plan, "dag")
        assert {row for rows in names for row in rows} == set(plan.totals)
        first: set[Row] = set()
        for window, rows in zip(windows, names, strict=True):
            check_structure(window, policy.seq_len)
            assert len(set(rows)) == len(rows)
            for row, stored in zip(rows, window.rows, strict=True):
                total = plan.totals[row]
                fresh = row not in first
                assert (stored.owned, stored.count) == (fresh, total.count if fresh else 0)
                assert stored.weight == (float(total.weight) if fresh else 0.0)
            assert window.num_supervised == sum(plan.totals[row].supervised for row in rows if row not in first)
            first |= set(rows)
        check_totals(windows, plan, "dag", exact=True)
        check_ledger(build, {"train": plan}, "dag")


@tries(30)
@given(examples=graphs(), policy=state_policies)
def test_the_walk_of_a_graph_is_the_stack_walk(examples: list[Example], policy: Policy) -> None:
    """The walk runs on the breadth-first tree, and trains every transition once."""
    plan = planned(examples, policy, "walk")
    with built(examples, options_of(policy, "walk"), trie_options(policy)) as build:
        check_trained_once(build.windows["train"], plan, oracle.walk(plan.totals, plan.first_tokens, policy.seq_len))
        check_ledger(build, {"train": plan}, "walk")


@tries(20)
@given(examples=graphs())
def test_a_graph_keeps_the_multiset_of_transitions(examples: list[Example]) -> None:
    """Without pruning the shards hold every transition with its number of crossings, once."""
    policy = Policy(seq_len=40, on_long="error", prune=False, merge="state")
    planned(examples, policy, "dag")
    crossed = Counter(pair for example in examples for pair in zip(example.tokens, example.tokens[1:], strict=False))
    with built(examples, options_of(policy, "dag"), trie_options(policy)) as build:
        found: Counter[tuple[int, int]] = Counter()
        for window in build.windows["train"]:
            for row in window.rows:
                found[row.input, row.target] += row.count
        assert +found == crossed


def test_a_graph_refuses_what_has_no_meaning_there() -> None:
    """Unmerged layouts, and dropping long examples, need examples that are paths of the trie."""
    examples = [Example((1, 2, 1), frozenset({1, 2}))]
    for layout, on_long in (("packed", "split"), ("padded", "split"), ("best-fit", "split"), ("dag", "drop")):
        policy = Policy(seq_len=4, on_long=on_long, merge="state")
        with (
            pytest.raises(UsageError, match=layout if layout != "dag" else "drop"),
            built(examples, options_of(policy, layout), trie_options(policy)),
        ):
            pass


# --- ledger, partitions, errors ---------------------------------------------------------------------


@tries(60)
@given(examples=corpora(weights=ANY_WEIGHT), policy=policies(), layout=all_layouts)
def test_the_ledger_is_the_oracles(examples: list[Example], policy: Policy, layout: str) -> None:
    """Every number of the ledger and of the manifest's packing is what the examples say, under every policy."""
    plan = planned(examples, policy, layout)
    with built(examples, options_of(policy, layout), trie_options(policy)) as build:
        check_ledger(build, {"train": plan}, layout)
        assert build.ledger["train"]["tokens_in"] == sum(len(example.tokens) for example in examples)


@tries(60)
@given(examples=corpora(max_examples=12), policy=policies(), layout=all_layouts)
def test_partitions_are_built_each_on_its_own(examples: list[Example], policy: Policy, layout: str) -> None:
    """With a validation part each partition has its own rows, windows, numbers and ledger."""
    assume(policy.on_long != "error")
    try:
        with built(examples, options_of(policy, layout), trie_options(policy, 0.3)) as build:
            plans = {}
            for partition in ("train", "val"):
                own = [examples[number] for number in build.of(partition)]
                plan = plan_for(own, policy, layout)
                if not own and partition == "val":
                    continue
                plans[partition] = plan
                windows = build.windows[partition]
                if layout == "walk":
                    check_trained_once(windows, plan, oracle.walk(plan.totals, plan.first_tokens, policy.seq_len))
                else:
                    check_law(windows, plan, layout, exact=True)
                    check_owned(windows, plan, layout)
                check_provenance(build, plan, layout, partition)
            check_ledger(build, plans, layout)
            total = build.ledger["total"]
            assert total["examples"]["in"] == len(examples)
    except NoInputError:
        pass


@tries(12)
@given(
    prompts=st.lists(
        st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple), min_size=4, max_size=8, unique=True
    ),
    data=st.data(),
)
def test_completions_of_one_prompt_stay_in_one_partition(prompts: list[tuple[int, ...]], data: st.DataObject) -> None:
    """Examples with the same tokens before the first supervised target are never parted; entry 0 is no target."""
    examples, groups = [], []
    for prompt in prompts:
        for _ in range(2):
            tokens = (20, *prompt, *data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
            first = data.draw(st.sampled_from([frozenset({0}), frozenset()]))
            examples.append(Example(tokens, frozenset(range(len(prompt) + 1, len(tokens))) | first))
            groups.append(prompt)
    examples += [Example((30 + at, 1), frozenset({1}), group="mine") for at in range(5)]
    groups += [(-1,)] * 5
    policy = Policy(seq_len=40)
    try:
        with built(examples, options_of(policy, "dag"), trie_options(policy, 0.5)) as build:
            parts: dict[tuple[int, ...], set[str]] = {}
            for group, row in zip(groups, build.provenance, strict=True):
                parts.setdefault(group, set()).add(row["partition"])
            assert all(len(part) == 1 for part in parts.values())
    except NoInputError:
        pass


@tries(40)
@given(examples=corpora(), policy=policies(on_long=("error", "split", "drop")), layout=layouts)
def test_a_build_fails_exactly_when_it_should(examples: list[Example], policy: Policy, layout: str) -> None:
    """Too long for the policy is bad data, nothing to train is no input, and everything else builds."""
    policy = replace(policy, seq_len=min(policy.seq_len, 4))
    expected: type[Exception] | None = None
    try:
        plan = plan_for(examples, policy, layout)
        expected = NoInputError if plan.supervised == 0 else None
    except TooLong:
        expected = DataError
    if expected is None:
        with built(examples, options_of(policy, layout), trie_options(policy)) as build:
            check_everything(build, examples, policy, layout)
    else:
        with pytest.raises(expected), built(examples, options_of(policy, layout), trie_options(policy)):
            pass


# --- what was lost: nothing -------------------------------------------------------------------------


@tries(50)
@given(examples=corpora(max_examples=12), policy=policies(prune=False), layout=layouts)
def test_sequences_can_be_rebuilt_from_shards_alone(examples: list[Example], policy: Policy, layout: str) -> None:
    """Without pruning, the sequences that end at a row are its count less its children's: every kept piece, once."""
    plan = planned(examples, policy, layout)
    expected = Counter((piece.first, *piece.path) for piece in plan.pieces)
    found: Counter[tuple[int, ...]] = Counter()
    with built(examples, options_of(policy, layout), trie_options(policy)) as build:
        for window in build.windows["train"]:
            ending = window.column("count")
            for row in window.rows:
                if row.parent >= 0:
                    ending[row.parent] -= row.count
            for path, count in zip(window.paths(), ending, strict=True):
                assert count >= 0
                found[path] += count
    assert +found == expected


# --- order ------------------------------------------------------------------------------------------


@tries(30)
@given(data=st.data(), examples=corpora(max_examples=12), policy=policies(), layout=st.sampled_from(["dag", "walk"]))
def test_the_order_of_the_input_changes_no_window(
    data: st.DataObject, examples: list[Example], policy: Policy, layout: str
) -> None:
    """The windows of a trie are a function of the set of examples: any order gives the same rows and numbers."""
    planned(examples, policy, layout)
    shuffled = data.draw(st.permutations(examples))
    with (
        built(examples, options_of(policy, layout), trie_options(policy)) as one,
        built(shuffled, options_of(policy, layout), trie_options(policy)) as other,
    ):
        assert one.windows == other.windows
        assert one.ledger["total"] == other.ledger["total"]


@tries(20)
@given(data=st.data(), examples=corpora(max_examples=12), policy=policies(), layout=st.sampled_from(UNMERGED))
def test_the_order_of_the_input_changes_no_total(
    data: st.DataObject, examples: list[Example], policy: Policy, layout: str
) -> None:
    """Unmerged windows follow the input's order, but what each path is worth in all does not."""
    planned(examples, policy, layout)
    totals = []
    for given_order in (examples, data.draw(st.permutations(examples))):
        with built(given_order, options_of(policy, layout), trie_options(policy)) as build:
            worth: Counter[tuple[tuple[int, ...], int, float]] = Counter()
            for window in build.windows["train"]:
                for path, row in zip(window.paths(), window.rows, strict=True):
                    worth[path, row.count, row.weight] += 1
            totals.append(worth)
    assert totals[0] == totals[1]


@pytest.mark.parametrize("layout", ["dag", "walk"])
@pytest.mark.parametrize("turned", [False, True], ids=["as given", "the other way round"])
@pytest.mark.parametrize("weight", [1.0, 2.0, 0.5, -1.0])
def test_same_tokens_other_supervision(layout: str, turned: bool, weight: float) -> None:
    """A row trained in one example and context in another has the first one's weight, in either order."""
    tokens = (0, 1, 2, 3, 4, 5, 6)
    examples = [Example(tokens, frozenset({4, 5, 6}), weight), Example((*tokens, 7), frozenset({7}), 3.0)]
    policy = Policy(seq_len=7)
    with built(examples[::-1] if turned else examples, options_of(policy, layout), trie_options(policy)) as build:
        (window,) = build.windows["train"]
        assert window.column("weight") == [0, 0, 0, weight, weight, weight, 3.0]
        assert window.column("count") == [2] * 6 + [1]


@tries(6)
@given(examples=corpora(weights=DYADIC, max_examples=14), policy=policies(on_long=("split",)))
def test_compiled_loops_give_the_same_windows(examples: list[Example], policy: Policy) -> None:
    """The loops that are compiled for large corpora fill the same windows as the plain ones."""
    planned(examples, policy, "dag")
    for layout in ("dag", "walk", "best-fit"):
        with (
            built(
                examples, options_of(policy, layout), trie_options(policy), execution=Execution(engine="numpy")
            ) as one,
            built(
                examples, options_of(policy, layout), trie_options(policy), execution=Execution(engine="numba")
            ) as other,
        ):
            assert one.windows == other.windows
