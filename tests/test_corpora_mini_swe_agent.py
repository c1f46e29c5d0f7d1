"""mini-SWE-agent: bare lists are one conversation, objects one each, and the harness's last word is dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_logs import FIXTURES, REAL, assert_damage_is_told, chat_of, read, roles, said, source_of, supervised, write

from dagpack_cli.corpora.agents import mini_swe_agent
from dagpack_cli.corpora.formats import recognise
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import BadRecords
from dagpack_cli.errors import DataError

BARE = FIXTURES / "mini-swe-agent" / "bare.traj.json"
TOOLS = FIXTURES / "mini-swe-agent" / "tools.traj.json"
INFO = {"exit_status": "Submitted", "submission": "", "model_stats": {"instance_cost": 0, "api_calls": 1}}


def row(*contents: str, **more: Any) -> dict[str, Any]:
    """Return a trajectory of a user and an assistant taking turns."""
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(contents)]
    return {"info": INFO, "messages": messages, **more}


def test_a_bare_list_is_one_conversation() -> None:
    """The rows of the file are its messages; the empty one at the end is dropped."""
    (record,) = read(BARE)
    assert said(record) == [
        ("system", "One command."),
        ("user", "Say hello."),
        ("assistant", "THOUGHT: hello\n```bash\necho hello\n```"),
        ("user", "<output>\nhello\n</output>"),
        ("assistant", "```bash\necho DONE\n```"),
    ]
    assert supervised(BARE) == ["THOUGHT: hello\n```bash\necho hello\n```", "```bash\necho DONE\n```"]


def test_tool_calls_and_the_exit_message() -> None:
    """Calls are trained with thinking; ``exit`` is no role of a model's, a refused answer is context."""
    (record,) = read(TOOLS)
    assert roles(record) == "suatAua"
    assert supervised(TOOLS) == [
        'Easy.{"name": "bash", "arguments": {"command": "echo hello"}}',
        'Done.{"name": "bash", "arguments": {"command": "echo DONE"}}',
    ]
    assert chat_of(record).messages[3].tool_call_id == "c1"


def test_several_trajectories_as_lines(tmp_path: Path) -> None:
    """Each object is a conversation; what stands behind an exit that is not the last is kept."""
    exited = row("u", "a")
    exited["messages"] += [{"role": "exit", "content": "Submitted"}, {"role": "user", "content": "more"}]
    exited["messages"] += [{"role": "assistant", "content": "b"}]
    path = write(
        tmp_path / "runs.jsonl", row("u", "a", "o", ""), exited, row("q", trajectory_format="mini-swe-agent-1")
    )
    assert [[text for _, text in said(record)] for record in read(path)] == [
        ["u", "a", "o"],
        ["u", "a", "more", "b"],
        ["q"],
    ]


def test_an_empty_last_answer_is_dropped_but_not_one_with_calls(tmp_path: Path) -> None:
    """Nothing was said in it; a call says something."""
    calls = [{"function": {"name": "bash", "arguments": {}}}]
    called = {"info": INFO, "messages": [{"role": "assistant", "content": None, "tool_calls": calls}]}
    assert [roles(record) for record in read(write(tmp_path / "a.jsonl", row("u", "a", "o", ""), called))] == [
        "uau",
        "a",
    ]


def test_bare_messages_as_lines(tmp_path: Path) -> None:
    """The same messages one a line are the same conversation."""
    path = write(tmp_path / "lines.jsonl", *json.loads(BARE.read_bytes()))
    assert said(read(path)[0]) == said(read(BARE)[0])


def test_a_damaged_row_ends_a_bare_conversation(tmp_path: Path) -> None:
    """What came before is what the agent saw; what comes after has lost its context."""
    for damage in ("{", "7", '{"role": "assistant", "content": 5}', '{"role": "narrator", "content": ""}'):
        lines = ['{"role": "user", "content": "u"}', '{"role": "assistant", "content": "a"}', damage]
        path = tmp_path / "lines.jsonl"
        path.write_text("\n".join([*lines, '{"role": "assistant", "content": "lost"}']))
        bad = BadRecords()
        (record,) = read(path, on_bad=bad, module=mini_swe_agent)
        assert [text for _, text in said(record)] == ["u", "a"]
        assert bad.count == 1
        assert bad.first[0][0].startswith("lines.jsonl:3")
    path.write_text('[{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"')
    bad = BadRecords()
    assert [roles(record) for record in read(path, on_bad=bad)] == ["u"]
    assert bad.count == 1


def test_a_damaged_trajectory_is_told_and_the_next_is_read(tmp_path: Path) -> None:
    """One line is bad, not the file."""
    broken = row("u", "a")
    broken["messages"].append("x")
    path = write(tmp_path / "runs.jsonl", broken, row("u", "b"))
    with pytest.raises(DataError, match=r"runs\.jsonl:1, message 3"):
        read(path)
    bad = BadRecords()
    assert [said(record)[-1] for record in read(path, on_bad=bad)] == [("assistant", "b")]
    assert bad.count == 1


def test_runs_that_said_the_same_at_other_times_are_two(tmp_path: Path) -> None:
    """Times tell runs apart; a copy is the same run."""
    value = json.loads(TOOLS.read_bytes())
    copied = write(tmp_path / "copy.json", value)
    value["messages"][2]["extra"]["timestamp"] = 9
    other = write(tmp_path / "other.json", value)
    first, same, later = ([m.identity for m in chat_of(read(path)[0]).messages] for path in (TOOLS, copied, other))
    assert first == same
    assert len(set(first)) == len(first)
    assert not set(first) & set(later)


def identities(path: Path) -> list[bytes]:
    """Return the identities of a file's one conversation."""
    [record] = read(path)
    return [m.identity for m in chat_of(record).messages]


def test_a_copy_saved_earlier_carries_the_same_messages(tmp_path: Path) -> None:
    """With times, a message is what was said up to it and when: costs and what follows do not count."""
    value = json.loads(TOOLS.read_bytes())
    for index, message in enumerate(value["messages"][1:], 1):  # The prompt has no time of its own.
        message["extra"] = {**message.get("extra", {}), "timestamp": 1700000000.25 + index}
    whole = write(tmp_path / "whole.json", value)
    value["messages"] = value["messages"][:4]
    value["info"]["model_stats"] = {"instance_cost": 0.125}
    early = write(tmp_path / "early.json", value)
    assert identities(whole)[:4] == identities(early)
    assert read(whole)[0].group == read(early)[0].group
    value["messages"][2]["extra"]["timestamp"] += 0.5
    other = identities(write(tmp_path / "other.json", value))
    assert [one == two for one, two in zip(other, identities(early), strict=True)] == [True, True, False, False]


def test_runs_without_times_are_told_by_instance_and_costs(tmp_path: Path) -> None:
    """Version 1 writes no times: two runs that said the same have other costs, or another instance."""
    dear = {**INFO, "model_stats": {"instance_cost": 0.5, "api_calls": 1}}
    files = [row("u", "a"), row("u", "a"), row("u", "a", info=dear), row("u", "a", instance_id="i")]
    found = [identities(write(tmp_path / f"{n}.json", value)) for n, value in enumerate(files)]
    assert found[0] == found[1]
    assert len({identity for listed in found for identity in listed}) == 6


def test_answers_that_reached_their_limit(tmp_path: Path) -> None:
    """The API's answer, which later versions keep, says so."""
    value = row("u", "a", "o", "b")
    for message, reason in zip(value["messages"][1::2], ("length", "stop"), strict=True):
        message["extra"] = {"response": {"choices": [{"finish_reason": reason}]}}
    [record] = read(write(tmp_path / "a.json", value))
    assert [m.ended for m in chat_of(record).messages] == [True, False, True, True]


def test_other_records_keep_their_formats() -> None:
    """Only what is a message and nothing more, or names the agent, is taken from the formats behind."""
    options = ReadOptions()
    assert recognise(row("u"), options) == "mini-swe-agent"
    assert recognise({"role": "user", "content": "u"}, options) == "mini-swe-agent"
    for record, name in (
        ({"messages": [{"role": "user", "content": "u"}]}, "chat"),
        ({"messages": [{"role": "user", "content": "u"}], "info": {"source": "web"}}, "chat"),
        ({"instance_id": "i", "resolved": True, "messages": [{"role": "user", "content": "u"}]}, "chat"),
        ({"role": "user", "content": "u", "text": "t"}, "jsonl-text"),
        ({"role": "poet", "content": "c"}, None),
        ({"role": "user", "content": "u", "uuid": "x"}, None),
    ):
        assert recognise(record, options) == name
    assert recognise({"role": "user", "content": "c"}, ReadOptions(text_field="content")) == "jsonl-text"


@pytest.mark.parametrize("path", [BARE, TOOLS], ids=lambda path: path.name)
def test_damaged_files(tmp_path: Path, path: Path) -> None:
    """Whatever is cut, changed or of another kind is told."""
    assert_damage_is_told(mini_swe_agent, path, tmp_path, seed=6, rounds=300)


@pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real files is not beside the project")
def test_real_files() -> None:
    """In three real files what is trained is what the assistant wrote: 10, 2 and 1 messages."""
    paths = [*sorted((REAL / "mini-swe-agent").iterdir()), REAL / "misc-edge" / "mini_swe_1.1.traj.json"]
    counts = []
    for path in paths:
        assert source_of(path).format == "mini-swe-agent"
        value = json.loads(path.read_bytes())
        messages = value if isinstance(value, list) else value["messages"]
        written = [message["content"] for message in messages if message["role"] == "assistant"]
        assert supervised(path) == written
        counts.append(len(written))
    assert counts == [10, 2, 1]
