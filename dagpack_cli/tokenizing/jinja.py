"""Jinja chat templates, run by transformers: what it would write at inference is what is trained here.

The compiled template is transformers' own, with its filters, its sandbox and its tracking of
``{% generation %}`` blocks; only the clock is ours, or the bytes of a build would depend on the day.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagpack_cli.errors import DagpackError, DataError, MismatchError, UsageError, shorten

__all__ = ["OTHER_TEMPLATE", "Row", "Span", "Watched", "Writer", "Written", "parse_date"]

OTHER_TEMPLATE = "name another template with --chat-template FILE, or use --chat-template builtin"


@dataclass(frozen=True, slots=True)
class Span:
    """Characters ``[start, end)`` of a written conversation that belong to message ``turn``."""

    start: int
    end: int
    turn: int


@dataclass(frozen=True, slots=True)
class Written:
    """A conversation as a template wrote it, and what its ``{% generation %}`` blocks enclose."""

    text: str
    generated: tuple[Span, ...] = ()


class Row(dict[str, Any]):
    """A message as templates read it."""

    __slots__ = ("index", "touched")

    def __init__(self, fields: Mapping[str, Any], index: int, touched: list[int]) -> None:
        super().__init__(fields)
        self.index = index
        self.touched = touched

    def without(self, *keys: str) -> Row:
        """Return the message without some fields."""
        return type(self)({key: value for key, value in self.items() if key not in keys}, self.index, self.touched)


class Watched(Row):
    """An assistant's message that tells ``touched`` its index when it is read.

    A ``{% generation %}`` block says where it stands, not whose text it is: it is the assistant's
    whose message was read last before it ended. A template may give several blocks to one message,
    or none, so counting them would be a guess. What others say is not watched: a look at the next
    result, from inside a block, is nobody's turn.
    """

    __slots__ = ()

    def __getitem__(self, key: str) -> Any:
        """Return one field."""
        self.touched[0] = self.index
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """Return one field, or the default."""
        self.touched[0] = self.index
        return super().get(key, default)


class _Blocks:
    """Stands for what was written so far: transformers asks for its length, which `_Spans` knows better."""

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())


class _Spans:
    """Receives the length of every ``{% generation %}`` block, in place of a list of ranges."""

    def __init__(self, touched: list[int]) -> None:
        self.position = 0
        self.spans: list[Span] = []
        self._touched = touched

    def __bool__(self) -> bool:
        return True

    def append(self, item: tuple[int, int]) -> None:
        """Take one block, which starts where the text that was written so far ends."""
        length = item[1] - item[0]
        self.spans.append(Span(self.position, self.position + length, self._touched[0]))


class Writer:
    """One template.

    Args:
        name: how messages name it.
        source: the Jinja text.
        variables: what it may use besides the conversation: the special tokens by name.
        date: the day it is told is today.

    Raises:
        MismatchError: transformers is not installed, the text is no template, or what it writes is
            left to chance.
    """

    def __init__(self, name: str, source: str, variables: Mapping[str, Any], date: datetime.date | None = None) -> None:
        self.name = name
        self.source = source
        self._variables = dict(variables)
        self._date = date
        environment = _environment_of(name, source)
        self._track: Callable[..., Any] = environment.activate_tracker
        self._template = environment.from_string(source, globals={"strftime_now": self._strftime_now})
        self.marked = _check_tree(environment.parse(source), name)

    def write(self, rows: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, *, prompt: bool = False) -> Written:
        """Return a conversation as text.

        Args:
            rows: its messages.
            tools: what the assistant may call, None for nothing.
            prompt: end with what asks the assistant for its next turn.

        Raises:
            DataError: the template refuses it, or fails.
            MismatchError: it asks for the date, and none is given.
        """
        touched = next((row.touched for row in rows if isinstance(row, Row)), [-1])
        touched[0] = -1
        spans = _Spans(touched)
        blocks: list[str] = []
        try:
            with self._track(_Blocks(), spans):
                for block in self._template.generate(
                    messages=list(rows),
                    tools=tools or None,
                    documents=None,
                    add_generation_prompt=prompt,
                    **self._variables,
                ):
                    blocks.append(block)
                    spans.position += len(block)
        except DagpackError:
            raise
        except Exception as error:  # A template is a program: it may raise anything.
            text = shorten(str(error) or type(error).__name__, 200)
            raise DataError("", f"the template {self.name} refuses it: {text}") from None
        return Written("".join(blocks), tuple(spans.spans))

    def _strftime_now(self, form: str) -> str:
        if self._date is None:
            raise MismatchError(
                self.name,
                "the template writes the date of today",
                "what is built must not depend on the day",
                hint="give the day with --template-date YYYY-MM-DD",
            )
        return datetime.datetime.combine(self._date, datetime.time()).strftime(form)


def parse_date(text: str | None) -> datetime.date | None:
    """Return the day that ``--template-date`` gives.

    Raises:
        UsageError: it is no day.

    >>> parse_date("2026-01-31")
    datetime.date(2026, 1, 31)
    """
    if text is None:
        return None
    try:
        if len(text) != len("YYYY-MM-DD"):
            raise ValueError
        return datetime.date.fromisoformat(text)
    except ValueError:
        raise UsageError("--template-date", shorten(text), "a day, YYYY-MM-DD") from None


def _environment_of(name: str, source: str) -> Any:
    """Return transformers' Jinja environment for a template.

    Raises:
        MismatchError: it is not installed, or the text is no template.
    """
    try:
        import jinja2.exceptions
        from transformers.utils import chat_template_utils

        # No public function gives the compiled template, and the public ones read the clock.
        return chat_template_utils._compile_jinja_template(source).environment
    except (ImportError, AttributeError) as error:  # not installed, or a version that has no such function
        raise MismatchError(
            name,
            f"cannot be run: {shorten(str(error), 100)}",
            "transformers runs chat templates",
            hint="pip install 'dagpack-cli[hf]'",
        ) from None
    except jinja2.exceptions.TemplateSyntaxError as error:
        raise MismatchError(
            f"{name}:{error.lineno}",
            f"is no Jinja template: {shorten(str(error.message), 100)}",
            hint=OTHER_TEMPLATE,
        ) from None


def _check_tree(tree: Any, name: str) -> bool:
    """Return whether a parsed template marks what the assistant generates.

    Raises:
        MismatchError: it writes random text.
    """
    import jinja2.nodes

    for found in tree.find_all((jinja2.nodes.Filter, jinja2.nodes.Name)):
        if found.name == ("random" if isinstance(found, jinja2.nodes.Filter) else "lipsum"):
            raise MismatchError(
                f"{name}:{found.lineno}",
                f'the template uses "{found.name}"',
                "the same text every time",
                hint=OTHER_TEMPLATE,
            )
    calls = (call.call for call in tree.find_all(jinja2.nodes.CallBlock))
    methods = (call.node for call in calls)
    return any(
        isinstance(node, jinja2.nodes.ExtensionAttribute) and node.name == "_generation_support" for node in methods
    )
