"""Text that fits: any string made harmless, its width estimated, and cut where there is no room.

No font is at hand when a picture is written, so widths are upper estimates for the sans-serif and
monospaced fonts that browsers and systems choose (DejaVu is the widest of them).
"""

from __future__ import annotations

import unicodedata

__all__ = ["MONO", "SANS", "clean", "fit", "plural", "width_of"]

SANS, MONO = "sans", "mono"
_READ = 2000  # characters of a text that are ever looked at: no label is longer
_MARKS = 2  # combining characters in a row that are kept
_NARROW = frozenset("iljtfrI.,:;'|!()[]/\\ ·")
_BROAD = frozenset("mwMW@%—…→←&#+<=>^~")


def clean(text: str) -> str:
    r"""Return a text as one line that XML can hold and nobody's screen is bent by.

    White space becomes single spaces; control characters become ``·``; halves of surrogate pairs,
    private and unassigned characters become U+FFFD; marks that change the writing direction go.

    >>> clean("a\n\t b\x00c\u202ed")
    'a b·cd'
    """
    shown: list[str] = []
    marks = 0
    for char in " ".join(text[:_READ].split()):
        category = unicodedata.category(char)
        if category == "Cf":
            continue
        marks = marks + 1 if category in ("Mn", "Me") else 0
        if marks <= _MARKS:
            shown.append("·" if category == "Cc" else "\ufffd" if category in ("Cs", "Cn", "Co") else char)
    return "".join(shown)


def width_of(text: str, size: float, font: str = SANS) -> float:
    r"""Return the most pixels that ``text`` takes in a font of ``size`` pixels.

    >>> width_of("abcd", 10, MONO), width_of("\u6f22", 10)
    (24.4, 11.0)
    """
    total = 0.0
    for char in text:
        if unicodedata.east_asian_width(char) in "WF":
            total += 1.1 if font == SANS else 1.22
        elif char > "\u02ff" and unicodedata.combining(char):
            continue
        elif font == MONO:
            total += 0.61
        elif char in _NARROW:
            total += 0.42
        elif char in _BROAD or char > "\u04ff":
            total += 1.0
        else:
            total += 0.79 if char.isupper() else 0.64
    return round(total * size, 2)


def fit(text: str, width: float, size: float, font: str = SANS) -> str:
    """Return `clean` text, cut with ``…`` to what fits ``width`` pixels; empty where not even that fits.

    >>> fit("abcdefghij", 40, 10, MONO), fit("abc", 40, 10, MONO), fit("abc", 3, 10, MONO)
    ('abcde…', 'abc', '')
    """
    shown = clean(text)
    if len(text) <= _READ and width_of(shown, size, font) <= width:
        return shown
    room = width - width_of("…", size, font)
    used, kept = 0.0, 0
    for char in shown:
        used += width_of(char, size, font)
        if used > room:
            break
        kept += 1
    return shown[:kept].rstrip() + "…" if kept else ""


def plural(number: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "message"), plural(1203, "message")
    ('1 message', '1,203 messages')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
