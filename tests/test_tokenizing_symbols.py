"""Symbols: the table that a build keeps, how it is read back, and how symbols are shown."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagpack_cli.errors import DamageError
from dagpack_cli.tokenizing import Symbols, load_saved, read_symbols, shown_symbol
from dagpack_cli.tokenizing.symbols import SYMBOLS_NAME
from dagpack_cli.trie import count_transitions, markov_conflicts

TRICKY = [b'"\\n"', '"\u00e9\u2028"'.encode(), b"null", b'""', b"18446744073709551616", b'{"state":[0]}', b'"b"']


def frame(cell: int) -> bytes:
    """Return a node of a 64 x 64 game whose last cell is ``cell``."""
    state = {"frame": ["0" * 64] * 63 + ["0" * 63 + f"{cell:x}"], "game_id": "g", "status": "NOT_FINISHED"}
    return json.dumps({"action": "ACTION1", "state": state}, sort_keys=True, separators=(",", ":")).encode()


def table(path: Path, ids: list[int], payloads: list[str | None], *, kind: pa.DataType | None = None) -> None:
    """Write a table as another writer would."""
    pq.write_table(pa.table({"id": pa.array(ids, kind or pa.int32()), "payload": payloads}), path)


@pytest.mark.parametrize("symbols", [[], TRICKY, [b"%d" % n for n in range(20_000)]], ids=["none", "tricky", "many"])
def test_the_table_gives_the_symbols_back(symbols: list[bytes], tmp_path: Path) -> None:
    """Every payload comes back at its id, through dagpack and through any reader of Parquet."""
    Symbols(symbols).save(tmp_path)
    assert read_symbols(tmp_path / SYMBOLS_NAME) == symbols
    plain = pq.read_table(tmp_path / SYMBOLS_NAME)
    assert plain.column("id").to_pylist() == list(range(len(symbols)))
    assert [text.encode() for text in plain.column("payload").to_pylist()] == symbols
    loaded = load_saved(tmp_path)
    assert isinstance(loaded, Symbols)
    assert loaded.symbols == tuple(symbols)


def test_equal_symbols_equal_bytes(tmp_path: Path) -> None:
    """The file's bytes depend on the symbols alone."""
    for name in ("a", "b"):
        Symbols(TRICKY, virtual_root=name == "b").save(tmp_path / name)
    assert (tmp_path / "a" / SYMBOLS_NAME).read_bytes() == (tmp_path / "b" / SYMBOLS_NAME).read_bytes()


def test_identity_is_that_of_the_values() -> None:
    """The hash is of the values one a line, not of the file that holds them."""
    assert Symbols([b"1", b'"a"']).identity()["sha256"] == hashlib.sha256(b'1\n"a"\n').hexdigest()


def test_similar_payloads_take_little_space(tmp_path: Path) -> None:
    """Two hundred frames that differ in one row each are stored in a fraction of their 900 KB."""
    rows = [f"{n:064x}" for n in range(200)]
    symbols = [json.dumps({"state": {"frame": ["0" * 64] * 63 + [row]}}).encode() for row in rows]
    Symbols(symbols).save(tmp_path)
    assert (tmp_path / SYMBOLS_NAME).stat().st_size < sum(map(len, symbols)) / 20


def test_damage_is_named(tmp_path: Path) -> None:
    """A table cut anywhere, or with a byte changed, is damage or the same table: never another one."""
    symbols = [frame(n) for n in range(16)]
    Symbols(symbols).save(tmp_path)
    path = tmp_path / SYMBOLS_NAME
    data = path.read_bytes()
    rng = np.random.default_rng(3)
    changed = 0
    for at in [0, 4, len(data) - 1, *rng.integers(0, len(data), 150).tolist()]:
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]):
            path.write_bytes(damaged)
            try:
                found = read_symbols(path)
            except DamageError:
                changed += 1
            else:
                assert found == symbols
    assert changed > 150


@pytest.mark.parametrize(
    ("ids", "payloads", "kind", "reason"),
    [
        ([0, 2], ["1", "2"], None, "columns id, payload"),  # a string column may hold no more than 2 GiB
        ([0], ["1"], pa.int64(), "columns id, payload"),
    ],
)
def test_other_tables_are_refused(
    ids: list[int], payloads: list[str | None], kind: pa.DataType | None, reason: str, tmp_path: Path
) -> None:
    """A Parquet file of somebody else is no table of symbols."""
    table(tmp_path / "a.parquet", ids, payloads, kind=kind)
    with pytest.raises(DamageError, match=reason):
        read_symbols(tmp_path / "a.parquet")


def test_ids_out_of_order_are_refused(tmp_path: Path) -> None:
    """Rows that are not numbered from 0 upwards would give ids other payloads."""
    Symbols([b"1", b"2"]).save(tmp_path)
    path = tmp_path / SYMBOLS_NAME
    right = pq.read_table(path)
    pq.write_table(right.take([1, 0]), path)
    with pytest.raises(DamageError, match="ids are not 0, 1, 2"):
        read_symbols(path)
    pq.write_table(right.slice(1), path)
    with pytest.raises(DamageError, match="ids are not 0, 1, 2"):
        read_symbols(path)


def test_missing_table(tmp_path: Path) -> None:
    """A table that is gone is named."""
    with pytest.raises(DamageError, match="is missing"):
        read_symbols(tmp_path / SYMBOLS_NAME)


def test_long_values_are_shown_by_their_marks() -> None:
    """A frame becomes eight digits: the same for the same frame, another for one cell more."""
    first, second = shown_symbol(frame(1)), shown_symbol(frame(2))
    assert len(first) < 100
    assert first.startswith('{"action":"ACTION1","state":{"frame":#')
    assert first.endswith('"game_id":"g","status":"NOT_FINISHED"}}')
    assert first != second
    spaced = json.dumps(json.loads(frame(1)), indent=1)
    assert shown_symbol(spaced) == first
    assert Symbols([b"1", frame(1)]).decode([1, 0]) == f"{first} 1"


@pytest.mark.parametrize(
    "value",
    [
        b'"' + b"x" * 5000 + b'"',
        b"[" * 5000 + b"]" * 5000,
        b'{"a":' * 500 + b"1" + b"}" * 500,
        json.dumps({str(n): "y" * 50 for n in range(1000)}).encode(),
        json.dumps({str(n): {str(m): "y" * 50 for m in range(12)} for n in range(12)}).encode(),
        b"9" * 5000,
        b"no JSON " * 50,
        b"\xff" * 500,
    ],
)
def test_anything_is_shown_shortly(value: bytes) -> None:
    """However long, wide or deep a value is, what is shown of it is short."""
    assert len(shown_symbol(value)) <= 600
    assert shown_symbol(value[:40]) == value[:40].decode("utf-8", "replace")


def test_conflicts_of_frames_read_well() -> None:
    """A game that is not Markov shows which of its frames are, as `Symbols.decode` shows them."""
    symbols = [frame(1), frame(2), frame(3)]
    tokens, offsets = np.array([0, 1, 0, 2], dtype=np.int32), np.array([0, 2, 4])
    counted = count_transitions(tokens, offsets, np.ones(4), np.ones(4, dtype=bool))
    ((state, action, after),) = markov_conflicts(counted, symbols)
    assert action == '"ACTION1"'
    shown = [shown_symbol(text) for text in (state, *after)]
    assert [f'{{"action":"ACTION1","state":{text}}}' for text in shown] == [shown_symbol(item) for item in symbols]
