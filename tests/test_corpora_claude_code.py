"""Sessions of Claude Code: what is one message, what is a fork, what is trained; real files and damage."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dagpack_cli.corpora import BadRecords, ReadOptions, raise_bad
from dagpack_cli.corpora.agents.claude_code import read, recognise
from dagpack_cli.corpora.discover import discover
from dagpack_cli.corpora.files.sources import stat_source
from dagpack_cli.corpora.reading import read_examples
from dagpack_cli.corpora.records import Chat, Record
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing import ByteTokenizer
from dagpack_cli.tokenizing.messages import Message

HERE = Path(__file__).resolve().parent.parent
FIXTURES = HERE / "fixtures" / "claude-code"
REAL = HERE.parent / "shared" / "real"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not beside the checkout")
MAIN = "claude-code/samples__claude-code-projects__0ccf1a04-1b4c-43b6-8aa5-79e41db43a68.jsonl"


def records(path: Path, on_bad: Any = raise_bad) -> list[Record]:
    """Return what the reader makes of one file."""
    return list(read(stat_source(path, path.name, "claude-code"), ReadOptions(), on_bad))


def messages(record: Record) -> tuple[Message, ...]:
    """Return a record's messages."""
    assert isinstance(record.body, Chat)
    return record.body.messages


def said(record: Record) -> list[tuple[str, str]]:
    """Return role and content of every message."""
    return [(message.role, message.content) for message in messages(record)]


def line(kind: str, uuid: str | None, parent: str | None, content: Any = None, **more: Any) -> dict[str, Any]:
    """Return one line of a session."""
    found: dict[str, Any] = {"type": kind, "parentUuid": parent, "sessionId": "s", "isSidechain": False}
    if uuid is not None:
        found["uuid"] = uuid
    if content is not None:
        found["message"] = {"role": kind, "content": content, **more.pop("message", {})}
    return found | more


def tool_use(call_id: str, **arguments: Any) -> dict[str, Any]:
    """Return a block that calls a tool."""
    return {"type": "tool_use", "id": call_id, "name": "Run", "input": arguments}


def tool_result(call_id: str, content: Any) -> dict[str, Any]:
    """Return a block with a tool's result."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """Return a function that writes lines and reads them as a session."""

    def write(*lines: Any, on_bad: Any = raise_bad) -> list[Record]:
        path = tmp_path / "session.jsonl"
        path.write_text("".join(json.dumps(item) + "\n" for item in lines), encoding="utf-8")
        return records(path, on_bad)

    return write


def test_fixture_has_one_fork() -> None:
    """Blocks of an answer are one message; parallel tools, progress and attachments are no forks; a rewind is."""
    first, second, agent = records(FIXTURES / "branches.jsonl")
    shared = [
        ("user", "<caveat>local</caveat>"),
        ("user", "Read both files."),
        ("assistant", "Reading."),
        ("tool", "AA"),
        ("tool", "BB\n[image: image/png]"),
        ("assistant", "Both read."),
    ]
    assert said(first) == [*shared, ("user", "First way?"), ("assistant", "The first way.")]
    assert said(second) == [
        *shared,
        ("user", "Second way?"),
        ("assistant", "No response requested."),
        ("user", "Go on."),
        ("assistant", "The second way."),
    ]
    assert said(agent) == [("user", "Look it up."), ("assistant", "Looked up.")]
    assert [record.id for record in (first, second, agent)] == ["main#1", "main#2", "main/aa11#3"]
    assert {record.group for record in (first, second, agent)} == {"main"}
    answer = messages(first)[2]
    assert answer.reasoning == "Two reads."
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [
        ("Read", '{"file_path": "a"}'),
        ("Read", '{"file_path": "b"}'),
    ]
    assert [(m.tool_name, m.tool_call_id) for m in messages(first)[3:5]] == [("Read", "t1"), ("Read", "t2")]


def test_what_the_program_wrote_is_not_trained() -> None:
    """The report of a failed call was never sent; another synthetic answer is context."""
    second = records(FIXTURES / "branches.jsonl")[1]
    assert not any("API Error" in message.content for message in messages(second))
    assert [message.weight for message in messages(second) if message.role == "assistant"] == [1, 1, 0, 1]


def test_same_messages_have_one_identity_in_all_leaves_and_files() -> None:
    """A fork's leaves and a resumed session, under another session id, carry the same messages."""
    first, second, _ = records(FIXTURES / "branches.jsonl")
    (resumed,) = records(FIXTURES / "resumed.jsonl")
    identities = [[message.identity for message in messages(record)] for record in (first, second, resumed)]
    assert identities[0][:6] == identities[1][:6] == identities[2][:6]
    assert len({item for listed in identities for item in listed}) == 6 + 2 + 4 + 2
    assert all(len(item) == 16 for listed in identities for item in listed)
    assert resumed.group == "resumed"


def test_compaction_is_two_examples() -> None:
    """What stands before the boundary is one context, the summary begins another."""
    before, after = records(FIXTURES / "compaction.jsonl")
    assert said(before) == [("user", "start"), ("assistant", "before")]
    assert said(after) == [("user", "Summary: it started."), ("user", "go on"), ("assistant", "after")]
    assert before.group == after.group == "main"


def test_export_without_links_is_linear() -> None:
    """A log in one object, without uuids, is in the order of what was said."""
    (record,) = records(FIXTURES / "export.json")
    assert said(record) == [("user", "hello"), ("assistant", "hi"), ("tool", "a.txt"), ("assistant", "one file")]
    assert all(len(message.identity) == 16 for message in messages(record))


def test_every_fixture_is_recognised() -> None:
    """Content tells the format, comments and lines without uuids before it or not."""
    assert {source.format for source in discover(FIXTURES).inputs} == {"claude-code"}
    for row in ({"type": "summary", "text": "x"}, {"uuid": "a", "messages": []}, {"messages": [{"role": "user"}]}):
        assert not recognise(row, ReadOptions())


def test_result_between_the_blocks_of_an_answer(session: Any) -> None:
    """Newer versions run a tool before the answer's next block is written: still one answer."""
    (record,) = session(
        line("user", "u", None, "go"),
        line("assistant", "a1", "u", [tool_use("t1")], message={"id": "m"}),
        line("user", "r1", "a1", [tool_result("t1", "one")]),
        line("assistant", "a2", "r1", [tool_use("t2")], message={"id": "m"}),
        line("user", "r2", "a2", [tool_result("t2", "two")]),
        line("assistant", "a3", "r2", "done", message={"id": "n"}),
    )
    assert said(record) == [("user", "go"), ("assistant", ""), ("tool", "one"), ("tool", "two"), ("assistant", "done")]
    assert len(messages(record)[1].tool_calls) == 2


def test_text_injected_for_a_parallel_tool_is_no_fork(session: Any) -> None:
    """A skill's text hangs below its result: it follows the results of all parallel calls."""
    (record,) = session(
        line("user", "u", None, "go"),
        line("assistant", "a1", "u", [tool_use("t1")], message={"id": "m"}),
        line("assistant", "a2", "a1", [tool_use("t2")], message={"id": "m"}),
        line("user", "r1", "a1", [tool_result("t1", "one")]),
        line("user", "i1", "r1", "skill one", isMeta=True, sourceToolUseID="t1"),
        line("user", "r2", "a2", [tool_result("t2", "two")]),
        line("user", "i2", "r2", "skill two", isMeta=True, sourceToolUseID="t2"),
        line("assistant", "a3", "i2", "done", message={"id": "n"}),
    )
    assert said(record)[2:] == [
        ("tool", "one"),
        ("tool", "two"),
        ("user", "skill one"),
        ("user", "skill two"),
        ("assistant", "done"),
    ]


def test_call_answered_twice_is_a_fork(session: Any) -> None:
    """Two results of one call are two histories; the other call's result belongs to both."""
    first, second = session(
        line("user", "u", None, "go"),
        line("assistant", "a1", "u", [tool_use("t1")], message={"id": "m"}),
        line("assistant", "a2", "a1", [tool_use("t2")], message={"id": "m"}),
        line("user", "r1", "a1", [tool_result("t1", "one")]),
        line("user", "r2", "a2", [tool_result("t2", "two")]),
        line("assistant", "b", "r2", "first", message={"id": "n"}),
        line("user", "r3", "a2", [tool_result("t2", "stopped")]),
        line("assistant", "c", "r3", "second", message={"id": "o"}),
    )
    assert said(first)[2:] == [("tool", "one"), ("tool", "two"), ("assistant", "first")]
    assert said(second)[2:] == [("tool", "one"), ("tool", "stopped"), ("assistant", "second")]


def test_duplicate_lines_count_once_and_the_first_wins(session: Any) -> None:
    """A uuid that is repeated is the line that had it first; a replay at one time is no fork."""
    (record,) = session(
        line("user", "u", None, "go"),
        line("assistant", "a", "u", "yes", message={"id": "m"}),
        line("user", "u", "a", "another text"),
        line("user", "v", "a", "on", timestamp="t"),
        line("user", "w", "a", "on", timestamp="t"),
        line("assistant", "b", "w", "well", message={"id": "n"}),
    )
    assert said(record) == [("user", "go"), ("assistant", "yes"), ("user", "on"), ("assistant", "well")]


def test_blocks_of_an_answer_are_trained_as_written(session: Any) -> None:
    """Neighbouring texts are one text, others are paragraphs; redacted thinking is no message of its own."""
    (record,) = session(
        line("user", "u", None, [{"type": "text", "text": "look"}, {"type": "document", "source": {"data": "="}}]),
        line("assistant", "a", "u", [{"type": "redacted_thinking", "data": "="}], message={"id": "x"}),
        line(
            "assistant",
            "b",
            "a",
            [
                {"type": "thinking", "thinking": "one"},
                {"type": "text", "text": "half "},
                {"type": "text", "text": "whole"},
                {"type": "thinking", "thinking": "two"},
                {"type": "text", "text": "end"},
                {"type": "web_search_tool_result", "content": []},
            ],
            message={"id": "y"},
        ),
    )
    assert said(record) == [("user", "look\n\n[document]"), ("assistant", "half whole\n\nend")]
    assert messages(record)[1].reasoning == "one\n\ntwo"


def test_sidechain_inside_the_trunk_is_a_sequence_of_its_own(session: Any) -> None:
    """Old versions write a subagent's lines between those of the trunk, and even link them."""
    trunk, agent = session(
        line("user", "u", None, "go"),
        line("assistant", "a", "u", [tool_use("t1")], message={"id": "m"}),
        line("user", "s", "a", "task", isSidechain=True),
        line("assistant", "t", "s", "task done", isSidechain=True, message={"id": "n"}),
        line("user", "r", "t", [tool_result("t1", "task done")]),
        line("assistant", "b", "r", "all done", message={"id": "o"}),
    )[::-1]
    assert said(agent) == [("user", "task"), ("assistant", "task done")]
    assert said(trunk) == [("user", "go"), ("assistant", ""), ("tool", "task done"), ("assistant", "all done")]


def test_messages_that_a_compaction_kept(session: Any) -> None:
    """What was kept stands behind the summary, is trained where it was said, and the rest follows."""
    before, after = session(
        line("user", "u1", None, "one"),
        line("assistant", "a1", "u1", "1", message={"id": "m1"}),
        line("user", "u2", "a1", "two"),
        line("assistant", "a2", "u2", "2", message={"id": "m2"}),
        line(
            "system",
            "c",
            None,
            subtype="compact_boundary",
            compactMetadata={"preservedSegment": {"headUuid": "u2", "anchorUuid": "s", "tailUuid": "a2"}},
        ),
        line("user", "s", "c", "summary", isCompactSummary=True, isVisibleInTranscriptOnly=True),
        line("user", "u3", "a2", "three"),
        line("assistant", "a3", "u3", "3", message={"id": "m3"}),
    )
    assert said(before) == [("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "2")]
    assert said(after) == [
        ("user", "summary"),
        ("user", "two"),
        ("assistant", "2"),
        ("user", "three"),
        ("assistant", "3"),
    ]
    assert messages(before)[3].identity == messages(after)[2].identity


def test_cycle_names_the_line(session: Any) -> None:
    """Lines that are each other's ancestors have no order: the error names the first of them."""
    lines = [line("user", "a", "b", "x"), line("assistant", "b", "a", "y")]
    with pytest.raises(DataError, match=r"session\.jsonl:1: entry a is its own ancestor"):
        session(*lines)
    bad = BadRecords()
    assert session(*lines, on_bad=bad) == []
    assert bad.count == 1


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (line("user", "x", "u") | {"message": "error"}, '"message" is "error"; an object'),
        (line("user", "x", "u", 7), '"content" is 7; a string or a list of blocks'),
        (line("user", "x", "u", [{"type": "text"}]), '"text" is null; a string'),
        (line("user", "x", "u", [{"type": ["text"]}]), '"type" is a list of 1; a string'),
        (line("assistant", "x", "u", [tool_use("t") | {"id": 3}]), '"id" is 3; a string'),
        ({"silly": "this"}, '"type" is null; a string'),
        (line("user", "x", "u", "half \ud83d"), "half of a surrogate pair"),
        (line("user", "x", None, "y") | {"parentUuid": 5}, '"parentUuid" is 5; a string'),
    ],
)
def test_broken_lines_are_named_and_end_the_session(session: Any, broken: Any, found: str) -> None:
    """An error names the line; skipped, what stands behind it has lost its context and is not read."""
    lines = [line("user", "u", None, "go"), broken, line("assistant", "a", "x", "yes", message={"id": "m"})]
    with pytest.raises(DataError) as caught:
        session(*lines)
    assert found in str(caught.value)
    assert caught.value.where.startswith("session.jsonl:2")
    bad = BadRecords()
    (record,) = session(*lines, on_bad=bad)
    assert said(record) == [("user", "go")]
    assert bad.count == 1
    assert bad.first[0][1].endswith("; the session is read up to here")


def ended(record: Record) -> list[bool]:
    """Return of every answer whether the model came to the end of its turn."""
    return [m.ended for m in messages(record) if m.role == "assistant"]


@pytest.mark.parametrize(
    ("block", "stop", "end", "weight"),
    [
        ({"type": "text", "text": "half"}, "max_tokens", False, 1),
        ({"type": "text", "text": "half"}, "model_context_window_exceeded", False, 1),
        ({"type": "text", "text": "half"}, "refusal", False, 1),
        ({"type": "text", "text": "whole"}, "end_turn", True, 1),
        ({"type": "text", "text": "whole"}, None, True, 1),
        ({"type": "thinking", "thinking": "hm"}, None, False, 1),
        ({"type": "thinking", "thinking": "hm"}, "end_turn", True, 1),
        (tool_use("t"), "tool_use", True, 1),
        (tool_use("t"), "max_tokens", False, 0),
    ],
)
def test_answers_that_were_cut_off(session: Any, block: Any, stop: Any, end: bool, weight: int) -> None:
    """The last line of an answer says why it stopped; a call that was cut is not what the model wrote."""
    (record,) = session(
        line("user", "u", None, "go"),
        line("assistant", "a", "u", [{"type": "thinking", "thinking": "one"}], message={"id": "m"}),
        line("assistant", "b", "a", [block], message={"id": "m", "stop_reason": stop}),
        line("progress", "c", "b"),
    )
    assert ended(record) == [end]
    assert [m.weight for m in messages(record)] == [1, weight]


@pytest.mark.parametrize(("stop", "end"), [(None, False), ("tool_use", True)])
def test_last_answer_before_damage_may_have_gone_on(session: Any, stop: Any, end: bool) -> None:
    """The damaged line may hold its next block, unless the answer says why it stopped."""
    (record,) = session(
        line("user", "u", None, "go"),
        line("assistant", "a", "u", "first", message={"id": "m"}),
        line("user", "v", "a", "on"),
        line("assistant", "b", "v", [tool_use("t")], message={"id": "n", "stop_reason": stop}),
        line("user", "r", "b", [tool_result("t", "out")]),
        line("assistant", "c", "r", 7, message={"id": "n"}),
        line("assistant", "d", "c", "lost", message={"id": "o"}),
        on_bad=BadRecords(),
    )
    assert [text for _, text in said(record)] == ["go", "first", "on", "", "out"]
    assert ended(record) == [True, end]


def test_damage_in_one_export_leaves_the_next(tmp_path: Path) -> None:
    """An export holds a whole session: damage ends that one alone."""
    start, end = line("user", "u", None, "go"), line("assistant", "a", "u", "yes")
    logs = [[start, 7, end], [start, line("progress", "p", "u"), end]]
    path = tmp_path / "exports.jsonl"
    path.write_text("".join(json.dumps({"loglines": log}) + "\n" for log in logs) + "{\n")
    bad = BadRecords()
    first, second = records(path, bad)
    assert said(first) == [("user", "go")]
    assert said(second) == [("user", "go"), ("assistant", "yes")]
    assert ended(second) == [True]
    assert [where.split(",")[0] for where, _ in bad.first] == ["exports.jsonl:1", "exports.jsonl:3"]


def test_counters_tell_no_messages_apart(tmp_path: Path) -> None:
    """Two sessions with short ids are two; a resumed one repeats ids and times, and random ids are enough."""

    def identities(name: str, message_id: str, uuid: str, **more: Any) -> list[bytes]:
        path = tmp_path / f"{name}.jsonl"
        answer = line("assistant", f"{uuid}-a", f"{uuid}-u", "yes", message={"id": message_id})
        lines = [line("user", f"{uuid}-u", None, "go"), answer]
        path.write_text("".join(json.dumps(item | {"sessionId": name} | more) + "\n" for item in lines))
        return [m.identity for m in messages(records(path)[0])]

    uuid = "0f6a1c2e-5b1d-4a52-9a3e-1b7d2c9e4f10"
    assert not set(identities("a", "msg_1", "1")) & set(identities("b", "msg_1", "1"))
    assert not set(identities("a", "msg_1", "1", timestamp="x")) & set(identities("b", "msg_1", "1", timestamp="y"))
    assert identities("a", "msg_1", "1", timestamp="x") == identities("b", "msg_1", "1", timestamp="x")
    assert identities("a", "msg_1", uuid) == identities("b", "msg_1", uuid)
    assert not set(identities("a", "msg_1", uuid)) & set(identities("b", "msg_1", uuid.replace("0", "1")))
    assert identities("a", "msg_0123456789abcdef", "1")[1] == identities("b", "msg_0123456789abcdef", "2")[1]


def test_line_that_is_being_written_is_left_out(session: Any, tmp_path: Path) -> None:
    """The end of a file without a line feed is no damage, but the answer before it may go on."""
    path = tmp_path / "live.jsonl"
    lines = [line("user", "u", None, "go"), line("assistant", "a", "u", "yes", message={"id": "m"})]
    text = "".join(json.dumps(item) + "\n" for item in lines)
    path.write_text(text + '{"type": "assistant", "uu')
    bad = BadRecords()
    (record,) = records(path, bad.or_raise)
    assert said(record) == [("user", "go"), ("assistant", "yes")]
    assert ended(record) == [False]
    assert [(where, "still being written" in reason) for where, reason in bad.first] == [("live.jsonl:3", True)]
    path.write_text(text + '{"type": "assistant", "uu\n')
    with pytest.raises(DataError, match=r"live\.jsonl:3.*read up to here"):
        records(path, bad.or_raise)


@pytest.mark.parametrize("summary", [True, False])
def test_compaction_below_its_past_is_a_root_all_the_same(session: Any, summary: bool) -> None:
    """A boundary, or a summary without one, that names its past as its parent does not have it as context."""
    middle = {"isCompactSummary": True} if summary else {"type": "system", "subtype": "compact_boundary"}
    found = session(
        line("user", "u", None, "go"),
        line("assistant", "a", "u", "yes", message={"id": "m"}),
        line("user", "c", "a", "summary") | middle,
        line("user", "v", "c", "on"),
        line("assistant", "b", "v", "well", message={"id": "n"}),
    )
    after = [("user", "summary")] * summary + [("user", "on"), ("assistant", "well")]
    assert [said(record) for record in found] == [[("user", "go"), ("assistant", "yes")], after]


def test_long_chain_of_lines(session: Any) -> None:
    """No recursion: a chain is as long as a file."""
    lines = [line("user", "0", None, "go")]
    lines += [
        line("progress" if n % 2 else "assistant", str(n), str(n - 1), None if n % 2 else "y", message={"id": str(n)})
        for n in range(1, 6000)
    ]
    (record,) = session(*reversed(lines))
    assert len(messages(record)) == 3000


def test_damaged_files_are_errors_of_data_alone(tmp_path: Path) -> None:
    """Cut, flipped and retyped: every damage is counted, and none ends in another exception."""
    text = (FIXTURES / "branches.jsonl").read_bytes() + (FIXTURES / "compaction.jsonl").read_bytes()
    chance = random.Random(7)
    values: list[Any] = [None, 3, 10**40, [], {}, "\ud83d", "x\0y", [[[[]]]], True, 1e308, ["user"], {"type": []}]
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
            holder = row["message"] if "message" in row and chance.random() < 0.5 else row
            if isinstance(holder.get("content"), list) and holder["content"] and chance.random() < 0.5:
                holder = holder["content"][0]
            holder[chance.choice(list(holder))] = chance.choice(values)
            lines[number] = json.dumps(row).encode()
        path = tmp_path / "damaged.jsonl"
        path.write_bytes(b"\n".join(lines))
        for record in records(path, BadRecords()):
            assert messages(record) is not None


@needs_real
def test_real_file_has_one_genuine_fork() -> None:
    """Of 5 lines with several children one is a rewind: 2 leaves, whose answers are each trained once."""
    rows = [json.loads(text) for text in (REAL / MAIN).read_bytes().splitlines()]
    parents = [row["parentUuid"] for row in rows if row.get("parentUuid")]
    assert sum(parents.count(name) > 1 for name in set(parents)) == 5
    interrupted, whole = records(REAL / MAIN)
    assert (len(messages(interrupted)), len(messages(whole))) == (10, 33)
    assert messages(interrupted)[-1].content == "[Request interrupted by user]"
    assert [m.identity for m in messages(interrupted)[:8]] == [m.identity for m in messages(whole)[:8]]
    assert messages(interrupted)[8].identity != messages(whole)[8].identity


@needs_real
@pytest.mark.parametrize("name", sorted(path.name for path in REAL.glob("claude-code/*.jsonl")) or ["none"])
def test_real_files_train_what_the_model_wrote(name: str) -> None:
    """The trained text is, response for response, that of the file's assistant lines, found by another way."""
    path = REAL / "claude-code" / name
    written: dict[str, dict[str, list[str]]] = {}
    for text in path.read_bytes().splitlines():
        row = {} if text.startswith(b"//") else json.loads(text)
        if row.get("type") == "assistant":
            parts = written.setdefault(row["message"]["id"], {"thinking": [], "text": [], "tool_use": []})
            (block,) = row["message"]["content"]
            value = block["input"] if block["type"] == "tool_use" else block[block["type"]]
            parts[block["type"]].append(value)
    trained: dict[bytes, Message] = {}
    for record in records(path):
        trained.update((m.identity, m) for m in messages(record) if m.role == "assistant" and m.weight)
    found = [
        {
            "thinking": [m.reasoning] if m.reasoning else [],
            "text": [m.content] if m.content else [],
            "tool_use": [json.loads(call.arguments) for call in m.tool_calls],
        }
        for m in trained.values()
    ]
    assert found == list(written.values())


@needs_real
def test_real_supervision_decoded() -> None:
    """Read back from the tokens: supervised are the answers' texts, and nothing of a user or a tool."""
    tokenizer = ByteTokenizer()
    (source,) = discover(REAL / MAIN).inputs
    for example, record in zip(
        read_examples(source, tokenizer, ReadOptions(thinking=False, tool_calls=False)),
        records(REAL / MAIN),
        strict=True,
    ):
        texts = [tokenizer.decode(example.tokens[start:end]) for start, end in example.runs.tolist()]
        answers = [m.content for m in messages(record) if m.role == "assistant" and m.content]
        assert len(texts) == len(answers)
        assert all(answer in text for answer, text in zip(answers, texts, strict=True))


@needs_real
@pytest.mark.parametrize(
    ("name", "counts", "bad"),
    [
        ("compact_boundary", [(2, 1), (2, 1)], 0),
        ("parallel_tools_false_fork", [(5, 2)], 0),
        ("resume_a", [(2, 1)], 0),
        ("resume_b_replays_prefix", [(4, 2)], 0),
        ("test__test_data__representative_messages", [(11, 5)], 0),
        ("test__test_data__edge_cases", [(9, 3)], 4),
    ],
)
def test_edge_files(name: str, counts: list[tuple[int, int]], bad: int) -> None:
    """Known numbers of messages and answers, and of lines that are none."""
    skipped = BadRecords()
    found = records(REAL / "claude-code-edge" / f"{name}.jsonl", skipped)
    assert [(len(messages(r)), sum(m.role == "assistant" for m in messages(r))) for r in found] == counts
    assert skipped.count == bad


@needs_real
def test_resumed_real_session_is_the_same_to_the_message() -> None:
    """The replayed prefix has the identities of the original, although its session id is another."""
    (first,) = records(REAL / "claude-code-edge" / "resume_a.jsonl")
    (second,) = records(REAL / "claude-code-edge" / "resume_b_replays_prefix.jsonl")
    assert [m.identity for m in messages(first)] == [m.identity for m in messages(second)[:2]]
    assert (first.group, second.group) == ("s1", "s2")
