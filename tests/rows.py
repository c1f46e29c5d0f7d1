"""Rows written to files and read back as examples: what the tests of the row formats share."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dagpack_cli.corpora import BadRecords, Example, ReadCounts, ReadOptions, Source, discover, raise_bad, read_examples
from dagpack_cli.corpora.files.sources import stat_source
from dagpack_cli.tokenizing import ByteTokenizer

__all__ = ["FIXTURES", "damage", "kind_of_rows", "read", "read_as", "real", "text_of", "trained", "written"]

REAL = Path(__file__).resolve().parents[2] / "shared" / "real"
FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
JUNK: list[Any] = [None, True, 0, -1, 2**80, 1.5, float("nan"), float("-inf"), "", "\0", "\ud83d", [], {}, [[]], [None]]
JUNK += [{"a": None}, ["x", 1], "x" * 500, json.loads("[" * 400 + "]" * 400)]


def real(name: str) -> Path:
    """Return a real file's path, or skip where there is none."""
    if not (REAL / name).exists():
        pytest.skip(f"no real file at shared/real/{name}")
    return REAL / name


def written(path: Path, rows: list[Any]) -> Path:
    """Write JSON lines, and return their path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path, on_bad: Any = raise_bad, *, counts: ReadCounts | None = None, **options: Any) -> list[Example]:
    """Return the examples of one file, read with bytes as what it is found to be."""
    chosen = ReadOptions(**options)
    (source,) = discover(path, options=chosen).inputs
    return list(read_examples(source, ByteTokenizer(), chosen, on_bad, counts=counts))


def read_as(format: str, path: Path, on_bad: Any = raise_bad, **options: Any) -> list[Example]:
    """Return the examples of one file, read as ``format`` whatever is in it."""
    source: Source = stat_source(path, path.name, format)
    return list(read_examples(source, ByteTokenizer(), ReadOptions(format=format, **options), on_bad))


def kind_of_rows(tmp_path: Path, row: Any, **options: Any) -> str:
    """Return the format that a file of one row is found to have, empty for none."""
    from dagpack_cli.corpora.sniff import format_of_file

    return format_of_file(written(tmp_path / "kind.jsonl", [row]), "kind.jsonl", ReadOptions(**options))[0] or ""


def text_of(example: Example) -> str:
    """Return an example's tokens as text."""
    return ByteTokenizer().decode(example.tokens)


def trained(example: Example) -> list[str]:
    """Return the text of an example's supervised runs."""
    return [ByteTokenizer().decode(example.tokens[start:end]) for start, end in example.runs.tolist()]


def damage(
    format: str, rows: list[dict[str, Any]], path: Path, seed: int, *, rounds: int = 150, **options: Any
) -> BadRecords:
    """Read rows with bytes cut and flipped and values of any type: only counted errors may come of it."""
    draw, bad = random.Random(seed), BadRecords()
    for _ in range(rounds):
        changes: list[Callable[[bytes], bytes]] = [lambda data: data]
        row = json.loads(json.dumps(draw.choice(rows)))
        for _ in range(draw.randrange(3)):
            _replace(row, draw)
        data = json.dumps(row).encode()
        changes.append(lambda data: data[: draw.randrange(len(data))])
        changes.append(_flipped(draw))
        path.write_bytes(draw.choice(changes)(data) + b"\n" + data)
        read_as(format, path, bad, **options)
    return bad


def _flipped(draw: random.Random) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(3):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        return bytes(changed).replace(b"\n", b" ")

    return flip


def _replace(value: Any, draw: random.Random) -> None:
    """Put junk somewhere inside a value, at any depth."""
    while value and isinstance(value, dict | list):
        key = draw.choice(list(value)) if isinstance(value, dict) else draw.randrange(len(value))
        inner = value[key]
        if not inner or not isinstance(inner, dict | list) or draw.random() < 0.3:
            value[key] = copy.deepcopy(draw.choice(JUNK))
            return
        value = inner
