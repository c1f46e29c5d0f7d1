"""Damaged files of every format: a clear error or a counted skip, never a traceback or a hang."""

from __future__ import annotations

import copy
import json
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dagpack_cli.corpora import (
    BadRecords,
    ReadCounts,
    ReadOptions,
    choose_tokenizer,
    discover,
    raise_bad,
    read_examples,
)
from dagpack_cli.corpora.files.sources import stat_source
from dagpack_cli.corpora.formats import format_of
from dagpack_cli.corpora.records import Chat, Values
from dagpack_cli.errors import DagpackError
from dagpack_cli.tokenizing import SymbolCollector, Tokenizer, load_tokenizer

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
SEEDS = sorted(
    path
    for folder in FIXTURES.iterdir()
    if folder.is_dir() and folder.name not in ("broken", "pictures", "agents")
    for path in folder.rglob("*")
    if path.is_file()
    and path.suffix in (".jsonl", ".json", ".traj", ".parquet", ".arrow")
    and path.stat().st_size < 30_000
)
FILES = 10_000
PER_SEED = -(-FILES // max(len(SEEDS), 1))
SECONDS = 60  # far more than any of these files takes: what is longer hangs

GROWING = ("pi", "claude-code", "codex", "gemini", "arc-agi-3")

DEEP = b"[" * 5_000 + b"]" * 5_000
STRANGE: tuple[Any, ...] = (
    None, True, -1, 2**63, 10**400, 1.5, "", "x" * 3_000, "\ud83d", "a\0b", "<|im_end|>", [], {}, [[]], [None],
    [1, "a"], {"role": 1}, {"type": []}, {"a": {"b": None}}, float("nan"), float("inf"),
)  # fmt: skip


@contextmanager
def hanging() -> Iterator[None]:
    """Fail where the block takes longer than any damaged file could."""

    def stop(*_: Any) -> None:
        raise AssertionError(f"reading has not ended after {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read_all(path: Path, *, skip: bool, options: ReadOptions) -> int:
    """Read a folder as a build does; return the examples made of it."""
    bad = BadRecords()

    def fail(error: DagpackError) -> None:
        raise error

    on_bad: Callable[..., None] = bad if skip else fail
    found = discover(path, options=options, on_bad=on_bad)
    spec = choose_tokenizer(found.inputs)
    reader: Tokenizer | SymbolCollector = SymbolCollector() if spec == "symbols" else load_tokenizer(spec)
    counts = ReadCounts()
    for source in found.inputs:
        for example in read_examples(source, reader, options, on_bad, counts=counts):
            assert all(0 <= low < high <= len(example.tokens) for low, high in example.runs.tolist())
    return counts.examples


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return a damaged copy of a file."""
    kind = chance.randrange(8)
    at = chance.randrange(len(data) + 1)
    if kind == 0:
        return data[:at]
    if kind == 1:
        changed = bytearray(data)
        for _ in range(chance.randint(1, 8)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed)
    if kind == 2:
        return data[:at] + chance.choice([b"\0", b"\xff\xfe", b"\r\n", b"{", b"]", b'"', DEEP, b"9" * 500]) + data[at:]
    if kind == 3:
        lines = data.split(b"\n")
        chance.shuffle(lines)
        return b"\n".join(lines[: chance.randint(1, len(lines))])
    return strange(data, chance)


def strange(data: bytes, chance: random.Random) -> bytes:
    """Return a file with some values of another type, missing, or twice."""
    try:
        lines = [json.loads(line) for line in data.splitlines() if line.strip() and not line.startswith(b"//")]
        pretty = False
    except ValueError:
        try:
            lines, pretty = [json.loads(data)], True
        except ValueError:
            return data[::-1]
    for _ in range(chance.randint(1, 3)):
        place = chance.choice(list(places(lines)) or [(lines, 0)])
        holder, key = place
        if chance.random() < 0.25:
            del holder[key]
        elif chance.random() < 0.15:
            value = holder[key]
            for _ in range(chance.choice([3, 300, 2_000])):
                value = [value]
            holder[key] = value
        else:
            holder[key] = copy.deepcopy(chance.choice(STRANGE))
        if not lines:
            return b""
    try:
        texts = [json.dumps(line, indent=1 if pretty else None) for line in lines]
    except RecursionError:
        return data + DEEP
    return "\n".join(texts).encode("utf-8", "surrogatepass")


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) in a JSON value."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict | list):
            for key in list(item) if isinstance(item, dict) else range(len(item)):
                yield item, key
                todo.append(item[key])


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: "-".join(path.relative_to(FIXTURES).parts))
def test_damage_is_an_error_or_a_counted_skip(seed: Path, tmp_path: Path) -> None:
    """Thousands of files over all formats: only dagpack's own errors come out, each with its place."""
    data = seed.read_bytes()
    chance = random.Random(seed.name)
    target = tmp_path / "corpus" / seed.name
    target.parent.mkdir()
    outcomes = {"read": 0, "refused": 0, "nameless": 0}
    for number in range(PER_SEED):
        target.write_bytes(damaged(data, chance))
        options = ReadOptions(per_turn=number % 4 == 1, group_weight=("none", "reward", "advantage")[number % 3])
        with hanging():
            try:
                read_all(target.parent, skip=number % 2 == 0, options=options)
            except DagpackError as error:
                outcomes["refused" if str(error.where) and str(error.found) else "nameless"] += 1
            else:
                outcomes["read"] += 1
    assert outcomes["refused"] > 0
    assert outcomes["nameless"] == 0


@pytest.mark.parametrize("seed", SEEDS, ids=lambda path: "-".join(path.relative_to(FIXTURES).parts))
def test_the_undamaged_file_is_read(seed: Path, tmp_path: Path) -> None:
    """Every seed is read whole, so that what the damaged ones say is about the damage."""
    assert read_all(seed, skip=False, options=ReadOptions()) >= 0


def content_of(path: Path, on_bad: Callable[..., None]) -> list[Any]:
    """Return what the examples of a file say, without what the place of a record changes."""
    [source] = discover(path).inputs
    target = path.parent / "same.jsonl"
    target.write_bytes(path.read_bytes())
    found: list[Any] = []
    for record in format_of(source.format).read(stat_source(target, "same", source.format), ReadOptions(), on_bad):
        body = record.body
        if isinstance(body, Chat):
            found.append([(m.role, m.content, m.reasoning, m.tool_calls, m.weight, m.identity) for m in body.messages])
        else:
            assert isinstance(body, Values)
            found.append([bytes(value) for value in body.values])
    return found


@pytest.mark.parametrize(
    "seed",
    [path for path in SEEDS if path.suffix == ".jsonl" and path.parts[-2] in GROWING],
    ids=lambda path: "-".join(path.relative_to(FIXTURES).parts),
)
def test_a_file_that_is_being_written_is_read_up_to_its_last_line(seed: Path, tmp_path: Path) -> None:
    """Cut anywhere behind its first line, a session is what its whole lines say, and the rest is counted."""
    data = seed.read_bytes()
    chance = random.Random(seed.name)
    path = tmp_path / "corpus" / "s.jsonl"
    path.parent.mkdir()
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    counted = 0
    for _ in range(60):
        at = chance.randrange(ends[len(ends) // 2], len(data))
        whole = max(end for end in ends if end <= at)
        path.write_bytes(data[:whole])
        before = content_of(path, raise_bad)
        path.write_bytes(data[:at])
        bad = BadRecords()
        try:
            json.loads(data[whole:at] or b"{}")
        except ValueError:
            assert content_of(path, bad.or_raise) == before
            assert bad.count == 1
            counted += 1
    assert counted


def test_a_line_of_fifty_megabytes_is_read_or_refused(tmp_path: Path) -> None:
    """One huge text in one record costs its own size, whatever the format."""
    huge = "a" * (50 << 20)
    message = {"type": "message", "id": "a", "parentId": None, "message": {"role": "user", "content": huge}}
    (tmp_path / "s.jsonl").write_text(
        json.dumps({"type": "session", "id": "s", "version": 3}) + "\n" + json.dumps(message)
    )
    assert read_all(tmp_path, skip=False, options=ReadOptions()) == 1
