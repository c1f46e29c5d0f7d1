"""Events of OpenHands V0: actions and observations, as what the model was sent and wrote.

An agent's action carries the answer that made it (``tool_call_metadata.model_response``), and that
is what is trained; every action of parallel calls repeats it. An action without it is written as a
call of its own name. What a harness fills into templates that the log does not hold (recalled
knowledge about a repository) is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from dagpack_cli.corpora.agents.openhands_view import Entry, Epoch, View, forgotten_ids, offset_of, with_metadata
from dagpack_cli.corpora.agents.transcripts import call_as_written, is_cut_off, thinking_of
from dagpack_cli.corpora.messages import message_of, tools_of
from dagpack_cli.corpora.records import shown
from dagpack_cli.corpora.sessions import identity_of
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message, ToolCall

__all__ = ["epochs_of_v0", "is_stored_v0", "is_v0"]

Event = dict[str, Any]

_SOURCES = ("agent", "user", "environment")
# What the history that condensers count does not hold, and what stands in it without being sent.
_UNCOUNTED = ("null", "change_agent_state", "agent_state_changed")
_UNSENT = ("recall", "pause", "resume", "stop", "start", "initialize", "condensation_request", "loop_recovery")
_MARKS = ("thought", "hidden", "confirmation_state", "security_risk", "blocking", "keep_prompt", "is_static")
_NOT_ARGUMENTS = frozenset(
    (*_MARKS, "cwd", "kernel_init_code", "include_extra", "translated_ipython_code", "impl_source", "image_urls")
)


def is_v0(event: Event) -> bool:
    """Return whether an object is an event of a V0 history."""
    if isinstance(event.get("action"), str):
        return isinstance(event.get("args"), dict)
    return isinstance(event.get("observation"), str) and "content" in event


def is_stored_v0(event: Event) -> bool:
    """Return whether an object is a V0 event as the store writes it, one a file: with all its marks."""
    named = event.get("source") in _SOURCES and isinstance(event.get("timestamp"), str)
    return named and type(event.get("id")) is int and is_v0(event)


def epochs_of_v0(events: Iterable[tuple[str, Event]], scope: str) -> Iterator[Epoch]:
    """Yield what the model saw before every condensation, and at the end.

    Args:
        events: ``(where, event)`` in order.
        scope: what tells the run from others: ids are numbers that start at 0 in each.

    Raises:
        DataError: an event lacks what its kind has.
    """
    reader = _Reader(scope)
    for number, (where, event) in enumerate(events):
        if event.get("action") == "condensation":
            if reader.view.is_fresh:
                yield reader.view.epoch()
            reader.condense(event, where)
        elif event.get("action") not in _UNCOUNTED and event.get("observation") not in _UNCOUNTED:
            reader.add(event, number, where)
    if reader.view.is_fresh:
        yield reader.view.epoch()


class _Reader:
    """Makes entries of the events of one run."""

    def __init__(self, scope: str) -> None:
        self.view = View()
        self._scope = scope
        self._calls: dict[str, str] = {}  # The call that the action of an id makes.
        self._summary = ""

    def condense(self, event: Event, where: str) -> None:
        """Forget what a condensation names, and its predecessor's summary: the last one alone counts."""
        args = _args(event, where)
        gone = forgotten_ids(args.get("forgotten_event_ids"), where)
        start, end = args.get("forgotten_events_start_id"), args.get("forgotten_events_end_id")
        if args.get("forgotten_event_ids") is None and start is not None and end is not None:
            if type(start) is not int or type(end) is not int:
                raise DataError(where, f"forgotten events are {shown(start)} to {shown(end)}", "two ids of events")
            gone = [own_id for own_id in self.view.ids() if own_id.isdecimal() and start <= int(own_id) <= end]
        summary, entry = args.get("summary"), None
        if summary is not None:
            gone.append(self._summary)
            self._summary = f"{event.get('id')}-summary"
            entry = Entry(self._summary, self._said("user", summary, event, where))
        self.view.forget(gone, entry, offset_of(args.get("summary_offset"), where))

    def add(self, event: Event, number: int, where: str) -> None:
        """Add an event to the view."""
        own_id = str(event.get("id", f"#{number}"))
        if isinstance(event.get("action"), str):
            entry = self._action(event, own_id, where)
        elif isinstance(event.get("observation"), str):
            entry = Entry(own_id, self._observation(event, where))
        else:
            raise DataError(where, f"an event is {shown(event)}", "an action or an observation")
        self.view.add(entry)

    def _identity(self, event: Event, *parts: str) -> bytes:
        return identity_of("openhands", "v0", self._scope, str(event.get("id")), str(event.get("timestamp")), *parts)

    def _said(self, role: str, content: Any, event: Event, where: str) -> Message:
        message = message_of({"role": role, "content": content}, where)
        return replace(message, identity=self._identity(event, role, message.content))

    def _action(self, event: Event, own_id: str, where: str) -> Entry:
        name, args = event["action"], _args(event, where)
        if name == "system":
            self.view.tools = tools_of(args.get("tools"), where)
            return Entry(own_id, self._said("system", args.get("content"), event, where))
        if name in _UNSENT:
            return Entry(own_id, None)
        if event.get("source") != "agent":
            text = f"User executed the command:\n{args.get('command')}" if name == "run" else args.get("content")
            return Entry(own_id, None if text is None else self._said("user", text, event, where))
        response = _response_of(event)
        if response is not None:
            return self._answer(response, event, own_id, where)
        if name == "message":
            message = self._said("assistant", args.get("content"), event, where)
            return Entry(own_id, replace(message, weight=1.0 if message.content else 0.0))
        return self._bare(name, args, event, own_id, where)

    def _answer(self, response: Event, event: Event, own_id: str, where: str) -> Entry:
        """Return the answer that an action is part of, whole."""
        given = response["choices"][0]["message"]
        thinking = next(
            (given[field] for field in ("reasoning_content", "reasoning", "thinking") if given.get(field)),
            thinking_of(given.get("thinking_blocks")),
        )
        message = message_of({"role": "assistant", "content": given.get("content")}, where)
        calls, ids, valid = _calls_of(given.get("tool_calls"), where)
        metadata = event["tool_call_metadata"]
        if isinstance(metadata.get("tool_call_id"), str):
            self._calls[own_id] = metadata["tool_call_id"]
        key = response.get("id")
        key = key if isinstance(key, str) and key else "\n".join(ids)
        return Entry(
            own_id,
            replace(
                message,
                reasoning=message.reasoning or (thinking if isinstance(thinking, str) else ""),
                tool_calls=calls,
                weight=1.0 if valid and (calls or message.content) else 0.0,
                identity=identity_of("openhands", "v0", self._scope, "response", key)
                if key
                else self._identity(event, message.content),
                ended=not is_cut_off(response),
            ),
            calls=tuple(ids),
            response=key,
            whole=bool(key),
        )

    def _bare(self, name: str, args: Event, event: Event, own_id: str, where: str) -> Entry:
        """Return an agent's action whose answer was not logged: its thought, and a call of its name."""
        thought = args.get("final_thought") or args.get("thought")
        if isinstance(thought, dict):
            thought = thought.get("text")
        message = self._said("assistant", thought, event, where)
        if name == "finish" and message.content:
            return Entry(own_id, message)
        given = {key: value for key, value in args.items() if key not in _NOT_ARGUMENTS and value is not None}
        call, valid = call_as_written(name, given, where)
        self._calls[own_id] = own_id
        return Entry(own_id, replace(message, tool_calls=(call,), weight=1.0 if valid else 0.0), calls=(own_id,))

    def _observation(self, event: Event, where: str) -> Message | None:
        name = event["observation"]
        if name in _UNSENT:
            return None
        extras = event.get("extras")
        message = message_of({"role": "tool", "content": event.get("content")}, where)
        text = with_metadata(message.content, extras.get("metadata") if isinstance(extras, dict) else None)
        if name == "error":
            text += "\n[Error occurred in processing last action]"
        elif name == "user_rejected":
            text = f"OBSERVATION:\n{text}\n[Last action has been rejected by the user]"
        metadata = event.get("tool_call_metadata")
        call = metadata.get("tool_call_id") if isinstance(metadata, dict) else None
        call = call if isinstance(call, str) else self._calls.get(str(event.get("cause")), "")
        if name == "run" and not call:
            text = f"\nObserved result of command executed by user:\n{text}"
        identity = self._identity(event, text)
        return replace(message, role="tool" if call else "user", content=text, tool_call_id=call, identity=identity)


def _args(event: Event, where: str) -> Event:
    args = event.get("args")
    if not isinstance(args, dict):
        raise DataError(where, f'"args" is {shown(args)}', "an object")
    return args


def _response_of(event: Event) -> Event | None:
    """Return the model's answer that an action was logged with, None where there is none."""
    metadata = event.get("tool_call_metadata")
    response = metadata.get("model_response") if isinstance(metadata, dict) else None
    choices = response.get("choices") if isinstance(response, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return response if isinstance(first, dict) and isinstance(first.get("message"), dict) else None


def _calls_of(value: Any, where: str) -> tuple[tuple[ToolCall, ...], list[str], bool]:
    """Return the calls of an answer, their ids, and whether the arguments of all are JSON."""
    if value is not None and not isinstance(value, list):
        raise DataError(where, f'"tool_calls" is {shown(value)}', "a list")
    calls, ids, valid = [], [], True
    for item in value or ():
        inner = item.get("function") if isinstance(item, dict) else None
        if not isinstance(inner, dict):
            raise DataError(where, f"a tool call is {shown(item)}", "a function with its arguments")
        call, good = call_as_written(inner.get("name"), inner.get("arguments"), where)
        calls.append(call)
        ids.append(str(item.get("id", "")))
        valid = valid and good
    return tuple(calls), ids, valid
