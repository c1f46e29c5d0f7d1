"""Groups of rewarded completions, and tau-bench runs: multiplicity, groups, and what each example weighs."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import FIXTURES, damage, kind_of_rows, read, read_as, real, text_of, trained, written

from dagpack_cli.corpora import BadRecords
from dagpack_cli.corpora.datasets.rewards import GroupRewards, rewards_by_group
from dagpack_cli.errors import DataError

END = "<end-of-turn>"
USER = [{"role": "user", "content": "q"}]
GROUP: dict[str, Any] = {"group_id": 4, "prompt": "p", "completions": ["a", "b", "a"], "rewards": [1, 0, 1]}
SINGLE: list[dict[str, Any]] = [
    {"uid": "x", "prompt": "p", "completion": "a", "reward": 1.0},
    {"uid": "y", "prompt": "p", "completion": "b", "reward": 5.0},
    {"uid": "x", "prompt": "p", "completion": "c", "reward": 0.0},
    {"uid": "x", "prompt": "p", "completion": "d", "reward": 0.0},
    {"uid": "y", "prompt": "p", "completion": "b", "reward": 5.0},
]
RUN: dict[str, Any] = {
    "task_id": 3,
    "trial": 0,
    "reward": 1.0,
    "info": {"task": {}},
    "traj": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "q"},
        {"content": None, "role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "1", "name": "f", "content": "r"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "###STOP###"},
    ],
}


def advantages(rewards: list[float]) -> list[float]:
    """Return what a trainer would compute for one group, by another method."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(reward - mean) / (deviation + 1e-4) for reward in rewards]


def test_one_row_is_a_group(tmp_path: Path) -> None:
    """One example a completion, equal ones kept, each of weight 1, in the group that the row names."""
    found = read(written(tmp_path / "a.jsonl", [{**GROUP, "id": "r"}]))
    assert [(example.id, example.group, example.weight, example.kind) for example in found] == [
        (f"r#{index}", "4", 1.0, "rl-groups") for index in range(3)
    ]
    assert [text_of(example) for example in found] == ["<bos>pa<eos>", "<bos>pb<eos>", "<bos>pa<eos>"]
    assert [trained(example) for example in found] == [["a<eos>"], ["b<eos>"], ["a<eos>"]]


@pytest.mark.parametrize("names", [{}, {"uid": 1}, {"group": "g"}, {"task_id": "t"}, {"group_id": 0}])
def test_groups_keep_together(names: dict[str, Any], tmp_path: Path) -> None:
    """Rows of one prompt or one named group share a group; another prompt or name is another one."""
    answer = [{"role": "assistant", "content": "a"}]
    rows = [{"prompt": USER, "completion": answer, "reward": n, **names} for n in range(2)]
    other = {"prompt": [*USER, *answer, *USER], "completion": answer, "reward": 0}
    found = read(
        written(tmp_path / "a.jsonl", [*rows, other, {"prompt": USER, "completions": [answer], "rewards": [1]}])
    )
    assert found[0].group == found[1].group != found[2].group
    assert found[0].group == (str(*names.values()) if names else found[3].group)


def test_rewards_weigh(tmp_path: Path) -> None:
    """A reward is the weight, negative ones too, times the row's own; stored advantages stand."""
    row = {**GROUP, "rewards": [0.5, -2, True], "weight": 3}
    found = read(written(tmp_path / "a.jsonl", [row]), group_weight="reward")
    assert [example.weight for example in found] == [1.5, -6.0, 3.0]
    given = {**GROUP, "advantages": [7.0, 0.0, -7.0], "rewards": None}
    found = read(written(tmp_path / "b.jsonl", [given]), group_weight="advantage")
    assert [example.weight for example in found] == [7.0, 0.0, -7.0]


def test_advantages_of_a_row(tmp_path: Path) -> None:
    """GRPO's advantage with the deviation of a sample: two of three right ones are 0.577 better."""
    found = read(written(tmp_path / "a.jsonl", [GROUP]), group_weight="advantage")
    assert [example.weight for example in found] == pytest.approx(advantages([1, 0, 1]), rel=1e-12)
    assert [round(example.weight, 4) for example in found] == [0.5773, -1.1545, 0.5773]


def test_advantages_of_rows_that_stand_apart(tmp_path: Path) -> None:
    """A group is gathered from all over the file; one of equal rewards weighs exactly nothing."""
    path = written(tmp_path / "a.jsonl", SINGLE)
    found = read(path, group_weight="advantage")
    good, poor, *_ = advantages([1, 0, 0])
    assert [example.weight for example in found] == pytest.approx([good, 0, poor, poor, 0], rel=1e-12)
    assert found[1].weight == found[4].weight == 0.0
    assert [example.weight for example in read(path)] == [1.0] * 5
    stated = [{**SINGLE[0], "advantage": 9}, *SINGLE[1:]]
    assert read(written(tmp_path / "b.jsonl", stated), group_weight="advantage")[0].weight == 9.0


def test_groups_are_of_their_file(tmp_path: Path) -> None:
    """Equal names in two files are two groups for their advantages."""
    first = read(written(tmp_path / "a.jsonl", SINGLE[:1]), group_weight="advantage")
    assert [example.weight for example in first] == [0.0]


@given(st.lists(st.floats(-1e6, 1e6), max_size=12))
def test_advantages_against_the_definition(rewards: list[float]) -> None:
    """Mean and deviation added up one by one are those of the list."""
    group = rewards_by_group(("g", reward) for reward in rewards).get("g", GroupRewards())
    found = [group.advantage(reward) for reward in rewards]
    if rewards and min(rewards) == max(rewards):
        assert found == [0.0] * len(rewards)
    else:
        spread = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
        scale = max(map(abs, rewards), default=0.0) / (spread + 1e-4)
        np.testing.assert_allclose(found, advantages(rewards), rtol=1e-9, atol=1e-12 * (1 + scale) ** 2)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", '"1"', "[1]", "null", "1e39"])
@pytest.mark.parametrize("mode", ["reward", "advantage"])
def test_rewards_that_are_none(literal: str, mode: str, tmp_path: Path) -> None:
    """What is no number is an error where it would be a weight, and nobody's business elsewhere."""
    path = tmp_path / "a.jsonl"
    path.write_text(f'{json.dumps(GROUP)}\n{{"prompt": "p", "completions": ["a"], "rewards": [{literal}]}}\n')
    with pytest.raises(DataError, match=r'a\.jsonl:2: "reward" is .*a finite number') as error:
        read(path, group_weight=mode)
    assert "--group-weight none" in error.value.hint
    assert len(read(path)) == 4
    bad = BadRecords()
    assert len(read(path, bad, group_weight=mode)) == 3
    assert bad.count == 1
    path.write_text(f'{json.dumps(SINGLE[0])}\n{{"prompt": "p", "uid": "x", "completion": "a", "reward": {literal}}}\n')
    bad = BadRecords()
    (kept,) = read(path, bad, group_weight=mode)
    assert (bad.count, kept.weight) == (1, 1.0 if mode == "reward" else 0.0)


@pytest.mark.parametrize(
    ("row", "options", "reason"),
    [
        ({**GROUP, "rewards": [1]}, {}, '"rewards" has 1 entries; "completions" has 3'),
        ({**GROUP, "rewards": 1}, {}, '"rewards" is 1; a list'),
        ({**GROUP, "advantages": [1]}, {}, '"advantages" has 1 entries'),
        ({**GROUP, "completions": ["a", 3, "b"]}, {}, "completion 2: the prompt"),
        ({**GROUP, "group_id": 1.5}, {}, '"group_id" is 1.5'),
        ({"prompt": "p", "rewards": [1]}, {}, "a prompt with completions"),
        ({**GROUP, "label": True}, {}, '"label" judges'),
        ({**GROUP, "rewards": None}, {"group_weight": "reward"}, '"reward" is null'),
        ({**GROUP, "rewards": [1e30, 0, 0], "weight": 1e30}, {"group_weight": "reward"}, "too large"),
        ({**SINGLE[0], "reward": None, "advantage": [1, 2]}, {"group_weight": "advantage"}, '"advantage" is a list'),
    ],
)
def test_refusals(row: dict[str, Any], options: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Lists of other lengths, no completions, weights that float32 cannot hold: named with their line."""
    with pytest.raises(DataError, match=f"a.jsonl:1.*{reason}"):
        read_as("rl-groups", written(tmp_path / "a.jsonl", [row]), **options)


def test_weights_too_small_for_float32_are_nothing(tmp_path: Path) -> None:
    """A product below the smallest normal number is 0, not an error."""
    row = {**GROUP, "rewards": [1e-30, 0, 1], "weight": 1e-30}
    found = read(written(tmp_path / "a.jsonl", [row]), group_weight="reward")
    assert [example.weight for example in found] == [0.0, 0.0, 1e-30]


def test_conversations_with_rewards(tmp_path: Path) -> None:
    """They are chats, unless weighed by rewards: then their opening is the prompt, and no chat ignores it."""
    rows = [{"messages": [*USER, {"role": "assistant", "content": text}], "reward": n} for n, text in enumerate("ab")]
    path = written(tmp_path / "a.jsonl", rows)
    assert [(example.kind, example.weight) for example in read(path)] == [("chat", 1.0)] * 2
    found = read(path, group_weight="reward")
    assert [(example.kind, example.weight, trained(example)) for example in found] == [
        ("rl-groups", 0.0, ["a" + END]),
        ("rl-groups", 1.0, ["b" + END]),
    ]
    assert found[0].group == found[1].group
    for format in ("chat", "sharegpt", "alpaca"):
        with pytest.raises(DataError, match='"reward" rewards this record') as error:
            read_as(format, path, group_weight="advantage")
        assert "--format rl-groups" in error.value.hint


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (GROUP, "rl-groups"),
        (SINGLE[0], "rl-groups"),
        ({"prompt": "p", "completion": "c", "advantage": -1}, "rl-groups"),
        (RUN, "tau-bench"),
        ({"prompt": "p", "completions": ["a"]}, "chat"),
        ({"prompt": "p", "completion": "c"}, "chat"),
        ({"prompt": "p", "reward": 1}, ""),
        ({"traj": [], "x": 1}, ""),
    ],
)
def test_rows_are_told_apart(row: dict[str, Any], kind: str, tmp_path: Path) -> None:
    """Without a reward completions are plain ones."""
    assert kind_of_rows(tmp_path, row) == kind


def test_runs_of_tasks(tmp_path: Path) -> None:
    """The assistant's text and calls are trained; the runs of a task are a group, wherever they stand."""
    other = {**RUN, "task_id": 9}
    rows = [RUN, other, {**RUN, "reward": 0.0, "trial": 1}, {**RUN, "reward": 0.5, "trial": 2}]
    path = written(tmp_path / "a.jsonl", rows)
    found = read(path)
    assert trained(found[0]) == ['<tool-call>{"name": "f", "arguments": {}}' + END, "a" + END]
    assert [(example.kind, example.group, example.weight) for example in found] == [
        ("tau-bench", group, 1.0) for group in ("3", "9", "3", "3")
    ]
    assert [example.weight for example in read(path, group_weight="reward")] == [1.0, 1.0, 0.0, 0.5]
    weights = [example.weight for example in read(path, group_weight="advantage")]
    first, second, third = advantages([1.0, 0.0, 0.5])
    assert weights == pytest.approx([first, 0.0, second, third], rel=1e-12)
    nameless = [{name: value for name, value in row.items() if name != "task_id"} for row in rows]
    assert len({example.group for example in read(written(tmp_path / "b.jsonl", nameless))}) == 1


def test_runs_that_failed(tmp_path: Path) -> None:
    """A run that broke off has no messages: an example of nothing; one without a reward is none to weigh."""
    path = written(tmp_path / "a.jsonl", [RUN, {**RUN, "traj": []}, {**RUN, "reward": None}, {**RUN, "traj": None}])
    bad = BadRecords()
    assert [len(example.tokens) > 0 for example in read(path, bad)] == [True, False, True]
    assert [where for where, _ in bad.first] == ["a.jsonl:4"]
    bad = BadRecords()
    assert len(read(path, bad, group_weight="advantage")) == 2
    assert [where for where, _ in bad.first] == ["a.jsonl:3", "a.jsonl:4"]


@pytest.mark.parametrize("mode", ["none", "reward", "advantage"])
@pytest.mark.parametrize(("format", "rows"), [("rl-groups", [GROUP, *SINGLE]), ("tau-bench", [RUN])])
def test_damaged_rows_are_counted(format: str, rows: list[dict[str, Any]], mode: str, tmp_path: Path) -> None:
    """Cut lines, flipped bytes and values of any type are bad records, nothing worse."""
    assert damage(format, rows, tmp_path / "a.jsonl", 1, group_weight=mode).count > 20


def test_fixtures() -> None:
    """The small files of the project hold what they say."""
    groups = read(FIXTURES / "tiny" / "rl-groups" / "groups.jsonl", group_weight="advantage")
    assert [(example.group, trained(example)[0], round(example.weight, 3)) for example in groups] == [
        ("sum", "5<eos>", 0.577),
        ("sum", "6<eos>", -1.155),
        ("sum", "5<eos>", 0.577),
        ("product", "6<eos>", 0.707),
        ("other", "1<eos>", 0.0),
        ("product", "5<eos>", -0.707),
    ]
    runs = read(FIXTURES / "tiny" / "tau-bench" / "runs.json", group_weight="reward")
    assert [(example.group, example.weight, len(example.runs)) for example in runs] == [
        ("0", 1.0, 2),
        ("1", 0.0, 1),
        ("0", 0.0, 1),
    ]


def test_real_runs() -> None:
    """200 runs of 50 tasks; trained are exactly the 2,454 messages of the assistant, weighed by task."""
    path = real("tau-bench/historical_trajectories__gpt-4o-airline.json")
    rows = json.loads(path.read_bytes())
    found = read(path, group_weight="advantage")
    assert (len(found), len({example.group for example in found})) == (200, 50)
    messages = [message for row in rows for message in row["traj"] if message["role"] == "assistant"]
    runs = [run for example in found for run in trained(example)]
    assert len(runs) == len(messages) == 2454
    for run, message in zip(runs, messages, strict=True):
        content, *calls = run.removesuffix(END).split("<tool-call>")
        assert content == (message["content"] or "")
        given_calls = [call["function"] for call in message.get("tool_calls") or []]
        assert [json.loads(call)["name"] for call in calls] == [call["name"] for call in given_calls]
    by_task: dict[int, list[float]] = {}
    for row in rows:
        by_task.setdefault(row["task_id"], []).append(row["reward"])
    wanted = [advantages(by_task[row["task_id"]])[row["trial"]] for row in rows]
    assert [example.weight for example in found] == pytest.approx(wanted, rel=1e-12)


def test_real_groups() -> None:
    """25 groups of four; completions that are whole dialogues are trained in the assistant's messages alone."""
    path = real("tau-bench/rl_groups.jsonl")
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    found = read(path, group_weight="reward")
    assert [example.weight for example in found] == [reward for row in rows for reward in row["rewards"]]
    said = [m["content"] for row in rows for chat in row["completions"] for m in chat if m["role"] == "assistant"]
    # 576 of the messages are empty: their calls were lost when the file was derived, so they are context.
    assert [run for example in found for run in trained(example)] == [text + END for text in said if text]
    assert {example.kind for example in found} == {"rl-groups"}
