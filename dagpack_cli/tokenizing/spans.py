"""Which characters of a written conversation are trained: from marks, or from prefixes that are checked.

What a turn holds that is not trained, thinking or calls, is found by writing the turn without it and
comparing, and what ends it by writing more before it. What a message says is searched for only to
refuse a turn that lacks its thinking.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.conversation import HINTS, Conversation
from dagpack_cli.tokenizing.cutting import Controls
from dagpack_cli.tokenizing.differences import difference
from dagpack_cli.tokenizing.disguise import Disguise
from dagpack_cli.tokenizing.jinja import Row, Span, Written
from dagpack_cli.tokenizing.pieces import Part
from dagpack_cli.tokenizing.rows import CALLS, THINKING, longer, says

__all__ = ["spans_of"]

# Written behind what a turn says, to see what ends it, and behind a thought, to see whether it is
# there: digits, which no filter changes.
_MORE = "7193528640771935"
# Characters of a thought that a template, a name or a number could hold by chance.
_SHORT = 64
_WORD = re.compile(f"{_MORE}\\.([0-9]+)\\.")


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
        _Finder(conversation, controls, disguise).check_thoughts()
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
            spans.extend(finder.other(index, exact))
        elif part and conversation.writer.marked:
            spans.extend(finder.marked(index, exact))
        elif part:
            spans.extend(finder.turn(index, exact))
    return [span for span in spans if span.end > span.start]


def _exact(part: Part, row: Row) -> Part:
    """Return the target with every part that the message does not have."""
    if part and THINKING[0] not in row:
        part |= Part.THINKING
    return part | Part.TOOL_CALLS if part and CALLS[0] not in row else part


def _thought(row: Row) -> str:
    """Return what an assistant thought without the white space around it, which templates strip."""
    return str(row.get(THINKING[0], "")).strip() if row["role"] == "assistant" else ""


def _forgotten(conversation: Conversation, index: int) -> DataError:
    return DataError(
        "",
        f"the template {conversation.writer.name} leaves out the thinking of message {index + 1}",
        "a turn that is trained as it was written",
        hint="keep thinking as context with --no-thinking, or train each turn alone with --per-turn",
    )


class _Finder:
    """Finds the spans of one conversation."""

    def __init__(self, conversation: Conversation, controls: Controls, disguise: Disguise) -> None:
        self._of = conversation
        self._controls = controls
        self._disguise = disguise
        self._bare: dict[tuple[tuple[str, ...], tuple[str, ...]], Written] = {}
        self._open = False
        self._words: Written | None = None
        self._worded: set[str] = set()

    def turn(self, index: int, part: Part) -> list[Span]:
        """Return an assistant's turn without its header and without what follows the token that ends it."""
        start, end = self._of.turn(index)
        self._check_thinking([Span(start, end, index)], index, part, start)
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
        self._check_thinking(spans, index, part, None)
        return self._without(spans, index, part, None)

    def other(self, index: int, part: Part) -> list[Span]:
        """Return what a message that is no assistant's says: what changes with its content, to its end."""
        start, end = self._between(index)
        rows = self._of.rows
        empty = Row({**rows[index], "content": ""}, index, rows[index].touched)
        text = self._of.write([*rows[:index], empty], f"message {index + 1}")[start:]
        first, _ = self._difference(self._of.whole.text[start:end], text, late=True)
        last = self._trimmed(start, end)
        spans = [Span(start + first, last, index)]
        return self._without(spans, index, part | Part.THINKING | Part.TOOL_CALLS, start + first)

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
            if part & Part.THINKING and not self._thinks(index, marked=False):
                raise _forgotten(self._of, index)
            return [Span(begin, begin, index)]
        self._check_thinking([Span(begin, end, index)], index, part, begin)
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
        text = self._text(spans)
        if not part & Part.THINKING:
            cut.append(self._difference(text, self._bare_turn(index, THINKING, start), late=False))
        if not part & Part.TOOL_CALLS:
            first, last = self._difference(text, self._bare_turn(index, CALLS, start), late=True)
            cut.append((first, last if part & Part.END else len(text)))
        elif not part & Part.END:
            cut.append((self._ending(text, index, start), len(text)))
        return _subtract(spans, cut) if cut else spans

    def _check_thinking(self, spans: list[Span], index: int, part: Part, start: int | None) -> None:
        """Refuse a turn whose thinking is trained and not written: templates drop that of earlier turns.

        The conversation is written again, once, only where something else may say the same.
        """
        row = self._of.rows[index]
        thought = _thought(row)
        if not thought or not part & Part.THINKING:
            return
        unsure = len(thought) < _SHORT or says(row, thought)
        if thought not in self._text(spans) or (unsure and not self._thinks(index, marked=start is None)):
            raise _forgotten(self._of, index)

    def check_thoughts(self) -> None:
        """Refuse a conversation that is trained whole, and in which the thinking of a turn is not written."""
        for index in range(len(self._of.rows)):
            if not self._thinks(index, marked=False):
                raise _forgotten(self._of, index)

    def _thinks(self, index: int, *, marked: bool) -> bool:
        """Whether what an assistant thought is written, or with ``marked`` in what is marked of its turn.

        Its own word is put behind every thought, and looked for in what the template makes of that.
        """
        rows = self._of.rows
        if not _thought(rows[index]):
            return True
        if self._words is None:
            worded = [longer(row, THINKING, f"{_MORE}.{at}.") for at, row in enumerate(rows)]
            self._words = self._of.writer.write(worded, self._of.tools)
            self._worded = set(_WORD.findall(self._words.text))
        if not marked:
            return str(index) in self._worded
        return f"{_MORE}.{index}." in "".join(
            self._words.text[span.start : span.end] for span in self._words.generated if span.turn == index
        )

    def _ending(self, text: str, index: int, start: int | None) -> int:
        """Return where what ends a turn begins in its text: what stands behind more that it could have said.

        Calls may be ended by something else; then it is the last control token.
        """
        row = self._of.rows[index]
        alone = THINKING[0] in row and not row["content"] and CALLS[0] not in row
        try:
            written = self._written(index, CALLS, start, THINKING if alone else ("content",))
        except DataError:
            written = ""  # Results without their calls are refused by some.
        ending = written[written.rindex(_MORE) + len(_MORE) :] if _MORE in written else None
        if ending is not None and text.endswith(ending):
            return len(text) - len(ending)
        found = self._controls.find(text)
        if found and not text[found[-1].end :].strip():
            return found[-1].start
        raise DataError(
            f"message {index + 1}",
            f"the template {self._of.writer.name} does not show what ends this turn, which is not trained",
            "the same end behind a longer answer, or a control token",
            hint=HINTS["other"],
        )

    def _bare_turn(self, index: int, keys: tuple[str, ...], start: int | None) -> str:
        return self._written(index, keys, start, ())

    def _written(self, index: int, keys: tuple[str, ...], start: int | None, more: tuple[str, ...]) -> str:
        """Return a turn as it is written without some fields, and with more at the end of others.

        ``start`` is where it begins, None where marks tell.
        """
        rows = self._of.rows
        if start is not None:
            where = f"message {index + 1}, written without {' or '.join(keys)}"
            return self._of.write([*rows[:index], longer(rows[index], more, _MORE).without(*keys)], where)[start:]
        if (keys, more) not in self._bare:
            # One rendering for all turns: each is compared with itself alone.
            bare = [longer(row, more, _MORE).without(*keys) for row in rows]
            self._bare[keys, more] = self._of.writer.write(bare, self._of.tools)
        written = self._bare[keys, more]
        return "".join(written.text[span.start : span.end] for span in written.generated if span.turn == index)

    def _text(self, spans: list[Span]) -> str:
        return "".join(self._of.whole.text[span.start : span.end] for span in spans)

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
