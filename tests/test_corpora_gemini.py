"""Sessions of Gemini CLI: the last writing of a message counts, rewinds are leaves; edge files and damage."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dagpack_cli.corpora import BadRecords, ReadOptions, raise_bad
from dagpack_cli.corpora.agents.gemini import read, recognise
from dagpack_cli.corpora.discover import discover
from dagpack_cli.corpora.files.sources import stat_source
from dagpack_cli.corpora.records import Chat, Record
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message

HERE = Path(__file__).resolve().parent.parent
FIXTURES = HERE / "fixtures" / "gemini"
REAL = HERE.parent / "shared" / "real"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not beside the checkout")
SHARED = [
    ("user", "list files[image: image/png]"),
    ("assistant", "Listing."),
    ("tool", "a.txt"),
    ("assistant", "There is a.txt"),
]


def records(path: Path, on_bad: Any = raise_bad) -> list[Record]:
    """Return what the reader makes of one file."""
    return list(read(stat_source(path, path.name, "gemini"), ReadOptions(), on_bad))


def messages(record: Record) -> tuple[Message, ...]:
    """Return a record's messages."""
    assert isinstance(record.body, Chat)
    return record.body.messages


def said(record: Record) -> list[tuple[str, str]]:
    """Return role and content of every message."""
    return [(message.role, message.content) for message in messages(record)]


def user(name: str, content: Any) -> dict[str, Any]:
    """Return a user's record."""
    return {"id": name, "timestamp": "t", "type": "user", "content": content}


def answer(name: str, content: Any, **more: Any) -> dict[str, Any]:
    """Return an answer's record."""
    return {"id": name, "timestamp": "t", "type": "gemini", "content": content, **more}


def call(call_id: str, **more: Any) -> dict[str, Any]:
    """Return a recorded call."""
    return {"id": call_id, "name": "run", "args": {"b": 1, "a": [2]}, "status": "success", **more}


def response(call_id: str, value: Any) -> dict[str, Any]:
    """Return a part with a call's result."""
    return {"functionResponse": {"id": call_id, "name": "run", "response": value}}


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """Return a function that writes records below a head, and reads them."""

    def write(*rows: Any, on_bad: Any = raise_bad) -> list[Record]:
        path = tmp_path / "session.jsonl"
        head = {"sessionId": "s", "projectHash": "h", "startTime": "t"}
        path.write_text("".join(json.dumps(row) + "\n" for row in (head, *rows)), encoding="utf-8")
        return records(path, on_bad)

    return write


def test_fixture_is_two_histories() -> None:
    """The last writing of an id counts, where the first stood; a rewound part is a leaf; notices say nothing."""
    first, second = records(FIXTURES / "session.jsonl")
    assert said(first) == [*SHARED, ("user", "wrong question"), ("assistant", "wrong answer")]
    assert said(second) == [*SHARED, ("user", "right question"), ("assistant", "right answer")]
    assert [m.identity for m in messages(first)[:4]] == [m.identity for m in messages(second)[:4]]
    assert len({m.identity for m in (*messages(first), *messages(second))}) == 8
    assert [(record.id, record.group) for record in (first, second)] == [("gem#1", "gem"), ("gem#2", "gem")]


def test_calls_and_results_inside_an_answer() -> None:
    """Thoughts are reasoning; a recorded call is the assistant's, and its result a tool's message."""
    asked, result = messages(records(FIXTURES / "session.jsonl")[0])[1:3]
    assert asked.reasoning == "**Files**\nList them."
    assert [(c.name, c.arguments) for c in asked.tool_calls] == [("ls", '{"path": "."}')]
    assert (result.tool_name, result.tool_call_id) == ("ls", "c1")


def test_one_object_of_2025() -> None:
    """All messages in one object, on several lines."""
    (record,) = records(FIXTURES / "session.json")
    assert said(record) == [("user", "hi"), ("assistant", "hello")]
    assert record.id == "old#1"


def test_every_fixture_is_recognised() -> None:
    """Content tells the format; other sessions and chats are not claimed."""
    assert {source.format for source in discover(FIXTURES).inputs} == {"gemini"}
    others: list[dict[str, Any]] = [
        {"sessionId": "s", "uuid": "u", "parentUuid": None},
        {"sessionId": "s", "messages": [{"role": "user"}]},
        {"projectHash": "h"},
    ]
    for row in others:
        assert not recognise(row, ReadOptions())


@pytest.mark.parametrize(("target", "kept"), [("m2", ["q"]), ("m1", []), ("unknown", [])])
def test_rewind(session: Any, target: str, kept: list[str]) -> None:
    """Dropped are the message and all after it; all, where it is not known."""
    rewound, last = session(
        user("m1", "q"), answer("m2", "a"), user("m3", "r"), {"$rewindTo": target}, user("m4", "s"), answer("m5", "b")
    )
    assert [m.content for m in messages(rewound)] == ["q", "a", "r"]
    assert [m.content for m in messages(last)] == [*kept, "s", "b"]


def test_message_rewritten_after_a_rewind_stands_anew(session: Any) -> None:
    """A dropped id that is written again is the last message; a rewind without news is no leaf."""
    first, second = session(
        user("m1", "q"), answer("m2", "a"), {"$rewindTo": "m1"}, {"$rewindTo": "m1"}, user("m3", "r"), user("m1", "q")
    )
    assert said(second) == [("user", "r"), ("user", "q")]
    assert len(messages(first)) == 2


def test_history_that_is_replaced(session: Any) -> None:
    """Compression puts other messages in place: the old history is a leaf; one that only grew is not."""
    first, second = session(
        user("m1", "q"),
        answer("m2", "a"),
        {"$set": {"messages": [user("m1", "q"), answer("m2", "a"), user("m3", "r")]}},
        answer("m4", "b"),
        {"$set": {"messages": [user("sum", [{"text": "summary"}]), answer("m4", [{"text": "b"}])]}},
        user("m5", "t"),
        answer("m6", "c"),
    )
    assert [m.content for m in messages(first)] == ["q", "a", "r", "b"]
    assert [m.content for m in messages(second)] == ["summary", "b", "t", "c"]
    assert messages(first)[3].identity == messages(second)[1].identity


def test_results_in_the_users_turn_are_said_once(session: Any) -> None:
    """A turn that answers is repeated in the answer's record; where it is not, it is the tool's message."""
    turn = [response("c1", {"output": "one"}), response("c2", {"error": "no"}), {"text": "and more"}]
    (record,) = session(
        user("m1", "q"),
        answer(
            "m2",
            [
                {"functionCall": {"id": "c1", "name": "run", "args": {"a": [2], "b": 1}}},
                {"text": "hm", "thought": True},
            ],
            toolCalls=[call("c1", result=turn), call("c2", result=turn), call("c3", result=None)],
        ),
        user("m3", turn[:2]),
        answer("m4", [{"functionCall": {"name": "run", "args": {}}}]),
        user("m5", [response("", {"value": 3})]),
    )
    assert said(record) == [
        ("user", "q"),
        ("assistant", ""),
        ("tool", "one\nand more"),
        ("tool", "no\nand more"),
        ("assistant", ""),
        ("tool", '{"value": 3}'),
    ]
    assert messages(record)[1].reasoning == "hm"
    assert [c.arguments for c in messages(record)[1].tool_calls] == ['{"b": 1, "a": [2]}'] * 3


def test_several_sessions_in_one_file(tmp_path: Path) -> None:
    """Each is its own group; two that say the same are two."""
    rows = [
        {"sessionId": name, "projectHash": "h", "messages": [user(name, "q"), answer(name * 2, "a")]} for name in "xy"
    ]
    path = tmp_path / "all.json"
    path.write_text(json.dumps(rows))
    first, second = records(path)
    assert (first.group, second.group) == ("x", "y")
    assert said(first) == said(second)
    assert not {m.identity for m in messages(first)} & {m.identity for m in messages(second)}


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (answer("m", 3), '"content" is 3; an object'),
        (answer("m", [{"text": 3}]), '"text" is 3; a string'),
        (answer("m", "", toolCalls={}), '"toolCalls" is an object'),
        (answer("m", "", toolCalls=[{"id": "c", "args": {}}]), '"name" is null; a string'),
        (answer("m", "", thoughts=["x"]), '"thoughts" is "x"; an object'),
        (user("m", "half \ud83d"), "half of a surrogate pair"),
        ({"id": 3, "type": "user"}, '"id" is 3; a string'),
        ({"$rewindTo": None}, '"$rewindTo" is null; a string'),
        ({"$set": []}, '"$set" is a list of 0; an object'),
        ({"$set": {"messages": 3}}, '"messages" is 3; a list'),
        ({"$set": {"messages": [user("q", "q"), 3]}}, '"messages" is 3; an object'),
    ],
)
def test_broken_records_are_named_and_end_the_session(session: Any, broken: Any, found: str) -> None:
    """An error names the line; skipped, what stands behind it has lost its context and is not read."""
    with pytest.raises(DataError) as caught:
        session(user("q", "q"), broken)
    assert found in str(caught.value)
    assert caught.value.where.startswith("session.jsonl:3")
    bad = BadRecords()
    (record,) = session(user("q", "q"), broken, answer("a", "r"), on_bad=bad)
    assert said(record) == [("user", "q")]
    assert bad.count == 1
    assert bad.first[0][1].endswith("the session is read up to here")


def ended(record: Record) -> list[bool]:
    """Return of every answer whether the model came to the end of its turn."""
    return [m.ended for m in messages(record) if m.role == "assistant"]


def test_a_list_of_messages_is_read_up_to_its_damage(session: Any) -> None:
    """One that is shorter than the history so far says nothing new."""
    known = [user("m1", "q"), answer("m2", "a")]
    (record,) = session(*known, {"$set": {"messages": [*known, user("m3", "r"), 3, answer("m4", "lost")]}},
                        on_bad=BadRecords())  # fmt: skip
    assert [content for _, content in said(record)] == ["q", "a", "r"]
    (record,) = session(*known, {"$set": {"messages": [known[0], 3, answer("m4", "lost")]}}, on_bad=BadRecords())
    assert [content for _, content in said(record)] == ["q", "a"]
    assert ended(record) == [False]


def test_answers_that_were_cut_off(session: Any, tmp_path: Path) -> None:
    """Thoughts alone are no answer; the last one before a line that is being written may be written anew."""
    (record,) = session(user("m1", "q"), answer("m2", "", thoughts=[{"description": "hm"}]), user("m3", "r"))
    assert ended(record) == [False]
    session(user("m1", "q"), answer("m2", "a"), user("m3", "r"), answer("m4", "b"))
    path = tmp_path / "session.jsonl"
    path.write_text(path.read_text() + '{"id": "m4", "timest')
    bad = BadRecords()
    (record,) = records(path, bad.or_raise)
    assert ended(record) == [True, False]
    assert [(where, "still being written" in reason) for where, reason in bad.first] == [("session.jsonl:6", True)]


def test_a_session_behind_damage_is_read(tmp_path: Path) -> None:
    """Its head begins a context that nothing before it changes."""
    head = {"projectHash": "h"}
    rows = [{"sessionId": "a", **head}, user("m1", "q"), 3, answer("m2", "lost"), {"sessionId": "b", **head},
            user("m1", "r"), answer("m2", "b")]  # fmt: skip
    path = tmp_path / "two.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = records(path, BadRecords())
    assert [said(first), said(second)] == [[("user", "q")], [("user", "r"), ("assistant", "b")]]
    assert ended(second) == [True]


def test_counters_tell_no_messages_apart(tmp_path: Path) -> None:
    """Short ids are a session's own; random ones are the same message wherever they stand."""

    def identities(name: str, *ids: str) -> list[bytes]:
        path = tmp_path / f"{name}.json"
        listed = [user(ids[0], "q"), answer(ids[1], "a", toolCalls=[call("c", result={"output": "x"})])]
        path.write_text(json.dumps({"sessionId": name, "projectHash": "h", "messages": listed}))
        return [m.identity for m in messages(records(path)[0])]

    uuids = ("0f6a1c2e-5b1d-4a52-9a3e-1b7d2c9e4f10", "7c9e6679-7425-40de-944b-e07fc1f90ae7")
    assert not set(identities("a", "m1", "m2")) & set(identities("b", "m1", "m2"))
    assert identities("a", "m1", "m2") == identities("a", "m1", "m2")
    assert identities("a", *uuids) == identities("b", *uuids)
    assert not set(identities("a", "", "")) & set(identities("b", "", ""))


def test_damaged_files_are_errors_of_data_alone(tmp_path: Path) -> None:
    """Cut, flipped and retyped: every damage is counted, and none ends in another exception."""
    text = (FIXTURES / "session.jsonl").read_bytes()
    chance = random.Random(13)
    values: list[Any] = [None, 3, 10**40, [], {}, "\ud83d", "x\0y", [[[[]]]], True, 1e308, ["user"], [{"text": []}]]
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
            holder = row
            for name in ("toolCalls", "content", "thoughts"):
                if isinstance(row.get(name), list) and row[name] and chance.random() < 0.5:
                    holder = row[name][0]
            holder[chance.choice(list(holder))] = chance.choice(values)
            lines[number] = json.dumps(row).encode()
        path = tmp_path / "damaged.jsonl"
        path.write_bytes(b"\n".join(lines))
        for record in records(path, BadRecords()):
            assert messages(record) is not None


@needs_real
def test_edge_files() -> None:
    """The rewound answer and the one in its place are both trained, in their contexts; old files are read."""
    (old,) = records(REAL / "gemini-edge" / "session-2025-10-01T00-00-old.json")
    assert said(old) == [("user", "hi"), ("assistant", "hello")]
    rewound, last = records(REAL / "gemini-edge" / "session-2026-01-01T00-00-abcdef12.jsonl")
    assert [content for _, content in said(rewound)[-2:]] == ["wrong question", "wrong answer"]
    assert [content for _, content in said(last)[-2:]] == ["right question", "right answer"]
    assert [m.reasoning for m in messages(last)[:3]] == ["", "**s**\nd", ""]
    assert [m.identity for m in messages(rewound)[:4]] == [m.identity for m in messages(last)[:4]]
