"""Kinds of failure: where it happened, what was found, what was expected, what to do.

The text is composed where the facts are known and rendered once, in ``cli.main``. Every kind
has one exit code; the table in the README is their contract with cron.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "BusyError",
    "DagpackError",
    "DamageError",
    "DataError",
    "DiskError",
    "MismatchError",
    "NoInputError",
    "OutputError",
    "PermissionDeniedError",
    "TreeError",
    "Unfinished",
    "UsageError",
    "escaped",
    "shorten",
]


class DagpackError(Exception):
    """A failure that is not a bug of dagpack; the base of every error it raises on purpose.

    Args:
        where: a clickable ``path:line``, an ``--option``, or the name of an array.
        found: what was there, with the offending value (cut by `shorten`).
        expected: what should have been there; empty when ``found`` says it all.
        hint: one action that exists: a command, a flag, or an edit.
    """

    exit_code: ClassVar[int] = 1
    usual_hint: ClassVar[str] = "DAGPACK_DEBUG=1 before the command shows where it was raised"

    def __init__(self, where: str, found: str, expected: str = "", *, hint: str = "") -> None:
        self.where = where
        self.found = found
        self.expected = expected
        self.hint = hint
        super().__init__(where, found, expected, hint)

    def __str__(self) -> str:
        """Return the message as it is printed, without the leading ``error:``."""
        text = f"{self.where}: {self.found}"
        return escaped(f"{text}; {self.expected}" if self.expected else text)

    @property
    def advice(self) -> str:
        """Return the hint, or where there is none what usually helps with this kind."""
        return escaped(self.hint or self.usual_hint.replace("WHERE", self.where))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by fields, so that an error crosses a process pool unchanged."""
        return _rebuild, (type(self), self.where, self.found, self.expected, self.hint)


def _rebuild(kind: type[DagpackError], where: str, found: str, expected: str, hint: str) -> DagpackError:
    return kind(where, found, expected, hint=hint)


class UsageError(DagpackError):
    """An option or argument that cannot work, alone or with another one."""

    exit_code = 2
    usual_hint = "dagpack COMMAND --help says what each option takes"


class DataError(DagpackError):
    """The user's corpus holds something that cannot be read as what it claims to be."""

    exit_code = 65
    usual_hint = "correct it, or leave it out with --on-error skip"


class Unfinished(DataError):
    """A record at the end of a file that is still being written: counted and listed, it never fails a build."""


class NoInputError(DagpackError):
    """Nothing usable: no such path, an empty folder, or no example with a pair in it."""

    exit_code = 66
    usual_hint = "dagpack build --help says what can be read"


class OutputError(DagpackError):
    """The output cannot be created."""

    exit_code = 73
    usual_hint = "choose another output directory"


class DiskError(DagpackError):
    """Reading or writing failed: an I/O error, or a full disk."""

    exit_code = 74
    usual_hint = "check the disk and run the same command again"


class BusyError(DagpackError):
    """Another build holds the lock of the output."""

    exit_code = 75
    usual_hint = "try again when it has ended"


class DamageError(DagpackError):
    """Stored data is not what was written: a checksum, a size or an invariant differs."""

    exit_code = 76
    usual_hint = "build again: dagpack build CORPUS OUT --rehash"


class PermissionDeniedError(DagpackError):
    """The operating system refuses access."""

    exit_code = 77
    usual_hint = "check the owner and mode: ls -ld WHERE"


class MismatchError(DagpackError):
    """Options, format version or tokenizer do not fit the stored data."""

    exit_code = 78
    usual_hint = "name another tokenizer with --tokenizer"


class TreeError(DagpackError):
    """Arrays that should describe a preorder forest do not; from a caller, a bug of the caller."""

    exit_code = 76
    usual_hint = "build again: dagpack build CORPUS OUT --rehash"


def escaped(text: str) -> str:
    r"""Return ``text`` on one line: control characters and halves of surrogate pairs escaped, as in file names.

    >>> print(escaped("a\nb"))
    a\nb
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def shorten(value: object, limit: int = 60) -> str:
    """Return ``value`` for a message: strings quoted, line breaks escaped, at most ``limit`` characters.

    >>> shorten("a" * 100, 10)
    '"aaaaaa...'
    """
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r") if isinstance(value, str) else text
    text = "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
    text = f'"{text}"' if isinstance(value, str) else text
    return text if len(text) <= limit else text[: limit - 3] + "..."
