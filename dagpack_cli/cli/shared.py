"""What commands share: the console, the edge to places given as URIs, a build opened for reading."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dagpack_cli.console import Console
from dagpack_cli.errors import DagpackError

if TYPE_CHECKING:
    from dagpack_cli.manifest import Manifest
    from dagpack_cli.remote import Edge

__all__ = ["open_build", "open_edge", "print_json", "reading", "take_console"]


def take_console(ctx: typer.Context, *, quiet: bool = False, after_signal: str = "") -> Console:
    """Return the console that `main` made before the options were known."""
    console: Console = ctx.obj
    console.quiet, console.after_signal = quiet, after_signal
    return console


def open_edge(values: dict[str, Any], console: Console | None = None) -> Edge:
    """Return what makes local paths of the places that a command is given, and takes results where they belong."""
    from dagpack_cli.remote import Edge

    return Edge(
        values["local"],
        workers=values.get("workers") or 8,
        wait=values.get("wait", 0.0),
        keep=values.get("keep", 2),
        listener=console,
    )


class open_build:  # used like a function, as contextlib's are
    """The current generation of an output and its manifest, share-locked while they are in use."""

    def __init__(self, out: Path) -> None:
        from dagpack_cli.manifest import Manifest, refuse_links
        from dagpack_cli.storage import open_current

        self._generation = open_current(out)
        self._where = self._generation.path / "manifest.json"
        try:
            self._manifest: Manifest = Manifest.from_bytes(self._generation.manifest_bytes, self._where)
            refuse_links(self._generation.path, self._manifest)
        except DagpackError:
            self._generation.close()
            raise

    def __enter__(self) -> tuple[Any, Manifest]:
        """Return the generation and its manifest."""
        return self._generation, self._manifest

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        """Release the generation; what stored values that nobody wrote so lead to is their damage."""
        self._generation.close()
        if isinstance(error, _LED_TO):
            raise _damage(self._where, error) from error


@contextmanager
def reading(out: Path) -> Iterator[None]:
    """Tell what the stored values of a published build lead to as their damage.

    Args:
        out: an output, or a corpus, of which nothing is told: a reader that fails on it is a bug.

    Raises:
        DamageError: something was raised that is no error of dagpack's.
    """
    from dagpack_cli.storage import GENERATIONS, MANIFEST, STAGING, read_current

    try:
        yield
    except _LED_TO as error:
        current = read_current(out)
        if current is None or (out / STAGING / "next.json").exists():  # then it is a stage that was read
            raise
        raise _damage(out / GENERATIONS / current[0] / MANIFEST, error) from error


# What comes of values that nobody wrote so, where code takes them for what was written.
_LED_TO = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def _damage(manifest: Path, error: BaseException) -> DagpackError:
    from dagpack_cli.errors import DamageError

    hint = f"{DamageError.usual_hint}; DAGPACK_DEBUG=1 before the command shows where it was met"
    return DamageError(str(manifest), f"leads to {error!r}", "what dagpack wrote", hint=hint)


def print_json(value: object) -> None:
    """Print a value as JSON, keys sorted."""
    print(json.dumps(value, indent=1, sort_keys=True))
