"""Tokenizers: bytes and grid (built in), Hugging Face, symbols, none; and chats rendered to ids.

``load_tokenizer`` turns what the user wrote into a `Tokenizer`; ``Tokenizer.save`` and
``load_saved`` carry it along with a build. `SymbolCollector` and `merge_symbols` number the JSON
values of games. ``chat.render`` writes conversations so that a longer chat's ids start with the
ids of a shorter one.
"""

from __future__ import annotations

from pathlib import Path

from dagpack_cli.errors import DamageError, UsageError
from dagpack_cli.tokenizing.base import IdArray, Tokenizer, check_text, read_saved
from dagpack_cli.tokenizing.byte_level import BOS, EOS, ByteTokenizer
from dagpack_cli.tokenizing.files import TOKENIZER_NAME, find_eos, read_definition
from dagpack_cli.tokenizing.given import GivenIds
from dagpack_cli.tokenizing.grid import GridTokenizer, frame_cells
from dagpack_cli.tokenizing.huggingface import HuggingFaceTokenizer
from dagpack_cli.tokenizing.symbols import (
    SYMBOLS_NAME,
    SymbolCollector,
    Symbols,
    merge_symbols,
    open_symbols,
    read_symbols,
    shown_symbol,
    store_symbols,
    symbols_hash,
)

__all__ = [
    "ByteTokenizer",
    "GivenIds",
    "GridTokenizer",
    "HuggingFaceTokenizer",
    "IdArray",
    "SymbolCollector",
    "Symbols",
    "Tokenizer",
    "check_text",
    "frame_cells",
    "load_saved",
    "load_tokenizer",
    "merge_symbols",
    "read_symbols",
    "shown_symbol",
    "store_symbols",
]

_INT32_END = 2**31


def load_tokenizer(spec: str, *, bos: str | int | None = None, eos: str | int | None = None) -> Tokenizer:
    """Return the tokenizer that the user asked for.

    Args:
        spec: ``bytes``, ``grid``, ``symbols``, ``none``, or the path of a Hugging Face directory or a
            ``tokenizer.json``. ``symbols`` gives an empty list: reading fills a `SymbolCollector`.
        bos: an id to start documents with, ``"none"`` for none, None for the tokenizer's own.
        eos: the same for their end.

    Raises:
        UsageError: an id outside the vocabulary, or no EOS is known.
        NoInputError, MismatchError: the path holds no tokenizer, or none that loads.
    """
    first, last = _override("--bos", bos), _override("--eos", eos)
    tokenizer: Tokenizer
    if spec == "bytes":
        tokenizer = ByteTokenizer(bos_id=_choose(first, BOS), eos_id=_choose(last, EOS))
    elif spec == "none":
        tokenizer = GivenIds(bos_id=_choose(first, None), eos_id=_choose(last, None))
    elif spec == "grid":
        for option, value in (("--bos", bos), ("--eos", eos)):
            if value is not None:
                raise UsageError(option, f"{value} with --grid-tokens", "cells and actions have their own BOS and EOS")
        return GridTokenizer()
    elif spec == "symbols":
        return Symbols([], bos_id=_choose(first, None), eos_id=_choose(last, None))
    else:
        tokenizer = _load_huggingface(Path(spec), first, last)
    for option, token in (("--bos", tokenizer.bos_id), ("--eos", tokenizer.eos_id)):
        _check_id(option, token, tokenizer.vocab_size)
    return tokenizer


def load_saved(directory: Path) -> Tokenizer:
    """Return the tokenizer that `Tokenizer.save` wrote into ``directory``.

    Raises:
        MismatchError: nothing is saved there.
        DamageError: what is there is not the tokenizer that was saved.
    """
    fields = read_saved(directory)
    kind, first, last = fields["kind"], fields.get("bos"), fields.get("eos")
    tokenizer: Tokenizer
    try:
        if kind == "bytes":
            tokenizer = ByteTokenizer(bos_id=first, eos_id=last)
        elif kind == "none":
            tokenizer = GivenIds(bos_id=first, eos_id=last)
        elif kind == "grid":
            tokenizer = GridTokenizer()
        elif kind == "symbols":
            values = open_symbols(directory / SYMBOLS_NAME)
            rooted, found = fields.get("virtual_root") is not None, symbols_hash(values)
            tokenizer = Symbols(values, virtual_root=rooted, bos_id=first, eos_id=last, sha256=found)
        elif kind == "huggingface":
            definition = (directory / TOKENIZER_NAME).read_bytes()
            default = "default" if first is not None else None
            label = str(directory)
            tokenizer = HuggingFaceTokenizer(definition, label=label, eos_id=last, bos_id=default)
            if tokenizer.bos_id != first:
                tokenizer = HuggingFaceTokenizer(definition, label=label, eos_id=last, bos_id=first)
        else:
            raise DamageError(str(directory), f'names the kind of tokenizer "{kind}"', "dagpack has no such kind")
    except FileNotFoundError as error:
        raise DamageError(str(error.filename), "is missing", "it was saved with the tokenizer") from None
    if tokenizer.identity() != fields:
        raise DamageError(str(directory), "the saved tokenizer differs from its identity", "both are written together")
    return tokenizer


def _load_huggingface(path: Path, bos: int | str | None, eos: int | str | None) -> Tokenizer:
    file, definition = read_definition(path)
    first = "default" if bos is None else _choose(bos, None)
    tokenizer = HuggingFaceTokenizer(definition, label=str(path), eos_id=None, bos_id=first)
    tokenizer.eos_id = find_eos(file.parent, tokenizer.token_to_id) if eos is None else _choose(eos, None)
    return tokenizer


def _override(option: str, value: str | int | None) -> int | str | None:
    """Return an id, ``"none"``, or None where the option was not given."""
    if value is None or value == "none" or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    text = str(value)
    if not (text.isascii() and text.isdigit()):
        raise UsageError(option, f'"{text}"', "a token id or none")
    return int(text)


def _choose(override: int | str | None, default: int | None) -> int | None:
    if override is None:
        return default
    return override if isinstance(override, int) else None


def _check_id(option: str, token: int | None, vocab_size: int | None) -> None:
    end = _INT32_END if vocab_size is None else vocab_size
    if token is not None and not 0 <= token < end:
        raise UsageError(
            option, f"token id {token:,} is outside the vocabulary", f"0 to {end - 1:,}", hint=f"{option} none"
        )
