"""Sessions of pi: what pi itself would send, on real files and on the edges; who trains what."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dagpack_cli.corpora import BadRecords, ReadOptions, raise_bad
from dagpack_cli.corpora.agents.pi import read
from dagpack_cli.corpora.agents.pi_entries import Entry, context_of, read_session
from dagpack_cli.corpora.discover import discover
from dagpack_cli.corpora.files.sources import stat_source
from dagpack_cli.corpora.reading import read_examples
from dagpack_cli.corpora.records import Chat, Record
from dagpack_cli.corpora.sessions import leaves_of, path_to, read_until_bad
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing import ByteTokenizer
from dagpack_cli.tokenizing.byte_level import END_OF_TURN
from dagpack_cli.tokenizing.chat import Part, targets_of
from dagpack_cli.tokenizing.messages import Message

REAL = Path(__file__).resolve().parent.parent.parent / "shared" / "real"
LETTERS = {"user": "u", "assistant": "a", "toolResult": "t"}

needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not beside the checkout")


def contexts(path: Path, on_bad: Any = raise_bad) -> dict[str, list[tuple[Entry, dict[str, Any]]]]:
    """Return the context of every leaf of a session file, by the leaf's id."""
    session = read_session(read_until_bad(stat_source(path, path.name, ""), on_bad), on_bad)
    if session is None:
        return {}
    found = {}
    for leaf in leaves_of(session.parents):
        entries = [session.entries[number] for number in path_to(session.parents, leaf)]
        found[session.entries[leaf].id] = list(context_of(entries))
    return found


def records(path: Path) -> list[Record]:
    """Return what the reader makes of one file."""
    [source] = discover(path).inputs
    assert source.format == "pi"
    return list(read(source, ReadOptions(), raise_bad))


def script_json(value: Any) -> str:
    """Return JSON as JavaScript writes it: no spaces, keys in their order, its own form of numbers."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{script_json(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(script_json, value)) + "]"
    if isinstance(value, float):
        text = repr(value)
        mantissa, _, exponent = text.partition("e")
        if value == int(value) and abs(value) < 1e21:
            return str(int(value))
        if not exponent:
            return mantissa
        number = int(exponent)
        if -7 <= number < 0:
            digits = mantissa.replace(".", "").removeprefix("-")
            return ("-" if value < 0 else "") + "0." + "0" * (-number - 1) + digits
        return f"{mantissa}e{'+' if number > 0 else '-'}{abs(number)}"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value)


def sent(context: Sequence[tuple[Entry, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return a context as pi hands it over: messages that it makes up itself carry their entry's time."""
    from datetime import datetime

    found = []
    for entry, message in context:
        stored = entry.fields.get("message")
        if message is stored:
            found.append(message)
            continue
        if entry.type == "message":
            time = stored.get("timestamp") if isinstance(stored, dict) else None
        else:
            time = round(datetime.fromisoformat(entry.fields["timestamp"]).timestamp() * 1000)
        found.append(message | {"timestamp": time})
    return found


@needs_real
@pytest.mark.parametrize("name", ["branched-large-session", "fork-1", "fork-2", "fork-3", "compaction-branches"])
def test_contexts_are_those_that_pi_sends(name: str) -> None:
    """For every leaf: as many messages, the same roles, and the same JSON to the byte as pi's own code."""
    oracle = json.loads((REAL / "pi" / "expected-contexts.json").read_bytes())[f"{name}.jsonl"]
    found = contexts(REAL / "pi" / f"{name}.jsonl")
    assert set(found) == {leaf["leafId"] for leaf in oracle["leaves"]}
    for leaf in oracle["leaves"]:
        messages = sent(found[leaf["leafId"]])
        assert len(messages) == leaf["nLlm"]
        assert "".join(LETTERS[message["role"]] for message in messages) == leaf["roles"]
        digest = hashlib.sha256(script_json(messages).encode("utf-8", "surrogatepass")).hexdigest()
        assert digest == leaf["sha256"], leaf["leafId"]


def spoken(context: Sequence[tuple[Entry, dict[str, Any]]]) -> list[str]:
    """Return a context in short: who, and the text or the name of the call."""
    found = []
    for _, message in context:
        blocks = message["content"] if isinstance(message["content"], list) else [{"text": message["content"]}]
        found.append(
            LETTERS[message["role"]] + ":" + "".join(str(block.get("text", block.get("name"))) for block in blocks)
        )
    return found


@needs_real
def test_edges_are_read_as_pi_reads_them() -> None:
    """Damage, duplicates, version 1, BOM and CRLF: the same leaves with the same words; a cycle is an error."""
    oracle = json.loads((REAL / "pi-edge" / "expected-contexts.json").read_bytes())
    compared = 0
    for name, expected in oracle.items():
        path = REAL / "pi-edge" / name
        bad = BadRecords()
        if "note" in expected:
            with pytest.raises(DataError, match=r"cycle.jsonl:2: entry c1 is its own ancestor"):
                contexts(path, bad)
            continue
        found = contexts(path, bad)
        leaves = expected.get("leaves", [])
        assert len(found) == len(leaves), name
        for leaf in leaves:
            context = next(iter(found.values())) if leaf["leaf"] == "(random id)" else found[leaf["leaf"]]
            assert len(context) == leaf["n"], name
            if "texts" in leaf:
                assert spoken(context) == leaf["texts"], name
            compared += 1
        assert bad.count == (name in ("truncated_last_line.jsonl", "no_header.jsonl")), name
    assert compared == 12


def write(path: Path, lines: Sequence[Any], version: Any = 3, **header: Any) -> Path:
    """Write a session file."""
    first = {"type": "session", "id": path.stem, "cwd": "/w"} | header
    if version is not None:
        first["version"] = version
    path.write_text("".join(json.dumps(line) + "\n" for line in [first, *lines]), encoding="utf-8")
    return path


def entry(own: str, parent: str | None, role: str, text: Any, time: float = 0, **more: Any) -> dict[str, Any]:
    """Return a message entry."""
    content = [{"type": "text", "text": text}] if isinstance(text, str) else text
    message = {"role": role, "content": content, "timestamp": time} | more
    return {"type": "message", "id": own, "parentId": parent, "message": message}


def told(record: Record) -> list[tuple[str, str, float]]:
    """Return role, content and weight of every message."""
    assert isinstance(record.body, Chat)
    return [(message.role, message.content, message.weight) for message in record.body.messages]


def test_a_leaf_and_an_epoch_each_give_an_example(tmp_path: Path) -> None:
    """What a compaction drops is an example of its own; identities are those of the path, not of the context."""
    lines = [
        entry("u1", None, "user", "q1", 1),
        entry("a1", "u1", "assistant", "r1", 2),
        entry("u2", "a1", "user", "q2", 3),
        entry("a2", "u2", "assistant", "r2", 4),
        {"type": "compaction", "id": "c", "parentId": "a2", "summary": "S", "firstKeptEntryId": "u2"},
        entry("u3", "c", "user", "q3", 5),
        entry("a3", "u3", "assistant", "r3", 6),
        {"type": "future", "id": "x", "parentId": "u3"},
        entry("b3", "x", "assistant", "other", 7),
    ]
    found = records(write(tmp_path / "s.jsonl", lines))
    assert [record.id for record in found] == ["s:a2", "s:a3", "s:b3"]
    before, after, sibling = (record.body.messages for record in found)  # type: ignore[union-attr]
    assert [message.content for message in before] == ["q1", "r1", "q2", "r2"]
    assert [message.content for message in after][1:] == ["q2", "r2", "q3", "r3"]
    assert after[0].content.endswith("<summary>\nS\n</summary>")
    assert [message.content for message in sibling][1:] == ["q2", "r2", "q3", "other"]
    assert after[2].identity == before[3].identity
    assert after[3].identity == sibling[3].identity
    assert after[4].identity != sibling[4].identity
    assert len({message.identity for message in (*before, *after)}) == 7


def test_forks_share_identities_and_other_runs_do_not(tmp_path: Path) -> None:
    """A fork copies a path; a run that says the same at other times, or without times, is another run."""
    lines = [entry("u", None, "user", "q", 1), entry("a", "u", "assistant", "r", 2)]
    later = [entry("u", None, "user", "q", 11), entry("a", "u", "assistant", "r", 12)]
    timeless = [
        {**line, "message": {key: value for key, value in line["message"].items() if key != "timestamp"}}
        for line in lines
    ]
    [first] = records(write(tmp_path / "one.jsonl", lines))
    [fork] = records(write(tmp_path / "two.jsonl", lines, parentSession="/home/x/one.jsonl"))
    [old] = records(
        write(tmp_path / "three.jsonl", [{"type": "message", "message": line["message"]} for line in lines], None)
    )
    others = [records(write(tmp_path / f"{name}.jsonl", content))[0] for name, content in
              [("four", later), ("five", timeless), ("six", timeless)]]  # fmt: skip
    names = [
        record.body.messages[1].identity  # type: ignore[union-attr]
        for record in (first, fork, old, *others)
    ]
    assert names[0] == names[1] == names[2]
    assert len(set(names[2:])) == 4
    assert fork.family == first.family
    assert fork.group != first.group


def test_failed_answers_are_context_and_empty_ones_left_out(tmp_path: Path) -> None:
    """Aborted and failed answers train nothing; a call that was never answered gets pi's made-up result."""
    call = [{"type": "toolCall", "id": "t1", "name": "bash", "arguments": {"command": "ls"}}]
    lines = [
        entry("u1", None, "user", "q", 1),
        entry("a1", "u1", "assistant", [], 2, stopReason="aborted"),
        entry("a2", "a1", "assistant", "half", 3, stopReason="aborted"),
        entry("u2", "a2", "user", "again", 4),
        entry("a3", "u2", "assistant", call, 5, stopReason="toolUse"),
        entry("u3", "a3", "user", "stop", 6),
        entry("a4", "u3", "assistant", "wrong", 7, stopReason="error"),
        entry("a5", "a4", "assistant", "stopped", 8),
    ]
    [record] = records(write(tmp_path / "s.jsonl", lines))
    assert told(record) == [
        ("user", "q", 1),
        ("assistant", "half", 0),
        ("user", "again", 1),
        ("assistant", "", 1),
        ("tool", "No result provided", 1),
        ("user", "stop", 1),
        ("assistant", "wrong", 0),
        ("assistant", "stopped", 1),
    ]
    assert record.body.messages[3].tool_calls[0].arguments == '{"command": "ls"}'  # type: ignore[union-attr]


def test_what_is_not_text_is_told_in_text(tmp_path: Path) -> None:
    """Commands, custom messages, branch summaries, images, thinking and half surrogates."""
    bash = {"role": "bashExecution", "command": "ls", "output": "a", "exitCode": 2, "timestamp": 1}
    hidden = bash | {"excludeFromContext": True}
    image = [{"type": "text", "text": "see"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]
    thinking = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "thinking", "thinking": "secret", "redacted": True},
        {"type": "text", "text": "cut \ud83d"},
    ]
    lines = [
        {"type": "message", "id": "1", "parentId": None, "message": bash},
        {"type": "message", "id": "2", "parentId": "1", "message": hidden},
        {"type": "custom_message", "id": "3", "parentId": "2", "customType": "x", "content": "note", "display": False},
        {"type": "branch_summary", "id": "4", "parentId": "3", "fromId": "1", "summary": "gone"},
        {"type": "branch_summary", "id": "5", "parentId": "4", "fromId": "1", "summary": ""},
        entry("6", "5", "user", image, 2),
        entry("7", "6", "assistant", thinking, 3),
    ]
    [record] = records(write(tmp_path / "s.jsonl", lines))
    texts = [content for _, content, _ in told(record)]
    assert texts == [
        "Ran `ls`\n```\na\n```\n\nCommand exited with code 2",
        "note",
        "The following is a summary of a branch that this conversation came back from:\n\n<summary>\ngone</summary>",
        "see\n[image: image/png]",
        "cut \ufffd",
    ]
    assert record.body.messages[-1].reasoning == "hm"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"type": "message", "id": "a", "parentId": None, "message": 3}, '"message" is 3'),
        (entry("a", None, "wizard", "x"), 'a message\'s role is "wizard"'),
        (entry("a", None, "user", [{"type": "hologram"}]), 'a block of content is "hologram"'),
        (entry("a", None, "user", {"x": 1}), '"content" is an object'),
        (entry("a", None, "assistant", [{"type": "toolCall", "name": None}]), "a tool call's name is null"),
        ({"type": "message", "id": 7, "parentId": None}, "an entry's id is 7"),
        (entry("a", "a", "user", "x"), "entry a is its own ancestor"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(line: dict[str, Any], words: str, tmp_path: Path) -> None:
    """A session with an entry that is none says which line, and yields nothing that would be false."""
    path = write(tmp_path / "s.jsonl", [line])
    bad = BadRecords()
    [source] = discover(path).inputs
    assert list(read(source, ReadOptions(), bad)) == []
    assert bad.count == 1
    assert bad.first[0][0] == "s.jsonl:2"
    assert bad.first[0][1].startswith(words)


@pytest.mark.parametrize("supervise", ["assistant", "last-turn", "completion", "all"])
def test_end_of_an_answer_that_was_cut_off_is_no_target(supervise: Any) -> None:
    """Nobody wrote it; only where every token is a target it is one."""
    messages = [Message(role="user"), Message(role="assistant", content="half", ended=False)]
    found = targets_of(messages, supervise=supervise)[1]
    assert found & Part.CONTENT
    assert bool(found & Part.END) == (supervise == "all")


def test_answers_that_reached_their_limit(tmp_path: Path) -> None:
    """Their text is trained, the end of the turn is not; a call that was cut is not what the model wrote."""
    call = {"type": "toolCall", "id": "t", "name": "bash", "arguments": {"command": "l"}}
    lines = [
        entry("u", None, "user", "q", 1),
        entry("a", "u", "assistant", "half", 2, stopReason="length"),
        entry("v", "a", "user", "on", 3),
        entry("b", "v", "assistant", [{"type": "text", "text": "so"}, call], 4, stopReason="length"),
        entry("w", "b", "user", "on", 5),
        entry("c", "w", "assistant", "end", 6, stopReason="stop"),
    ]
    path = write(tmp_path / "s.jsonl", lines)
    [record] = records(path)
    assert isinstance(record.body, Chat)
    answers = [message for message in record.body.messages if message.role == "assistant"]
    assert [(m.content, m.ended, m.weight) for m in answers] == [
        ("half", False, 1),
        ("so", False, 0),
        ("end", True, 1),
    ]
    assert [m.content for m in record.body.messages if m.role == "tool"] == ["No result provided"]
    [example] = read_examples(discover(path).inputs[0], ByteTokenizer(), ReadOptions())
    trained = [example.tokens[start:end].tolist() for start, end in example.runs.tolist()]
    assert [tokens[-1] == END_OF_TURN for tokens in trained] == [False, True]


@pytest.mark.parametrize("bad_line", ["{", "[7]", '{"type": "message", "id": 3}', '{"type": "message", "id": "x"}'])
def test_damage_ends_a_session(bad_line: str, tmp_path: Path) -> None:
    """What stands behind a line that cannot be read has lost its context; what stands before it is read."""
    before = [entry("u", None, "user", "q", 1), entry("a", "u", "assistant", "r", 2)]
    path = write(tmp_path / "s.jsonl", before)
    behind = [entry("v", "x", "user", "lost", 3), entry("b", "v", "assistant", "lost", 4)]
    path.write_text(path.read_text() + bad_line + "\n" + "".join(json.dumps(line) + "\n" for line in behind) + "{\n")
    [source] = discover(path).inputs
    bad = BadRecords()
    [record] = read(source, ReadOptions(), bad)
    assert [content for _, content, _ in told(record)] == ["q", "r"]
    assert [where for where, _ in bad.first] == ["s.jsonl:4"]
    assert bad.first[0][1].endswith("the session is read up to here")
    with pytest.raises(DataError, match=r"s\.jsonl:4"):
        list(read(source, ReadOptions(), raise_bad))


def test_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    """A last line without a line feed is no error; with one, or before the last, it is."""
    whole = write(tmp_path / "s.jsonl", [entry("u", None, "user", "q", 1), entry("a", "u", "assistant", "r", 2)])
    text = whole.read_text()
    for tail, unfinished in (('{"type": "mess', True), ('{"type": "mess\n', False), ('{"type\n{"type', False)):
        whole.write_text(text + tail)
        source = stat_source(whole, whole.name, "pi")
        bad = BadRecords()
        if unfinished:
            [record] = read(source, ReadOptions(), bad.or_raise)
            assert bad.count == 1
            assert bad.first[0][0] == "s.jsonl:4"
            assert "still being written" in bad.first[0][1]
            assert [record] == list(read(source, ReadOptions(), raise_bad))
        else:
            with pytest.raises(DataError, match=r"s\.jsonl:4"):
                list(read(source, ReadOptions(), bad.or_raise))
            [record] = read(source, ReadOptions(), bad)
        assert [content for _, content, _ in told(record)] == ["q", "r"]


@pytest.mark.parametrize("version", [9, 4, 0, 2.5, "3", True, [3]])
def test_unknown_versions_are_refused(version: Any, tmp_path: Path) -> None:
    """What a later version means by its entries nobody can know."""
    path = write(tmp_path / "s.jsonl", [entry("u", None, "user", "q", 1)], version)
    [source] = discover(path).inputs
    with pytest.raises(DataError, match=r"^s\.jsonl:1: version .*; 1 to 3"):
        list(read(source, ReadOptions(), raise_bad))


def identities(path: Path) -> list[bytes]:
    """Return the identities of the messages of a session with one leaf."""
    [record] = records(path)
    assert isinstance(record.body, Chat)
    return [message.identity for message in record.body.messages]


def test_times_of_entries_tell_copies(tmp_path: Path) -> None:
    """An entry's time is as good as its message's; before the first time of a path the session's id counts."""
    times = ["2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.000Z"]
    lines = [entry("u", None, "user", "q"), entry("a", "u", "assistant", "r")]
    for line in lines:
        del line["message"]["timestamp"]
    stamped = [line | {"timestamp": time} for line, time in zip(lines, times, strict=True)]
    late = [lines[0], stamped[1]]
    other = [stamped[0], stamped[1] | {"timestamp": "2026-01-01T00:00:02.000Z"}]
    found = {
        name: identities(write(tmp_path / f"{name}.jsonl", content))
        for name, content in [("a", stamped), ("b", stamped), ("c", other), ("d", late), ("e", late)]
    }
    assert found["a"] == found["b"]
    assert found["a"][0] == found["c"][0]
    assert found["a"][1] != found["c"][1]
    assert found["d"][0] != found["e"][0]
    assert found["d"][1] == found["e"][1]


def test_one_message_without_a_time_does_not_part_copies(tmp_path: Path) -> None:
    """The rest of the file keeps its identities."""
    lines = [entry("u", None, "user", "q", 1), entry("a", "u", "assistant", "r", 2), entry("v", "a", "user", "s", 3)]
    del lines[2]["message"]["timestamp"]
    assert identities(write(tmp_path / "a.jsonl", lines)) == identities(write(tmp_path / "b.jsonl", lines))


def test_a_migrated_session_is_a_copy(tmp_path: Path) -> None:
    """Version 3 calls a hook's message custom, and changes nothing else."""
    hook = entry("h", "u", "hookMessage", "note", 2)
    custom = hook | {"message": hook["message"] | {"role": "custom"}}
    first, last = entry("u", None, "user", "q", 1), entry("a", "h", "assistant", "r", 3)
    assert identities(write(tmp_path / "a.jsonl", [first, hook, last], 2)) == identities(
        write(tmp_path / "b.jsonl", [first, custom, last], 3)
    )
