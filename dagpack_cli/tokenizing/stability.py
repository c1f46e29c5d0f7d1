"""Whether a longer conversation starts with the tokens of a shorter one: what was checked, what broke and why.

Sharing between the snapshots and branches of a session, and contexts that inference shows too,
both rest on ``render(messages[:k])`` being a prefix of ``render(messages)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

__all__ = ["Cause", "Stability"]

Cause = Literal["dropped thinking", "last turn written differently", "consecutive tool results", "other"]

_FIRST = 20


@dataclass(slots=True)
class Stability:
    """Counts of the prefixes that were looked at; added to while conversations are written.

    Attributes:
        checked: prefixes that were looked at with their whole conversation.
        stable: of these, the ones whose tokens start it.
        breaks: how often each cause broke one; `checked` is `stable` plus their sum.
        first: the first breaks as (where, cause), at most 20.
    """

    checked: int = 0
    stable: int = 0
    breaks: dict[str, int] = field(default_factory=dict)
    first: list[tuple[str, str]] = field(default_factory=list)

    def add(self, where: str, cause: Cause | None) -> None:
        """Count one compared prefix; ``cause`` is None where it is stable."""
        self.checked += 1
        if cause is None:
            self.stable += 1
            return
        self.breaks[cause] = self.breaks.get(cause, 0) + 1
        if len(self.first) < _FIRST:
            self.first.append((where, cause))

    def merge(self, other: Stability) -> Stability:
        """Return the counts of both, those of ``self`` first.

        >>> one, two = Stability(), Stability()
        >>> one.add("", None)
        >>> two.add("a:1", "other")
        >>> one.merge(two)
        Stability(checked=2, stable=1, breaks={'other': 1}, first=[('a:1', 'other')])
        """
        causes = [cause for cause in get_args(Cause) if cause in self.breaks or cause in other.breaks]
        return Stability(
            checked=self.checked + other.checked,
            stable=self.stable + other.stable,
            breaks={cause: self.breaks.get(cause, 0) + other.breaks.get(cause, 0) for cause in causes},
            first=[*self.first, *other.first][:_FIRST],
        )

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values, in a fixed order."""
        breaks = {cause: self.breaks[cause] for cause in get_args(Cause) if cause in self.breaks}
        first = [list(item) for item in self.first]
        return {"checked": self.checked, "stable": self.stable, "breaks": breaks, "first": first}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Stability:
        """Return what `to_json` wrote."""
        return cls(
            checked=int(fields["checked"]),
            stable=int(fields["stable"]),
            breaks=dict(fields["breaks"]),
            first=[(where, cause) for where, cause in fields["first"]],
        )
