"""How a command is run and ends: streams, signals, and the one place where errors are rendered."""

from __future__ import annotations

import os
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from dagpack_cli.cli.quick import parser_of
from dagpack_cli.console import Console
from dagpack_cli.errors import DagpackError, DiskError, UsageError
from dagpack_cli.failpoints import arm_from_environment

if TYPE_CHECKING:
    from types import FrameType

    from typer import Typer

__all__ = ["run"]


class _Terminated(BaseException):
    """A signal that ends the process, raised so that locks and partial files are let go first."""

    def __init__(self, number: int) -> None:
        self.number = number


_ENDING = (signal.SIGINT, signal.SIGTERM)


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    for ending in _ENDING:  # a second one does not wait for what the first lets go
        signal.signal(ending, signal.SIG_DFL)
    sys.unraisablehook = _end_all_the_same
    raise _Terminated(number)


def _end_all_the_same(unraised: sys.UnraisableHookArgs) -> None:
    """After a signal: what was thrown in a destructor goes nowhere; where it was the signal itself, end now."""
    if isinstance(unraised.exc_value, _Terminated):
        _reraise(unraised.exc_value.number)


def _reraise(number: int) -> NoReturn:
    """End by the signal itself, so that the caller sees 130 or 143 and knows why."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)  # only where the signal is blocked


def _stop_writing() -> NoReturn:
    """End as a writer does whose reader has enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    _reraise(signal.SIGPIPE)


def run(app: Typer, arguments: Sequence[str]) -> NoReturn:
    """Run the command that arguments name, and exit; the one place where errors are rendered."""
    _open_streams()
    for number in _ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and background jobs have it
            signal.signal(number, _terminate)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    given = list(arguments)
    options = given[: given.index("--")] if "--" in given else given
    console = Console(log_json="--log-json" in options, command=next((word for word in given if word[:1] != "-"), ""))
    try:
        with warnings.catch_warnings():
            if console.log_json:
                warnings.showwarning = console.warn
            code = _answer(app, given, console)
    except _Terminated as stop:
        console.stop(stop.number)
        _reraise(stop.number)
    except KeyboardInterrupt:
        console.stop(signal.SIGINT)
        _reraise(signal.SIGINT)
    sys.exit(code)


def _answer(app: Typer, given: list[str], console: Console) -> int:
    """Run a command; return its exit code, the errors printed."""
    try:
        code = _parse(app, given, console)
        _flush_output()
    except BrokenPipeError:
        _stop_writing()
    except SystemExit as stop:  # what the option parser makes of a broken pipe
        if isinstance(stop.__context__, BrokenPipeError):
            _stop_writing()
        raise
    except DagpackError as error:
        return _fail(error, console)
    except OSError as error:
        from dagpack_cli.storage import translate_os_error

        return _fail(translate_os_error(error), console)
    except Exception as error:
        console.report_bug(error)
        return DagpackError.exit_code
    console.end(code)
    _flush_or_discard(sys.stderr, 2)
    return code


def _flush_output() -> None:
    """Flush standard output, whose errors name no file.

    Raises:
        DiskError: it takes no more.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "send it to a disk that has room"
        raise DiskError("standard output", reason, "room for what the command prints", hint=hint) from None


def _fail(error: DagpackError, console: Console) -> int:
    """Print an error; return its exit code, whatever becomes of the streams."""
    console.fail(error)
    _flush_or_discard(sys.stderr, 2)
    _flush_or_discard(sys.stdout, 1)
    return error.exit_code


def _flush_or_discard(stream: Any, descriptor: int) -> None:
    """Flush a stream; what cannot be written goes nowhere, or it would be tried again at exit."""
    try:
        stream.flush()
    except OSError:
        pass
    else:
        return
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    with suppress(OSError):
        stream.flush()


def _open_streams() -> None:
    """Open the standard streams a caller has closed, so that no file of ours takes their numbers."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  # for the whole process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  # likewise


def _parse(app: Typer, arguments: list[str], console: Console) -> int:
    """Parse arguments and call the command they name; return its exit code."""
    command = parser_of(app, arguments)
    arm_from_environment()
    if "" in arguments:
        raise UsageError("dagpack", "an empty argument", "a path or a value", hint="is a variable of the shell unset?")
    if not arguments:
        command.main(["--help"], prog_name="dagpack", standalone_mode=False)
        return UsageError.exit_code
    try:
        result = command.main(arguments, prog_name="dagpack", standalone_mode=False, obj=console)
    except (DagpackError, OSError):
        raise
    except Exception as error:
        if hasattr(error, "format_message"):  # a usage error of the option parser
            raise _usage_error(error) from None
        raise
    return result if isinstance(result, int) else 0


def _usage_error(error: Any) -> UsageError:
    """Return what the option parser found in the shape of all errors: lower case, no full stop."""
    context = getattr(error, "ctx", None)
    command = "dagpack" if context is None else context.command_path
    message = error.format_message().rstrip(".")
    value = re.fullmatch(r"Invalid value for '([^']+)': (?:Value error, )?(.+)", message, re.DOTALL)
    where, found = value.groups() if value else (command, message)
    return UsageError(where, found[:1].lower() + found[1:], hint=f"{command} --help")
