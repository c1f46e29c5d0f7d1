"""SWE-agent trajectories (``.traj``): one object with the steps of a run and its history.

Later versions write with every step exactly what was sent (``query``; 1.0: ``messages``, what is sent
next). Processors rewrite old observations, so one query is often no prefix of the next: then each
is a path of its own that trains its answer alone. Queries that do continue the one before are
folded here into one longer path, in which every answer stands, and is trained, once.
Older files, and demonstrations, hold a history only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from dagpack_cli.corpora.agents.swe_agent_steps import Step, is_demo, steps_of
from dagpack_cli.corpora.agents.transcripts import chained, costs_of, parts_of, seed_of, thinking_of
from dagpack_cli.corpora.files.sources import Source, read_source_rows
from dagpack_cli.corpora.messages import message_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.records import Chat, OnBad, Place, Record, shown, shown_keys
from dagpack_cli.corpora.sessions import identity_of
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message

__all__ = ["NAME", "read", "recognise"]

NAME = "swe-agent"

Item = dict[str, Any]


def recognise(record: dict[str, Any], _options: ReadOptions) -> bool:
    """Return whether the record is a run, several attempts at one, or a demonstration's history."""
    attempts = record.get("attempts")
    if isinstance(attempts, list) and attempts and isinstance(attempts[0], dict):
        record = attempts[0]
    history, steps = record.get("history"), record.get("trajectory")
    if isinstance(steps, list) and steps:
        first = steps[0]
        return isinstance(first, dict) and "response" in first and ("observation" in first or "action" in first)
    if not isinstance(history, list) or not history or not isinstance(history[0], dict):
        return False
    return "role" in history[0] and ("agent" in history[0] or "message_type" in history[0] or "trajectory" in record)


def read(source: Source, _options: ReadOptions, on_bad: OnBad) -> Iterator[Record]:
    """Yield one example for every path of every run; what is wrong with a run goes to ``on_bad``."""
    for place, row in read_source_rows(source, on_bad):
        try:
            records = _records_of(row, place)
        except DataError as error:
            on_bad(error)
        else:
            yield from records


def _records_of(row: Item, place: Place) -> list[Record]:
    """Return the paths of a run; of several attempts, those of each (the chosen one is a copy of one)."""
    attempts = row.get("attempts") or [row]
    if not isinstance(attempts, list):
        raise DataError(str(place), f'"attempts" is {shown(attempts)}', "a list")
    records: list[Record] = []
    seeds: list[bytes] = []
    for number, attempt in enumerate(attempts, 1):
        where = f"{place}, attempt {number}" if len(attempts) > 1 else str(place)
        if not isinstance(attempt, dict):
            raise DataError(where, f"an attempt is {shown(attempt)}", "an object")
        seed, paths = _paths_of(attempt, where)
        seeds.append(seed)
        records.extend(Record(place=place, body=Chat(tuple(path)), id=place.id) for path in paths)
    if len(records) > 1:
        for index, record in enumerate(records):
            record.id = f"{place.id}#{index}"
    for record in records:
        record.group = seeds[0].hex()
    return records


def _paths_of(run: Item, where: str) -> tuple[bytes, list[Sequence[Message]]]:
    """Return what stands for a run, and its message lists."""
    steps, history = _items(run, "trajectory", where), _items(run, "history", where)
    asked = steps_of(steps, history, where)
    if asked is None:
        return _histories_of(history, run, where)
    queries = [
        [_message_of(item, f"{where}, step {step.number}, message {index}") for index, item in enumerate(step.query, 1)]
        for step in asked
    ]
    answers = [_answer_of(step, f"{where}, step {step.number}") for step in asked]
    said = [message for query, answer in zip(queries, answers, strict=True) for message in (*query, answer)]
    seed = _seed_of(run, steps, said)
    return seed, list(_folded(queries, _identified(answers, asked, steps, seed), seed))


def _identified(answers: list[Message], asked: Sequence[Step], steps: list[Item], seed: bytes) -> Sequence[Message]:
    """Return the answers with their identities, which hold the times of all steps up to theirs."""
    times = _times_of(steps)
    until = [0, *(step.number for step in asked)]
    return chained(answers, ["\n".join(times[a:b]) for a, b in pairwise(until)], seed)


def _folded(queries: list[list[Message]], answers: Sequence[Message], seed: bytes) -> Iterator[list[Message]]:
    """Yield paths: a query with its answer, and what follows as long as each query continues the one before."""
    path: list[Message] = []
    for query, answer in zip(queries, answers, strict=True):
        continues = len(query) >= len(path) and all(map(_same, path, query))
        if path and not continues:
            yield path
            path = []
        start = len(path)
        for index, message in enumerate(query[start:], start):
            weight = 0.0 if message.role == "assistant" else message.weight
            identity = identity_of(seed, "sent", str(index), *parts_of(message))
            path.append(replace(message, weight=weight, identity=identity))
        path.append(answer)
    if path:
        yield path


def _same(one: Message, other: Message) -> bool:
    return parts_of(one) == parts_of(other)


def _histories_of(history: list[Item], run: Item, where: str) -> tuple[bytes, list[Sequence[Message]]]:
    """Return the history as it is: one path for every agent that it names, in order of appearance."""
    if not history:
        raise DataError(where, f"the run has {shown_keys(run)}", "a query in its steps, or a history")
    named = all(isinstance(item.get("agent"), str) for item in history)
    agents: dict[str, list[tuple[int, Item]]] = {}
    for number, item in enumerate(history, 1):
        agents.setdefault(item["agent"] if named else "", []).append((number, item))
    paths = []
    for items in agents.values():
        messages = [_message_of(item, f"{where}, message {number}") for number, item in items]
        for index, (_, item) in enumerate(items):
            if is_demo(item) or _is_exit(item, messages[index]) or _is_empty(messages[index]):
                messages[index] = replace(messages[index], weight=0.0)
        paths.append(messages)
    steps = _items(run, "trajectory", where)
    seed = _seed_of(run, steps, (message for messages in paths for message in messages))
    return seed, [
        chained(messages, _times_of_answers(messages, steps), identity_of(seed, str(number)))
        for number, messages in enumerate(paths)
    ]


def _times_of_answers(messages: Sequence[Message], steps: list[Item]) -> list[str]:
    """Return a time for every message of a history: the steps' in order for those that are trained."""
    times = iter(_times_of(steps))
    return [next(times, "") if message.role == "assistant" and message.weight else "" for message in messages]


def _items(run: Item, name: str, where: str) -> list[Item]:
    value = run.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise DataError(where, f'"{name}" is {shown(value)}', "a list of objects")
    return value


def _message_of(item: Item, where: str) -> Message:
    """Return an item of a history or query as it was sent; marks of caches and actions are not."""
    ids = item.get("tool_call_ids") or [item.get("tool_call_id")]
    return message_of(
        {
            "role": item.get("role"),
            "content": item.get("content"),
            "tool_calls": item.get("tool_calls"),
            "tool_call_id": ids[0] if isinstance(ids, list) else None,
            "reasoning_content": item.get("reasoning_content") or thinking_of(item.get("thinking_blocks")),
        },
        where,
    )


def _answer_of(step: Step, where: str) -> Message:
    answer = _message_of({"role": "assistant", **step.answer}, where)
    return replace(answer, weight=1.0 if step.trained and not _is_empty(answer) else 0.0)


def _is_empty(message: Message) -> bool:
    return not (message.content or message.reasoning or message.tool_calls)


def _is_exit(item: Item, message: Message) -> bool:
    """Return whether the harness wrote what stands as the assistant's, when it gave a run up.

    Such an item has no call, and either an action like ``exit_cost`` that its text does not hold
    (before 1.0), or none, with the message as its thought.
    """
    action, thought = item.get("action"), item.get("thought")
    if message.role != "assistant" or message.tool_calls or not isinstance(action, str):
        return False
    if not action:
        return thought == message.content
    return action.startswith("exit_") and action not in message.content


def _seed_of(run: Item, steps: list[Item], said: Iterable[Message]) -> bytes:
    """Return what tells a run from one that said the same: its environment, and how long its actions took."""
    environment = run.get("environment")
    place = environment if isinstance(environment, str) else ""
    return seed_of(NAME, said, _times_of(steps), run=[place], marks=costs_of(run.get("info")))


def _times_of(steps: list[Item]) -> list[str]:
    """Return how long each step's action took, empty where that is not known: nothing was run in no time."""
    times = (step.get("execution_time") for step in steps)
    return [repr(time) if time and isinstance(time, int | float) else "" for time in times]
