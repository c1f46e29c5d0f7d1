"""Rules that name transitions to leave out of a game: noise that no model should learn."""

from __future__ import annotations

from dataclasses import dataclass

from dagpack_cli.corpora.files.json_rows import canonical_json, parse_json
from dagpack_cli.errors import DataError, UsageError

__all__ = ["DropRule", "is_dropped", "parse_drop_rule"]


@dataclass(frozen=True)
class DropRule:
    """One rule, judged on the node a transition arrives at.

    Attributes:
        field: ``"self"`` (the state did not change), ``"action"`` or ``"state"``.
        value: canonical JSON that the field must equal; empty for ``"self"``.
    """

    field: str
    value: str = ""

    def __str__(self) -> str:
        """Return the text that `parse_drop_rule` reads.

        >>> str(parse_drop_rule("action=RESET"))
        'action="RESET"'
        """
        return f"{self.field}={self.value}" if self.value else self.field


def parse_drop_rule(text: str) -> DropRule:
    """Return the rule that ``text`` writes: ``self``, ``action=JSON`` or ``state=JSON``.

    A bare word stands for the string, so ``action=RESET`` needs no quotes.

    Raises:
        UsageError: it is no rule.

    >>> parse_drop_rule("state=[0, 1]")
    DropRule(field='state', value='[0,1]')
    """
    field, equals, value = text.partition("=")
    field = field.strip()
    if text.strip() == "self":
        return DropRule("self")
    if field not in ("action", "state") or not equals or not value.strip():
        raise UsageError("--drop-transition", f'"{text}"', "self, action=JSON or state=JSON")
    try:
        parsed = parse_json(value.encode("utf-8", "surrogatepass"), "--drop-transition")
    except DataError as error:
        if value.strip()[0] in '{["':
            raise UsageError("--drop-transition", f'"{text}" is {error.found}', "quote JSON for the shell") from None
        parsed = value.strip()
    try:
        return DropRule(field, canonical_json(parsed, "--drop-transition").decode())
    except DataError as error:
        raise UsageError(error.where, error.found, error.expected) from None


def is_dropped(rules: tuple[DropRule, ...], before: bytes, state: bytes, action: bytes | None) -> bool:
    """Return whether any rule matches the transition from ``before`` to ``state`` by ``action``.

    Args:
        rules: what to leave out.
        before: canonical JSON of the state it leaves.
        state: canonical JSON of the state it arrives at.
        action: canonical JSON of the action that led there, None for none.
    """
    for rule in rules:
        if rule.field == "self":
            if state == before:
                return True
        elif (state if rule.field == "state" else action) == rule.value.encode():
            return True
    return False
