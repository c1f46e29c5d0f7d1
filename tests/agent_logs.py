"""What the tests of agents' logs share: files read to the end, messages in short, and damage done to files."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

from dagpack_cli.corpora.files.sources import Source, stat_source
from dagpack_cli.corpora.formats import Format, format_of
from dagpack_cli.corpora.options import ReadOptions
from dagpack_cli.corpora.reading import read_examples
from dagpack_cli.corpora.records import BadRecords, Chat, OnBad, Record, raise_bad
from dagpack_cli.corpora.sniff import format_of_file
from dagpack_cli.tokenizing.byte_level import ByteTokenizer

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
REAL = Path(__file__).resolve().parents[2] / "shared" / "real"

_STRANGE: list[Any] = [
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    "",
    "\0",
    "\ud83d",
    "x" * 99,
    [],
    {},
    [[]],
    [{}],
    {"": {}},
    [None],
]


def source_of(path: Path, name: str | None = None) -> Source:
    """Return a file as discovery gives it; its format is what its content says."""
    name = name or path.name
    found, reason = format_of_file(path, name, ReadOptions())
    assert found is not None, reason
    return stat_source(path, name, found)


def read(path: Path, *, on_bad: OnBad = raise_bad, module: Format | None = None) -> list[Record]:
    """Return the records of a file, read as what it is, or by a module."""
    source = source_of(path) if module is None else stat_source(path, path.name, module.NAME)
    return list((module or format_of(source.format)).read(source, ReadOptions(), on_bad))


def write(path: Path, *rows: Any) -> Path:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def chat_of(record: Record) -> Chat:
    """Return a record's conversation."""
    assert isinstance(record.body, Chat)
    return record.body


def said(record: Record) -> list[tuple[str, str]]:
    """Return roles and contents; the role of an assistant's message that is context only is in capitals."""
    return [
        (m.role.upper() if m.role == "assistant" and m.weight == 0 else m.role, m.content)
        for m in chat_of(record).messages
    ]


def roles(record: Record) -> str:
    """Return the first letters of the roles, capital for an assistant's message that is context only."""
    return "".join(role[0] for role, _ in said(record))


def supervised(path: Path) -> list[str]:
    """Return the supervised runs of a file's examples as text, special ids left out."""
    texts = []
    for example in read_examples(source_of(path), ByteTokenizer(), ReadOptions()):
        for start, end in example.runs.tolist():
            ids = [token - 2 for token in example.tokens[start:end].tolist() if 2 <= token < 258]
            texts.append(bytes(ids).decode("utf-8"))
    return texts


def assert_damage_is_told(module: Format, original: Path, folder: Path, seed: int, rounds: int) -> None:
    """Read ``rounds`` damaged copies of a file: whatever is wrong is told as bad, and nothing else is raised."""
    chance = random.Random(seed)
    data = original.read_bytes()
    value = [json.loads(line) for line in data.splitlines()] if original.suffix == ".jsonl" else json.loads(data)
    for number in range(rounds):
        path = folder / f"{number}.json"
        path.write_bytes(_damaged(chance, data) if number % 3 == 0 else _distorted(chance, value))
        bad = BadRecords()
        read(path, on_bad=bad, module=module)
        path.unlink()


def _damaged(chance: random.Random, data: bytes) -> bytes:
    """Return bytes cut short, or with a few of them changed."""
    if chance.random() < 0.3:
        return data[: chance.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] = chance.choice(b'\0\xff"{}[],:\\0x')
    return bytes(changed)


def _distorted(chance: random.Random, value: Any) -> bytes:
    """Return JSON in which something is of another kind, missing, very deep or out of place."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        item = todo.pop()
        keys: Any = list(item) if isinstance(item, dict) else range(len(item))
        places.extend((item, key) for key in keys)
        todo.extend(item[key] for key in keys if isinstance(item[key], dict | list))
    for _ in range(chance.randint(1, 3)):
        owner, key = chance.choice(places)
        if key not in owner if isinstance(owner, dict) else key >= len(owner):
            continue  # It was taken out before.
        kind = chance.random()
        if kind < 0.15:
            del owner[key]
        elif kind < 0.25:
            other, name = chance.choice(places)
            owner[key] = copy.deepcopy(other[name]) if name in other or isinstance(other, list) else None
        else:
            owner[key] = copy.deepcopy(chance.choice(_STRANGE))
    text = json.dumps(value)
    if chance.random() < 0.1:
        text = text.replace('"content": ', '"content": ' + "[" * 2000, 1)
    if chance.random() < 0.1:
        text = text.replace("null", "NaN", 1).replace('"id": ', '"id": 1e999, "id": ', 1)
    return text.encode()
