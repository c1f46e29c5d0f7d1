"""Nodes of a Claude Code session's tree as messages of a conversation."""

from __future__ import annotations

from collections.abc import Sequence

from dagpack_cli.corpora.agents.claude_code_lines import Block, Entry
from dagpack_cli.corpora.agents.claude_code_tree import Node, Tree
from dagpack_cli.corpora.sessions import cut_off, identity_of
from dagpack_cli.tokenizing.messages import Message, ToolCall

__all__ = ["messages_of_path"]

_NAME = "claude-code"
# The model did not come to the end of its turn: a limit was reached, or the API stopped it between blocks.
_LIMITS = ("max_tokens", "model_context_window_exceeded")
_CUT = (*_LIMITS, "pause_turn", "refusal")


def messages_of_path(tree: Tree, path: Sequence[int], *, cut: bool = False) -> tuple[Message, ...]:
    """Return the messages of a path of nodes.

    An answer's calls are followed by their results in the calls' order; a result that hangs beside
    the path is taken from there. An answer in which nothing is left to say (redacted thinking
    alone) is no message.

    Args:
        tree: of the session.
        path: from the root to a leaf.
        cut: what follows in the file is not known, so that the last answer may have gone on, unless
            it says itself why it stopped.
    """
    messages: list[Message] = []
    for number in path:
        node = tree.nodes[number]
        if node.kind == "answer":
            messages.extend(_answer(node))
        elif node.kind == "results":
            messages.extend(_results(tree, node))
        else:
            messages.extend(_request(node.entries[0], {}))
    answers = [number for number in path if tree.nodes[number].kind == "answer"]
    open_end = bool(answers) and not _stop_of(tree.nodes[answers[-1]])
    return cut_off(messages) if cut and open_end else tuple(messages)


def _answer(node: Node) -> list[Message]:
    blocks = _blocks_of(node)
    content = _joined(blocks, "text")
    reasoning = _joined(blocks, "thought")
    calls = tuple(ToolCall(block.name, block.text) for block in blocks if block.kind == "call")
    if not (content or reasoning or calls):
        return []
    head = node.entries[0]
    stop = _stop_of(node)
    # A model may be cut off in a call: what is logged then is a repaired one, which it did not write.
    broken = stop in _LIMITS and bool(blocks) and blocks[-1].kind == "call"
    said = [f"{call.name} {call.arguments}" for call in calls]
    message = Message(
        role="assistant",
        content=content,
        reasoning=reasoning,
        tool_calls=calls,
        weight=0.0 if head.synthetic or broken else 1.0,
        identity=identity_of(_NAME, "assistant", head.origin, content, reasoning, *said),
        # Thinking alone is no answer, unless the model says that it was one.
        ended=stop not in _CUT and bool(content or calls or stop),
    )
    return [message]


def _stop_of(node: Node) -> str:
    """Return why the model stopped, empty where no line of the answer says it."""
    return next((entry.stop for entry in reversed(node.entries) if entry.stop), "")


def _blocks_of(node: Node) -> list[Block]:
    """Return the blocks of an answer in order, a call that is repeated under its id once."""
    seen: set[str] = set()
    blocks = []
    for entry in node.entries:
        for block in entry.blocks:
            if block.kind == "call" and block.call_id in seen:
                continue
            seen.add(block.call_id)
            blocks.append(block)
    return blocks


def _joined(blocks: Sequence[Block], kind: str) -> str:
    """Return the blocks of one kind as a text: neighbours are one text, others are paragraphs."""
    texts: list[str] = []
    last = ""
    for block in blocks:
        if block.kind == kind:
            if last == kind:
                texts[-1] += block.text
            else:
                texts.append(block.text)
        last = block.kind
    return "\n\n".join(texts)


def _results(tree: Tree, node: Node) -> list[Message]:
    """Return the results of an answer's calls in the calls' order, then what else the user's side said."""
    answer = tree.nodes[node.parent]
    if answer.kind != "answer":
        return [message for entry in node.entries for message in _request(entry, {})]
    names = {block.call_id: block.name for block in _blocks_of(answer) if block.kind == "call"}
    found: dict[str, list[Message]] = {}
    for number in (-1, *answer.siblings):
        source = node if number < 0 else tree.nodes[number]
        own: dict[str, list[Message]] = {}
        for entry in source.entries:
            for message in _request(entry, names):
                if message.role == "tool":
                    own.setdefault(message.tool_call_id, []).append(message)
        for call_id, messages in own.items():
            found.setdefault(call_id, messages)
    results = [message for call_id in names for message in found.get(call_id, ())]
    others = [message for entry in node.entries for message in _request(entry, names) if message.role != "tool"]
    return [*results, *others]


def _request(entry: Entry, names: dict[str, str]) -> list[Message]:
    """Return the messages of one line of the user's side: results, and the texts between them."""
    messages: list[Message] = []
    texts: list[str] = []

    def end_text() -> None:
        if texts:
            content = "\n\n".join(texts)
            identity = identity_of(_NAME, "user", entry.origin, content)
            messages.append(Message(role="user", content=content, identity=identity))
            texts.clear()

    for block in entry.blocks:
        if block.kind != "result":
            texts.append(block.text)
            continue
        end_text()
        identity = identity_of(_NAME, "tool", entry.origin, block.call_id, block.text)
        messages.append(
            Message(
                role="tool",
                content=block.text,
                tool_name=names.get(block.call_id, ""),
                tool_call_id=block.call_id,
                identity=identity,
            )
        )
    end_text()
    return messages
