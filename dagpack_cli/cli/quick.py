"""What a command does not wait for: the options of other commands, and a library that has nothing to convert.

Typer makes parameters of every option of every command, 40 ms of processor time, and loads pydantic, another
100 ms, to make a ``str`` of a ``str``. Both are noticed by a person who types ``dagpack stats OUT``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from typer import Typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

__all__ = ["QuickCommand", "QuickGroup", "parser_of"]


def parser_of(app: Typer, arguments: Sequence[str]) -> Any:
    """Return the parser for a command line: of the command that it names, of all where it names none.

    Args:
        app: its own options are flags, so that the first word without a dash is the command.
        arguments: the command line.
    """
    name = next((word for word in arguments if word[:1] != "-"), "")
    alone = copy.copy(app)
    alone.registered_commands = [
        info for info in app.registered_commands if info.callback is not None and info.callback.__name__ == name
    ]
    return get_command(alone if alone.registered_commands else app)


class QuickCommand(TyperCommand):
    """A command of which no value is converted that has its type already."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return _taken_as_given(super().get_params(ctx))


class QuickGroup(TyperGroup):
    """Commands of which no value is converted that has its type already."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return _taken_as_given(super().get_params(ctx))


def _taken_as_given(parameters: Sequence[Any]) -> list[Any]:
    """Return parameters that convert only what needs it; where Typer has no such step, as they are."""
    for parameter in parameters:
        convert = getattr(parameter, "get_runtime_param", None)
        if convert is not None and "get_runtime_param" not in vars(parameter):
            as_given = _AsGiven(parameter.type_descriptor.annotation, convert)
            parameter.get_runtime_param = lambda as_given=as_given: as_given
    return list(parameters)


class _AsGiven:
    """Conversion to a type, of which a value of that very type, or none, has no need."""

    def __init__(self, kind: Any, convert: Callable[[], Any]) -> None:
        self._kind = kind
        self._convert = convert

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value as the type."""
        if value is None or type(value) is self._kind:
            return value
        return self._convert().coerce(value, param=param, ctx=ctx)
