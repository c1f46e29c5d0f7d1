"""Train or validation: whole groups, by content and seed alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.partitions import PARTITIONS, assign_partitions
from dagpack_cli.sequences import Sequences

Example = tuple[tuple[int, ...], frozenset[int], str | None]  # tokens, supervised positions, group

examples = st.builds(
    lambda tokens, flags, group: (
        tuple(tokens),
        frozenset(at for at, flag in enumerate(flags[: len(tokens)]) if flag),
        group,
    ),
    st.lists(st.integers(0, 1), max_size=5),
    st.lists(st.booleans(), min_size=5, max_size=5),
    st.sampled_from([None, None, None, "a", "b", "\ud800"]),
)


def assign(corpus: list[Example], *, val_fraction: float = 0.5, seed: int = 0, virtual_root: bool = False) -> list[int]:
    """Return the partition of each example."""
    runs: list[tuple[int, int]] = []
    run_offsets = [0]
    for _, trained, _ in corpus:
        for at in sorted(trained):
            if run_offsets[-1] < len(runs) and runs[-1][1] == at:
                runs[-1] = (runs[-1][0], at + 1)
            else:
                runs.append((at, at + 1))
        run_offsets.append(len(runs))
    parts = assign_partitions(
        Sequences.of(
            np.array([token for tokens, _, _ in corpus for token in tokens], dtype=np.int32),
            np.cumsum([0] + [len(tokens) for tokens, _, _ in corpus]).astype(np.int64),
        ),
        np.array(runs, dtype=np.int32).reshape(-1, 2),
        np.array(run_offsets, dtype=np.int64),
        [group for _, _, group in corpus],
        first_target=0 if virtual_root else 1,
        val_fraction=val_fraction,
        seed=seed,
    )
    return [int(part) for part in parts]


def key(example: Example, *, virtual_root: bool) -> tuple[str, object]:
    """Return what the design calls the group: the record's, else the prompt, else the whole example."""
    tokens, trained, group = example
    if group is not None:
        return "group", group
    first = min((at for at in trained if at >= (0 if virtual_root else 1)), default=len(tokens))
    everything = first <= (0 if virtual_root else 1)
    return "tokens", tokens if everything else tokens[:first]


@given(corpus=st.lists(examples, max_size=12), seed=st.integers(0, 5), virtual_root=st.booleans())
def test_groups_are_never_parted(corpus: list[Example], seed: int, virtual_root: bool) -> None:
    """Examples of one group, named or made of the prompt, are all on one side."""
    sides: dict[object, int] = {}
    parts = assign(corpus, seed=seed, virtual_root=virtual_root)
    for example, part in zip(corpus, parts, strict=True):
        assert sides.setdefault(key(example, virtual_root=virtual_root), part) == part


@given(corpus=st.lists(examples, min_size=1, max_size=8), data=st.data(), virtual_root=st.booleans())
def test_an_assignment_depends_on_content_and_seed_alone(
    corpus: list[Example], data: st.DataObject, virtual_root: bool
) -> None:
    """An example goes where it goes alone, whatever stands beside it and in whichever order."""
    alone = [assign([example], seed=3, virtual_root=virtual_root)[0] for example in corpus]
    order = data.draw(st.permutations(range(len(corpus))))
    assert assign([corpus[at] for at in order], seed=3, virtual_root=virtual_root) == [alone[at] for at in order]


def two_of(group: int) -> list[Example]:
    """Return a group of two examples: by name, by prompt, or equal as a whole, in turn."""
    if group % 3 == 0:
        return [((group, target), frozenset({1}), f"group {group}") for target in (1, 2)]
    if group % 3 == 1:
        return [((group, 7, target), frozenset({2}), None) for target in (1, 2)]
    return [((group, 3, 4), frozenset({1, 2}), None)] * 2


def groups_of_two(number: int) -> list[Example]:
    """Return so many groups of two examples, one after the other."""
    return [example for group in range(number) for example in two_of(group)]


@pytest.mark.parametrize("fraction", [0.05, 0.25, 0.5, 0.9])
def test_a_fraction_of_groups_is_kept(fraction: float) -> None:
    """Of 2,000 groups of every kind about the fraction asked for validates: within five standard deviations."""
    parts = assign(groups_of_two(2000), val_fraction=fraction)
    assert parts[::2] == parts[1::2]
    deviation = (2000 * fraction * (1 - fraction)) ** 0.5
    assert abs(sum(parts[::2]) - 2000 * fraction) < 5 * deviation


def test_seeds_choose_independently() -> None:
    """Another seed keeps other groups: two halves agree on about half of 2,000 groups, the same seed on all."""
    first, second = (assign(groups_of_two(2000), seed=seed)[::2] for seed in (0, 1))
    agreeing = sum(left == right for left, right in zip(first, second, strict=True))
    assert abs(agreeing - 1000) < 5 * 500**0.5
    assert assign(groups_of_two(2000), seed=0)[::2] == first


def test_a_larger_fraction_keeps_what_a_smaller_kept() -> None:
    """Raising the fraction only adds groups, so that an earlier validation set never trains."""
    corpus = groups_of_two(500)
    small, large = (assign(corpus, val_fraction=fraction) for fraction in (0.1, 0.4))
    assert all(left <= right for left, right in zip(small, large, strict=True))


def test_a_fraction_of_zero_keeps_nothing() -> None:
    """Without a validation fraction everything trains."""
    assert not any(assign(groups_of_two(50), val_fraction=0.0))
    assert PARTITIONS == ("train", "val")


def sides(left: Example, right: Example, *, virtual_root: bool) -> set[bool]:
    """Return whether two examples are on one side, over 64 seeds."""
    return {len(set(assign([left, right], seed=seed, virtual_root=virtual_root))) == 1 for seed in range(64)}


ALWAYS, SOMETIMES = {True}, {True, False}


@pytest.mark.parametrize(
    ("left", "right", "virtual_root", "expected"),
    [
        # The prompt is what stands before the first supervised target.
        (((5, 6, 1), frozenset({2}), None), ((5, 6, 2, 3), frozenset({2, 3}), None), False, ALWAYS),
        (((5, 6, 1), frozenset({2}), None), ((5, 7, 1), frozenset({2}), None), False, SOMETIMES),
        # Entry 0 is nobody's target: supervising it changes nothing ...
        (((5, 6, 1), frozenset({0, 2}), None), ((5, 6, 2), frozenset({2}), None), False, ALWAYS),
        # ... but below a virtual root it is one, so here the whole example is the group.
        (((5, 6, 1), frozenset({0, 2}), None), ((5, 6, 2), frozenset({2}), None), True, SOMETIMES),
        # All supervised: the whole example, so duplicates stay together and others do not.
        (((5, 6, 1), frozenset({0, 1, 2}), None), ((5, 6, 1), frozenset({1, 2}), None), False, ALWAYS),
        (((5, 6, 1), frozenset({1, 2}), None), ((5, 6, 2), frozenset({1, 2}), None), False, SOMETIMES),
        # Below a virtual root entry 1 has a prompt of one token.
        (((5, 6, 1), frozenset({1}), None), ((5, 7, 2), frozenset({1}), None), True, ALWAYS),
        (((5, 6, 1), frozenset({1}), None), ((5, 7, 2), frozenset({1}), None), False, SOMETIMES),
        # Nothing supervised: the whole example.
        (((5, 6, 1), frozenset(), None), ((5, 6, 2), frozenset(), None), False, SOMETIMES),
        # A named group beats the tokens, and a name is not a text of tokens.
        (((1, 2), frozenset({1}), "g"), ((8, 9, 9), frozenset({2}), "g"), False, ALWAYS),
        (((1, 2), frozenset({1}), "g"), ((1, 2), frozenset({1}), "h"), False, SOMETIMES),
        (((97, 2), frozenset({1}), "a\0\0\0\2\0\0\0"), ((97, 2), frozenset({1}), None), False, SOMETIMES),
        (((1, 2), frozenset({1}), "\ud800"), ((1, 2), frozenset({1}), "?"), False, SOMETIMES),
    ],
)
def test_what_makes_a_group(left: Example, right: Example, virtual_root: bool, expected: set[bool]) -> None:
    """Two examples are together for every seed exactly where they are one group."""
    assert sides(left, right, virtual_root=virtual_root) == expected


def test_a_prompt_cannot_be_mistaken_for_another() -> None:
    """Random prompts of equal bytes at other boundaries are groups of their own."""
    generator = random.Random(0)
    prompts = {tuple(generator.randrange(2) for _ in range(generator.randrange(2, 9))) for _ in range(200)}
    corpus: list[Example] = [((*prompt, 3), frozenset({len(prompt)}), None) for prompt in sorted(prompts)]
    parts = assign(corpus)
    assert 0 < sum(parts) < len(parts)
    assert abs(sum(parts) - len(parts) / 2) < 5 * (len(parts) / 4) ** 0.5
