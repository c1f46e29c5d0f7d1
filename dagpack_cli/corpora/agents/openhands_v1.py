"""Events of OpenHands' agent SDK (V1), told apart by ``kind``, as what the model was sent and wrote.

Events that no model sees (states, pauses, requests to condense) are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from dagpack_cli.corpora.agents.openhands_view import Entry, Epoch, View, forgotten_ids, offset_of, with_metadata
from dagpack_cli.corpora.agents.transcripts import call_as_written, thinking_of
from dagpack_cli.corpora.messages import message_of, tools_of
from dagpack_cli.corpora.records import shown
from dagpack_cli.corpora.sessions import identity_of
from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.messages import Message, json_text

__all__ = ["epochs_of_v1", "is_v1"]

Event = dict[str, Any]

_SOURCES = ("agent", "user", "environment", "hook")
_OTHER_KINDS = ("Condensation", "CondensationRequest", "UserRejectObservation")
_ERROR_HEADER = "[An error occurred during execution.]\n"
_OUTPUTS = ("output", "result", "text", "message")


def is_v1(event: Event) -> bool:
    """Return whether an object is an event of the SDK."""
    kind = event.get("kind")
    if not isinstance(kind, str) or not (kind.endswith("Event") or kind in _OTHER_KINDS):
        return False
    return event.get("source") in _SOURCES and isinstance(event.get("timestamp"), str) and "id" in event


def epochs_of_v1(events: Iterable[tuple[str, Event]]) -> Iterator[Epoch]:
    """Yield what the model saw before every condensation, and at the end.

    Args:
        events: ``(where, event)`` in order.

    Raises:
        DataError: an event lacks what its kind has.
    """
    view = View()
    for where, event in events:
        if event.get("kind") == "Condensation":
            if view.is_fresh:
                yield view.epoch()
            summary = event.get("summary")
            entry = (
                None if summary is None else Entry(f"{event.get('id')}-summary", _text("user", summary, event, where))
            )
            forgotten = forgotten_ids(event.get("forgotten_event_ids"), where)
            view.forget(forgotten, entry, offset_of(event.get("summary_offset"), where))
            continue
        if event.get("kind") == "SystemPromptEvent":
            view.tools = tools_of(event.get("tools"), where)
        entry = _entry_of(event, where)
        if entry is not None:
            view.add(entry)
    if view.is_fresh:
        yield view.epoch()


def _entry_of(event: Event, where: str) -> Entry | None:
    """Return an event as the model sees it, None where it does not."""
    own_id = str(event.get("id"))
    kind = event.get("kind")
    if kind == "ActionEvent":
        return _action_of(event, own_id, where)
    if kind == "SystemPromptEvent":
        parts = [event.get("system_prompt"), event.get("dynamic_context")]
        return Entry(own_id, _text("system", [part for part in parts if part is not None], event, where))
    if kind == "MessageEvent":
        return Entry(own_id, _message_of(event, where))
    if kind == "ObservationEvent":
        text = _observed(event.get("observation"), where)
        return Entry(own_id, _result_of([text, *_listed(event, "extended_content", where)], event, where))
    if kind == "UserRejectObservation":
        reason = event.get("rejection_reason")
        reason = reason if isinstance(reason, str) else "User rejected the action"
        return Entry(own_id, _result_of(f"Action rejected: {reason}", event, where))
    if kind == "AgentErrorEvent":
        return Entry(own_id, _result_of(event.get("error"), event, where))
    if kind == "CondensationSummaryEvent":
        return Entry(own_id, _text("user", event.get("summary"), event, where))
    return None


def _identity_of(event: Event) -> bytes:
    return identity_of("openhands", "v1", str(event.get("id")), str(event.get("timestamp")))


def _text(role: str, content: Any, event: Event, where: str) -> Message:
    return replace(message_of({"role": role, "content": content}, where), identity=_identity_of(event))


def _result_of(content: Any, event: Event, where: str) -> Message:
    call, tool = event.get("tool_call_id"), event.get("tool_name")
    return replace(
        _text("tool", content, event, where),
        tool_call_id=call if isinstance(call, str) else "",
        tool_name=tool if isinstance(tool, str) else "",
    )


def _listed(event: Event, name: str, where: str) -> list[Any]:
    value = event.get(name)
    if value is not None and not isinstance(value, list):
        raise DataError(where, f'"{name}" is {shown(value)}', "a list")
    return value or []


def _message_of(event: Event, where: str) -> Message:
    given = event.get("llm_message")
    if not isinstance(given, dict):
        raise DataError(where, f'"llm_message" is {shown(given)}', "a message")
    content = given.get("content")
    more = _listed(event, "extended_content", where)
    content = [*(content if isinstance(content, list) else [content or ""]), *more]
    reasoning = given.get("reasoning_content") or thinking_of(given.get("thinking_blocks"))
    message = message_of({"role": given.get("role"), "content": content, "reasoning_content": reasoning}, where)
    # What stands as the assistant's but came from somebody else is no model's.
    trained = event.get("source") == "agent" and bool(message.content or message.reasoning)
    return replace(message, weight=1.0 if trained or message.role != "assistant" else 0.0, identity=_identity_of(event))


def _action_of(event: Event, own_id: str, where: str) -> Entry:
    call = event.get("tool_call")
    if not isinstance(call, dict):
        raise DataError(where, f'"tool_call" is {shown(call)}', "the call as the model wrote it")
    inner = call.get("function")
    inner = inner if isinstance(inner, dict) else call
    made, valid = call_as_written(inner.get("name"), inner.get("arguments"), where)
    reasoning = event.get("reasoning_content") or thinking_of(event.get("thinking_blocks"))
    message = message_of(
        {"role": "assistant", "content": event.get("thought"), "reasoning_content": reasoning or ""}, where
    )
    response, call_id = event.get("llm_response_id"), event.get("tool_call_id")
    return Entry(
        own_id,
        replace(message, tool_calls=(made,), weight=1.0 if valid else 0.0, identity=_identity_of(event)),
        calls=(call_id,) if isinstance(call_id, str) else (),
        response=response if isinstance(response, str) else "",
    )


def _observed(observation: Any, where: str) -> str:
    """Return an observation as it is sent; one without content (early versions) as its output or its JSON."""
    if isinstance(observation, str):
        return observation
    if not isinstance(observation, dict):
        raise DataError(where, f'"observation" is {shown(observation)}', "an object")
    content = observation.get("content")
    if content is None:
        content = next((observation[name] for name in _OUTPUTS if isinstance(observation.get(name), str)), None)
    if content is None:
        try:
            content = json_text({name: value for name, value in observation.items() if name != "kind"})
        except ValueError:
            raise DataError(where, "an observation has no content", "text, or JSON that can be written") from None
    text = with_metadata(message_of({"role": "tool", "content": content}, where).content, observation.get("metadata"))
    return _ERROR_HEADER + text if observation.get("is_error") is True else text
