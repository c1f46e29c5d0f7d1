"""Which characters of a written conversation are trained: from marks, or from prefixes that are checked.

What a turn holds that is not trained, thinking or calls, is found by writing the turn without it and
comparing; texts are never searched for.
"""

from __future__ import annotations

from collections.abc import Sequence

from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.conversation import HINTS, Conversation
from dagpack_cli.tokenizing.cutting import Controls
from dagpack_cli.tokenizing.differences import difference
from dagpack_cli.tokenizing.disguise import Disguise
from dagpack_cli.tokenizing.jinja import Row, Span, Written
from dagpack_cli.tokenizing.pieces import Part
from dagpack_cli.tokenizing.rows import CALLS, THINKING

__all__ = ["spans_of"]


def spans_of(
    conversation: Conversation, targets: Sequence[Part], controls: Controls, disguise: Disguise, *, named: bool
) -> list[Span]:
    """Return the characters that are trained, in order and disjoint.

    Args:
        conversation: what was written.
        targets: which parts of each message are trained.
        controls: the control tokens, which are never cut in two.
        disguise: its placeholders are never cut in two either.
        named: the message of every span is asked for, also where all of them are trained whole.

    Raises:
        DataError: the template does not show where something that is trained begins or ends.
    """
    whole = conversation.whole.text
    rows = conversation.rows
    if not named and all(_exact(part, row) == Part.ALL for part, row in zip(targets, rows, strict=True)):
        return [Span(0, len(whole), -1)]
    finder = _Finder(conversation, controls, disguise)
    spans: list[Span] = []
    for index, (part, row) in enumerate(zip(targets, rows, strict=True)):
        exact = _exact(part, row)
        finder.check_open(index, part)
        if part & Part.HEADER:
            joined = bool(index) and _exact(targets[index - 1], rows[index - 1]) == Part.ALL
            spans.extend(finder.header(index, exact, joined=joined, start=spans[-1].end if spans else 0))
        elif part and row["role"] != "assistant":
            spans.extend(finder.other(index))
        elif part and conversation.writer.marked:
            spans.extend(finder.marked(index, exact))
        elif part:
            spans.extend(finder.turn(index, exact))
    return [span for span in spans if span.end > span.start]


def _exact(part: Part, row: Row) -> Part:
    """Return the target with every part that the message does not have."""
    if part and THINKING[0] not in row:
        part |= Part.THINKING
    return part | Part.TOOL_CALLS | Part.END if part and CALLS[0] not in row else part


class _Finder:
    """Finds the spans of one conversation."""

    def __init__(self, conversation: Conversation, controls: Controls, disguise: Disguise) -> None:
        self._of = conversation
        self._controls = controls
        self._disguise = disguise
        self._bare: dict[tuple[str, ...], Written] = {}
        self._open = False

    def turn(self, index: int, part: Part) -> list[Span]:
        """Return an assistant's turn without its header and without what follows the token that ends it."""
        start, end = self._of.turn(index)
        spans = self._without([Span(start, end, index)], index, part, start)
        last = self._trimmed(start, end)
        return [Span(span.start, min(span.end, last), index) for span in spans]

    def marked(self, index: int, part: Part) -> list[Span]:
        """Return what the template marks of a turn."""
        spans = [span for span in self._of.whole.generated if span.turn == index]
        if not spans:
            raise DataError(
                f"message {index + 1}",
                f"the template {self._of.writer.name} marks nothing of it as generated",
                "a {% generation %} block in every trained turn",
            )
        return self._without(spans, index, part, None)

    def other(self, index: int) -> list[Span]:
        """Return what a message that is no assistant's says: what changes with its content, to its end."""
        start, end = self._between(index)
        rows = self._of.rows
        empty = Row({**rows[index], "content": ""}, index, rows[index].touched)
        text = self._of.write([*rows[:index], empty], f"message {index + 1}")[start:]
        first, _ = self._difference(self._of.whole.text[start:end], text, late=True)
        return [Span(start + first, self._trimmed(start, end), index)]

    def header(self, index: int, part: Part, *, joined: bool, start: int) -> list[Span]:
        """Return all of a message; one whose end does not show is one with the next, if that is trained whole too."""
        where = f"message {index + 1}"
        begin = self._of.border(index, where)
        if begin is None and joined and self._open:
            begin = start
        end = self._of.border(index + 1, where)
        self._open = end is None
        if begin is None or (end is None and part != Part.ALL):
            raise self._unclear(index if begin is None else index + 1)
        if end is None:
            return [Span(begin, begin, index)]
        return self._without([Span(begin, end, index)], index, part, begin)

    def check_open(self, index: int, part: Part) -> None:
        """Refuse a message that is not trained whole behind one whose end does not show."""
        if self._open and not part & Part.HEADER:
            raise self._unclear(index)

    def _between(self, index: int) -> tuple[int, int]:
        where = f"message {index + 1}"
        start, end = self._of.border(index, where), self._of.border(index + 1, where)
        if start is None or end is None:
            raise self._unclear(index if start is None else index + 1)
        return start, end

    def _unclear(self, number: int) -> DataError:
        cause = self._of.stable.get(number) or "other"
        return DataError(
            f"message {number}",
            f"the template {self._of.writer.name} does not show where it ends ({cause})",
            "messages that stay as they are once the conversation goes on",
            hint=HINTS[cause],
        )

    def _without(self, spans: list[Span], index: int, part: Part, start: int | None) -> list[Span]:
        """Return spans of a turn without the parts that are not trained.

        They are what the same turn lacks when it is written without them. What is written either
        way, as the marks around an empty thought, stays.
        """
        cut: list[tuple[int, int]] = []
        text = "".join(self._of.whole.text[span.start : span.end] for span in spans)
        if not part & Part.THINKING:
            cut.append(self._difference(text, self._bare_turn(index, THINKING, start), late=False))
        if not part & Part.TOOL_CALLS:
            first, last = self._difference(text, self._bare_turn(index, CALLS, start), late=True)
            cut.append((first, last if part & Part.END else len(text)))
        elif not part & Part.END:
            found = self._controls.find(text)
            if found and not text[found[-1].end :].strip():
                cut.append((found[-1].start, len(text)))
        return _subtract(spans, cut) if cut else spans

    def _bare_turn(self, index: int, keys: tuple[str, ...], start: int | None) -> str:
        """Return a turn as it is written without some fields; ``start`` is where it begins, None where marks tell."""
        rows = self._of.rows
        if start is not None:
            where = f"message {index + 1}, written without {' or '.join(keys)}"
            return self._of.write([*rows[:index], rows[index].without(*keys)], where)[start:]
        if keys not in self._bare:
            # One rendering for all turns: each is compared with itself alone.
            bare = [row.without(*keys) for row in rows]
            self._bare[keys] = self._of.writer.write(bare, self._of.tools)
        written = self._bare[keys]
        return "".join(written.text[span.start : span.end] for span in written.generated if span.turn == index)

    def _trimmed(self, start: int, end: int) -> int:
        """Return where a turn ends: behind its last control token where only white space follows."""
        text = self._of.whole.text[start:end]
        found = self._controls.find(text)
        return start + found[-1].end if found and not text[found[-1].end :].strip() else end

    def _difference(self, text: str, bare: str, *, late: bool) -> tuple[int, int]:
        return difference(text, bare, self._units, late=late)

    def _units(self, text: str) -> list[tuple[int, int]]:
        return [(found.start, found.end) for found in self._controls.find(text)] + self._disguise.places(text)


def _subtract(spans: list[Span], cut: list[tuple[int, int]]) -> list[Span]:
    """Return spans without ranges of their joined text."""
    left: list[Span] = []
    offset = 0
    for span in spans:
        length = span.end - span.start
        position = 0
        for first, last in sorted(cut):
            low, high = max(first - offset, position), min(last - offset, length)
            if low < high:
                left.append(Span(span.start + position, span.start + low, span.turn))
                position = high
        left.append(Span(span.start + position, span.end, span.turn))
        offset += length
    return left
