"""SWE-agent: what was sent is what stands before an answer, and every answer is trained once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from agent_logs import FIXTURES, REAL, assert_damage_is_told, chat_of, read, roles, said, supervised, write

from dagpack_cli.corpora.agents import swe_agent
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import BadRecords
from dagpack_cli.errors import DataError

QUERIES = FIXTURES / "swe-agent" / "queries.traj"
HISTORY = FIXTURES / "swe-agent" / "history.traj"


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """Return an item of a history."""
    return {"role": role, "content": content, "agent": "main", **more}


def acted(content: str, **more: Any) -> dict[str, Any]:
    """Return an answer as it stands in a history."""
    return message("assistant", content, thought=content, action="ls", message_type="action", **more)


def step(response: str, **more: Any) -> dict[str, Any]:
    """Return a step of a trajectory."""
    return {"response": response, "thought": response, "action": "ls", "observation": "o", "state": {}, **more}


def run(steps: list[Any], history: list[Any] | None = None) -> dict[str, Any]:
    """Return a trajectory file."""
    return {"trajectory": steps, "history": history, "info": {}, "environment": "swe_main"}


START = [message("system", "s"), message("user", "u")]


def test_queries_are_paths_and_fold_where_they_continue() -> None:
    """A query that continues the one before is folded; one with a rewritten observation starts a path of its own."""
    first, second = read(QUERIES)
    assert said(first) == [
        ("system", "You fix bugs."),
        ("user", "Demo task"),
        ("ASSISTANT", "Demo answer"),
        ("user", "Fix the bug."),
        ("assistant", "I look first."),
        ("tool", "a.py"),
        ("assistant", "I open it."),
    ]
    assert said(second)[4:] == [
        ("ASSISTANT", "I look first."),
        ("tool", "Old environment output: (1 lines omitted)"),
        ("ASSISTANT", "I open it."),
        ("tool", "1/0"),
        ("ASSISTANT", "No action here."),
        ("user", "Call a tool."),
        ("assistant", "I submit."),
    ]
    assert (first.id, second.id) == ("queries.traj:1#0", "queries.traj:1#1")
    assert first.group == second.group


def test_every_answer_is_trained_once_and_nothing_else() -> None:
    """Demonstrations, refused answers and the harness's last words train nothing."""
    assert supervised(QUERIES) == [
        'Where is it?I look first.{"name": "bash", "arguments": {"command": "ls"}}',
        'I open it.{"name": "bash", "arguments": {"command": "cat a.py"}}',
        'I submit.{"name": "submit", "arguments": {}}',
    ]


def test_calls_and_thinking_come_from_the_history() -> None:
    """A step logs only the text of its answer: calls, their ids and thinking are the history's."""
    messages = chat_of(read(QUERIES)[0]).messages
    assert messages[4].reasoning == "Where is it?"
    assert messages[4].tool_calls[0].arguments == '{"command": "ls"}'
    assert messages[5].tool_call_id == "c1"


def test_history_is_read_where_nothing_says_what_was_sent() -> None:
    """Before 1.0 there is the history alone; what the harness wrote when it gave up is context."""
    (record,) = read(HISTORY)
    assert roles(record) == "suuauA"
    assert supervised(HISTORY) == ["Look.\n```\nls\n```"]


def test_states_of_version_1_0(tmp_path: Path) -> None:
    """``messages`` is what is sent next: the answer stands behind what the state before held."""
    one = [*START, acted("a1"), message("user", "o1")]
    two = [*START, acted("a1"), message("user", "old"), acted("a2"), message("user", "o2")]
    path = write(
        tmp_path / "run.traj", run([step("a1", messages=one), step("no", messages=one), step("a2", messages=two)])
    )
    (record,) = read(path)
    assert said(record) == [("system", "s"), ("user", "u"), ("assistant", "a1"), ("user", "o1"), ("assistant", "a2")]


def test_rewritten_states_of_version_1_0_part(tmp_path: Path) -> None:
    """A state that rewrote an observation is what the next step was sent: it starts a path."""
    one = [*START, acted("a1"), message("user", "o1")]
    two = [*START, acted("a1"), message("user", "old"), acted("a2"), message("user", "o2")]
    three = [*two, acted("a3"), message("user", "o3")]
    path = write(tmp_path / "run.traj", run([step(f"a{n}", messages=m) for n, m in enumerate((one, two, three), 1)]))
    assert [roles(record) for record in read(path)] == ["suaua", "suAuAua"]


def test_an_answer_whose_calls_are_unknown_is_context(tmp_path: Path) -> None:
    """Text without the call that stood behind it would teach to end the turn there."""
    calls = [{"id": "c", "function": {"name": "bash", "arguments": "{}"}}]
    sent = [*START, acted("a1", tool_calls=calls), message("tool", "o1", tool_call_ids=["c"])]
    path = write(tmp_path / "run.traj", run([step("a2", query=sent)]))
    assert roles(read(path)[0]) == "suAtA"
    path = write(tmp_path / "run.traj", run([step("a2", query=sent)], [*sent, acted("a2", tool_calls=calls)]))
    assert roles(read(path)[0]) == "suAta"


def test_the_last_answer_is_context_where_the_history_never_took_it(tmp_path: Path) -> None:
    """A run that ends after too many refused answers ends with one that was refused."""
    gave_up = message("assistant", "Exit", thought="Exit", action="", message_type="action")
    path = write(tmp_path / "run.traj", run([step("bad", query=START), step("Exit", query=[{}])], [*START, gave_up]))
    assert roles(read(path)[0]) == "suA"
    path = write(tmp_path / "run.traj", run([step("good", query=START)]))
    assert roles(read(path)[0]) == "sua"


def test_demonstrations_and_last_words_of_a_harness_are_context(tmp_path: Path) -> None:
    """In a history, in every version's way of giving up, and in the states of 1.0."""
    demo = acted("demo", is_demo=True)
    new = message("assistant", "Exit due to cost limit", thought="Exit due to cost limit", action="")
    before = message("assistant", "Exit due to format error", thought="Exit due to format error", action="exit_format")
    asked = message("assistant", "exit_forfeit", thought="", action="exit_forfeit")
    items = [START[0], demo, START[1], acted("a"), message("user", "o"), new, before, asked]
    assert roles(read(write(tmp_path / "run.traj", run([step("a")], items)))[0]) == "sAuauAAa"
    states = [step("a", messages=[*items[:5]]), {**step(new["content"], messages=items[:6]), "action": ""}]
    assert roles(read(write(tmp_path / "run.traj", run(states)))[0]) == "sAua"
    states = [step("demo", messages=[START[0], demo, START[1]]), step("a", messages=items[:5])]
    assert roles(read(write(tmp_path / "run.traj", run(states)))[0]) == "sAua"


def test_answers_are_found_where_other_agents_or_processors_move_them(tmp_path: Path) -> None:
    """The history is that of the agent that asked; behind shortened queries, answers keep their order."""
    calls = [{"id": "c", "function": {"name": "bash", "arguments": "{}"}}]
    one, two = acted("a1", tool_calls=calls), acted("a2", tool_calls=calls)
    other = [{**item, "agent": "helper"} for item in (*START, acted("a1"))]  # The same words, without a call.
    history = [*other, *START, one, message("user", "o1"), two]
    path = write(tmp_path / "run.traj", run([step("a1", query=START)], history))
    assert len(chat_of(read(path)[0]).messages[-1].tool_calls) == 1
    dropped = [START[0], message("user", "o1")]
    path = write(tmp_path / "run.traj", run([step("a1", query=START), step("a2", query=dropped)], history[3:]))
    assert [(roles(record), len(chat_of(record).messages[-1].tool_calls)) for record in read(path)] == [
        ("sua", 1),
        ("sua", 1),
    ]


def test_a_shorter_query_starts_a_path(tmp_path: Path) -> None:
    """Messages that were sent before and are not sent again end the path."""
    sent = [*START, acted("a1"), message("user", "o1")]
    steps = [step("a1", query=START), step("a2", query=sent), step("a3", query=START)]
    assert [roles(record) for record in read(write(tmp_path / "run.traj", run(steps)))] == ["suaua", "sua"]


def test_agents_of_one_history_are_conversations_of_their_own(tmp_path: Path) -> None:
    """A model is sent only what its own agent said and saw."""
    other = [{**item, "agent": "helper"} for item in (*START, acted("h"))]
    path = write(tmp_path / "run.traj", run([step("a")], [*START, other[0], acted("a"), *other[1:]]))
    assert [said(record)[-1] for record in read(path)] == [("assistant", "a"), ("assistant", "h")]


def test_attempts_are_read_and_the_chosen_one_is_not_read_twice(tmp_path: Path) -> None:
    """A retrying agent logs all attempts, and the one it chose again around them."""
    one, two = run([step("a")], [*START, acted("a")]), run([step("b")], [*START, acted("b")])
    path = write(tmp_path / "run.traj", {**two, "attempts": [one, two]})
    assert [said(record)[-1][1] for record in read(path)] == ["a", "b"]


def test_copies_are_one_session_and_runs_are_many(tmp_path: Path) -> None:
    """Identities of a copy are equal; a run that said the same but took other times is another one."""
    copied = write(tmp_path / "copy.traj", json.loads(QUERIES.read_bytes()))
    value = json.loads(QUERIES.read_bytes())
    value["trajectory"][0]["execution_time"] += 1
    other = write(tmp_path / "other.traj", value)
    identities = [
        [m.identity for record in read(path) for m in chat_of(record).messages] for path in (QUERIES, copied, other)
    ]
    assert identities[0] == identities[1]
    assert not set(identities[0]) & set(identities[2])
    assert all(len(identity) == 16 for identity in identities[0])


def trained(path: Path) -> list[bytes]:
    """Return the identities of the trained answers of a file."""
    return [m.identity for r in read(path) for m in chat_of(r).messages if m.role == "assistant" and m.weight]


def three_steps(*times: Any, cost: float = 1, queries: bool = True) -> dict[str, Any]:
    """Return a run of a step for every time, with the same words at any time."""
    history, steps = [*START], []
    for number, time in enumerate(times):
        more = {} if time is None else {"execution_time": time}
        steps.append(step(f"a{number}", **({"query": [*history]} if queries else {}), **more))
        history += [acted(f"a{number}"), message("user", f"o{number}")]
    return {**run(steps, history), "info": {"model_stats": {"instance_cost": cost}}}


@pytest.mark.parametrize("queries", [True, False])
def test_a_copy_saved_earlier_carries_the_same_answers(tmp_path: Path, queries: bool) -> None:
    """With times, an answer is what was said up to it and how long it took: costs and what follows do not count."""
    cases = {
        "whole": three_steps(0, 0.25, 0.5, 0.75, queries=queries),
        "early": three_steps(0, 0.25, 0.5, cost=0.5, queries=queries),
        "other": three_steps(0, 0.25, 0.625, 0.75, queries=queries),
    }
    paths = {name: write(tmp_path / f"{name}.traj", value) for name, value in cases.items()}
    found = {name: trained(path) for name, path in paths.items()}
    assert [len(listed) for listed in found.values()] == [4, 3, 4]
    assert found["whole"][:3] == found["early"]
    assert [one == two for one, two in zip(found["whole"], found["other"], strict=True)] == [True, True, False, False]
    assert read(paths["whole"])[0].group == read(paths["early"])[0].group
    assert len(set(found["whole"])) == 4


@pytest.mark.parametrize("queries", [True, False])
def test_runs_without_times_are_told_by_their_costs(tmp_path: Path, queries: bool) -> None:
    """Two runs that said the same hardly cost the same; a time of 0 is none."""
    runs = [three_steps(None, 0, queries=queries), three_steps(None, 0, queries=queries)]
    runs.append(three_steps(None, 0, cost=2, queries=queries))
    found = [trained(write(tmp_path / f"{number}.traj", value)) for number, value in enumerate(runs)]
    assert found[0] == found[1]
    assert not set(found[0]) & set(found[2])


def test_parts_of_content_and_null(tmp_path: Path) -> None:
    """Content is a string, null, or blocks with marks for caches."""
    parts = [{"type": "text", "text": "u", "cache_control": {"type": "ephemeral"}}]
    path = write(tmp_path / "run.traj", run([step("a")], [message("system", None), message("user", parts), acted("a")]))
    assert said(read(path)[0]) == [("system", ""), ("user", "u"), ("assistant", "a")]


@pytest.mark.parametrize(
    "value",
    [
        run([], []),
        run([step("a", query=["x"])]),
        run([{**step("a", query=START), "response": 1}]),
        run([step("a")], [message("narrator", "x")]),
        {**run([step("a")]), "history": "x"},
        {"attempts": [1]},
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(tmp_path: Path, value: dict[str, Any]) -> None:
    """A run that is damaged names its file and line, and with a rule to skip it is counted."""
    path = write(tmp_path / "run.traj", value)
    with pytest.raises(DataError, match=r"run\.traj:1"):
        read(path, module=swe_agent)
    bad = BadRecords()
    assert read(path, module=swe_agent, on_bad=bad) == []
    assert bad.count == 1


def test_no_other_record_is_taken() -> None:
    """A history of pairs, of events, or with no marks of an agent is somebody else's."""
    for record in (
        {"history": [["q", "a"]], "instruction": "i", "output": "o"},
        {"history": [{"action": "run", "args": {}}]},
        {"history": [{"role": "user", "content": "u"}]},
        {"messages": [message("user", "u")]},
        {"trajectory": [1]},
    ):
        assert not swe_agent.recognise(record, ReadOptions())


@pytest.mark.parametrize("path", [QUERIES, HISTORY], ids=lambda path: path.name)
def test_damaged_files(tmp_path: Path, path: Path) -> None:
    """Whatever is cut, changed or of another kind is told."""
    assert_damage_is_told(swe_agent, path, tmp_path, seed=5, rounds=300)


@pytest.mark.skipif(not REAL.is_dir(), reason="the folder of real files is not beside the project")
def test_real_files() -> None:
    """In ten real files what is trained is what the agent answered: 105 answers, of which 16 call tools."""
    total = []
    for path in sorted((REAL / "swe-agent").iterdir()):
        value = json.loads(path.read_bytes())
        answers = []
        for item in value["history"]:
            if item["role"] == "assistant" and not item.get("is_demo"):
                call = item["tool_calls"][0]["function"] if item.get("tool_calls") else None
                arguments = json.dumps(json.loads(call["arguments"]), ensure_ascii=False) if call else ""
                written = f'{{"name": {json.dumps(call["name"])}, "arguments": {arguments}}}' if call else ""
                answers.append(item["content"] + written)
        assert supervised(path) == answers, path.name
        total.extend(answers)
    assert len(total) == 105
