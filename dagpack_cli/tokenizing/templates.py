"""Which template writes a corpus' conversations: what the user named, or what fits the tokenizer.

``auto`` takes the template beside the tokenizer only where every turn can be trained with it; else
the built-in one, and says so. What the user names is used or refused, never replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from dagpack_cli.errors import DiskError, MismatchError, NoInputError, PermissionDeniedError, shorten
from dagpack_cli.tokenizing.base import Tokenizer
from dagpack_cli.tokenizing.chat import Template, template_of
from dagpack_cli.tokenizing.huggingface import HuggingFaceTokenizer
from dagpack_cli.tokenizing.jinja import OTHER_TEMPLATE, Writer, parse_date
from dagpack_cli.tokenizing.probe import Traits, probe_template
from dagpack_cli.tokenizing.rendering import JinjaTemplate

__all__ = ["load_template"]

_CONFIG = "tokenizer_config.json"
_SPECIAL = "special_tokens_map.json"
_JINJA, _JSON, _MORE = "chat_template.jinja", "chat_template.json", "additional_chat_templates"
_LARGEST = 16 << 20  # of a file that holds a template, in bytes
_USED = ("default", "tool_use")  # by name; transformers takes others only when asked


@dataclass(frozen=True, slots=True)
class _Found:
    """Templates by name, and what messages call them."""

    name: str
    sources: dict[str, str]


def load_template(spec: str, tokenizer: Tokenizer, *, date: str | None = None) -> Template:
    """Return the template that the user asked for.

    Args:
        spec: ``auto``, ``builtin``, or the path of a Jinja file or of a Hugging Face tokenizer directory.
        tokenizer: what encodes the conversations.
        date: the day that a template is told is today, ``YYYY-MM-DD``; None for none.

    Raises:
        UsageError: ``date`` is no day.
        NoInputError, DiskError, PermissionDeniedError: the path holds no template, or cannot be read.
        MismatchError: the template cannot be used, transformers is not installed, or no template is
            known for the tokenizer.
    """
    day = parse_date(date)
    cut = tokenizer.cut.note if isinstance(tokenizer, HuggingFaceTokenizer) else ""
    if spec == "builtin":
        return template_of(tokenizer, cut)
    own = _own_directory(tokenizer)
    if spec != "auto":
        path = Path(spec)
        found = _find(path) if path.is_dir() else _Found(spec, {"default": _read(path).decode("utf-8", "replace")})
        if found is None:
            raise NoInputError(
                f"--chat-template {spec}",
                "the directory holds no chat template",
                f'{_JINJA}, or "chat_template" in {_CONFIG}',
                hint="use --chat-template builtin",
            )
        variables = _variables(path if path.is_dir() else own)
        template = _jinja(found, tokenizer, variables, day)
        template.note = _joined(_told(found.name, template.traits), cut)
        return template
    found = _find(own) if own is not None else None
    if found is None:
        return template_of(tokenizer, cut)
    return _automatic(found, tokenizer, own, day, cut)


def _automatic(found: _Found, tokenizer: Tokenizer, own: Path | None, day: Any, cut: str) -> Template:
    """Return the template beside a tokenizer, or the built-in one where it cannot train every turn.

    Whether a build trains every turn does not matter: with one example a turn, the rows are to be
    those of whole conversations.
    """
    try:
        template = _jinja(found, tokenizer, _variables(own), day)
    except MismatchError as error:
        if error.hint.startswith(("pip ", "give ")):
            raise
        why = error.found
        remedy = ""
    else:
        unfit = [trait for trait in template.traits.values() if trait.unfit]
        if not unfit:
            template.note = _joined(
                f"conversations are written by the template {found.name}", _told("it", template.traits), cut
            )
            return template
        why = unfit[0].unfit
        alone = all(trait.alone for trait in unfit)
        remedy = f"to use it, train each turn alone: --chat-template {own} --per-turn" if alone else ""
    note = f"the template {found.name} is not used: {why}; conversations are written by the built-in one instead"
    note = _joined(note, remedy)
    try:
        return template_of(tokenizer, _joined(note, cut))
    except MismatchError as error:
        raise MismatchError(
            f"--chat-template auto: {found.name}",
            why,
            f"and there is no other: {error.expected}",
            hint=_joined(remedy, f"{'or ' if remedy else ''}name another template with --chat-template FILE"),
        ) from None


def _told(name: str, traits: Mapping[str, Traits]) -> str:
    """Return what a user should know of a template that is used."""
    lost = []
    listed = list(traits.values())
    if not all(trait.thinking for trait in listed):
        lost.append("no thinking")
    if not any(trait.calls for trait in listed):
        lost.append("no calls of tools")
    if not any(trait.tools for trait in listed):
        lost.append("no list of tools")
    lost += [f"no {role} messages" for role in ("system", "tool") if any(role in trait.dropped for trait in listed)]
    parts = [f"{name} writes {', '.join(lost)}"] if lost else []
    unfit = [trait for trait in listed if trait.unfit]
    if unfit:
        remedy = "train each turn alone with --per-turn, or " if all(trait.alone for trait in unfit) else ""
        parts.append(
            f"some conversations cannot be trained with {name}: {unfit[0].unfit}; "
            f"{remedy}name a template whose {{% generation %}} marks hold all of every turn"
        )
    return "; ".join(parts)


def _joined(*notes: str) -> str:
    return "; ".join(note for note in notes if note)


def _jinja(found: _Found, tokenizer: Tokenizer, variables: Mapping[str, Any], day: Any) -> JinjaTemplate:
    writers = {}
    traits = {}
    for name, source in found.sources.items():
        called = found.name if len(found.sources) == 1 else f"{found.name} ({name})"
        writers[name] = Writer(called, source, variables, day)
        traits[name] = probe_template(writers[name], tool_use=name == "tool_use")
    identity = {"date": None if day is None else day.isoformat(), "variables": dict(sorted(variables.items()))}
    return JinjaTemplate(writers, traits, tokenizer, identity)


def _own_directory(tokenizer: Tokenizer) -> Path | None:
    """Return the directory that a tokenizer was read from."""
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return None
    path = Path(tokenizer.label)
    return path if path.is_dir() else path.parent


def _find(directory: Path) -> _Found | None:
    """Return the templates in a tokenizer directory, those files first that transformers prefers; None for none."""
    sources: dict[str, str] = {}
    name = directory / _CONFIG
    for file, holder in ((_CONFIG, directory / _CONFIG), (_JSON, directory / _JSON)):
        if not holder.is_file():
            continue
        found = _listed(_fields(holder).get("chat_template"), holder)
        if found:
            sources, name = found, directory / file
    if (directory / _JINJA).is_file():
        sources, name = {"default": _read(directory / _JINJA).decode("utf-8", "replace")}, directory / _JINJA
    if (directory / _MORE).is_dir():
        for path in sorted((directory / _MORE).glob("*.jinja")):
            sources[path.stem] = _read(path).decode("utf-8", "replace")
    used = {key: sources[key] for key in _USED if key in sources}
    if sources and "default" not in used:
        raise MismatchError(
            str(name),
            f"holds the templates {shorten(', '.join(sorted(sources)))} and no default",
            "one that is called default",
            hint="name one with --chat-template FILE, or use --chat-template builtin",
        )
    return _Found(str(name), used) if used else None


def _listed(value: Any, path: Path) -> dict[str, str]:
    """Return named templates: a string is the default."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    pairs = list(value.items()) if isinstance(value, dict) else []
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        pairs = [(item.get("name"), item.get("template")) for item in value]
    if pairs and all(isinstance(name, str) and isinstance(text, str) for name, text in pairs):
        return dict(pairs)
    raise MismatchError(
        str(path),
        '"chat_template" is no template',
        "a string, or a list of objects with a name and a template",
        hint=OTHER_TEMPLATE,
    )


def _variables(directory: Path | None) -> dict[str, Any]:
    """Return the special tokens by name, as transformers gives them to templates."""
    found: dict[str, Any] = {}
    for name in (_SPECIAL, _CONFIG):
        if directory is None or not (directory / name).is_file():
            continue
        for key, value in _fields(directory / name).items():
            if key.endswith("_token"):
                text = value.get("content") if isinstance(value, dict) else value
                if isinstance(text, str):
                    found[key] = text
    return found


def _fields(path: Path) -> dict[str, Any]:
    try:
        fields = orjson.loads(_read(path))
    except orjson.JSONDecodeError as error:
        raise MismatchError(str(path), f"is not JSON: {error.msg}", hint=OTHER_TEMPLATE) from None
    if not isinstance(fields, dict):
        raise MismatchError(str(path), "is no JSON object", "the settings of a tokenizer", hint=OTHER_TEMPLATE)
    return fields


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST:
            size = f"{path.stat().st_size:,} bytes"
            raise MismatchError(str(path), size, f"a template of at most {_LARGEST:,}", hint=OTHER_TEMPLATE)
        return path.read_bytes()
    except FileNotFoundError:
        raise NoInputError(
            f"--chat-template {path}",
            "does not exist",
            "auto, builtin, a Jinja file or a tokenizer directory",
            hint=OTHER_TEMPLATE,
        ) from None
    except PermissionError:
        raise PermissionDeniedError(str(path), "cannot be read") from None
    except OSError as error:
        raise DiskError(str(path), f"reading failed: {error.strerror or error}") from None
