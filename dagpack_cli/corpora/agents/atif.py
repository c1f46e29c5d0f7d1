"""ATIF trajectories (Terminal-Bench, Harbor): steps of a system, a user and an agent, with results.

Where the agent's steps carry the ids of their prompt and completion, those are the examples, one a
step and nothing is tokenised again; log probabilities beside them are not read. Ids of completions
alone (before version 1.4) say nothing of their prompt and are not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli.corpora.agents.transcripts import call_as_written, parts_of, session_of
from dagpack_cli.corpora.files.json_rows import canonical_json
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.messages import message_of, tools_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, Ids, OnBad, Place, Record, read_label, shown
from dagpack_cli.corpora.sessions import identity_of
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.base import check_text
from dagpack_cli.tokenizing.messages import Message

__all__ = ["NAME", "holds_ids", "read", "recognise"]

NAME = "atif"

_PREFIX = "ATIF-"
_MAJOR = "ATIF-v1."
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_PROMPT, _COMPLETION = "prompt_token_ids", "completion_token_ids"
_INT32_END = 2**31


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record names the format."""
    version = record.get("schema_version")
    return isinstance(version, str) and version.startswith(_PREFIX) and "steps" in record


def holds_ids(record: dict[str, Any]) -> bool:
    """Return whether a trajectory's examples are the token ids that it carries, not its text."""
    steps = record.get("steps")
    written = [step for step in steps if _is_written(step)] if isinstance(steps, list) else []
    return bool(written) and all(_has_ids(step) for step in written)


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example a trajectory, or with token ids one an agent's step; bad ones go to ``on_bad``.

    All trajectories of a file hold text, or all hold ids: one tokenizer reads one of them.
    """
    first: tuple[bool, str] | None = None
    for place, row in read_source_rows(source, on_bad):
        try:
            for trajectory, suffix in _trajectories_of(row, str(place)):
                records, ids = _records_of(trajectory, place, suffix)
                if first is not None and ids != first[0]:
                    found = "token ids" if ids else "no token ids"
                    raise DataError(str(place), f"{found} here, unlike {first[1]}", "one file holds one of the two")
                first = first or (ids, str(place))
                yield from records
        except DataError as error:
            on_bad(error)


def _trajectories_of(row: dict[str, Any], where: str) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield a trajectory and those of the agents it called, which later versions hold inside it."""
    todo = [(row, "")]
    while todo:
        trajectory, suffix = todo.pop()
        yield trajectory, suffix
        inner = trajectory.get("subagent_trajectories")
        listed = inner if isinstance(inner, list) else []
        for index in reversed(range(len(listed))):
            if not isinstance(listed[index], dict):
                raise DataError(where, f"a trajectory of a subagent is {shown(listed[index])}", "an object")
            todo.append((listed[index], f"{suffix}#{index}"))


def _records_of(row: dict[str, Any], place: Place, suffix: str) -> tuple[list[Record], bool]:
    where = f"{place}{suffix and ', subagent ' + suffix}"
    version = row.get("schema_version", _MAJOR if suffix else None)
    if not isinstance(version, str) or not version.startswith(_MAJOR):
        raise DataError(
            where, f'"schema_version" is {shown(version)}', f"{_MAJOR}0 and later ones of that major version"
        )
    steps = row.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise DataError(where, f'"steps" is {shown(steps)}', "a list of objects")
    session = read_label(row, "session_id", place) or ""
    own_id = f"{session or place.id}{suffix}"
    written = [step for step in steps if _is_written(step)]
    with_ids = sum(map(_has_ids, written))
    if with_ids == 0:
        return [_chat_of(row, steps, place, where, own_id, session)], False
    if with_ids < len(written):
        raise DataError(
            where,
            f"{with_ids:,} of {len(written):,} steps of the agent carry token ids",
            "all of them or none: ids and text cannot be mixed",
        )
    return [_ids_of(step, place, where, f"{own_id}#{number}", session) for number, step in enumerate(written)], True


def _is_written(step: Any) -> bool:
    """Return whether a model wrote the step in this run: not copied context, not the harness."""
    if not isinstance(step, dict) or step.get("source") != "agent":
        return False
    return step.get("is_copied_context") is not True and step.get("llm_call_count") != 0


def _has_ids(step: dict[str, Any]) -> bool:
    metrics = step.get("metrics")
    return isinstance(metrics, dict) and all(metrics.get(field) is not None for field in (_PROMPT, _COMPLETION))


def _ids_of(step: dict[str, Any], place: Place, where: str, own_id: str, session: str) -> Record:
    prompt, completion = (_integers(step["metrics"][field], field, where) for field in (_PROMPT, _COMPLETION))
    ids = np.concatenate([prompt, completion])
    run = [[len(prompt), len(ids)]] if len(completion) else []
    body = Ids(ids, np.array(run, dtype=np.int32).reshape(-1, 2))
    return Record(place=place, body=body, id=own_id, group=session or None)


def _integers(value: Any, name: str, where: str) -> npt.NDArray[np.int32]:
    """Return token ids as int32, each checked before it is narrowed."""
    items = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(items, list):
        raise DataError(where, f'"{name}" is {shown(items)}', "a list of token ids")
    for index, item in enumerate(items):
        if type(item) is not int or not 0 <= item < _INT32_END:
            raise DataError(where, f"{name}[{index}] is {shown(item)}", f"a token id, 0 to {_INT32_END - 1:,}")
    return np.array(items, dtype=np.int32)


def _chat_of(
    row: dict[str, Any], steps: list[dict[str, Any]], place: Place, where: str, own_id: str, session: str
) -> Record:
    agent = row.get("agent")
    tools = tools_of(agent.get("tool_definitions") if isinstance(agent, dict) else None, where)
    said: list[tuple[str, Message]] = []
    for number, step in enumerate(steps, 1):
        time = step.get("timestamp")
        said.extend(
            (time if isinstance(time, str) else "", message)
            for message in _messages_of(step, f"{where}, step {number}")
        )
    # A continued session repeats its steps under its id: place, time and words make them one.
    scope = own_id if session else _scope_of(row, said, where).hex()
    messages = [
        replace(message, identity=identity_of(NAME, scope, str(index), time, *parts_of(message)))
        for index, (time, message) in enumerate(said)
    ]
    return Record(place=place, body=Chat(tuple(messages), tools), id=own_id, group=session or scope)


def _scope_of(row: dict[str, Any], said: list[tuple[str, Message]], where: str) -> bytes:
    """Return what stands for a trajectory without a session's id: all of it, so that a copy is the same."""
    try:
        return identity_of(NAME, canonical_json(row, where))
    except DataError:  # A number that is none, in a field that is not read.
        return session_of(NAME, [message for _, message in said], *(time for time, _ in said))


def _messages_of(step: dict[str, Any], where: str) -> Iterator[Message]:
    """Yield a step's own message, and one for each result it observed."""
    source = step.get("source")
    if not isinstance(source, str) or source not in _ROLES:
        raise DataError(where, f'"source" is {shown(source)}', f"one of {', '.join(_ROLES)}")
    role = _ROLES[source]
    message = message_of({"role": role, "content": step.get("message")}, where)
    calls = step.get("tool_calls") or []
    if not isinstance(calls, list):
        raise DataError(where, f'"tool_calls" is {shown(calls)}', "a list")
    if role == "assistant":
        message = _written_by_agent(message, step, calls, where)
    if message.content or message.reasoning or message.tool_calls:
        yield message
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, dict) else None
    if results is not None and not isinstance(results, list):
        raise DataError(where, f'"results" is {shown(results)}', "a list")
    for result in results or ():
        yield from _result_of(result, bool(calls), where)


def _written_by_agent(message: Message, step: dict[str, Any], calls: list[Any], where: str) -> Message:
    reasoning = step.get("reasoning_content")
    if reasoning is not None and not isinstance(reasoning, str):
        raise DataError(where, f'"reasoning_content" is {shown(reasoning)}', "a string")
    check_text(reasoning or "", where)
    listed = []
    trained = _is_written(step)
    for call in calls:
        if not isinstance(call, dict):
            raise DataError(where, f"a tool call is {shown(call)}", "an object")
        made, valid = call_as_written(call.get("function_name"), call.get("arguments"), where)
        listed.append(made)
        trained = trained and valid
    return replace(
        message,
        reasoning=reasoning or message.reasoning,
        tool_calls=tuple(listed),
        weight=1.0 if trained else 0.0,
    )


def _result_of(result: Any, called: bool, where: str) -> Iterator[Message]:
    """Yield a result: a tool's, or where nothing was called what the environment tells the agent."""
    if not isinstance(result, dict):
        raise DataError(where, f"a result is {shown(result)}", "an object")
    if result.get("content") is None:
        return  # It only points at the trajectory of another agent.
    call_id = result.get("source_call_id")
    answers = called or isinstance(call_id, str)
    message = message_of({"role": "tool" if answers else "user", "content": result["content"]}, where)
    yield replace(message, tool_call_id=call_id if isinstance(call_id, str) else "")
