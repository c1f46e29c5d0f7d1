"""OpenHands: events become what the model was sent and wrote, condensations end epochs, folders are conversations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from agent_logs import (
    FIXTURES,
    REAL,
    assert_damage_is_told,
    chat_of,
    read,
    roles,
    said,
    source_of,
    supervised,
    write,
)

from dagpack_cli.corpora.agents import openhands
from dagpack_cli.corpora.discover import discover
from dagpack_cli.corpora.formats import recognise
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import BadRecords, Record
from dagpack_cli.errors import DataError

OUTPUT = FIXTURES / "openhands" / "output.jsonl"
EVENTS = FIXTURES / "openhands" / "events"

Event = dict[str, Any]


def event(kind: str, own_id: str, source: str = "agent", /, **more: Any) -> Event:
    """Return a V1 event."""
    return {"kind": kind, "id": own_id, "timestamp": f"t-{own_id}", "source": source, **more}


def user(own_id: str, text: str) -> Event:
    """Return a V1 message of the user."""
    return event(
        "MessageEvent", own_id, "user", llm_message={"role": "user", "content": [{"type": "text", "text": text}]}
    )


def action(own_id: str, response: str, arguments: str = "{}", thought: str = "") -> Event:
    """Return a V1 action that calls a tool under its own id."""
    call = {"id": own_id, "name": "f", "arguments": arguments}
    parts = [{"type": "text", "text": thought}] if thought else []
    more: Event = {
        "thought": parts,
        "tool_name": "f",
        "tool_call_id": own_id,
        "tool_call": call,
        "llm_response_id": response,
    }
    return event("ActionEvent", own_id, **more)


def result(own_id: str, call: str, text: str) -> Event:
    """Return a V1 observation."""
    seen = {"kind": "TerminalObservation", "content": [{"type": "text", "text": text}], "is_error": False}
    return event(
        "ObservationEvent", own_id, "environment", observation=seen, action_id=call, tool_name="f", tool_call_id=call
    )


def condensation(own_id: str, forgotten: list[str], summary: str | None = None, offset: int | None = None) -> Event:
    """Return a V1 condensation."""
    more = {"forgotten_event_ids": forgotten, "summary": summary, "summary_offset": offset}
    return event("Condensation", own_id, "environment", **more)


def old(own_id: int, source: str = "agent", **more: Any) -> Event:
    """Return a V0 event."""
    return {"id": own_id, "timestamp": f"t-{own_id}", "source": source, **more}


def ran(own_id: int, call: str, response: str, calls: tuple[str, ...]) -> Event:
    """Return a V0 command of an answer that makes ``calls``."""
    listed = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in calls]
    given = {"id": response, "choices": [{"message": {"role": "assistant", "content": "c", "tool_calls": listed}}]}
    metadata = {"function_name": "f", "tool_call_id": call, "model_response": given}
    return old(own_id, action="run", args={"command": "x", "thought": "c"}, tool_call_metadata=metadata)


def saw(own_id: int, cause: int, text: str, **more: Any) -> Event:
    """Return a V0 observation."""
    return old(own_id, observation="run", cause=cause, content=text, extras={}, **more)


def run(*history: Any, **more: Any) -> dict[str, Any]:
    """Return a row of output.jsonl."""
    return {"instance_id": "i", "metadata": {}, "history": [*history], "error": None, **more}


def test_v0_rows() -> None:
    """Parallel calls of one response are one message, results follow, bookkeeping is nothing to a model."""
    first, failed = read(OUTPUT)
    where = "\n[Current working directory: /w]\n[Command finished with exit code 0]"
    assert said(first) == [
        ("system", "You are an agent."),
        ("user", "List files."),
        ("assistant", "Two at once."),
        ("tool", f"a.txt{where}"),
        ("tool", f"/w{where}"),
        ("assistant", "There is a.txt."),
    ]
    assert [m.tool_call_id for m in chat_of(first).messages[3:5]] == ["c1", "c2"]
    assert chat_of(first).tools == ({"type": "function", "function": {"name": "execute_bash"}},)
    assert (first.id, first.group) == ("demo-1", "demo-1")
    assert said(failed) == []
    call = '{"name": "execute_bash", "arguments": {"command": "%s"}}'
    assert supervised(OUTPUT) == ["Two at once." + call % "ls" + call % "pwd", "There is a.txt."]


def test_an_answer_that_reached_its_limit(tmp_path: Path) -> None:
    """The response says so, and every action of the answer repeats it."""
    events = [old(0, "user", action="message", args={"content": "q"}), ran(1, "c1", "r1", ("c1", "c2"))]
    events += [ran(2, "c2", "r1", ("c1", "c2")), saw(3, 1, "x"), ran(4, "c3", "r2", ("c3",))]
    for one in events[1:3]:
        one["tool_call_metadata"]["model_response"]["choices"][0]["finish_reason"] = "length"
    (record,) = read(write(tmp_path / "a.jsonl", run(*events)))
    assert [m.ended for m in chat_of(record).messages if m.role == "assistant"] == [False, True]


def test_a_row_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    """A benchmark appends run after run; a file of one damaged event is damage."""
    path = write(tmp_path / "output.jsonl", run(old(0, "user", action="message", args={"content": "q"})))
    text = path.read_text()
    path.write_text(text + text[:40])
    bad = BadRecords()
    assert len(read(path, on_bad=bad.or_raise)) == 1
    assert bad.count == 1
    path.write_text(text[:40])
    with pytest.raises(DataError, match=r"output\.jsonl"):
        read(path, on_bad=bad.or_raise, module=openhands)


def test_pairs_of_old_histories(tmp_path: Path) -> None:
    """An action without its answer is written as a call of its name; its observation answers it."""
    pairs = [
        [{"action": "message", "source": "user", "args": {"content": "u"}}, {"observation": "null", "content": ""}],
        [
            {"action": "run", "source": "agent", "args": {"command": "ls", "thought": "t", "hidden": False}},
            {"observation": "run", "content": "a.txt", "extras": {}},
        ],
        [{"action": "finish", "source": "agent", "args": {"thought": "bye"}}, {"observation": "null", "content": ""}],
    ]
    path = write(tmp_path / "output.jsonl", run(*pairs))
    (record,) = read(path)
    assert said(record) == [("user", "u"), ("assistant", "t"), ("tool", "a.txt"), ("assistant", "bye")]
    assert supervised(path) == ['t{"name": "run", "arguments": {"command": "ls"}}', "bye"]


def test_v0_errors_and_what_the_user_did(tmp_path: Path) -> None:
    """Errors and rejections are told as V0 told them; a command of the user is the user's."""
    events = [
        old(0, "user", action="run", args={"command": "pwd"}),
        saw(1, 0, "/w"),
        ran(2, "a", "r", ("a",)),
        {**saw(3, 2, "no"), "observation": "error"},
        ran(4, "b", "s", ("b",)),
        {**saw(5, 4, "stop"), "observation": "user_rejected"},
    ]
    assert said(read(write(tmp_path / "o.jsonl", run(*events)))[0]) == [
        ("user", "User executed the command:\npwd"),
        ("user", "\nObserved result of command executed by user:\n/w"),
        ("assistant", "c"),
        ("tool", "no\n[Error occurred in processing last action]"),
        ("assistant", "c"),
        ("tool", "OBSERVATION:\nstop\n[Last action has been rejected by the user]"),
    ]


def test_v0_condensation(tmp_path: Path) -> None:
    """A range is forgotten, the summary stands at its offset among all events, and the next replaces it."""
    events = [
        old(0, action="system", args={"content": "s", "tools": None}),
        old(1, "user", action="message", args={"content": "u"}),
        old(2, "user", action="recall", args={"query": "u"}),
        ran(3, "a", "r1", ("a",)),
        saw(4, 3, "1"),
        old(
            5,
            action="condensation",
            args={"forgotten_events_start_id": 2, "forgotten_events_end_id": 3, "summary": "S1", "summary_offset": 2},
        ),
        ran(6, "b", "r2", ("b",)),
        saw(7, 6, "2"),
        old(8, action="condensation", args={"forgotten_event_ids": [6, 7], "summary": "S2", "summary_offset": 1}),
        old(9, action="message", args={"content": "end"}),
    ]
    records = read(write(tmp_path / "o.jsonl", run(*events)))
    assert [said(record) for record in records] == [
        [("system", "s"), ("user", "u"), ("assistant", "c"), ("tool", "1")],
        [("system", "s"), ("user", "u"), ("user", "S1"), ("assistant", "c"), ("tool", "2")],
        [("system", "s"), ("user", "S2"), ("user", "u"), ("assistant", "end")],
    ]
    assert [record.id for record in records] == ["i#0", "i#1", "i#2"]


def test_v1_conversation_in_a_folder() -> None:
    """The first event's file reads them all, once; a condensation ends an epoch."""
    first, second = read(EVENTS / "event-00000-e0.json")
    assert said(first) == [
        ("system", "You are an agent."),
        ("user", "List files."),
        ("assistant", "Two at once."),
        ("tool", "a.txt\n[Command finished with exit code 0]"),
        ("tool", "no such folder"),
    ]
    assert said(second) == [
        ("system", "You are an agent."),
        ("user", "Listed: a.txt."),
        ("user", "List files."),
        ("assistant", "There is a.txt."),
    ]
    assert chat_of(first).tools == ({"title": "terminal", "kind": "TerminalTool"},) == chat_of(second).tools
    assert (first.id, second.id, first.group) == ("e0#0", "e0#1", "e0")
    others = sorted(EVENTS.iterdir())[1:]
    assert len(others) == 8
    assert [read(path) for path in others] == [[]] * 8
    call = '{"name": "terminal", "arguments": {"command": "%s"}}'
    assert supervised(EVENTS / "event-00000-e0.json") == [
        "Hm.Two at once." + call % "ls" + call % "pwd",
        "There is a.txt.",
    ]


def test_a_folder_gives_each_conversation_once(tmp_path: Path) -> None:
    """Every file is an input, whatever else lies beside it, and however many digits numbers have."""
    for name in ("a", "b"):
        folder = tmp_path / name / "events"
        for number, value in enumerate([user("u", name), action("x", "r"), result("y", "x", "1")]):
            write(folder / f"{number * 9}.json", {**value, "id": f"{name}{number}"})
        write(folder / "00.jsonl", {"messages": [{"role": "user", "content": "other"}]})
        write(folder / "log.json", user("p", "one"), user("q", "two"))
        write(folder / ".hidden.json", user("h", "hidden"))
    found = discover(tmp_path).inputs
    assert len(found) == 10
    records: list[Record] = []
    for source in found:
        if source.format == "openhands":
            records.extend(openhands.read(source, ReadOptions(), lambda error: pytest.fail(str(error))))
    assert [roles(record) for record in records] == ["uat", "uu", "uat", "uu"]
    assert records[0].place.name == "a/events/0.json"
    assert [record.id for record in records] == ["a0", "p", "b0", "p"]


def test_a_log_beside_the_events_is_none_of_them(tmp_path: Path) -> None:
    """A file of two events stands first in the folder, and is a conversation of its own all the same."""
    shutil.copytree(EVENTS, tmp_path / "events")
    write(tmp_path / "events" / "a-log.jsonl", user("p", "one"), user("q", "two"))
    assert len(read(tmp_path / "events" / "event-00000-e0.json")) == 2
    assert [roles(record) for record in read(tmp_path / "events" / "a-log.jsonl")] == ["uu"]


def test_v0_events_in_a_folder(tmp_path: Path) -> None:
    """V0 stores number their files without padding: 10 comes after 9."""
    for number in range(12):
        value = old(number, "user", action="message", args={"content": str(number)})
        write(tmp_path / f"{'00' if number == 9 else ''}{number}.json", value)
    records = [record for path in sorted(tmp_path.iterdir()) for record in read(path)]
    assert [[text for _, text in said(record)] for record in records] == [[str(number) for number in range(12)]]


def test_a_damaged_event_ends_its_conversation(tmp_path: Path) -> None:
    """What comes behind a hole has lost its context; the hole is told, with the file's name."""
    shutil.copytree(EVENTS, tmp_path / "events")
    (tmp_path / "events" / "event-00003-e3.json").write_bytes(b'{"kind": "ActionEvent", "id')
    bad = BadRecords()
    (record,) = read(tmp_path / "events" / "event-00000-e0.json", on_bad=bad)
    assert roles(record) == "su"
    assert [where for where, _ in bad.first] == ["event-00003-e3.json:1"]
    (tmp_path / "events" / "event-00000-e0.json").write_bytes(b"{")
    bad = BadRecords()
    assert read(tmp_path / "events" / "event-00001-e1.json", on_bad=bad) == []
    assert bad.count == 1


def test_events_as_lines(tmp_path: Path) -> None:
    """A file of several events is one conversation, up to a damaged line."""
    rows = [json.loads(path.read_bytes()) for path in sorted(EVENTS.iterdir())]
    path = write(tmp_path / "conversation.jsonl", *rows)
    assert [said(r) for r in read(path)] == [said(r) for r in read(EVENTS / "event-00000-e0.json")]
    path.write_text("\n".join(json.dumps(row) for row in rows[:5]) + "\n{\n" + json.dumps(rows[5]))
    bad = BadRecords()
    assert [roles(record) for record in read(path, on_bad=bad)] == ["sua"]
    assert bad.count == 1


def test_epochs_and_copies_share_identities(tmp_path: Path) -> None:
    """What an epoch repeats is the same message; so is a copy's. Other runs' are others."""
    first, second = read(EVENTS / "event-00000-e0.json")
    one, two = ([m.identity for m in chat_of(record).messages] for record in (first, second))
    assert one[:2] == [two[0], two[2]]
    assert len(set(one + two)) == len(one) + len(two) - 2
    rows = [json.loads(path.read_bytes()) for path in sorted(EVENTS.iterdir())]
    assert [m.identity for m in chat_of(read(write(tmp_path / "copy.jsonl", *rows))[0]).messages] == one
    runs = [json.loads(OUTPUT.read_text().splitlines()[0]) for _ in range(3)]
    runs[2]["history"] = [{**item, "timestamp": "later"} for item in runs[2]["history"]]
    found = [[m.identity for m in chat_of(r).messages] for r in read(write(tmp_path / "o.jsonl", *runs))]
    assert found[0] == found[1]
    assert not set(found[0]) & set(found[2])


def test_calls_of_other_responses_are_messages_of_their_own(tmp_path: Path) -> None:
    """Only calls of one response are one message, in V1 only while nothing stands between them."""
    events = [user("u", "u"), action("a", "r1"), action("b", "r2"), result("x", "a", "1"), action("c", "r2")]
    (record,) = read(write(tmp_path / "o.jsonl", run(*events)))
    assert [len(m.tool_calls) for m in chat_of(record).messages] == [0, 1, 1, 0, 1]


def test_condensations_of_v1(tmp_path: Path) -> None:
    """Several of them, one that forgets an earlier summary, one without a summary, one at the end."""
    events = [
        user("u", "u"),
        action("a", "r1"),
        result("b", "a", "1"),
        condensation("c1", ["a"], "S1", 1),
        action("d", "r2"),
        result("e", "d", "2"),
        condensation("c2", ["c1-summary", "d", "e"], "S2", 0),
        user("f", "more"),
        condensation("c3", ["u"]),
    ]
    records = read(write(tmp_path / "o.jsonl", run(*events)))
    assert [[text for _, text in said(record)] for record in records] == [
        ["u", "", "1"],
        ["u", "S1", "", "2"],  # The result of the forgotten call is sent to nobody.
        ["S2", "u", "more"],
    ]


def test_results_of_all_kinds(tmp_path: Path) -> None:
    """Rejections and errors are tool results; an error of the tool has its header; early versions their fields."""
    events = [
        action("a", "r"),
        event("UserRejectObservation", "1", "environment", rejection_reason="no", tool_call_id="a", action_id="a"),
        event("AgentErrorEvent", "2", error="unknown tool", tool_call_id="a"),
        {**result("3", "a", "bad"), "observation": {"content": [{"type": "text", "text": "bad"}], "is_error": True}},
        {**result("4", "a", ""), "observation": {"kind": "X", "output": "early"}},
        {**result("5", "a", ""), "observation": {"kind": "X", "path": "p"}},
        {**result("6", "a", "t"), "extended_content": [{"type": "text", "text": "+"}]},
        event("PauseEvent", "7", "user"),
    ]
    assert said(read(write(tmp_path / "o.jsonl", run(*events)))[0])[1:] == [
        ("tool", "Action rejected: no"),
        ("tool", "unknown tool"),
        ("tool", "[An error occurred during execution.]\nbad"),
        ("tool", "early"),
        ("tool", '{"path": "p"}'),
        ("tool", "t+"),
    ]


def test_what_nobody_should_learn_is_context(tmp_path: Path) -> None:
    """Arguments that are no JSON (kept as text), an assistant's words from the user, an empty answer."""
    seeded = event("MessageEvent", "s", "user", llm_message={"role": "assistant", "content": "seeded"})
    empty = event("MessageEvent", "e", "agent", llm_message={"role": "assistant", "content": []})
    (record,) = read(write(tmp_path / "o.jsonl", run(action("a", "r", '{"x'), seeded, empty, action("b", "q"))))
    assert roles(record) == "AAAa"
    assert chat_of(record).messages[0].tool_calls[0].arguments == '"{\\"x"'


def test_runs_without_history(tmp_path: Path) -> None:
    """They failed before anything was said: an empty example each, and no error."""
    path = write(tmp_path / "o.jsonl", run(history=None, error="died"), run(), run(user("u", "u")))
    assert source_of(path).format == "openhands"
    assert [said(record) for record in read(path)] == [[], [], [("user", "u")]]


@pytest.mark.parametrize(
    "value",
    [
        run("x"),
        run(user("u", "u"), 7),
        run(history="x"),
        run({"kind": "MessageEvent"}),
        run({"kind": "ActionEvent", "thought": []}),
        run(condensation("c", [1.5])),  # type: ignore[list-item]
        run(condensation("c", [], "S", -1)),
        run({**user("u", "u"), "llm_message": {"role": "poet", "content": ""}}),
        run({**user("u", "u"), "llm_message": {"role": "user", "content": [{"type": "image", "image_urls": []}]}}),
        run(old(0, action="run", args=None)),
        run(old(0, nothing=1)),
        run({**user("u", "u"), "extended_content": 5}),
        run(saw(1, 0, 5)),  # type: ignore[arg-type]
        run(user("u", "\ud83d")),
        {**run(), "instance_id": []},
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(tmp_path: Path, value: dict[str, Any]) -> None:
    """A damaged run names its file and line, and the next one is read."""
    path = write(tmp_path / "o.jsonl", value, run(user("u", "u")))
    with pytest.raises(DataError, match=r"o\.jsonl:1"):
        read(path, module=openhands)
    bad = BadRecords()
    assert [roles(record) for record in read(path, module=openhands, on_bad=bad)] == ["u"]
    assert bad.count == 1


def test_no_other_record_is_taken() -> None:
    """Dumps of messages, histories of other formats, and states of games keep their readers."""
    options = ReadOptions()
    messages = [{"role": "user", "content": "u"}]
    assert recognise({"instance_id": "i", "resolved": True, "messages": messages}, options) == "chat"
    others: list[Event] = [
        {"history": [["q", "a"]], "instruction": "i", "output": "o"},
        {"history": []},
        {"instance_id": "i", "history": None},
        {"history": [{"role": "user", "content": "u", "agent": "main"}]},
        {"state": 1, "action": "left", "id": 1, "source": "agent", "timestamp": "t"},
        {"kind": "Event", "source": "agent"},
        {"kind": "pod", "source": "agent", "timestamp": "t", "id": "x"},
    ]
    for record in others:
        assert not openhands.recognise(record, options)


@pytest.mark.parametrize("path", [OUTPUT, EVENTS / "event-00003-e3.json"], ids=lambda path: path.name)
def test_damaged_files(tmp_path: Path, path: Path) -> None:
    """Whatever is cut, changed or of another kind is told."""
    assert_damage_is_told(openhands, path, tmp_path, seed=8, rounds=300)


def test_damaged_lines_of_events(tmp_path: Path) -> None:
    """The same for all kinds of events together."""
    rows = [json.loads(path.read_bytes()) for path in sorted(EVENTS.iterdir())]
    path = write(tmp_path / "events.json", run(*rows))
    (tmp_path / "damaged").mkdir()
    assert_damage_is_told(openhands, path, tmp_path / "damaged", seed=9, rounds=300)


@pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real files is not beside the project")
def test_files_of_the_collection() -> None:
    """V0, V1 and a folder of events: the agent's two messages are trained in each."""
    folder = REAL / "openhands-edge"
    call = '{"name": "%s", "arguments": {"command": "ls"}}'
    assert supervised(folder / "output_v0.jsonl") == ["I will list." + call % "execute_bash", "There is a.txt"]
    for path in (folder / "output_v1.jsonl", folder / "conversation" / "events" / "event-00000-e0.json"):
        assert supervised(path) == ["I will list." + call % "terminal", "There is a.txt"]
    assert read(folder / "conversation" / "events" / "event-00001-e1.json") == []
