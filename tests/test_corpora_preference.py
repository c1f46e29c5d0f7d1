"""Preference rows: pairs, single verdicts and steps in every shape; only what was chosen is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rows import FIXTURES, damage, kind_of_rows, read, read_as, real, text_of, trained, written

from dagpack_cli.corpora import BadRecords, Example, ReadCounts
from dagpack_cli.errors import DataError

END = "<end-of-turn>"
USER = [{"role": "user", "content": "q"}]
GOOD = {"role": "assistant", "content": "yes"}
POOR = {"role": "assistant", "content": "no"}
HUMAN = [{"from": "human", "value": "q"}]

# Every shape that says: to q, yes was chosen and no rejected.
PAIRS: list[dict[str, Any]] = [
    {"prompt": USER, "chosen": [GOOD], "rejected": [POOR]},
    {"prompt": USER, "chosen": GOOD, "rejected": POOR},
    {"chosen": [*USER, GOOD], "rejected": [*USER, POOR]},
    {"prompt": "q", "chosen": [*USER, GOOD], "rejected": [*USER, POOR]},
    {"prompt": "q", "chosen": [GOOD], "rejected": [POOR]},
    {"prompt": USER, "chosen": [*USER, GOOD], "rejected": [*USER, POOR]},
    {"messages": [*USER, GOOD], "chosen": [*USER, GOOD], "rejected": [*USER, POOR]},
    {"input": {"messages": USER, "tools": []}, "preferred_output": [GOOD], "non_preferred_output": [POOR]},
    {"input": {"messages": USER}, "preferred_completion": GOOD, "non_preferred_completion": POOR},
    {"messages": [*USER, GOOD], "rejected_response": "no"},
    {"messages": [*USER, GOOD], "rejected_response": [POOR]},
    {"messages": [*USER, GOOD], "rejected_messages": [*USER, POOR]},
    {"chosen_messages": [*USER, GOOD], "rejected_messages": [*USER, POOR]},
    {
        "conversations": HUMAN,
        "chosen": {"from": "gpt", "value": "yes"},
        "rejected": {"from": "gpt", "value": "no"},
    },
    {"conversations": HUMAN, "chosen": "yes", "rejected": "no"},
    {"instruction": "q", "input": "", "chosen": "yes", "rejected": "no"},
    {"question": "q", "chosen": "yes", "rejected": "no"},
]
# Every shape that says: yes is a good answer to q.
LABELLED: list[dict[str, Any]] = [
    {"prompt": USER, "completion": [GOOD], "label": True},
    {"prompt": USER, "completion": "yes", "label": True},
    {"messages": [*USER, GOOD], "label": True},
    {"conversations": [*HUMAN, {"from": "gpt", "value": "yes"}], "kto_tag": True},
    {"conversations": HUMAN, "completion": "yes", "label": True},
    {"instruction": "q", "input": "", "output": "yes", "kto_tag": True},
]
STEPS: dict[str, Any] = {"prompt": "p: ", "completions": ["a", "b", "c"], "labels": [True, True, False]}


def both(tmp_path: Path, row: dict[str, Any]) -> tuple[Example, Example]:
    """Return the chosen and the rejected example of one row."""
    first, second = read(written(tmp_path / "a.jsonl", [row]))
    return first, second


@pytest.mark.parametrize("row", PAIRS)
def test_pairs_in_every_shape(row: dict[str, Any], tmp_path: Path) -> None:
    """Whatever holds them, both answers stand behind the prompt, and only the chosen one is trained."""
    counts = ReadCounts()
    first, second = read(written(tmp_path / "a.jsonl", [row]), counts=counts)
    assert first.kind == second.kind == "preference"
    assert text_of(first) == f"<bos><user>q{END}<assistant>yes{END}"
    assert text_of(second) == f"<bos><user>q{END}<assistant>no{END}"
    assert (trained(first), trained(second)) == (["yes" + END], [])
    assert (first.id, second.id) == ("a.jsonl:1#chosen", "a.jsonl:1#rejected")
    assert first.group == second.group
    assert (counts.records, counts.examples, counts.rejected) == (1, 2, 1)


@pytest.mark.parametrize("row", LABELLED)
@pytest.mark.parametrize("good", [True, False])
def test_labels_in_every_shape(row: dict[str, Any], good: bool, tmp_path: Path) -> None:
    """A good answer is trained, a bad one is read, counted, and context."""
    row = {name: good if isinstance(value, bool) else value for name, value in row.items()}
    counts = ReadCounts()
    (found,) = read(written(tmp_path / "a.jsonl", [{**row, "id": 7}]), counts=counts)
    assert text_of(found) == f"<bos><user>q{END}<assistant>yes{END}"
    assert trained(found) == (["yes" + END] if good else [])
    assert (found.id, found.kind, counts.rejected) == ("7", "preference", 0 if good else 1)


def test_text_pairs(tmp_path: Path) -> None:
    """Texts stand between BOS and EOS; of the rejected one nothing is trained, not its end either."""
    first, second = both(tmp_path, {"prompt": "2+3=", "chosen": "5", "rejected": "6"})
    assert (text_of(first), text_of(second)) == ("<bos>2+3=5<eos>", "<bos>2+3=6<eos>")
    assert (trained(first), trained(second)) == (["5<eos>"], [])
    (good,) = read(written(tmp_path / "b.jsonl", [{"prompt": "2+3=", "completion": "5", "label": True}]))
    (poor,) = read(written(tmp_path / "c.jsonl", [{"prompt": "2+3=", "completion": "6", "label": False}]))
    assert (trained(good), trained(poor)) == (["5<eos>"], [])
    assert good.group == poor.group == first.group


def test_implicit_prompts_of_texts(tmp_path: Path) -> None:
    """Texts are prompt up to where they part; a space before that belongs to the answers."""
    row = {"chosen": "The sky is blue.", "rejected": "The sky is green."}
    first, second = both(tmp_path, row)
    assert trained(first) == [" blue.<eos>"]
    assert text_of(second) == "<bos>The sky is green.<eos>"
    shorter, _ = both(tmp_path, {"chosen": "ab", "rejected": "abc"})
    assert trained(shorter) == ["<eos>"]
    with pytest.raises(DataError, match="one text, with no prompt"):
        both(tmp_path, {"chosen": "same", "rejected": "same"})


def test_implicit_prompts_of_messages(tmp_path: Path) -> None:
    """The messages that both start with are context, the assistant's too; equal conversations keep an answer."""
    turns = [*USER, {"role": "assistant", "content": "old"}, {"role": "user", "content": "more"}]
    first, second = both(tmp_path, {"chosen": [*turns, GOOD], "rejected": [*turns, POOR]})
    assert (trained(first), trained(second)) == (["yes" + END], [])
    first, second = both(tmp_path, {"chosen": [*turns, GOOD], "rejected": [*turns, GOOD]})
    assert (trained(first), trained(second)) == (["yes" + END], [])
    assert first.tokens.tolist() == second.tokens.tolist()


def test_rejected_answers_of_their_own_messages(tmp_path: Path) -> None:
    """What is rejected is context under every rule of supervision, its prompt too."""
    path = written(tmp_path / "a.jsonl", [PAIRS[0], {**LABELLED[0], "label": False}])
    for supervise in ("assistant", "last-turn", "all", "completion"):
        first, *rest = read(path, supervise=supervise)
        assert trained(first)
        assert [trained(found) for found in rest] == [[], []]
    assert [trained(found) for found in read(path, per_turn=True)] == [["yes" + END], [], []]


def test_weights_and_calls_of_chosen_messages(tmp_path: Path) -> None:
    """A chosen message of weight 0 stays context; calls and system prompts are read as in chats."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    quiet = {"role": "assistant", "content": "quiet", "weight": 0}
    row = {"prompt": USER, "chosen": [quiet, call], "rejected": POOR, "tools": [{"name": "f"}], "system": "s"}
    first, second = both(tmp_path, row)
    assert trained(first) == ['<tool-call>{"name": "f", "arguments": {}}' + END]
    assert all(text_of(found).startswith("<bos><system>s\n\n# Tools") for found in (first, second))
    first, _ = both(tmp_path, {"prompt": "q", "system": "s", "chosen": "yes", "rejected": "no"})
    assert text_of(first) == f"<bos><system>s{END}<user>q{END}<assistant>yes{END}"


def test_several_rejected_responses(tmp_path: Path) -> None:
    """One example each, told apart by number."""
    found = read(written(tmp_path / "a.jsonl", [{"messages": [*USER, GOOD], "rejected_response": ["no", "never"]}]))
    assert [example.id for example in found] == [f"a.jsonl:1#{x}" for x in ("chosen", "rejected-1", "rejected-2")]
    assert [trained(example) for example in found] == [["yes" + END], [], []]


def test_groups_are_prompts(tmp_path: Path) -> None:
    """Answers to one prompt are one group, however they are stored; the row's own group stands."""
    rows = [*PAIRS, *LABELLED, {**PAIRS[0], "group": "g"}, {"prompt": "other", "chosen": "a", "rejected": "b"}]
    found = read(written(tmp_path / "a.jsonl", rows))
    groups = [example.group for example in found]
    assert len(set(groups[:-4])) == 1
    assert groups[-4:-2] == ["g", "g"]
    assert groups[-1] == groups[-2] != groups[0]


def test_steps(tmp_path: Path) -> None:
    """A solution in steps is one text, a line each: right steps are trained, wrong ones are context."""
    (found,) = read(written(tmp_path / "a.jsonl", [STEPS]))
    assert text_of(found) == "<bos>p: a\nb\nc<eos>"
    assert trained(found) == ["a\nb\n"]
    (found,) = read(written(tmp_path / "b.jsonl", [{**STEPS, "labels": [False, 1, True]}]))
    assert trained(found) == ["b\nc<eos>"]
    counts = ReadCounts()
    (found,) = read(written(tmp_path / "c.jsonl", [{**STEPS, "labels": [0, 0, 0]}]), counts=counts)
    assert (trained(found), counts.rejected) == ([], 1)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "p", "chosen": "a"}, '"rejected" is missing'),
        ({"prompt": "p", "rejected": "a", "chosen": None}, '"chosen" is missing'),
        ({"prompt": "p", "chosen": "a", "rejected": [POOR]}, "both texts, or both messages"),
        ({"prompt": "p", "chosen": 3, "rejected": "a"}, "chosen: turns are 3"),
        ({"prompt": 3, "chosen": "b", "rejected": "a"}, "prompt: turns are 3"),
        ({"prompt": USER, "chosen": [], "rejected": [POOR]}, "chosen: an answer has no messages"),
        ({"prompt": "other", "chosen": [*USER, GOOD], "rejected": [*USER, POOR]}, "not the prompt"),
        ({"chosen": [{"role": "oracle"}], "rejected": [POOR]}, 'chosen, turn 1: unknown role "oracle"'),
        ({"input": {"messages": USER}, "preferred_output": [GOOD]}, '"non_preferred_output" is missing'),
        ({"input": "q", "preferred_output": [GOOD], "non_preferred_output": [POOR]}, '"input" is "q"'),
        ({"input": {}, "preferred_output": [GOOD], "non_preferred_output": [POOR]}, "turns are null"),
        ({"messages": USER, "rejected_response": "no"}, "do not end with the assistant's"),
        ({"messages": USER, "label": True}, "do not end with the assistant's"),
        ({"messages": [], "label": True}, "do not end with the assistant's"),
        ({"completion": "c", "label": True}, "a prompt and a completion"),
        ({"prompt": "p", "messages": [*USER, GOOD], "label": True}, "a prompt and a completion"),
        ({**STEPS, "labels": [True]}, '"labels" has 1 entries; "completions" has 3'),
        ({**STEPS, "labels": [True, True, 2]}, r"labels\[2\] is 2; true or false"),
        ({**STEPS, "completions": [USER]}, "steps are texts"),
        ({**STEPS, "prompt": USER}, "steps are texts"),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "images": ["x"]}, "only text can be read"),
        ({"prompt": "p", "chosen": "\ud83d", "rejected": "b"}, "surrogate"),
        ({"prompt": "p", "chosen": "a", "rejected": "b", "weight": "1"}, '"weight" is "1"'),
        ({"messages": [*USER, GOOD]}, '"chosen" is missing'),
    ],
)
def test_refusals(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """What is missing or cannot be told apart is named with its line."""
    with pytest.raises(DataError, match=f"a.jsonl:1.*{reason}"):
        read_as("preference", written(tmp_path / "a.jsonl", [row]))


@pytest.mark.parametrize("row", [*PAIRS, *LABELLED, STEPS])
def test_judged_rows_are_never_plain(row: dict[str, Any], tmp_path: Path) -> None:
    """Every shape is known for what it is, and every reader of plain rows refuses it."""
    assert kind_of_rows(tmp_path, row) == "preference"
    path = written(tmp_path / "a.jsonl", [row])
    for format in ("chat", "sharegpt", "alpaca", "rl-groups"):
        with pytest.raises(DataError):
            read_as(format, path)


@pytest.mark.parametrize(
    "row",
    [
        {"text": "t", "label": True},
        {"prompt": "p", "completion": "c", "label": 3},
        {"prompt": "p", "label": True},
        {"messages": USER, "chosen": None},
    ],
)
def test_rows_without_a_verdict_are_not_claimed(row: dict[str, Any], tmp_path: Path) -> None:
    """A class, a label of nothing and a null are no verdict on an answer."""
    assert kind_of_rows(tmp_path, row) != "preference"


@pytest.mark.parametrize("seed", range(4))
def test_damaged_rows_are_counted(seed: int, tmp_path: Path) -> None:
    """Cut lines, flipped bytes and values of any type are bad records, nothing worse."""
    rows = [*PAIRS, *LABELLED, STEPS]
    assert damage("preference", rows, tmp_path / "a.jsonl", seed).count > 20


def test_fixture() -> None:
    """The small file of the project holds what it says."""
    found = read(FIXTURES / "tiny" / "preference" / "pairs.jsonl")
    assert {example.id: trained(example) for example in found} == {
        "sum#chosen": ["5" + END],
        "sum#rejected": [],
        "whole#chosen": ["2" + END],
        "whole#rejected": [],
        "text#chosen": ["4<eos>"],
        "text#rejected": [],
        "good": ["6" + END],
        "bad": [],
    }


@pytest.mark.parametrize(
    ("name", "num", "duplicates"),
    [("preference/data__dpo_en_demo.json", 300, 10), ("preference/preference_explicit.jsonl", 60, 0)],
)
def test_real_pairs(name: str, num: int, duplicates: int) -> None:
    """One trained answer a pair, exactly the chosen text; both leaves share their prompt to the last token."""
    path = real(name)
    counts = ReadCounts()
    found = read(path, counts=counts)
    data = path.read_bytes()
    rows = json.loads(data) if data.lstrip()[:1] == b"[" else [json.loads(line) for line in data.splitlines()]
    assert (len(rows), len(found), counts.rejected) == (num, 2 * num, num)
    assert len(found) - len({example.tokens.tobytes() for example in found}) == duplicates
    for row, (first, second) in zip(rows, _twos(found), strict=True):
        answer, other = (_said(row[name]) for name in ("chosen", "rejected"))
        assert trained(first) == [answer + END]
        assert trained(second) == []
        assert text_of(second).endswith(f"<assistant>{other}{END}")
        prompt = int(first.runs[0, 0])
        assert first.tokens[:prompt].tolist() == second.tokens[:prompt].tolist()
        assert first.group == second.group


def _said(answer: Any) -> str:
    """Return the text of a pair's answer: one turn, or a list of one message."""
    text = answer["value"] if isinstance(answer, dict) else answer[0]["content"]
    assert isinstance(text, str)
    return text


def _twos(found: list[Example]) -> list[tuple[Example, Example]]:
    return list(zip(found[::2], found[1::2], strict=True))


def test_real_labels() -> None:
    """Of 300 judged answers 150 are trained: the last message of a good conversation, nothing of a bad one."""
    path = real("preference/data__kto_en_demo.json")
    counts = ReadCounts()
    found = read(path, counts=counts)
    assert (len(found), counts.rejected) == (300, 150)
    for row, example in zip(json.loads(path.read_bytes()), found, strict=True):
        assert trained(example) == ([row["messages"][-1]["content"] + END] if row["label"] else [])


def test_skipping_keeps_the_rest(tmp_path: Path) -> None:
    """A bad row between good ones is counted, and the others are read."""
    bad = BadRecords()
    assert len(read(written(tmp_path / "a.jsonl", [PAIRS[0], {"chosen": "a"}, PAIRS[0]]), bad)) == 4
    assert bad.first[0][0] == "a.jsonl:2"
