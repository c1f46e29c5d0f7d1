"""Formats read into examples: worked records, every refusal, and real files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.corpora import (
    BadRecords,
    DropRule,
    Example,
    ReadCounts,
    ReadOptions,
    Source,
    choose_tokenizer,
    discover,
    kind_of,
    parse_drop_rule,
    raise_bad,
    read_examples,
)
from dagpack_cli.corpora.files.sources import stat_source
from dagpack_cli.corpora.files.table_batch import without_nulls
from dagpack_cli.corpora.records import runs_of
from dagpack_cli.errors import DataError, MismatchError, UsageError
from dagpack_cli.tokenizing import ByteTokenizer, GivenIds, SymbolCollector, Symbols

REAL = Path(__file__).resolve().parents[2] / "shared" / "real"
ARC = {"episode_field": "data.guid", "state_field": "data.frame", "action_field": "data.action_input.id"}


def real(name: str) -> Path:
    """Return a real file's path, or skip where there is none."""
    if not (REAL / name).exists():
        pytest.skip(f"no real file at shared/real/{name}")
    return REAL / name


def written(path: Path, rows: list[Any]) -> Path:
    """Write JSON lines, and return their path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, tokenizer: Any = None, on_bad: Any = raise_bad, **options: Any) -> list[Example]:
    """Return the examples of one file, read with bytes where nothing else is given."""
    chosen = ReadOptions(**options)
    (source,) = discover(path, options=chosen).inputs
    return list(read_examples(source, tokenizer or ByteTokenizer(), chosen, on_bad))


def read_ids(tmp_path: Path, row: dict[str, Any]) -> Example:
    """Return the example of one pretokenised record."""
    (example,) = read(written(tmp_path / "ids.jsonl", [row]), GivenIds(), format="pretokenised")
    return example


def text_of(example: Example) -> str:
    """Return an example's tokens as text."""
    return ByteTokenizer().decode(example.tokens)


def trained(example: Example) -> list[str]:
    """Return the text of an example's supervised runs."""
    return [ByteTokenizer().decode(example.tokens[start:end]) for start, end in example.runs.tolist()]


def test_worked_text_files(tmp_path: Path) -> None:
    """The three files "ab", "c", "def" are the documents of the worked packing."""
    for name, text in (("1.txt", "ab"), ("2.txt", "c"), ("3.txt", "def")):
        (tmp_path / name).write_text(text)
    sources = discover(tmp_path).inputs
    found = [example for source in sources for example in read_examples(source, ByteTokenizer(), ReadOptions())]
    assert [example.tokens.tolist() for example in found] == [
        [0, 99, 100, 1],
        [0, 101, 1],
        [0, 102, 103, 104, 1],
    ]
    assert [example.runs.tolist() for example in found] == [[[0, 4]], [[0, 3]], [[0, 5]]]
    assert [(example.id, example.record, example.line, example.start, example.end) for example in found[:1]] == [
        ("1.txt", 0, 0, 0, 4)
    ]


def test_text_is_kept_but_for_a_bom(tmp_path: Path) -> None:
    """CRLF, U+2028 and a missing last line end stay as they are."""
    (tmp_path / "a.txt").write_bytes("\ufeffa\r\n\u2028b\ufeff".encode())
    assert text_of(read(tmp_path / "a.txt")[0]) == "<bos>a\r\n\u2028b\ufeff<eos>"


def test_empty_texts_have_no_tokens(tmp_path: Path) -> None:
    """An empty file, text or conversation is an example of nothing, in its place."""
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf")
    assert [len(example.tokens) for example in read(tmp_path / "a.txt")] == [0]
    found = read(written(tmp_path / "b.jsonl", [{"text": "a"}, {"text": ""}, {"text": "b"}]))
    assert [(example.line, len(example.tokens), example.runs.shape) for example in found] == [
        (1, 3, (1, 2)),
        (2, 0, (0, 2)),
        (3, 3, (1, 2)),
    ]
    assert len(read(written(tmp_path / "c.jsonl", [{"messages": []}]))[0].tokens) == 0


def test_text_that_is_no_utf8_names_the_byte(tmp_path: Path) -> None:
    """The byte and the line are told, and the file can be skipped."""
    (tmp_path / "a.txt").write_bytes(b"line\n" * 20_000 + b"caf\xe9")
    with pytest.raises(DataError, match=r"a.txt:20001: byte 100,004 \(0xE9\) is not UTF-8"):
        read(tmp_path / "a.txt")
    bad = BadRecords()
    assert read(tmp_path / "a.txt", on_bad=bad) == []
    assert bad.count == 1


def test_text_records(tmp_path: Path) -> None:
    """Id, group and weight are the record's; without an id, file and line name it."""
    rows = [{"text": "a", "id": 7, "group": "g", "weight": -2}, {"text": "b", "junk": [1]}]
    first, second = read(written(tmp_path / "a.jsonl", rows))
    assert (first.id, first.group, first.weight, first.kind) == ("7", "g", -2.0, "jsonl-text")
    assert (second.id, second.group, second.weight, second.record, second.line) == ("a.jsonl:2", None, 1.0, 1, 2)
    (named,) = read(written(tmp_path / "b.jsonl", [{"body": "x"}]), text_field="body")
    assert text_of(named) == "<bos>x<eos>"


def test_missing_text_names_the_fields(tmp_path: Path) -> None:
    """The error shows what the record has, and the flag that names the field."""
    path = written(tmp_path / "a.jsonl", [{"text": "a"}, {"body": "b", "n": 1}])
    with pytest.raises(DataError, match=r'a\.jsonl:2: field "text" is missing; the record has "body", "n"') as error:
        read(path)
    assert "--text-field" in error.value.hint


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"text": "a", "weight": NaN}', "weight"),
        ('{"text": "a", "weight": "1"}', "weight"),
        ('{"text": "a", "weight": true}', "weight"),
        ('{"text": "a", "weight": 1e39}', "weight"),
        ('{"text": "a", "weight": 1e-39}', "weight"),
        ('{"text": "a", "weight": 1e999}', "weight"),
        ('{"text": "a", "weight": -Infinity}', "weight"),
        ('{"text": "\\ud83d"}', "surrogate"),
        ('{"text": "a", "id": [1]}', '"id" is a list of 1'),
        ('{"text": "a", "id": "\\udc00"}', "surrogate"),
        ('{"text": "a", "group": 1.5}', '"group" is 1.5'),
        ('{"text": 3}', '"text" is 3'),
        ('{"text": null}', '"text" is null'),
    ],
)
def test_values_that_cannot_be_are_refused(line: str, reason: str, tmp_path: Path) -> None:
    """Weights float32 cannot hold, half characters and odd labels are bad records, with their line."""
    (tmp_path / "a.jsonl").write_text('{"text": "good"}\n' + line + '\n{"text": "good"}\n')
    with pytest.raises(DataError, match=f"a.jsonl:2.*{reason}"):
        read(tmp_path / "a.jsonl")
    bad, counts = BadRecords(), ReadCounts()
    (source,) = discover(tmp_path / "a.jsonl").inputs
    assert len(list(read_examples(source, ByteTokenizer(), ReadOptions(), bad, counts=counts))) == 2
    assert (bad.count, counts.bad_records, counts.records, counts.examples) == (1, 1, 2, 2)


@pytest.mark.parametrize("weight", [0, -0.0, 1.2e-38, 3.4e38, -5])
def test_weights_that_float32_holds(weight: float, tmp_path: Path) -> None:
    """Zero and normal magnitudes of either sign are weights."""
    (example,) = read(written(tmp_path / "a.jsonl", [{"text": "a", "weight": weight}]))
    assert example.weight == weight


@given(st.lists(st.booleans(), max_size=30))
def test_runs_are_the_true_ranges(mask: list[bool]) -> None:
    """Runs are sorted, disjoint, not touching, and cover exactly what is True."""
    runs = runs_of(np.array(mask, dtype=bool)).tolist()
    covered = [position for start, end in runs for position in range(start, end)]
    assert covered == [position for position, chosen in enumerate(mask) if chosen]
    assert all(first[1] < second[0] for first, second in itertools.pairwise(runs))


def test_pretokenised_worked(tmp_path: Path) -> None:
    """Ids are unchanged, labels speak of their own token, padding at either end goes."""
    example = read_ids(
        tmp_path,
        {
            "input_ids": [9, 9, 5, 6, 7, 8, 9],
            "attention_mask": [0, 0, 1, 1, 1, 1, 0],
            "labels": [-100, -100, -100, 6, -100, 8, -100],
        },
    )
    assert example.tokens.tolist() == [5, 6, 7, 8]
    assert example.runs.tolist() == [[1, 2], [3, 4]]
    assert (example.start, example.end) == (2, 6)
    plain = read_ids(tmp_path, {"input_ids": [2**31 - 1, 0], "loss_mask": [True, 0]})
    assert plain.tokens.tolist() == [2**31 - 1, 0]
    assert plain.runs.tolist() == [[0, 1]]
    assert plain.tokens.dtype == np.int32
    assert read_ids(tmp_path, {"input_ids": []}).tokens.tolist() == []
    assert read_ids(tmp_path, {"input_ids": [1, 2], "attention_mask": [0, 0]}).tokens.tolist() == []


def test_pretokenised_interior(tmp_path: Path) -> None:
    """A chosen range keeps its own tokens and supervision, nothing is added."""
    row = {"input_ids": [1, 2, 3, 4], "labels": [-100, 2, 3, -100], "start": 1, "end": 4}
    example = read_ids(tmp_path, row)
    assert (example.tokens.tolist(), example.runs.tolist()) == ([2, 3, 4], [[0, 2]])
    assert (example.start, example.end) == (1, 4)
    assert read_ids(tmp_path, {"input_ids": [1, 2], "start": 1}).tokens.tolist() == [2]


def test_first_label_is_never_a_target(tmp_path: Path) -> None:
    """Entry 0 of labels has no context, so whatever stands there is accepted."""
    assert read_ids(tmp_path, {"input_ids": [5, 6], "labels": [77, 6]}).tokens.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"input_ids": [1, 2**31]}, r"input_ids\[1\] is 2,147,483,648"),
        ({"input_ids": [-1]}, r"input_ids\[0\] is -1"),
        ({"input_ids": [1, 2**70]}, "64 bits"),
        ({"input_ids": [1, 2.0]}, r"input_ids\[1\] is 2.0"),
        ({"input_ids": [1, True]}, r"input_ids\[1\] is true"),
        ({"input_ids": ["1"]}, "whole number"),
        ({"input_ids": 3}, "a list"),
        ({"input_ids": None}, "is missing"),
        ({"input_ids": [1, 2], "labels": [2, 3]}, "labels look shifted"),
        ({"input_ids": [1, 2], "labels": [1]}, '"labels" has 1 entries'),
        ({"input_ids": [1, 2], "loss_mask": [1, 0, 1]}, '"loss_mask" has 3 entries'),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, r"loss_mask\[1\] is 2"),
        ({"input_ids": [1, 2], "loss_mask": [1, 0.5]}, r"loss_mask\[1\] is 0.5"),
        ({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, r"attention_mask\[1\] is 0 between ones"),
        ({"input_ids": [1, 2], "labels": [1, 2], "loss_mask": [1, 1]}, "both"),
        ({"input_ids": [1, 2], "start": 1, "end": 3}, "0 <= start"),
        ({"input_ids": [1, 2], "start": "0"}, "0 <= start"),
    ],
)
def test_pretokenised_refusals(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """Nothing is wrapped, cut or guessed: what does not fit is named with its line."""
    with pytest.raises(DataError, match=f"ids.jsonl:1: .*{reason}"):
        read_ids(tmp_path, row)


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.uint8(), pa.uint64(), pa.uint16()])
@pytest.mark.parametrize("make", [pa.list_, pa.large_list])
def test_pretokenised_parquet(kind: pa.DataType, make: Any, tmp_path: Path) -> None:
    """Every integer type and list type of Parquet gives the same examples, across batches and null rows."""
    ids: list[Any] = [[number % 7, 5, 6] for number in range(600)]
    ids[300] = []
    mask: list[Any] = [[False, True, True][: len(row)] for row in ids]
    mask[2] = None
    table = pa.table({"input_ids": pa.array(ids, make(kind)), "loss_mask": pa.array(mask, make(pa.bool_()))})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    found = read(tmp_path / "a.parquet", GivenIds())
    assert [example.tokens.tolist() for example in found] == ids
    assert found[0].runs.tolist() == [[1, 3]]
    assert found[2].runs.tolist() == [[0, 3]]
    assert (found[599].id, found[599].record, found[599].line) == ("a.parquet:599", 599, 0)


def test_pretokenised_parquet_refusals(tmp_path: Path) -> None:
    """Nulls inside, fractions and numbers over int32 in Parquet are refused as in JSON."""
    for column in (
        pa.array([[1, None]]),
        pa.array([[1.0]]),
        pa.array([[2**63]], pa.list_(pa.uint64())),
        pa.array([[True]]),
    ):
        pq.write_table(pa.table({"input_ids": column}), tmp_path / "a.parquet")
        with pytest.raises(DataError, match=r"a\.parquet, record 0"):
            read(tmp_path / "a.parquet", GivenIds())


def test_ids_outside_the_vocabulary_are_bad_records(tmp_path: Path) -> None:
    """With a tokenizer, given ids must be its own."""
    path = written(tmp_path / "a.jsonl", [{"input_ids": [265]}, {"input_ids": [266]}])
    with pytest.raises(DataError, match=r"a\.jsonl:2: token id 266 is outside the vocabulary; 0 to 265"):
        read(path)
    bad = BadRecords()
    assert len(read(path, on_bad=bad)) == 1
    assert bad.count == 1


def test_chat_trains_the_assistant(tmp_path: Path) -> None:
    """Supervised is the assistant's turn with its end; a message of weight 0 is context."""
    chat = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "weight": 0},
        {"role": "assistant", "content": "b", "weight": 1},
    ]
    (example,) = read(written(tmp_path / "a.jsonl", [{"messages": chat, "id": "x", "group": 3}]))
    assert trained(example) == ["b<end-of-turn>"]
    assert (example.id, example.group, example.kind) == ("x", "3", "chat")


def test_heterogeneous_messages_are_one(tmp_path: Path) -> None:
    """Content as string, parts or null, and arguments as object or text, give the same tokens."""
    call = {"name": "f", "arguments": {"b": [1, None], "a": "é"}}
    told = {"name": "f", "arguments": '{"b": [1,\n null], "a": "\\u00e9"}'}
    variants: list[dict[str, Any]] = [
        {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": call}]},
        {"content": "", "tool_calls": [{"function": told}]},
        {"content": [], "tool_calls": [told]},
        {"tool_calls": [call], "name": None},
        {"content": [{"type": "tool_call", "value": json.dumps(call)}]},
        {"content": None, "function_call": told},
    ]
    rows = [{"messages": [{"role": "assistant", **variant}]} for variant in variants]
    texts = {text_of(example) for example in read(written(tmp_path / "a.jsonl", rows))}
    assert texts == {'<bos><assistant><tool-call>{"name": "f", "arguments": {"b": [1, null], "a": "é"}}<end-of-turn>'}
    parts = [{"type": "text", "value": "a"}, {"text": "b"}]
    contents: list[Any] = ["ab", ["a", "b"], [{"type": "text", "text": "ab"}], parts]
    rows = [{"messages": [{"role": "user", "content": content}]} for content in contents]
    assert {text_of(example) for example in read(written(tmp_path / "b.jsonl", rows))} == {"<bos><user>ab<end-of-turn>"}


def test_reasoning_stands_before_the_answer(tmp_path: Path) -> None:
    """Thinking in its own field, or as a part, is rendered and trained the same."""
    variants: list[dict[str, Any]] = [
        {"content": "a", "reasoning_content": "t"},
        {"content": "a", "reasoning": "t"},
        {"content": [{"type": "reasoning", "value": "t"}, {"type": "text", "value": "a"}]},
        {"content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "a"}]},
    ]
    rows = [{"messages": [{"role": "assistant", **variant}]} for variant in variants]
    found = read(written(tmp_path / "a.jsonl", rows))
    assert {text_of(example) for example in found} == {"<bos><assistant><thinking>t<thinking>a<end-of-turn>"}


def test_empty_arguments_are_no_arguments(tmp_path: Path) -> None:
    """Absent, null, empty text and an empty object are the same call."""
    no_arguments: list[Any] = [None, "", {}, "{}"]
    calls: list[dict[str, Any]] = [{"name": "f"}, *({"name": "f", "arguments": value} for value in no_arguments)]
    rows = [{"messages": [{"role": "assistant", "tool_calls": [call]}]} for call in calls]
    assert len({text_of(example) for example in read(written(tmp_path / "a.jsonl", rows))}) == 1


def test_tools_as_list_or_text(tmp_path: Path) -> None:
    """Tools given as JSON text are the same as the list."""
    tools = [{"name": "f"}]
    rows = [{"messages": [{"role": "user", "content": "q"}], "tools": value} for value in (tools, json.dumps(tools))]
    first, second = read(written(tmp_path / "a.jsonl", rows))
    assert first.tokens.tolist() == second.tokens.tolist()
    assert '{"name": "f"}' in text_of(first)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [{"role": "exit", "content": ""}]}, 'message 1: unknown role "exit"; known roles: system'),
        ({"messages": [{"role": None}]}, "unknown role"),
        ({"messages": ["x"]}, "message 1: a message is"),
        ({"messages": {"role": "user"}}, "a list"),
        ({"messages": [{"role": "user", "content": 3}]}, '"content" is 3'),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "only text can be read"),
        ({"messages": [{"role": "user", "content": [7]}]}, "only text can be read"),
        ({"messages": [{"role": "user", "content": "\ud83d"}]}, "surrogate"),
        ({"messages": [{"role": "assistant", "weight": 0.5}]}, "0 or 1"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "a tool call is"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}]}, "not valid JSON"),
        ({"messages": [{"role": "assistant", "tool_calls": "x"}]}, '"tool_calls" is "x"'),
        ({"messages": [], "tools": 3}, '"tools" is 3'),
        ({"messages": [], "label": False}, '"label" judges'),
        ({"prompt": "p", "completion": [{"role": "assistant", "content": "c"}]}, "two strings"),
        ({"prompt": "p", "completion": "c", "tools": [{}]}, "only messages can announce tools"),
        ({"prompt": "p"}, "messages, or prompt and completion"),
        ({"prompt": "p", "completions": ["c", 3]}, "completion 2: the prompt"),
    ],
)
def test_chat_refusals(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """What no template can write is named with its line and message."""
    with pytest.raises(DataError, match=f"a.jsonl:1.*{reason}"):
        read(written(tmp_path / "a.jsonl", [row]), format="chat")


def test_prompt_and_completion_texts(tmp_path: Path) -> None:
    """BOS, prompt, completion, EOS; the completion and EOS are trained."""
    (example,) = read(written(tmp_path / "a.jsonl", [{"prompt": "p", "completion": "c", "reward": 1}]))
    assert text_of(example) == "<bos>pc<eos>"
    assert trained(example) == ["c<eos>"]


def test_prompt_and_completion_messages(tmp_path: Path) -> None:
    """An assistant's turn in the prompt is context; only the completion's is trained."""
    prompt = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "old"}]
    completion = [{"role": "user", "content": "more"}, {"role": "assistant", "content": "new"}]
    (example,) = read(written(tmp_path / "a.jsonl", [{"prompt": prompt, "completion": completion, "tools": [{}]}]))
    assert trained(example) == ["new<end-of-turn>"]
    (example,) = read(written(tmp_path / "b.jsonl", [{"prompt": prompt, "completion": completion[1]}]))
    assert trained(example) == ["new<end-of-turn>"]


def test_several_completions_share_their_prompt(tmp_path: Path) -> None:
    """One example a completion, equal ones kept, all in the record's group with weight 1."""
    row = {"prompt": "p", "completions": ["a", "b", "a"], "rewards": [0.5, float("nan"), 1], "group_id": 0, "id": "r"}
    found = read(written(tmp_path / "a.jsonl", [row]))
    assert [text_of(example) for example in found] == ["<bos>pa<eos>", "<bos>pb<eos>", "<bos>pa<eos>"]
    assert [(example.id, example.group, example.weight, example.record) for example in found] == [
        (f"r#{index}", "0", 1.0, 0) for index in range(3)
    ]
    assert read(written(tmp_path / "a.jsonl", [{"prompt": "p", "completions": []}])) == []


def test_parquet_messages_lose_filled_in_nulls(tmp_path: Path) -> None:
    """Keys that Parquet filled in for other rows' arguments are not in the text."""
    calls = [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {"y": "2"}}]
    rows = [{"messages": [{"role": "assistant", "content": None, "tool_calls": [call]}]} for call in calls]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    first, second = read(tmp_path / "a.parquet")
    assert '"arguments": {"x": 1}}' in text_of(first)
    assert '"arguments": {"y": "2"}}' in text_of(second)
    assert "null" not in text_of(first) + text_of(second)


def test_deep_data_does_not_recurse() -> None:
    """Nesting far below Python's stack limit is walked without it."""
    deep: Any = {"x": None, "y": 1}
    for _ in range(20_000):
        deep = {"a": [deep], "n": None}
    inner = without_nulls(deep)
    for _ in range(20_000):
        assert list(inner) == ["a"]
        (inner,) = inner["a"]
    assert inner == {"y": 1}


def test_deep_values_are_bad_records(tmp_path: Path) -> None:
    """A value nested too deeply to be shown or written is one bad record."""
    deep = '{"a":' * 900 + "1" + "}" * 900
    lines = [f'{{"messages": [{deep}]}}', f'{{"messages": [], "tools": [{deep}]}}', f'{{"messages": {deep}}}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    bad = BadRecords()
    read(tmp_path / "a.jsonl", on_bad=bad, format="chat")
    assert bad.count in (2, 3)


def moves(tmp_path: Path, rows: list[Any], **options: Any) -> tuple[list[Example], list[bytes], ReadCounts]:
    """Return the examples of transition records, the symbols, and the counts."""
    chosen = ReadOptions(format="transitions", **options)
    (source,) = discover(written(tmp_path / "game.jsonl", rows), options=chosen).inputs
    collector, counts = SymbolCollector(), ReadCounts()
    found = list(read_examples(source, collector, chosen, counts=counts))
    return found, collector.symbols, counts


def test_transitions_worked(tmp_path: Path) -> None:
    """Episodes may interleave; a node is its state with the action that produced it; null is no action."""
    rows = [
        {"episode": "x", "state": [1, {"b": 1, "a": 2}]},
        {"episode": 5, "state": "s", "action": None},
        {"episode": "x", "state": {"k": 0}, "action": "up"},
        {"episode": 5, "state": {"k": 0}, "action": "up"},
        {"episode": "x", "state": None, "action": 3},
    ]
    found, symbols, _ = moves(tmp_path, rows)
    assert [[symbols[token] for token in example.tokens] for example in found] == [
        [b'{"state":[1,{"a":2,"b":1}]}', b'{"action":"up","state":{"k":0}}', b'{"action":3,"state":null}'],
        [b'{"state":"s"}', b'{"action":"up","state":{"k":0}}'],
    ]
    assert len(symbols) == 4
    assert [(example.id, example.record, example.line, example.start, example.end) for example in found] == [
        ("game.jsonl#x", 0, 1, 0, 3),
        ("game.jsonl#5", 1, 2, 0, 2),
    ]
    assert [example.runs.tolist() for example in found] == [[[0, 3]], [[0, 2]]]


def test_action_taken_moves_the_action_on(tmp_path: Path) -> None:
    """Where the action is the one taken here, the next state of the episode was produced by it."""
    rows = [
        {"episode": 1, "state": "a", "action": "up"},
        {"episode": 2, "state": "z", "action": "left"},
        {"episode": 1, "state": "b", "action": "down"},
    ]
    found, symbols, _ = moves(tmp_path, rows, action_taken=True)
    assert [symbols[token] for token in found[0].tokens] == [b'{"state":"a"}', b'{"action":"up","state":"b"}']
    assert [symbols[token] for token in found[1].tokens] == [b'{"state":"z"}']


def test_fields_have_dotted_paths(tmp_path: Path) -> None:
    """Paths lead inside; a key with dots in it comes first; no episode field makes the file one."""
    rows = [{"d": {"s": 1, "a": {"id": 7}}, "x.y": 1}, {"d": {"s": 2, "a": {"id": 8}}, "x.y": 2}]
    options = {"state_field": "d.s", "action_field": "d.a.id"}
    found, symbols, _ = moves(tmp_path, rows, episode_field="x.y", **options)
    assert [len(example.tokens) for example in found] == [1, 1]
    assert symbols == [b'{"action":7,"state":1}', b'{"action":8,"state":2}']
    (whole,), _, _ = moves(tmp_path, rows, episode_field=None, **options)
    assert (len(whole.tokens), whole.id) == (2, "game.jsonl")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"episode": 1, "action": 2}, 'field "state" is missing; the record has "episode", "action"'),
        ({"state": 1}, 'field "episode" is missing'),
        ({"episode": None, "state": 1}, 'field "episode" is missing'),
        ({"episode": 1, "state": float("nan")}, "NaN"),
        ({"episode": 1, "state": "\ud83d"}, "surrogate"),
    ],
)
def test_transition_refusals(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    """A record without state or episode is a bad record, never joined to another."""
    with pytest.raises(DataError, match=f"game.jsonl:1: .*{reason}"):
        moves(tmp_path, [row])


@pytest.mark.parametrize(
    ("rules", "ranges", "dropped"),
    [
        ((), [(0, 6)], 0),
        (("self",), [(0, 2), (2, 6)], 1),
        (("action=noop",), [(0, 2), (2, 6)], 1),
        (('action="RESET"',), [(0, 4), (4, 6)], 1),
        (("state=[0, 0]",), [(0, 5), (5, 6)], 1),
        (("self", "action=noop"), [(0, 2), (2, 6)], 1),
        (("self", "action=RESET", "state=[0,0]"), [(0, 2), (2, 4), (4, 5), (5, 6)], 3),
        (("state=1",), [(0, 1), (1, 2), (2, 6)], 2),
    ],
)
def test_drop_rules_cut_and_count(rules: tuple[str, ...], ranges: Any, dropped: int, tmp_path: Path) -> None:
    """A dropped transition ends the example, the rest starts a new one, and every pair is accounted for."""
    states: list[Any] = [0, 1, 1, 2, 0, [0, 0]]
    actions = [None, "go", "noop", "go", "RESET", "go"]
    rows = [{"episode": 1, "state": s, "action": a} for s, a in zip(states, actions, strict=True)]
    found, symbols, counts = moves(tmp_path, rows, drop_rules=rules)
    assert [(example.start, example.end) for example in found] == ranges
    assert counts.dropped_pairs == dropped
    assert sum(len(example.tokens) - 1 for example in found) + dropped == 5
    assert (counts.records, counts.examples) == (1, len(ranges))
    assert len({example.id for example in found}) == len(found)
    nodes = [symbols[token] for example in found for token in example.tokens]
    assert [json.loads(node)["state"] for node in nodes] == states


@pytest.mark.parametrize("text", ["", "selfish", "action", "action=", "reward=1", 'state={"a"', "=1"])
def test_rules_that_cannot_be_parsed(text: str) -> None:
    """A rule with a typo is refused instead of never matching."""
    with pytest.raises(UsageError) as error:
        parse_drop_rule(text)
    assert error.value.where == "--drop-transition"


def test_rules_write_themselves() -> None:
    """A rule's text gives the rule back."""
    for text in ("self", "action=RESET", 'state={"b":1, "a":[2]}', "action=null", "action=a b"):
        rule = parse_drop_rule(text)
        assert parse_drop_rule(str(rule)) == rule
    assert ReadOptions(drop_rules=("self",)).drop_rules == (DropRule("self"),)  # type: ignore[arg-type]


def source(name: str, format: str) -> Source:
    """Return a source that is not there."""
    return Source(Path(name), name, 0, 0, 0, 0, format)


@pytest.mark.parametrize(
    ("formats", "spec", "expected"),
    [
        (["text"], "auto", "bytes"),
        (["chat", "jsonl-text"], "auto", "bytes"),
        (["pretokenised"], "auto", "none"),
        (["transitions"], "auto", "symbols"),
        (["chat", "pretokenised"], "dir/qwen", "dir/qwen"),
        (["pretokenised"], "bytes", "bytes"),
    ],
)
def test_tokenizer_is_chosen(formats: list[str], spec: str, expected: str) -> None:
    """What the files hold decides, and an explicit tokenizer stands."""
    assert choose_tokenizer([source(str(n), name) for n, name in enumerate(formats)], spec) == expected


@pytest.mark.parametrize(
    ("formats", "spec", "kind"),
    [
        (["text", "pretokenised"], "auto", UsageError),
        (["chat", "transitions"], "auto", UsageError),
        (["chat"], "none", MismatchError),
        (["chat"], "symbols", MismatchError),
        (["pretokenised"], "symbols", MismatchError),
        (["transitions"], "bytes", MismatchError),
        (["transitions"], "none", MismatchError),
    ],
)
def test_tokenizers_that_do_not_fit(formats: list[str], spec: str, kind: type[Exception]) -> None:
    """The file that does not fit is named, with something that works."""
    inputs = [source(f"file{n}", name) for n, name in enumerate(formats)]
    with pytest.raises(kind) as error:
        choose_tokenizer(inputs, spec)
    assert f"file{len(formats) - 1}" in str(error.value)
    assert error.value.hint  # type: ignore[attr-defined]


def test_kinds() -> None:
    """Every format holds text but two."""
    assert [kind_of(name) for name in ("text", "chat", "pretokenised", "transitions")] == [
        "text",
        "text",
        "tokens",
        "symbols",
    ]


@pytest.mark.parametrize(
    ("format", "tokenizer"),
    [
        ("text", GivenIds()),
        ("chat", SymbolCollector()),
        ("transitions", ByteTokenizer()),
        ("pretokenised", Symbols([])),
    ],
)
def test_reading_with_the_wrong_tokenizer(format: str, tokenizer: Any, tmp_path: Path) -> None:
    """Reading refuses too, before the first example."""
    (tmp_path / "a").write_text('{"text": "a"}')
    with pytest.raises(MismatchError, match="cannot read a"):
        list(read_examples(stat_source(tmp_path / "a", "a", format), tokenizer, ReadOptions()))


@pytest.mark.parametrize("batch", [1, 2, 1000])
def test_batches_change_nothing(batch: int, tmp_path: Path) -> None:
    """However many records are tokenised together, the examples are the same."""
    rows: list[Any] = [{"prompt": f"p{n % 3}", "completion": f"c{n}"} for n in range(7)]
    rows.insert(3, {"messages": [{"role": "assistant", "content": "a"}]})
    path = written(tmp_path / "a.jsonl", rows)
    (found,) = discover(path).inputs
    examples = list(read_examples(found, ByteTokenizer(), ReadOptions(), batch_records=batch))
    expected = read(path)
    assert [example.tokens.tolist() for example in examples] == [example.tokens.tolist() for example in expected]
    assert [example.id for example in examples] == [example.id for example in expected]


def test_a_forced_format_reads_every_file(tmp_path: Path) -> None:
    """Told the format, a file that is not of it is an error instead of being left out."""
    written(tmp_path / "a.jsonl", [{"text": "a"}])
    (tmp_path / "README").write_text("hello")
    inputs = discover(tmp_path, options=ReadOptions(format="jsonl-text")).inputs
    assert [found.name for found in inputs] == ["README", "a.jsonl"]
    with pytest.raises(DataError, match="README:1: not valid JSON"):
        list(read_examples(inputs[0], ByteTokenizer(), ReadOptions()))


def test_real_pretokenised() -> None:
    """The real Parquet file has 40 examples of 162,011 tokens; its JSON lines begin the same."""
    found = read(real("pretokenised/pretokenized.parquet"), GivenIds())
    assert (len(found), sum(len(example.tokens) for example in found)) == (40, 162_011)
    lines = read(real("pretokenised/pretokenized.jsonl"), GivenIds())
    for first, second in zip(found, lines, strict=False):
        assert first.tokens.tolist() == second.tokens.tolist()
        assert first.runs.tolist() == second.runs.tolist()


@pytest.mark.parametrize(
    ("name", "num"),
    [
        ("sft/openai_ft.jsonl", 40),
        ("sft/hf_messages.parquet", 80),
        ("sft/data__reason_tool_use_demo_50.jsonl", 50),
        ("misc-edge/blank_and_comment_lines.jsonl", 1),
        ("misc-edge/nan_infinity.jsonl", 2),
        ("misc-edge/json_array_in_jsonl_name.jsonl", 2),
    ],
)
def test_real_chats(name: str, num: int) -> None:
    """Every conversation of the real files is read, and trains something."""
    found = read(real(name))
    assert len(found) == num
    assert all(len(example.runs) and example.runs[-1, 1] <= len(example.tokens) for example in found)


def test_real_groups() -> None:
    """Twenty-five groups of four completions share their prompt's tokens."""
    found = read(real("tau-bench/rl_groups.jsonl"))
    assert len(found) == 100
    assert len({example.group for example in found}) == 25
    for start in range(0, 100, 4):
        group = found[start : start + 4]
        prompt = min(int(example.runs[0, 0]) for example in group)
        assert prompt > 1000
        assert len({example.tokens[:1000].tobytes() for example in group}) == 1


def test_real_games() -> None:
    """Recordings with dotted fields: episodes in order, records without a state or episode skipped by name."""
    options = ReadOptions(**ARC)  # type: ignore[arg-type]
    bad, collector = BadRecords(), SymbolCollector()
    inputs = discover(real("arc-agi-3"), options=options).inputs
    assert choose_tokenizer(inputs) == "symbols"
    found = [example for item in inputs for example in read_examples(item, collector, options, bad)]
    assert [len(example.tokens) for example in found] == [41, 41, 41, 41, 25, 2]
    assert [where for where, _ in bad.first] == [
        "missing_guid_empty_frame.recording.jsonl:1",
        "missing_guid_empty_frame.recording.jsonl:2",
        "score_2025_schema.recording.jsonl:3",
    ]
    assert len(collector.symbols) < sum(len(example.tokens) for example in found)
