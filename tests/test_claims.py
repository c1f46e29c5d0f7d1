"""Claims: who trains what several examples carry, and who is whose family, against slow definitions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_corpora_pi import entry, write

from dagpack_cli.claims import join_families, settle_claims
from dagpack_cli.corpora import ReadOptions, discover, read_examples
from dagpack_cli.corpora.records import Example
from dagpack_cli.tokenizing import ByteTokenizer

RUNS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=20).map(sorted)
NAMES = st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=6, max_size=6)


def arrays(runs: list[tuple[int, int]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return keys and owners; key 0 is none."""
    keys = np.array([[0, key] if key % 2 else [key, 0] for _, key in runs], dtype=np.int64).reshape(-1, 2)
    return keys, np.array([owner for owner, _ in runs], dtype=np.int64)


@given(RUNS, st.sampled_from([1, 3, 1 << 20]))
def test_the_first_example_trains(runs: list[tuple[int, int]], part: int) -> None:
    """A run stays where no earlier example has its key, however few keys are looked at; those without always stay."""
    seen: dict[int, int] = {}
    for owner, key in runs:
        seen.setdefault(key, owner)
    keys, owners = arrays(runs)
    with mock.patch("dagpack_cli.claims._PART", part):
        found = settle_claims(keys, np.searchsorted(owners, np.arange(7)))
    assert found.tolist() == [key == 0 or seen[key] == owner for owner, key in runs]


@given(RUNS, NAMES, NAMES)
def test_families_are_what_anything_connects(
    runs: list[tuple[int, int]], groups: list[str | None], families: list[str | None]
) -> None:
    """Two examples have one label if and only if a chain of keys, groups and families leads between them."""
    marks: list[set[object]] = [{name for name in pair if name} for pair in zip(groups, families, strict=True)]
    for owner, key in runs:
        if key:
            marks[owner].add(key)
    found = join_families(*arrays(runs), groups, families)
    for one in range(6):
        reached, todo = set(marks[one]), [one]
        while todo:
            here = todo.pop()
            for other in range(6):
                if marks[other] & marks[here] and not marks[other] <= reached:
                    reached |= marks[other]
                    todo.append(other)
        names = sorted(mark for mark in reached if isinstance(mark, str))
        if names:
            assert found[one] == names[0]
        else:
            assert (found[one] is None) == (not reached)
        for other in range(6):
            assert (found[one] == found[other] and found[one] is not None) == bool(marks[other] & reached)


def examples_of(folder: Path, **options: Any) -> list[Example]:
    """Return the examples of a folder of sessions, as bytes."""
    reading = ReadOptions(**options)
    return [
        example
        for source in discover(folder, options=reading).inputs
        for example in read_examples(source, ByteTokenizer(), reading)
    ]


def row_weights(examples: list[Example]) -> Counter[tuple[int, ...]]:
    """Return the weight of every distinct pair, by the tokens up to its target; settled one by one."""
    claimed: dict[bytes, int] = {}
    found: Counter[tuple[int, ...]] = Counter()
    for number, example in enumerate(examples):
        keys = example.keys if example.keys is not None else np.zeros((len(example.runs), 2), dtype=np.int64)
        for (low, high), key in zip(example.runs.tolist(), keys, strict=True):
            if key.any() and claimed.setdefault(key.tobytes(), number) != number:
                continue
            for position in range(max(low, 1), high):
                found[tuple(example.tokens[: position + 1].tolist())] += 1
    return found


@st.composite
def sessions(draw: st.DrawFn) -> list[list[dict[str, Any]]]:
    """Return up to three session files: trees with branches, compactions and forks of each other."""
    files: list[list[dict[str, Any]]] = []
    time = 0
    for _ in range(draw(st.integers(1, 3))):
        forked = bool(files) and bool(draw(st.sampled_from([False, True])))
        lines = list(draw(st.sampled_from(files))) if forked else []
        for _ in range(draw(st.integers(1, 7))):
            time += 1
            parent = draw(st.sampled_from([line["id"] for line in lines])) if lines else None
            own = f"e{time}"
            kind = draw(st.sampled_from(["user", "assistant", "assistant", "compaction", "custom"]))
            if kind == "compaction" and parent is not None:
                kept = draw(st.sampled_from([line["id"] for line in lines]))
                lines.append({"type": kind, "id": own, "parentId": parent, "summary": "s", "firstKeptEntryId": kept})
            elif kind == "custom":
                lines.append({"type": kind, "id": own, "parentId": parent})
            else:
                role = "assistant" if kind == "assistant" else "user"
                reason = draw(st.sampled_from(["stop", "stop", "stop", "aborted"]))
                text = draw(st.sampled_from(["x", "y", ""]))
                lines.append(entry(own, parent, role, text, time, stopReason=reason))
        files.append(lines)
    return files


@given(sessions())
def test_a_turn_weighs_the_same_in_its_path_and_alone(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[dict[str, Any]]]
) -> None:
    """The weight of every row is the same with one example a leaf and with one a turn; and each turn has it once."""
    folder = tmp_path_factory.mktemp("sessions")
    for number, lines in enumerate(files):
        write(folder / f"s{number}.jsonl", lines)
    paths, turns = row_weights(examples_of(folder)), row_weights(examples_of(folder, per_turn=True))
    assert paths == turns
    # An answer is written in one place alone: its time says which.
    spoken = {
        line["message"]["timestamp"]: len(line["message"]["content"][0]["text"]) + 1
        for lines in files
        for line in lines
        if line["type"] == "message" and line["message"]["role"] == "assistant"
        if line["message"]["stopReason"] == "stop" and line["message"]["content"][0]["text"]
    }
    assert sum(paths.values()) == sum(spoken.values())
