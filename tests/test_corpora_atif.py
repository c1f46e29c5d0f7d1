"""ATIF: steps become messages, and where the agent's token ids are there they are the examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agent_logs import FIXTURES, REAL, assert_damage_is_told, chat_of, read, roles, said, source_of, supervised, write

from dagpack_cli.corpora.agents import atif
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import BadRecords, Ids
from dagpack_cli.errors import DataError

TEXT = FIXTURES / "atif" / "text.json"
IDS = FIXTURES / "atif" / "ids.json"


def step(source: str, message: Any = "m", **more: Any) -> dict[str, Any]:
    """Return a step."""
    return {"step_id": 1, "source": source, "message": message, **more}


def with_ids(prompt: Any, completion: Any, **more: Any) -> dict[str, Any]:
    """Return an agent's step with token ids."""
    return step("agent", metrics={"prompt_token_ids": prompt, "completion_token_ids": completion}, **more)


def trajectory(*steps: Any, **more: Any) -> dict[str, Any]:
    """Return a trajectory."""
    return {
        "schema_version": "ATIF-v1.5",
        "session_id": "s",
        "agent": {"name": "a", "version": "1"},
        "steps": [*steps],
        **more,
    }


def test_steps_become_messages() -> None:
    """Results follow the step that asked; a reference to another trajectory says nothing; copies are context."""
    (record,) = read(TEXT)
    assert said(record) == [
        ("system", "Be brief."),
        ("user", "List."),
        ("assistant", ""),
        ("tool", "a.txt"),
        ("tool", "/w"),
        ("ASSISTANT", "Copied."),
        ("assistant", "ls"),
        ("user", "screen"),
        ("assistant", "There is a.txt."),
    ]
    chat = chat_of(record)
    assert [m.tool_call_id for m in chat.messages[3:5]] == ["c1", "c2"]
    assert chat.tools == ({"type": "function", "function": {"name": "bash", "parameters": {}}},)
    assert (record.id, record.group) == ("run-1", "run-1")


def test_what_the_agent_wrote_is_trained() -> None:
    """Thinking, text and calls, each once."""
    assert supervised(TEXT) == [
        'Two at once.{"name": "bash", "arguments": {"command": "ls"}}{"name": "bash", "arguments": {"command": "pwd"}}',
        "ls",
        "There is a.txt.",
    ]


def test_token_ids_are_never_made_again() -> None:
    """Each step of the agent is its prompt and its completion, which alone is trained."""
    records = read(IDS)
    bodies = [record.body for record in records]
    assert all(isinstance(body, Ids) for body in bodies)
    found = [(body.ids.tolist(), body.runs.tolist()) for body in bodies if isinstance(body, Ids)]
    assert found == [([5, 6, 7, 8, 9], [[3, 5]]), ([5, 6, 7, 8, 9, 10, 11], [[6, 7]])]
    assert all(isinstance(body, Ids) and body.ids.dtype == np.int32 for body in bodies)
    assert [(record.id, record.group) for record in records] == [("run-2#0", "run-2"), ("run-2#1", "run-2")]


def test_which_files_hold_ids() -> None:
    """All steps that a model wrote have them, or the trajectory is text."""
    assert atif.holds_ids(json.loads(IDS.read_bytes()))
    assert not atif.holds_ids(json.loads(TEXT.read_bytes()))
    assert not atif.holds_ids(trajectory(with_ids([1], [2]), step("agent")))
    assert atif.holds_ids(trajectory(with_ids([1], [2]), step("agent", is_copied_context=True)))
    assert not atif.holds_ids({"steps": "x"})


def test_ids_and_text_are_not_mixed(tmp_path: Path) -> None:
    """Half of the steps of one trajectory, or one trajectory of a file, cannot be read by one tokenizer."""
    half = write(tmp_path / "half.json", trajectory(with_ids([1], [2]), step("agent")))
    with pytest.raises(DataError, match="1 of 2 steps of the agent carry token ids"):
        read(half)
    both = write(
        tmp_path / "both.jsonl",
        trajectory(with_ids([1], [2])),
        trajectory(step("agent")),
        trajectory(with_ids([3], [4])),
    )
    with pytest.raises(DataError, match=r"both\.jsonl:2: no token ids here, unlike both\.jsonl:1"):
        read(both)
    bad = BadRecords()
    assert len(read(both, on_bad=bad)) == 2
    assert bad.count == 1


def test_completions_alone_are_text(tmp_path: Path) -> None:
    """Version 1.3 has no ids of prompts: without their context completions are not used."""
    path = write(
        tmp_path / "a.json", trajectory(step("user", "u"), step("agent", "a", metrics={"completion_token_ids": [1]}))
    )
    assert roles(read(path)[0]) == "ua"


@pytest.mark.parametrize("ids", [[-1], [2**31], [10**30], [1.0], [True], ["1"], "1", {"a": 1}])
def test_ids_are_checked_before_they_are_narrowed(tmp_path: Path, ids: Any) -> None:
    """A token id is a whole number that int32 holds."""
    path = write(tmp_path / "a.json", trajectory(with_ids([1], ids)))
    with pytest.raises(DataError, match=r"a\.json:1: .*completion_token_ids"):
        read(path)


def test_steps_no_model_wrote_and_calls_nobody_should_learn_are_context(tmp_path: Path) -> None:
    """Copied context, steps of a harness, and arguments that are no JSON."""
    broken = [{"tool_call_id": "c", "function_name": "f", "arguments": '{"a'}]
    path = write(
        tmp_path / "a.json",
        trajectory(step("agent", llm_call_count=0), step("agent", tool_calls=broken), step("agent", llm_call_count=1)),
    )
    (record,) = read(path)
    assert roles(record) == "AAa"
    assert chat_of(record).messages[1].tool_calls[0].arguments == '"{\\"a"'


def test_trajectories_of_subagents_are_sequences_of_their_own(tmp_path: Path) -> None:
    """They stand inside the trajectory of the agent that called them, at any depth."""
    inner = trajectory(step("agent", "inner"), session_id="i")
    outer = trajectory(
        step("agent", "outer"), subagent_trajectories=[{**inner, "subagent_trajectories": [inner]}, inner]
    )
    path = write(tmp_path / "a.json", outer)
    assert [record.id for record in read(path)] == ["s", "i#0", "i#0#0", "i#1"]


def test_a_continued_session_repeats_its_identities(tmp_path: Path) -> None:
    """A longer file of one session carries the messages of the shorter; another session's are others."""
    steps = [step("user", "u", timestamp="1"), step("agent", "a", timestamp="2"), step("agent", "b", timestamp="3")]
    files = [trajectory(*steps[:2]), trajectory(*steps), trajectory(*steps, session_id="t")]
    found = [
        [m.identity for m in chat_of(read(write(tmp_path / f"{n}.json", value))[0]).messages]
        for n, value in enumerate(files)
    ]
    assert found[0] == found[1][:2]
    assert not set(found[1]) & set(found[2])


def test_a_copy_without_a_sessions_id_is_the_same(tmp_path: Path) -> None:
    """The whole trajectory tells it: its place does not, any other value of it does, one that is no number too."""

    def identities(name: str, text: str) -> list[bytes]:
        (tmp_path / name).write_text(text)
        [record] = read(tmp_path / name)
        assert record.group
        return [m.identity for m in chat_of(record).messages]

    value = trajectory(step("user", "u"), step("agent", "a"), final_metrics={"total_cost_usd": 0.5})
    del value["session_id"]
    text = json.dumps(value)
    assert identities("a.json", text) == identities("b.json", text)
    assert not set(identities("a.json", text)) & set(identities("c.json", text.replace("0.5", "0.25")))
    assert identities("d.json", text.replace("0.5", "NaN")) == identities("e.json", text.replace("0.5", "NaN"))


@pytest.mark.parametrize(
    "value",
    [
        trajectory(step("robot")),
        trajectory(step("agent", 5)),
        trajectory("x"),
        trajectory(step("agent", reasoning_content=[])),
        trajectory(step("agent", tool_calls={"a": 1})),
        trajectory(step("agent", tool_calls=[{}])),
        trajectory(step("agent", observation={"results": 1})),
        trajectory(step("agent", observation={"results": [1]})),
        {**trajectory(), "schema_version": "ATIF-v2.0"},
        trajectory(step("agent"), subagent_trajectories=[1]),
        trajectory(step("agent"), session_id=[]),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(tmp_path: Path, value: dict[str, Any]) -> None:
    """A damaged trajectory names its file and line."""
    path = write(tmp_path / "a.json", value)
    with pytest.raises(DataError, match=r"a\.json:1"):
        read(path)


def test_no_other_record_is_taken() -> None:
    """Only what names the format is it."""
    others: list[dict[str, Any]] = [
        {"schema_version": "1.4", "steps": []},
        {"steps": []},
        {"schema_version": 1, "steps": []},
    ]
    for record in others:
        assert not atif.recognise(record, ReadOptions())


@pytest.mark.parametrize("path", [TEXT, IDS], ids=lambda path: path.name)
def test_damaged_files(tmp_path: Path, path: Path) -> None:
    """Whatever is cut, changed or of another kind is told."""
    assert_damage_is_told(atif, path, tmp_path, seed=7, rounds=300)


@pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real files is not beside the project")
def test_real_file() -> None:
    """The agent's two steps are trained."""
    path = REAL / "misc-edge" / "atif_v1.4.json"
    assert source_of(path).format == "atif"
    assert supervised(path) == ['list{"name": "bash", "arguments": {"command": "ls"}}', "There is a.txt"]
