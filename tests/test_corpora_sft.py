"""Supervised fine-tuning rows: OpenAI chats in full, ShareGPT, Alpaca, typed blocks; real files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rows import FIXTURES, damage, kind_of_rows, read, read_as, real, text_of, trained, written

from dagpack_cli.corpora import BadRecords, Example
from dagpack_cli.errors import DataError

END = "<end-of-turn>"
CALL = '<tool-call>{"name": "f", "arguments": {"b": "é", "a": 1}}<end-of-turn>'
TOOL = {"name": "f", "parameters": {"type": "object"}}

SHAREGPT: list[dict[str, Any]] = [
    {
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"b": "é", "a": 1}}'},
            {"from": "observation", "value": "r"},
            {"from": "gpt", "value": "a"},
        ],
        "tools": json.dumps([TOOL]),
        "system": "s",
    },
]
ALPACA: list[dict[str, Any]] = [
    {"instruction": "i", "input": "x", "output": "o", "history": [["q", "a"]], "system": "s"},
    {"instruction": "i", "input": "", "output": "o"},
]
CHATS: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "q"}]},
            {
                "role": "assistant",
                "content": None,
                "weight": 1,
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "r"},
            {"role": "assistant", "content": [{"type": "reasoning", "value": "t"}, {"type": "text", "value": "a"}]},
        ],
        "tools": [{"type": "function", "function": TOOL}],
    },
    {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]},
    {"prompt": "p", "completion": "c"},
]


def one(tmp_path: Path, row: dict[str, Any], **options: Any) -> Example:
    """Return the example of one row."""
    (example,) = read(written(tmp_path / "a.jsonl", [row]), **options)
    return example


def test_sharegpt_worked(tmp_path: Path) -> None:
    """Roles become messages, a call its JSON, system prompt and tools stand first; gpt and calls are trained."""
    example = one(tmp_path, SHAREGPT[0])
    assert example.kind == "sharegpt"
    assert trained(example) == [CALL, "a" + END]
    text = text_of(example)
    assert text.startswith("<bos><system>s\n\n# Tools")
    assert json.dumps(TOOL) in text
    assert text.endswith(f"<user>q{END}<assistant>{CALL}<tool>r{END}<assistant>a{END}")


@pytest.mark.parametrize(
    ("speaker", "role"),
    [
        ("human", "user"),
        ("User", "user"),
        ("GPT", "assistant"),
        ("chatgpt", "assistant"),
        ("bing", "assistant"),
        ("bard", "assistant"),
        ("assistant", "assistant"),
        ("system", "system"),
        ("tool", "tool"),
        ("observation", "tool"),
        ("function_response", "tool"),
    ],
)
def test_sharegpt_speakers(speaker: str, role: str, tmp_path: Path) -> None:
    """Every name that files give a speaker has one role; only the assistant's are trained."""
    example = one(tmp_path, {"conversation": [{"from": speaker, "value": "v"}]})
    assert text_of(example) == f"<bos><{role}>v{END}"
    assert trained(example) == ([f"v{END}"] if role == "assistant" else [])


def test_sharegpt_that_starts_with_the_assistant(tmp_path: Path) -> None:
    """Nothing stands before the first answer but its header, and it is kept."""
    turns = [{"from": "gpt", "value": "hello"}, {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    example = one(tmp_path, {"conversations": turns, "tools": "[]", "id": 5, "group": "g", "weight": 2})
    assert text_of(example).startswith(f"<bos><assistant>hello{END}")
    assert trained(example) == ["hello" + END, "a" + END]
    assert (example.id, example.group, example.weight) == ("5", "g", 2.0)


def test_sharegpt_calls_in_every_shape(tmp_path: Path) -> None:
    """A call as text or object, arguments as object or text, alone or in a list, with a thought before."""
    inner = {"name": "f", "arguments": {"b": "é", "a": 1}}
    told = {"name": "f", "arguments": json.dumps(inner["arguments"])}
    values: list[Any] = [inner, json.dumps(inner), json.dumps([told]), f"\n{json.dumps(told)}\n", [inner]]
    rows = [{"conversations": [{"from": "function_call", "value": value}]} for value in values]
    assert {text_of(found) for found in read(written(tmp_path / "a.jsonl", rows))} == {f"<bos><assistant>{CALL}"}
    two = one(tmp_path, {"conversations": [{"from": "function_call", "value": json.dumps([inner, inner])}]})
    assert text_of(two).count("<tool-call>") == 2
    thought = one(
        tmp_path, {"conversations": [{"from": "function_call", "value": f"<think>\nt\n</think>\n{json.dumps(told)}"}]}
    )
    assert text_of(thought) == f"<bos><assistant><thinking>t{CALL}"


def test_sharegpt_system_of_its_own(tmp_path: Path) -> None:
    """A conversation that starts with a system prompt keeps it; the row's is for those without."""
    turns = [{"from": "system", "value": "own"}, {"from": "gpt", "value": "a"}]
    assert text_of(one(tmp_path, {"conversations": turns, "system": "row"})).startswith(f"<bos><system>own{END}<assist")


def test_sharegpt_turns_with_roles_and_weights(tmp_path: Path) -> None:
    """Turns of role and content are messages; one of weight 0, or whose loss is off, is context."""
    turns: list[dict[str, Any]] = [
        {"role": "assistant", "content": "a", "weight": 0},
        {"from": "gpt", "value": "b", "weight": 0},
        {"from": "gpt", "value": "c", "loss": False},
        {"from": "gpt", "value": "d", "loss": True},
    ]
    assert trained(one(tmp_path, {"conversations": turns})) == ["d" + END]
    assert one(tmp_path, {"messages": turns[1:]}).kind == "sharegpt"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"conversations": [{"from": "narrator", "value": "x"}]},
            'turn 1: unknown speaker "narrator"; known are system',
        ),
        ({"conversations": [{"from": None, "value": "x"}]}, "unknown speaker null"),
        ({"conversations": [{"from": 3, "value": "x"}]}, "unknown speaker 3"),
        ({"conversations": [{"from": "gpt"}]}, '"value" of a turn is null'),
        ({"conversations": [{"from": "gpt", "value": ["x"]}]}, '"value" of a turn is a list of 1'),
        ({"conversations": ["x"]}, 'turn 1: a turn is "x"'),
        ({"conversations": [{"from": "gpt", "value": "\ud83d"}]}, "surrogate"),
        ({"conversations": [{"from": "function_call", "value": "f(1)"}]}, "function call: not valid JSON"),
        ({"conversations": [{"from": "function_call", "value": None}]}, "a tool call is null"),
        ({"conversations": [{"from": "function_call", "value": "[]"}]}, "an empty list"),
        ({"conversations": [], "tools": "no JSON"}, "not valid JSON"),
        ({"conversations": [], "system": 3}, '"system" is 3'),
        ({"conversations": "x"}, "a list of turns"),
        ({"conversations": [], "images": ["cat.png"]}, '"images" belong to this record; only text'),
        ({"conversations": [{"from": "gpt", "value": "x"}], "label": False}, '"label" judges'),
        ({"conversations": [{"from": "gpt", "value": "x"}], "kto_tag": True}, '"kto_tag" judges'),
        ({"conversations": [{"from": "human", "value": "x"}], "chosen": {"from": "gpt", "value": "y"}}, "judges"),
    ],
)
def test_sharegpt_refusals(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """What cannot be read is named with its line and turn, and judged rows are never read as plain ones."""
    with pytest.raises(DataError, match=f"a.jsonl:1.*{reason}"):
        read_as("sharegpt", written(tmp_path / "a.jsonl", [row]))


def test_alpaca_worked(tmp_path: Path) -> None:
    """Instruction and input are the question, rounds of the history stand before it; every answer is trained."""
    first, second = read(written(tmp_path / "a.jsonl", ALPACA))
    assert first.kind == "alpaca"
    assert text_of(first) == (f"<bos><system>s{END}<user>q{END}<assistant>a{END}<user>i\nx{END}<assistant>o{END}")
    assert trained(first) == ["a" + END, "o" + END]
    assert text_of(second) == f"<bos><user>i{END}<assistant>o{END}"


def test_alpaca_placeholders_and_odd_questions(tmp_path: Path) -> None:
    """Placeholders stay; without an instruction the input asks; an input of null is none."""
    example = one(tmp_path, {"instruction": "", "input": "who?", "output": "I am {{name}}."})
    assert text_of(example) == f"<bos><user>who?{END}<assistant>I am {{{{name}}}}.{END}"
    assert text_of(one(tmp_path, {"instruction": "i", "input": None, "output": "o"})) == (
        f"<bos><user>i{END}<assistant>o{END}"
    )


@pytest.mark.parametrize("output", ["", " \n"])
def test_answers_of_nothing_train_nothing(output: str, tmp_path: Path) -> None:
    """An empty answer is an example without a target: it would teach to end the turn at once."""
    assert trained(one(tmp_path, {"instruction": "i", "output": output})) == []
    assert trained(one(tmp_path, {"messages": [{"role": "assistant", "content": output}]})) == []
    assert trained(one(tmp_path, {"conversations": [{"from": "gpt", "value": output}]})) == []


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"instruction": "i"}, '"output" is null'),
        ({"instruction": "i", "output": 5}, '"output" is 5'),
        ({"instruction": ["i"], "output": "o"}, '"instruction" is a list of 1'),
        ({"instruction": "i", "input": {"a": 1}, "output": "o"}, '"input" is an object'),
        ({"instruction": "i", "output": "o", "history": ["q"]}, 'round 1 of the history is "q"'),
        ({"instruction": "i", "output": "o", "history": [["q", None]]}, "round 1 of the history is null"),
        ({"instruction": "i", "output": "o", "history": {"q": "a"}}, '"history" is an object'),
        ({"instruction": "i", "output": "o", "images": ["a.png"]}, "only text can be read"),
        ({"instruction": "i", "output": "o", "kto_tag": False}, '"kto_tag" judges'),
        ({"instruction": "i", "output": "\udc00"}, "surrogate"),
    ],
)
def test_alpaca_refusals(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """What cannot be read is named with its line."""
    with pytest.raises(DataError, match=f"a.jsonl:1.*{reason}"):
        read_as("alpaca", written(tmp_path / "a.jsonl", [row]))


def test_legacy_functions_are_tools(tmp_path: Path) -> None:
    """Functions, a function call and a function's message give the tokens of tools, a tool call and its result."""
    old = {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
            {"role": "function", "name": "f", "content": "r"},
            {"role": "assistant", "content": "a", "function_call": None},
        ],
        "functions": [TOOL],
        "parallel_tool_calls": False,
    }
    new = {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "tool_call_id": "x", "content": "r"},
            {"role": "assistant", "content": "a"},
        ],
        "tools": [{"type": "function", "function": TOOL}],
    }
    first, second = read(written(tmp_path / "a.jsonl", [old, new]))
    assert text_of(first) == text_of(second)
    assert trained(first) == trained(second) == ['<tool-call>{"name": "f", "arguments": {"a": 1}}' + END, "a" + END]
    with pytest.raises(DataError, match='both "tools" and "functions"'):
        one(tmp_path, {**new, "functions": [TOOL]})
    with pytest.raises(DataError, match="a tool call is"):
        one(tmp_path, {"messages": [{"role": "assistant", "function_call": ["f"]}]})


def test_refusals_are_what_was_said(tmp_path: Path) -> None:
    """A refusal, in its own field or as a part, is the assistant's text."""
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "no"}], "refusal": None},
    ]
    rows = [{"messages": [message]} for message in messages]
    assert {text_of(found) for found in read(written(tmp_path / "a.jsonl", rows))} == {f"<bos><assistant>no{END}"}
    with pytest.raises(DataError, match='"audio" belongs to this message'):
        one(tmp_path, {"messages": [{"role": "assistant", "audio": {"id": "x"}}]})


def test_graded_prompts_train_nothing(tmp_path: Path) -> None:
    """A row that ends with a question and has what grades its answer is a prompt, whatever was said before."""
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "more"},
    ]
    assert trained(one(tmp_path, {"messages": messages, "reference_answer": {"x": 1}})) == []
    assert trained(one(tmp_path, {"messages": messages[:2], "reference_answer": "a"})) == ["a" + END]
    assert trained(one(tmp_path, {"messages": messages})) == ["a" + END]
    assert len(one(tmp_path, {"messages": [], "ground_truth": "a"}).tokens) == 0


def test_typed_blocks(tmp_path: Path) -> None:
    """Blocks of a type and a value: text, reasoning, calls as JSON text; loss_weight 0 is context."""
    call = {"type": "tool_call", "value": '{"name": "f", "arguments": {"b": "é", "a": 1}}'}
    blocks = [{"type": "reasoning", "value": "t"}, {"type": "text", "value": "a"}, call]
    messages = [
        {"role": "user", "content": [{"type": "text", "value": "q"}], "loss_weight": 0.0},
        {"role": "assistant", "content": [{"type": "text", "value": "old"}], "loss_weight": 0.0},
        {"role": "assistant", "content": blocks, "loss_weight": 1.0},
    ]
    assert trained(one(tmp_path, {"messages": messages})) == [f"<thinking>t<thinking>a{CALL}"]
    messages[1]["loss_weight"] = 0.5
    with pytest.raises(DataError, match=r'message 2: "loss_weight" of a message is 0\.5; 0 or 1'):
        one(tmp_path, {"messages": messages})


def test_arguments_are_never_encoded_twice(tmp_path: Path) -> None:
    """A string argument stays one, JSON's nulls stay, and ``parameters`` are arguments by another name."""
    calls: list[dict[str, Any]] = [
        {"name": "f", "arguments": {"x": '{"y": 1}', "z": None}},
        {"name": "f", "arguments": '{"x": "{\\"y\\": 1}", "z": null}'},
        {"name": "f", "parameters": {"x": '{"y": 1}', "z": None}},
    ]
    rows = [{"messages": [{"role": "assistant", "tool_calls": [call]}]} for call in calls]
    found = {text_of(example) for example in read(written(tmp_path / "a.jsonl", rows))}
    assert found == {'<bos><assistant><tool-call>{"name": "f", "arguments": {"x": "{\\"y\\": 1}", "z": null}}' + END}


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        *((row, "sharegpt") for row in SHAREGPT),
        *((row, "alpaca") for row in ALPACA),
        *((row, "chat") for row in CHATS),
        ({"conversations": [], "text": "t"}, "sharegpt"),
        ({"instruction": "i", "input": "x"}, ""),
        ({"instruction": "i", "output": ["o"]}, ""),
        ({"conversations": ["a", "b"]}, ""),
        ({"text": "t", "label": True}, "jsonl-text"),
        ({"messages": [{"from": "human", "value": "q"}]}, "sharegpt"),
        ({"messages": [{"role": "user", "content": "q"}], "reward": 1.0}, "chat"),
    ],
)
def test_rows_are_told_apart(row: dict[str, Any], kind: str, tmp_path: Path) -> None:
    """A row is of one format, by its fields."""
    assert kind_of_rows(tmp_path, row) == kind


@pytest.mark.parametrize(
    ("format", "rows"), [("sharegpt", SHAREGPT), ("alpaca", ALPACA), ("chat", CHATS)], ids=lambda value: str(value)[:8]
)
@pytest.mark.parametrize("seed", range(3))
def test_damaged_rows_are_counted(format: str, rows: list[dict[str, Any]], seed: int, tmp_path: Path) -> None:
    """Cut lines, flipped bytes and values of any type are bad records, nothing worse."""
    assert damage(format, rows, tmp_path / "a.jsonl", seed).count > 20


def test_fixtures_of_sft() -> None:
    """The small files of the project hold what they say."""
    calls = read(FIXTURES / "tiny" / "sharegpt" / "calls.json")
    assert [trained(example) for example in calls] == [
        ['<tool-call>{"name": "add", "arguments": {"a": 2, "b": 3}}' + END, "It is 5." + END],
        ["Hello. What shall I add?" + END, "Three." + END],
    ]
    tasks = read(FIXTURES / "tiny" / "alpaca" / "tasks.json")
    assert [trained(example) for example in tasks] == [["5" + END], ["4" + END, "6" + END], []]


def numbers(found: list[Example]) -> tuple[int, int, int, int]:
    """Return how many examples, tokens, supervised tokens and supervised messages there are."""
    supervised = sum(int(np.diff(example.runs, axis=1).sum()) for example in found)
    return len(found), sum(len(e.tokens) for e in found), supervised, sum(len(e.runs) for e in found)


def said_in(rows: list[Any], field: str, speaker: str, text: str, speakers: tuple[str, ...]) -> list[str]:
    """Return what stands in the assistant's turns of plain rows, read without the reader."""
    return [turn[text] for row in rows for turn in row[field] if turn[speaker] in speakers]


def test_real_sharegpt() -> None:
    """300 conversations of 957 trained turns: the assistant's texts and calls, and 35 exact duplicates."""
    path = real("sft/data__glaive_toolcall_en_demo.json")
    found = read(path)
    assert numbers(found) == (300, 658_978, 395_793, 957)
    assert len(found) - len({example.tokens.tobytes() for example in found}) == 35
    given = said_in(json.loads(path.read_bytes()), "conversations", "from", "value", ("gpt", "function_call"))
    for run, value in zip([run for example in found for run in trained(example)], given, strict=True):
        if run.startswith("<tool-call>"):
            assert json.loads(run.removeprefix("<tool-call>").removesuffix(END)) == json.loads(value)
        else:
            assert run == value + END


def test_real_typed_blocks() -> None:
    """50 conversations of 112 trained turns, each with its thinking, 68 with a call."""
    found = read(real("sft/data__reason_tool_use_demo_50.jsonl"))
    assert numbers(found) == (50, 243_344, 116_536, 112)
    runs = [run for example in found for run in trained(example)]
    assert all(run.startswith("<thinking>") for run in runs)
    assert sum("<tool-call>" in run for run in runs) == 53


def test_real_openai_chats() -> None:
    """Trained are the 531 messages of the assistant that have no weight of 0; the 40 that have are context."""
    path = real("sft/openai_ft.jsonl")
    found = read(path)
    assert numbers(found) == (40, 627_158, 137_470, 531)
    rows = [json.loads(line) for line in path.read_bytes().splitlines()]
    messages = [m for row in rows for m in row["messages"] if m["role"] == "assistant" and m.get("weight") != 0]
    for run, message in zip([run for example in found for run in trained(example)], messages, strict=True):
        content, *calls = run.removesuffix(END).split("<tool-call>")
        assert content == (message["content"] or "")
        given = [call["function"] for call in message.get("tool_calls") or []]
        assert [json.loads(call)["arguments"] for call in calls] == [json.loads(c["arguments"]) for c in given]


def test_real_messages_that_lost_their_calls() -> None:
    """Of 1,060 assistant messages 468 are null and have no call: they are context, the other 592 are trained."""
    found = read(real("sft/hf_messages.parquet"))
    assert numbers(found)[::3] == (80, 592)
    assert all(run != END for example in found for run in trained(example))


def test_skipping_keeps_the_rest(tmp_path: Path) -> None:
    """A bad row between good ones is counted, and the others are read."""
    bad = BadRecords()
    path = written(tmp_path / "a.jsonl", [SHAREGPT[0], {"conversations": [{"from": "x", "value": ""}]}, SHAREGPT[0]])
    assert len(read(path, bad)) == 2
    assert bad.first[0][0] == "a.jsonl:2, turn 1"
