"""Rollouts of Codex: what one history is, what is trained, and where a history ends; real files and damage."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest

from dagpack_cli.corpora import BadRecords, ReadOptions, raise_bad
from dagpack_cli.corpora.agents.codex import read, recognise
from dagpack_cli.corpora.discover import discover
from dagpack_cli.corpora.files.sources import stat_source
from dagpack_cli.corpora.reading import read_examples
from dagpack_cli.corpora.records import Chat, Record
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing import ByteTokenizer
from dagpack_cli.tokenizing.messages import Message

HERE = Path(__file__).resolve().parent.parent
FIXTURES = HERE / "fixtures" / "codex"
REAL = HERE.parent / "shared" / "real"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not beside the checkout")
REAL_FILES = sorted(path.name for path in REAL.glob("codex/*.jsonl")) or ["none"]
PREFIX = [
    ("system", "You are Codex."),
    ("developer", "<permissions>"),
    ("user", "<environment_context>w</environment_context>"),
    ("user", "q1"),
    ("assistant", "Looking."),
    ("tool", "a.txt"),
    ("tool", "ok"),
    ("assistant", "r1"),
]


def records(path: Path, on_bad: Any = raise_bad) -> list[Record]:
    """Return what the reader makes of one file."""
    return list(read(stat_source(path, path.name, "codex"), ReadOptions(), on_bad))


def messages(record: Record) -> tuple[Message, ...]:
    """Return a record's messages."""
    assert isinstance(record.body, Chat)
    return record.body.messages


def said(record: Record) -> list[tuple[str, str]]:
    """Return role and content of every message."""
    return [(message.role, message.content) for message in messages(record)]


def item(kind: str, **payload: Any) -> dict[str, Any]:
    """Return a line with an item of the history."""
    return {"timestamp": "t", "type": "response_item", "payload": {"type": kind, **payload}}


def message(role: str, text: str, **payload: Any) -> dict[str, Any]:
    """Return a line with a message."""
    return item("message", role=role, content=[{"type": "input_text", "text": text}], **payload)


def call(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    """Return a line with a call."""
    return item("function_call", name="run", arguments=arguments, call_id=call_id)


def output(call_id: str, value: Any) -> dict[str, Any]:
    """Return a line with a call's result."""
    return item("function_call_output", call_id=call_id, output=value)


def back(turns: Any) -> dict[str, Any]:
    """Return a line that takes turns back."""
    return {"timestamp": "t", "type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": turns}}


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """Return a function that writes a rollout's lines below a head, and reads them."""

    def write(*lines: Any, on_bad: Any = raise_bad, name: str = "s", **meta: Any) -> list[Record]:
        head = {"timestamp": "t", "type": "session_meta", "payload": {"id": name, "cwd": "/w", **meta}}
        path = tmp_path / "rollout.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in (head, *lines)), encoding="utf-8")
        return records(path, on_bad)

    return write


def test_fixture_is_three_histories() -> None:
    """A rollback, a compaction and the end of the file each end a history; events and unknown lines say nothing."""
    first, second, third = records(FIXTURES / "rollout.jsonl")
    assert said(first) == [*PREFIX, ("user", "q2"), ("assistant", "r2")]
    assert said(second) == [
        *PREFIX,
        ("user", "q3"),
        ("assistant", ""),
        ("tool", "aborted"),
        ("user", "<turn_aborted>stopped</turn_aborted>"),
        ("user", "q4"),
        ("assistant", "r4"),
    ]
    assert said(third) == [
        ("system", "You are Codex."),
        ("user", "q4"),
        ("assistant", "r4"),
        ("user", "q5"),
        ("assistant", "r5"),
    ]
    assert [record.id for record in (first, second, third)] == ["root#1", "root#2", "root#3"]
    assert {(record.group, record.family) for record in (first, second, third)} == {("root", None)}


def test_one_turn_is_one_message() -> None:
    """Reasoning, text and calls of a turn are one message; results stand in the order of their calls."""
    answer, first, second = messages(records(FIXTURES / "rollout.jsonl")[0])[4:7]
    assert (answer.reasoning, answer.content) == ("think", "Looking.")
    assert [(c.name, c.arguments) for c in answer.tool_calls] == [
        ("shell", '{"cmd": "ls"}'),
        ("apply_patch", '{"input": "*** Begin Patch"}'),
    ]
    assert [(m.tool_name, m.tool_call_id[-2:]) for m in (first, second)] == [("shell", "01"), ("apply_patch", "02")]


def test_arguments_that_are_no_json_stay_what_was_written() -> None:
    """A model may write broken JSON; a JSON string holds it."""
    broken = messages(records(FIXTURES / "rollout.jsonl")[1])[9]
    assert [(c.name, c.arguments) for c in broken.tool_calls] == [("shell", '"not json"')]


def test_what_a_compaction_copied_is_context() -> None:
    """A copied answer was trained where it was written; a copied question is the same message there."""
    _, second, third = records(FIXTURES / "rollout.jsonl")
    assert [m.weight for m in messages(third)] == [1, 1, 0, 1, 1]
    assert messages(third)[1].identity == messages(second)[-2].identity


def test_answer_behind_a_compaction_is_not_joined_to_a_copied_one(session: Any) -> None:
    """The model went on in the middle of a turn: only what it wrote then is trained."""
    history = [message("user", "q")["payload"], message("assistant", "copied")["payload"]]
    _, after = session(
        message("user", "q"),
        message("assistant", "copied"),
        {"timestamp": "t", "type": "compacted", "payload": {"message": "", "replacement_history": history}},
        message("assistant", "new"),
    )
    assert [(m.content, m.weight) for m in messages(after)] == [("q", 1), ("copied", 0), ("new", 1)]


def test_random_ids_tell_copies_wherever_they_stand(session: Any) -> None:
    """A copy in a file that does not say where it comes from is known by its long ids, not by short ones."""
    long, short = "call_0123456789abcdef", "call_1"
    found = [session(message("user", "q"), call(long), message("user", "r"), call(short), name=name) for name in "ab"]
    first, second = ([m.identity for m in messages(record)] for (record,) in found)
    assert [one == other for one, other in zip(first, second, strict=True)] == [False, True, True, True, True]
    (other,) = session(message("user", "q"), call(long, '{"a": 1}'), name="c")
    assert messages(other)[1].identity not in first
    found = [session(message("user", "q"), call(short), name=name) for name in "ab"]
    first, second = ([m.identity for m in messages(record)] for (record,) in found)
    assert not set(first) & set(second)


def test_forked_file_carries_the_same_messages() -> None:
    """A fork writes its parent's items anew, at other times: same identities, and the parent is family."""
    (forked,) = records(FIXTURES / "forked.jsonl")
    first = records(FIXTURES / "rollout.jsonl")[0]
    assert said(forked) == [*PREFIX, ("user", "child q"), ("assistant", "child r")]
    assert [m.identity for m in messages(forked)[:8]] == [m.identity for m in messages(first)[:8]]
    assert messages(forked)[-1].identity != messages(first)[-1].identity
    assert (forked.group, forked.family) == ("child", "root")


def test_fork_of_a_fork_knows_where_the_history_began(session: Any) -> None:
    """Heads of the ancestors behind the first lead to the oldest; without ids, that makes copies equal."""
    lines = [message("user", "q"), message("assistant", "r")]
    (oldest,) = session(*lines, name="a")
    heads = [
        {"timestamp": "t", "type": "session_meta", "payload": {"id": "b", "forked_from_id": "a"}},
        {"timestamp": "t", "type": "session_meta", "payload": {"id": "a"}},
    ]
    (youngest,) = session(*heads, *lines, name="c", forked_from_id="b")
    (other,) = session(*lines, name="d")
    assert [m.identity for m in messages(youngest)] == [m.identity for m in messages(oldest)]
    assert not {m.identity for m in messages(other)} & {m.identity for m in messages(oldest)}
    assert (youngest.id, youngest.family) == ("c#1", "b")


def test_old_files() -> None:
    """A head without a type and bare items; or one object: both are sessions, with their prompt."""
    (flat,) = records(FIXTURES / "legacy.jsonl")
    assert said(flat) == [
        ("system", "Be brief."),
        ("user", "q"),
        ("assistant", ""),
        ("tool", "a.txt"),
        ("assistant", "r"),
    ]
    assert [(c.name, c.arguments) for c in messages(flat)[2].tool_calls] == [
        ("local_shell", '{"type": "exec", "command": ["ls"]}')
    ]
    (whole,) = records(FIXTURES / "whole.json")
    assert said(whole) == [("user", "q"), ("assistant", "r")]
    assert (flat.id, whole.id) == ("old#1", "ts#1")


def test_every_fixture_is_recognised() -> None:
    """Content tells the format, of every line and of every age."""
    assert {source.format for source in discover(FIXTURES).inputs} == {"codex"}
    others = ({"type": "message", "role": "user"}, {"id": "a", "timestamp": "t", "instructions": "x", "messages": []})
    for row in (*others, {"type": "session", "id": "a"}, {"session": {"id": 1}, "items": [{"type": "a"}]}):
        assert not recognise(row, ReadOptions())


def test_order_of_writing_is_kept(session: Any) -> None:
    """What comes out of the order of one message begins the next, in front of the results."""
    (record,) = session(
        message("user", "q"),
        item("reasoning", summary=[{"type": "summary_text", "text": "one"}]),
        item("web_search_call", status="completed", action={"type": "search", "query": "x", "url": None}),
        item(
            "reasoning",
            content=[{"type": "reasoning_text", "text": "raw"}],
            summary=[{"type": "summary_text", "text": "in short"}],
        ),
        message("assistant", "found"),
        call("c1"),
        output("c1", [{"type": "input_text", "text": "out"}, {"type": "input_image", "image_url": "data:"}]),
    )
    assert [(m.role, m.reasoning, m.content, [c.name for c in m.tool_calls]) for m in messages(record)] == [
        ("user", "", "q", []),
        ("assistant", "one", "", ["web_search"]),
        ("assistant", "raw", "found", ["run"]),
        ("tool", "", "out\n\n[image]", []),
    ]
    assert messages(record)[1].tool_calls[0].arguments == '{"type": "search", "query": "x"}'


def test_calls_without_results_and_results_without_calls(session: Any) -> None:
    """A dangling call that went on is answered as Codex does it, the last one is not; a lone result was never sent."""
    (record,) = session(
        output("c0", "lost"),
        message("user", "q"),
        call("c1"),
        call("c2"),
        output("c2", {"content": "two", "success": True}),
        message("developer", "note"),
        call("c3"),
        message("developer", "between"),
        output("c3", "three"),
        call("c4"),
    )
    assert said(record) == [
        ("user", "q"),
        ("assistant", ""),
        ("tool", "aborted"),
        ("tool", "two"),
        ("developer", "note"),
        ("assistant", ""),
        ("developer", "between"),
        ("tool", "three"),
        ("assistant", ""),
    ]
    assert [m.tool_call_id for m in messages(record) if m.role == "tool"] == ["c1", "c2", "c3"]


@pytest.mark.parametrize(
    ("turns", "kept"),
    [(0, ["c", "q1", "r1", "q2", "r2"]), (1, ["c", "q1", "r1"]), (2, ["c"]), (9, ["c"])],
)
def test_rollback_takes_turns_of_the_user(session: Any, turns: int, kept: list[str]) -> None:
    """What the program said in the user's role is no turn, but goes with the turn that it stands before."""
    injected = "<environment_context>\nx</environment_context>"
    found = session(
        message("developer", "c"),
        message("user", "q1"),
        message("assistant", "r1"),
        message("developer", "d"),
        message("user", injected),
        message("user", "q2"),
        message("assistant", "r2"),
        back(turns),
        message("user", "q3"),
        message("assistant", "r3"),
    )
    whole = ["c", "q1", "r1", "d", injected, "q2", "r2"]
    kept = whole if turns == 0 else kept
    expected = [[*whole, "q3", "r3"]] if turns == 0 else [whole, [*kept, "q3", "r3"]]
    assert [[m.content for m in messages(record)] for record in found] == expected


def test_rollbacks_in_a_row_are_one_leaf(session: Any) -> None:
    """A history that is only cut says nothing new; one that ends in a cut is not given again."""
    turns = [row for n in range(3) for row in (message("user", f"q{n}"), message("assistant", f"r{n}"))]
    (record,) = session(*turns, back(1), back(1))
    assert len(messages(record)) == 6


def test_compaction_of_old_versions(session: Any) -> None:
    """Without a recorded history: what stood before the first turn, the newest messages of the user, the summary."""
    huge = "é" * 50_000
    before, after = session(
        message("developer", "rules"),
        message("user", "first, too long ago"),
        message("user", huge),
        message("assistant", "r"),
        message("user", "last"),
        {"timestamp": "t", "type": "compacted", "payload": {"message": "sum"}},
        message("assistant", "s"),
    )
    assert len(messages(before)) == 5
    rules, middle, last, summary, reply = messages(after)
    assert [m.content for m in (rules, last, summary, reply)] == ["rules", "last", "sum", "s"]
    # 20,000 tokens of 4 bytes less one for "last"; 100,000 bytes are 25,000 tokens.
    start, _, end = middle.content.partition("…5001 tokens truncated…")
    assert start == end == "é" * (19_999 * 4 // 2 // 2)
    assert reply.weight == 1


def test_items_that_nothing_can_be_read_of(session: Any) -> None:
    """Encrypted reasoning alone is no message; unknown items and events, and lines of other types, are passed."""
    lines = [
        item("reasoning", summary=[], encrypted_content="x"),
        item("web_search_call", status="completed"),
        item("ghost_snapshot", ghost_commit={}),
        {"timestamp": "t", "type": "inter_agent_communication", "payload": {"x": 1}},
        {"timestamp": "t", "type": "event_msg", "payload": {"type": "mystery"}},
    ]
    assert session(*lines[2:]) == []
    assert [messages(record) for record in session(*lines)] == [()]


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        ({"timestamp": "t", "type": "response_item", "payload": []}, '"payload" is a list of 0; an object'),
        (item("message", role="robot", content=[]), "unknown role"),
        (item("message", role="user", content=3), '"content" is 3'),
        (item("message", role="user", content=[{"type": "input_text", "text": None}]), '"text" is null'),
        (item("function_call", name="f", call_id="c", arguments={"a": 1}), '"arguments" is an object'),
        (item("function_call", name=None, call_id="c", arguments="{}"), '"name" is null'),
        (item("message", role="user", content="half \ud83d"), "half of a surrogate pair"),
        (back(-1), '"num_turns" is -1'),
        (back("1"), '"num_turns" is "1"'),
        ({"timestamp": "t", "type": "compacted", "payload": {"replacement_history": 1}}, '"replacement_history" is 1'),
    ],
)
def test_broken_lines_are_named_and_end_the_session(session: Any, broken: Any, found: str) -> None:
    """An error names the line; skipped, what stands behind it has lost its context and is not read."""
    with pytest.raises(DataError) as caught:
        session(message("user", "q"), broken)
    assert found in str(caught.value)
    assert caught.value.where.startswith("rollout.jsonl:3")
    bad = BadRecords()
    (record,) = session(message("user", "q"), broken, message("assistant", "r"), on_bad=bad)
    assert said(record) == [("user", "q")]
    assert bad.count == 1
    assert bad.first[0][1].endswith("the session is read up to here")


def ended(record: Record) -> list[bool]:
    """Return of every answer whether the model came to the end of its turn."""
    return [m.ended for m in messages(record) if m.role == "assistant"]


def test_reasoning_alone_is_an_answer_that_was_cut_off(session: Any) -> None:
    """At the end of the log, or where the turn was aborted."""
    thought = item("reasoning", summary=[{"type": "summary_text", "text": "hm"}])
    (record,) = session(
        message("user", "q"), thought, message("user", "r"), thought, message("assistant", "s"), message("user", "t"),
        thought,
    )  # fmt: skip
    assert [m.reasoning for m in messages(record) if m.role == "assistant"] == ["hm"] * 3
    assert ended(record) == [False, True, False]


def test_last_answer_before_damage_may_have_gone_on(session: Any, tmp_path: Path) -> None:
    """The damaged line may hold its next item; so may the line that is being written."""
    lines = [message("user", "q"), message("assistant", "r"), message("user", "s"), message("assistant", "t")]
    (record,) = session(*lines, {"timestamp": "t", "type": "response_item", "payload": 3}, on_bad=BadRecords())
    assert ended(record) == [True, False]
    path = tmp_path / "rollout.jsonl"
    session(*lines)
    path.write_text(path.read_text() + '{"timestamp": "t", "ty')
    bad = BadRecords()
    (record,) = records(path, bad.or_raise)
    assert ended(record) == [True, False]
    assert [(where, "still being written" in reason) for where, reason in bad.first] == [("rollout.jsonl:6", True)]
    path.write_text(path.read_text() + "\n")
    with pytest.raises(DataError, match=r"rollout\.jsonl:6"):
        records(path, bad.or_raise)


def test_damage_in_one_whole_session_leaves_the_next(tmp_path: Path) -> None:
    """A session that is one object ends with its own damage."""
    texts = [message(role, role)["payload"] for role in ("user", "assistant")]
    rows = [
        {"session": {"id": name, "timestamp": "t"}, "items": [texts[0], *broken, texts[1]]}
        for name, broken in (("a", [3]), ("b", []))
    ]
    path = tmp_path / "all.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    bad = BadRecords()
    first, second = records(path, bad)
    assert [said(first), said(second)] == [[("user", "user")], [("user", "user"), ("assistant", "assistant")]]
    assert ended(second) == [True]
    assert [where for where, _ in bad.first] == ["all.jsonl:1, item 2"]


def test_damaged_files_are_errors_of_data_alone(tmp_path: Path) -> None:
    """Cut, flipped and retyped: every damage is counted, and none ends in another exception."""
    text = b"".join(path.read_bytes() for path in sorted(FIXTURES.glob("*.jsonl")))
    chance = random.Random(11)
    values: list[Any] = [None, 3, 10**40, [], {}, "\ud83d", "x\0y", [[[[]]]], True, 1e308, ["user"], [{"type": []}]]
    for _ in range(400):
        lines = text.split(b"\n")
        number = chance.randrange(len(lines))
        kind = chance.randrange(3)
        if kind == 0:
            lines[number] = lines[number][: chance.randrange(len(lines[number]) + 1)]
        elif kind == 1 and lines[number]:
            at = chance.randrange(len(lines[number]))
            lines[number] = lines[number][:at] + bytes([chance.randrange(256)]) + lines[number][at + 1 :]
        elif lines[number].startswith(b"{"):
            row = json.loads(lines[number])
            holder = row["payload"] if "payload" in row and chance.random() < 0.7 else row
            if isinstance(holder.get("content"), list) and holder["content"] and chance.random() < 0.5:
                holder = holder["content"][0]
            holder[chance.choice(list(holder))] = chance.choice(values)
            lines[number] = json.dumps(row).encode()
        path = tmp_path / "damaged.jsonl"
        path.write_bytes(b"\n".join(lines))
        for record in records(path, BadRecords()):
            assert messages(record) is not None


def turns_of(path: Path) -> list[tuple[list[str], list[str], list[str]]]:
    """Return reasoning, texts and calls of every turn of a real file, by another way than the reader's."""
    items = [
        row["payload"] for row in map(json.loads, path.read_bytes().splitlines()) if row["type"] == "response_item"
    ]
    written = {"reasoning", "message", "function_call", "custom_tool_call", "web_search_call"}
    found = []
    for by_model, group in itertools.groupby(
        items, lambda p: p["type"] in written and p.get("role", "assistant") == "assistant"
    ):
        turn = list(group)
        reasoning = [part["text"] for p in turn if p["type"] == "reasoning" for part in p["summary"]]
        texts = [part["text"] for p in turn if p["type"] == "message" for part in p["content"]]
        calls = [p["name"] for p in turn if p["type"].endswith("tool_call") or p["type"] == "function_call"]
        if by_model:
            found.append((reasoning, texts, calls))
    return found


@needs_real
@pytest.mark.parametrize("name", REAL_FILES)
def test_real_files_train_what_the_model_wrote(name: str) -> None:
    """Turn for turn the trained messages are the items of the model; every call has its name, every result its call."""
    (record,) = records(REAL / "codex" / name)
    answers = [m for m in messages(record) if m.role == "assistant"]
    expected = turns_of(REAL / "codex" / name)
    assert [(m.reasoning, m.content, [c.name for c in m.tool_calls]) for m in answers] == [
        ("\n\n".join(reasoning), "\n\n".join(texts), calls) for reasoning, texts, calls in expected
    ]
    assert all(m.weight for m in answers)
    assert all(m.tool_name for m in messages(record) if m.role == "tool")
    assert len({m.identity for m in messages(record)}) == len(messages(record))


@needs_real
@pytest.mark.parametrize(
    ("name", "counts"),
    list(zip(REAL_FILES, [(206, 81, 104), (154, 28, 118), (256, 83, 144), (10, 1, 0)], strict=False)),
)
def test_real_counts(name: str, counts: tuple[int, int, int]) -> None:
    """Known numbers of messages, answers and results."""
    (record,) = records(REAL / "codex" / name)
    roles = [m.role for m in messages(record)]
    assert (len(roles), roles.count("assistant"), roles.count("tool")) == counts
    assert roles[:3] == ["system", "developer", "developer"]


@needs_real
def test_real_supervision_decoded() -> None:
    """Read back from the tokens: supervised are the answers' texts, and nothing of anybody else."""
    tokenizer = ByteTokenizer()
    path = REAL / "codex" / REAL_FILES[0]
    (source,) = discover(path).inputs
    (example,) = read_examples(source, tokenizer, ReadOptions(thinking=False, tool_calls=False))
    texts = [tokenizer.decode(example.tokens[start:end]) for start, end in example.runs.tolist()]
    expected = ["\n\n".join(said) for _, said, _ in turns_of(path)]
    assert [text for text in texts if "REDACTED" in text] == [
        text for text in texts if any(answer and answer in text for answer in expected)
    ]
    assert sum("REDACTED" in text for text in texts) == sum(bool(answer) for answer in expected)


@needs_real
@pytest.mark.parametrize(
    ("name", "lengths", "family"),
    [
        ("compacted_replacement_history", [7, 5], None),
        ("forked_child", [9], "019b0000-0000-7000-8000-000000000001"),
        ("legacy_flat_2025", [2], None),
        ("tests__sample_rollout", [3], None),
        ("tests__sample_rollout_known_event_types", [], None),
        ("tests__sample_rollout_unknown", [], None),
        ("tests__sample_rollout_unknown_event", [], None),
        ("tests__sample_rollout_unknown_response_item", [], None),
    ],
)
def test_edge_files(name: str, lengths: list[int], family: str | None) -> None:
    """Known numbers of messages; unknown types are neither read nor errors."""
    found = records(REAL / "codex-edge" / f"{name}.jsonl")
    assert [len(messages(record)) for record in found] == lengths
    assert {record.family for record in found} <= {family}


@needs_real
def test_real_fork_is_the_same_to_the_message() -> None:
    """The child's first seven messages are the parent's."""
    parent = records(REAL / "codex-edge" / "compacted_replacement_history.jsonl")[0]
    (child,) = records(REAL / "codex-edge" / "forked_child.jsonl")
    assert [m.identity for m in messages(child)[:7]] == [m.identity for m in messages(parent)]
