"""Control tokens in what people wrote stay text: they are hidden while a template runs, and put back afterwards.

A template joins its own control tokens with the texts of messages, and in the string that comes out
nothing tells the two apart. So every one that a message spells is replaced before by a placeholder:
tildes, digits and a full stop, which no usual filter changes (strip, split, upper, tojson, escape).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing.cutting import Controls

__all__ = ["Disguise"]


class Disguise:
    """Hides and restores the control tokens of one conversation.

    The digits occur in none of its texts, and the tildes keep them from growing together with what
    stands beside them, so nothing but a placeholder is ever restored.

    Args:
        controls: the control tokens.
        texts: every text of the conversation.
        source: the template, which must not spell the digits either.
    """

    def __init__(self, controls: Controls, texts: Iterable[str], source: str) -> None:
        self._controls = controls
        self._found: re.Pattern[str] | None = None
        self._digits = ""
        listed = list(texts)
        if any(controls.pattern.search(text) for text in listed):
            self._digits = _unused_digits([*listed, source])
            self._found = re.compile(f"~{self._digits}\\.([0-9]+)~")
            self._numbers = {control.text: number for number, control in enumerate(controls.listed)}

    def hide(self, text: str) -> str:
        """Return ``text`` with placeholders for control tokens."""
        if self._found is None:
            return text
        return self._controls.pattern.sub(lambda match: f"~{self._digits}.{self._numbers[match.group()]}~", text)

    def hide_values(self, value: Any) -> Any:
        """Return a JSON value with every string in it hidden, keys too; lists and objects are changed in place."""
        if self._found is None:
            return value
        holder = [value]
        waiting: list[Any] = [holder]
        while waiting:
            inner = waiting.pop()
            if isinstance(inner, dict):
                renamed = {self.hide(key): item for key, item in inner.items()}
                inner.clear()
                inner.update(renamed)
            for key, item in list(inner.items() if isinstance(inner, dict) else enumerate(inner)):
                if isinstance(item, str):
                    inner[key] = self.hide(item)
                elif isinstance(item, dict | list):
                    waiting.append(item)
        return holder[0]

    def places(self, text: str) -> list[tuple[int, int]]:
        """Return where placeholders stand in a written text, as half-open ranges."""
        return [] if self._found is None else [match.span() for match in self._found.finditer(text)]

    def restore(self, text: str) -> str:
        """Return ``text`` with control tokens for placeholders.

        Raises:
            DataError: the template cut a placeholder in two.
        """
        if self._found is None:
            return text
        restored = self._found.sub(lambda match: self._controls.listed[int(match.group(1))].text, text)
        if self._digits in restored:
            raise DataError("", "the template cuts a text where it spells a control token", "texts that stay whole")
        return restored


def _unused_digits(texts: list[str]) -> str:
    """Return sixteen digits that no text holds: a hash of them all, so that equal input gives equal placeholders."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    while True:
        digits = f"{int.from_bytes(digest.digest()[:8]) % 10**16:016d}"
        if not any(digits in text for text in texts):
            return digits
        digest.update(b"again")
