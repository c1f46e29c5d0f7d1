"""Symbols: how they are numbered, the table that a build keeps, how it is read back, and how symbols are shown."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Generator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli import memory
from dagpack_cli.errors import DamageError, DataError
from dagpack_cli.memory import Scratch
from dagpack_cli.stages.conflicts import markov_conflicts, symbol_parts
from dagpack_cli.tokenizing import (
    SymbolCollector,
    Symbols,
    load_saved,
    merge_symbols,
    read_symbols,
    repeats,
    shown_symbol,
    store_symbols,
    symbol_table,
    symbols,
)
from dagpack_cli.tokenizing.repeats import digests, first_equals
from dagpack_cli.tokenizing.symbol_table import SymbolTable, write_table
from dagpack_cli.tokenizing.symbols import SYMBOLS_NAME
from dagpack_cli.trie import count_transitions

TRICKY = [b'"\\n"', '"\u00e9\u2028"'.encode(), b"null", b'""', b"18446744073709551616", b'{"state":[0]}', b'"b"']


def frame(cell: int) -> bytes:
    """Return a node of a 64 x 64 game whose last cell is ``cell``."""
    state = {"frame": ["0" * 64] * 63 + ["0" * 63 + f"{cell:x}"], "game_id": "g", "status": "NOT_FINISHED"}
    return json.dumps({"action": "ACTION1", "state": state}, sort_keys=True, separators=(",", ":")).encode()


def table(path: Path, ids: list[int], payloads: list[str | None], *, kind: pa.DataType | None = None) -> None:
    """Write a table as another writer would."""
    pq.write_table(pa.table({"id": pa.array(ids, kind or pa.int32()), "payload": payloads}), path)


def held_table(values: Sequence[bytes], rows: int) -> bytes:
    """Return the table as it is written where all of a row group is held as a list of strings."""
    file, names = io.BytesIO(), ["id", "payload"]
    types = [pa.field("id", pa.int32(), nullable=False), pa.field("payload", pa.large_string(), nullable=False)]
    how = {"compression": "zstd", "use_dictionary": False, "write_statistics": False, "write_page_checksum": True}
    with pq.ParquetWriter(file, pa.schema(types), **how) as writer:
        for start in range(0, len(values), rows):
            texts = [value.decode() for value in values[start : start + rows]]
            columns = [range(start, start + len(texts)), texts]
            writer.write_table(pa.table(dict(zip(names, columns, strict=True)), schema=pa.schema(types)))
    return file.getvalue()


@given(st.lists(st.lists(st.binary(max_size=2), max_size=9), max_size=5), st.integers(1, 7))
def test_values_are_numbered_as_they_first_appear(inputs: list[list[bytes]], span: int) -> None:
    """However often values come again, in whatever inputs: ids are those of a dictionary of all of them."""
    collectors = [SymbolCollector() for _ in inputs]
    local = [collector.encode_values(values).tolist() for collector, values in zip(collectors, inputs, strict=True)]
    shown = [value for collector in collectors for value in collector.symbols]
    with TemporaryDirectory() as folder, mock.patch.object(memory, "SPAN", span):
        ids, are_new = merge_symbols(iter(shown), len(shown), Scratch(Path(folder), 0).zeros)
    merged = list(dict.fromkeys(shown))
    assert [value for value, new in zip(shown, are_new.tolist(), strict=True) if new] == merged
    assert ids.tolist() == [merged.index(value) for value in shown]
    start = 0
    for values, own, collector in zip(inputs, local, collectors, strict=True):
        remap = ids[start : start + len(collector.symbols)]
        assert [merged[remap[token]] for token in own] == values
        start += len(collector.symbols)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=60), st.integers(1, 9))
def test_first_equals_are_those_of_a_list(pairs: list[tuple[int, int]], span: int) -> None:
    """Equal keys of both columns are found, wherever spans and buckets cut."""
    keys = np.array([(high << 62, low) for high, low in pairs], dtype=np.uint64).reshape(-1, 2)
    with mock.patch.object(memory, "SPAN", span):
        assert first_equals(keys, np.zeros).tolist() == [pairs.index(pair) for pair in pairs]


def test_buckets_are_small_however_often_keys_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many keys, and of few that come again and again, only some are sorted at a time."""
    monkeypatch.setattr(memory, "SPAN", 64)
    seen: list[int] = []
    plain = repeats._firsts

    def watched(keys: repeats.Keys) -> repeats.Int64Array:
        seen.append(len(keys))
        return plain(keys)

    monkeypatch.setattr(repeats, "_firsts", watched)
    for values in ([b"%d" % n for n in range(5_000)], [b"%d" % (n % 3) for n in range(5_000)]):
        keys = digests(values, len(values), np.zeros)
        assert first_equals(keys, np.zeros).tolist() == [n if len(set(values)) > 3 else n % 3 for n in range(5_000)]
    assert max(seen) < 64 * 4


def test_as_many_values_as_were_told_of() -> None:
    """One more or one fewer than there should be would give every later one another's number."""
    for num in (2, 4):
        with pytest.raises(ValueError, match=r"values|broadcast"):
            digests([b"1", b"2", b"3"], num, np.zeros)


def test_more_values_than_ids_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are int32: neither an input nor all of them have more values."""
    monkeypatch.setattr(symbols, "_MAX_SYMBOLS", 2)
    values = [b"1", b"2", b"3"]
    assert merge_symbols([b"1", b"2", b"1"], 3, np.zeros)[0].tolist() == [0, 1, 0]
    for refused in (lambda: merge_symbols(values, 3, np.zeros), lambda: SymbolCollector().encode_values(values)):
        with pytest.raises(DataError, match="3 distinct values; at most 2"):
            refused()


@pytest.mark.parametrize("values", [[], TRICKY, [b"%d" % n for n in range(20_000)]], ids=["none", "tricky", "many"])
def test_the_table_gives_the_symbols_back(values: list[bytes], tmp_path: Path) -> None:
    """Every payload comes back at its id, through dagpack and through any reader of Parquet."""
    Symbols(values).save(tmp_path)
    assert read_symbols(tmp_path / SYMBOLS_NAME) == values
    plain = pq.read_table(tmp_path / SYMBOLS_NAME)
    assert plain.column("id").to_pylist() == list(range(len(values)))
    assert [text.encode() for text in plain.column("payload").to_pylist()] == values
    loaded = load_saved(tmp_path)
    assert isinstance(loaded, Symbols)
    assert list(loaded.symbols) == values
    assert loaded.encode_values(values[::-1]).tolist() == list(range(len(values)))[::-1]
    assert list(tmp_path.glob(".*")) == []


@pytest.mark.parametrize("num", [0, 1, 4, 5, 8, 11])
def test_the_table_has_the_bytes_of_one_written_from_lists(
    num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text that waits in a file, and empty text, makes the same row groups as text that is held."""
    monkeypatch.setattr(symbol_table, "_ROWS", 4)
    for values in ([frame(n) for n in range(num)], [b""] * num):
        write_table(tmp_path / "a.parquet", iter(values))
        assert (tmp_path / "a.parquet").read_bytes() == held_table(values, 4)


def test_a_row_group_has_8192_symbols(tmp_path: Path) -> None:
    """Which is part of the format: equal symbols, equal bytes."""
    values = [b"%d" % n for n in range(8192 + 5)]
    write_table(tmp_path / "a.parquet", values)
    assert (tmp_path / "a.parquet").read_bytes() == held_table(values, 8192)


@given(st.integers(1, 30), st.lists(st.integers(-30, 29), max_size=40), st.sampled_from([1, 40, 1 << 20]))
def test_symbols_are_read_in_any_order(num: int, asked: list[int], kept: int) -> None:
    """Forwards, backwards and again, whatever is still held: always what a list says."""
    values = [b'"%s"' % (b"x" * (n % 5) + b"%d" % n) for n in range(num)]
    with (
        TemporaryDirectory() as folder,
        mock.patch.object(symbol_table, "_ROWS", 7),
        mock.patch.object(symbol_table, "_BATCH_ROWS", 3),
        mock.patch.object(symbol_table, "_KEPT_BYTES", kept),
    ):
        write_table(Path(folder, "a.parquet"), values)
        table = SymbolTable(Path(folder, "a.parquet"))
        assert (len(table), list(table), table[1:-1:2]) == (num, values, values[1:-1:2])
        for index in asked:
            if -num <= index < num:
                assert table[index] == values[index]
            else:
                with pytest.raises(IndexError):
                    table[index]
        held = [batch.nbytes for batch in table._kept.values()]
        assert len(held) <= 1 or sum(held) <= kept


def test_going_forwards_reads_a_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ascending ids take no longer than all of them, though hardly anything is held."""
    monkeypatch.setattr(symbol_table, "_BATCH_ROWS", 2)
    monkeypatch.setattr(symbol_table, "_KEPT_BYTES", 1)
    values = [b"%d" % n for n in range(100)]
    write_table(tmp_path / "a.parquet", values)
    table = SymbolTable(tmp_path / "a.parquet")
    opened: list[range] = []
    batches = table._batches

    def watched(groups: range) -> Generator[pa.Array]:
        opened.append(groups)
        return batches(groups)

    monkeypatch.setattr(table, "_batches", watched)
    assert [table[n] for n in range(0, 100, 3)] == values[::3]
    assert len(opened) == 1
    assert (table[0], len(opened)) == (b"0", 2)


def test_damage_after_opening_is_named(tmp_path: Path) -> None:
    """A table that changes under a reader is damage when it is read on, not another symbol."""
    path = tmp_path / SYMBOLS_NAME
    Symbols([frame(n) for n in range(16)]).save(tmp_path)
    table, data = SymbolTable(path), path.read_bytes()
    middle = len(data) // 3
    path.write_bytes(data[:middle] + bytes([data[middle] ^ 0x55]) + data[middle + 1 :])
    for read in (lambda: table[3], lambda: list(table)):
        with pytest.raises(DamageError, match="unreadable"):
            read()
    path.unlink()
    with pytest.raises(DamageError, match="is missing"):
        list(table)


def test_a_stored_list_is_the_tokenizer_of_the_list(tmp_path: Path) -> None:
    """Identity, names and files are those of symbols that are held, and saving it again writes only the identity."""
    values = [frame(n) for n in range(9)]
    held = Symbols(values, virtual_root=True)
    held.save(tmp_path / "held")
    stored = store_symbols(tmp_path / "stored", iter(values), virtual_root=True)
    assert (stored.identity(), stored.decode(range(11))) == (held.identity(), held.decode(range(11)))
    written = (tmp_path / "stored" / SYMBOLS_NAME).stat().st_mtime_ns
    stored.save(tmp_path / "stored")
    assert (tmp_path / "stored" / SYMBOLS_NAME).stat().st_mtime_ns == written
    stored.save(tmp_path / "again")
    for name in ("stored", "again"):
        for path in sorted((tmp_path / "held").iterdir()):
            assert (tmp_path / name / path.name).read_bytes() == path.read_bytes()


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
    values = [json.dumps({"state": {"frame": ["0" * 64] * 63 + [row]}}).encode() for row in rows]
    Symbols(values).save(tmp_path)
    assert (tmp_path / SYMBOLS_NAME).stat().st_size < sum(map(len, values)) / 20


def test_damage_is_named(tmp_path: Path) -> None:
    """A table cut anywhere, or with a byte changed, is damage or the same table: never another one."""
    values = [frame(n) for n in range(16)]
    Symbols(values).save(tmp_path)
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
                assert found == values
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
    values = [frame(1), frame(2), frame(3)]
    tokens, offsets = np.array([0, 1, 0, 2], dtype=np.int32), np.array([0, 2, 4])
    counted = count_transitions(tokens, offsets, np.ones(4), np.ones(4, dtype=bool))
    ((state, action, after),) = markov_conflicts(counted, symbol_parts(values, np.zeros))
    assert action == '"ACTION1"'
    shown = [shown_symbol(text) for text in (state, *after)]
    assert [f'{{"action":"ACTION1","state":{text}}}' for text in shown] == [shown_symbol(item) for item in values]
