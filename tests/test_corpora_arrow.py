"""Arrow files, as streams and as files, and Parquet: rows of every type, bounded batches, damage."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rows import read, text_of, trained

from dagpack_cli.corpora import BadRecords, ReadOptions, discover, read_examples
from dagpack_cli.corpora.files.arrow_rows import read_arrow_rows
from dagpack_cli.corpora.files.sources import read_source_rows, stat_source, table_kind
from dagpack_cli.corpora.files.table_batch import without_nulls
from dagpack_cli.corpora.records import raise_bad
from dagpack_cli.errors import DagpackError, DataError, NoInputError
from dagpack_cli.tokenizing import GivenIds

END = "<end-of-turn>"
Kind = Literal["stream", "file", "parquet"]
KINDS: list[Kind] = ["stream", "file", "parquet"]


def stored(path: Path, table: pa.Table, kind: Kind, *, batch: int = 1000, compression: str | None = None) -> Path:
    """Write a table in one of the three ways, and return its path."""
    if kind == "parquet":
        pq.write_table(table, path)
        return path
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    with pa.OSFile(str(path), "wb") as sink, make(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


def chats(num: int, text: pa.DataType | None = None) -> pa.Table:
    """Return conversations, their strings of a type."""
    rows = [
        [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": f"a{n}" if n % 3 else None}]
        for n in range(num)
    ]
    kind = text or pa.string()
    return pa.table({"messages": pa.array(rows, pa.list_(pa.struct([("role", kind), ("content", kind)])))})


TEXTS = [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
# Parquet has no struct of dictionaries.
STORED = [(kind, text) for kind in KINDS for text in TEXTS if kind != "parquet" or not pa.types.is_dictionary(text)]


@pytest.mark.parametrize(("kind", "text"), STORED, ids=str)
def test_conversations_of_tables(kind: Kind, text: pa.DataType, tmp_path: Path) -> None:
    """Whatever the file and the type of its strings, the rows are the same, in order, with their numbers."""
    # No name ending tells what it is.
    path = stored(tmp_path / "data.bin", chats(7, text), kind, batch=3)
    found = read(path)
    assert [text_of(example) for example in found] == [
        f"<bos><user>q{n}{END}<assistant>{f'a{n}' if n % 3 else ''}{END}" for n in range(7)
    ]
    assert [trained(example) for example in found] == [[f"a{n}{END}"] if n % 3 else [] for n in range(7)]
    assert [(example.id, example.record, example.line) for example in found][6] == ("data.bin:6", 6, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_injected_nulls_are_dropped(kind: Kind, tmp_path: Path) -> None:
    """Arguments as structs come back with the keys of all tools: only the call's own are written."""
    calls: list[Any] = [{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {"y": {"z": "2"}}}]
    rows = [
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": call}]}], "tools": tools}
        for call, tools in zip(calls, [[{"name": "f", "default": 1}], [{"name": "g"}]], strict=True)
    ]
    first, second = read(stored(tmp_path / "a", pa.Table.from_pylist(rows), kind))
    assert trained(first) == ['<tool-call>{"name": "f", "arguments": {"x": 1}}' + END]
    assert trained(second) == ['<tool-call>{"name": "g", "arguments": {"y": {"z": "2"}}}' + END]
    assert "null" not in text_of(first) + text_of(second)


@pytest.mark.parametrize("kind", KINDS)
def test_maps_are_objects(kind: Kind, tmp_path: Path) -> None:
    """Arguments as a map are an object of its keys."""
    call = pa.struct([("name", pa.string()), ("arguments", pa.map_(pa.string(), pa.string()))])
    message = pa.struct([("role", pa.string()), ("tool_calls", pa.list_(call))])
    row = [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": [("k", "v"), ("a", "b")]}]}]
    (found,) = read(stored(tmp_path / "a", pa.table({"messages": pa.array([row], pa.list_(message))}), kind))
    assert trained(found) == ['<tool-call>{"name": "f", "arguments": {"k": "v", "a": "b"}}' + END]
    assert without_nulls({"m": [("a", {"b": None})], "l": [[]]}) == {"m": {"a": {}}, "l": [[]]}


@pytest.mark.parametrize("kind", KINDS)
def test_values_python_has_not_are_tolerated(kind: Kind, tmp_path: Path) -> None:
    """Nanoseconds and far years in a column that nobody reads harm no row."""
    table = chats(2).append_column("at", pa.array([1, None], pa.timestamp("ns")))
    table = table.append_column("year", pa.array([2**60, 0], pa.timestamp("us")))
    assert len(read(stored(tmp_path / "a", table, kind))) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_token_ids_of_tables(kind: Kind, compression: str | None, tmp_path: Path) -> None:
    """Ids come as arrays of their own type, across slices and batches; other columns are not decoded."""
    ids = [[n, n + 1, 7] for n in range(1000)]
    table = pa.table({"input_ids": pa.array(ids, pa.list_(pa.int32())), "note": ["x"] * 1000})
    path = stored(tmp_path / "a", table, kind, batch=600, compression=compression)
    (source,) = discover(path).inputs
    found = list(read_examples(source, GivenIds(), ReadOptions()))
    assert [example.tokens.tolist() for example in found] == ids
    assert found[-1].record == 999


def test_slices_are_bounded(tmp_path: Path) -> None:
    """Of a large batch only a few rows are Python objects at a time, and rows are given as they come."""
    path = stored(tmp_path / "a", chats(50), "stream", batch=50)
    whole = [row for _, row in read_arrow_rows(path, "a", raise_bad)]
    for size in (1, 7, 50):
        assert [row for _, row in read_arrow_rows(path, "a", raise_bad, slice_rows=size)] == whole
    rows = read_arrow_rows(path, "a", raise_bad, columns=["nothing"])
    assert next(rows)[1] == whole[0]


def test_empty_tables(tmp_path: Path) -> None:
    """A table without rows is no input, and no error."""
    for kind in KINDS:
        path = stored(tmp_path / kind, chats(0), kind)
        assert list(read_source_rows(stat_source(path, kind, ""), raise_bad)) == []
        with pytest.raises(NoInputError, match="no rows"):
            discover(path)


def test_what_datasets_keeps_beside(tmp_path: Path) -> None:
    """A saved data set is its Arrow files; the notes beside them are named, not read."""
    stored(tmp_path / "data-00000-of-00001.arrow", chats(2), "stream")
    (tmp_path / "state.json").write_text('{\n  "_data_files": [{"filename": "data-00000-of-00001.arrow"}]\n}\n')
    (tmp_path / "dataset_info.json").write_text('{\n  "features": {"messages": []},\n  "license": ""\n}\n')
    found = discover(tmp_path)
    assert [(source.name, source.format) for source in found.inputs] == [("data-00000-of-00001.arrow", "chat")]
    assert [name for name, _ in found.ignored] == ["dataset_info.json", "state.json"]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"ARROW1\0\0", "arrow"),
        (b"ARROW1", ""),
        (b"ARROW123", ""),
        (b"\xff" * 8, ""),
        (b"\xff\xff\xff\xff\0\0\0\0", ""),
        (b"\xff\xff\xff\xff\x07\0\0\0", ""),
        (b"\xff\xff\xff\xff\x08\0\0\0", "arrow"),
        (b"PAR1", "parquet"),
        (b"", ""),
    ],
)
def test_tables_are_told_by_their_bytes(head: bytes, kind: str, tmp_path: Path) -> None:
    """The magic of a file, or the mark of a stream with a size that a schema may have."""
    (tmp_path / "a").write_bytes(head)
    assert table_kind(tmp_path / "a", "a") == kind


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_cut_files_are_damaged(kind: Kind, tmp_path: Path) -> None:
    """However much is missing, the file is named; what stood before is given, and never taken for all."""
    data = stored(tmp_path / "a", chats(300), kind, batch=100).read_bytes()
    path = tmp_path / "cut"
    for size in (9, 40, len(data) // 3, len(data) // 2, len(data) - 400, len(data) - 8, len(data) - 1):
        path.write_bytes(data[:size])
        bad = BadRecords()
        rows = list(read_arrow_rows(path, "cut", bad))
        assert (bad.count, bad.first[0][0]) == (1, "cut")
        assert len(rows) in (0, 100, 200, 300)
        with pytest.raises(DataError, match="cut: not a readable Arrow file"):
            list(read_arrow_rows(path, "cut", raise_bad))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_flipped_bytes_are_counted(kind: Kind, seed: int, tmp_path: Path) -> None:
    """Bytes changed anywhere give rows or errors of dagpack's, nothing worse."""
    draw = random.Random(seed)
    data = stored(tmp_path / "a", chats(40), kind, batch=16, compression="lz4" if seed == 3 else None).read_bytes()
    path, bad = tmp_path / "b", BadRecords()
    for _ in range(120):
        changed = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        path.write_bytes(changed)
        try:
            (source,) = discover(path, options=ReadOptions(format="chat"), on_bad=bad).inputs
        except DagpackError:
            continue
        list(read_source_rows(source, bad))
    assert bad.count > 0


def test_strings_that_are_no_text(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 in a string column are damage, in every kind of table."""
    buffers = [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    table = pa.table({"text": pa.Array.from_buffers(pa.string(), 1, buffers)})
    for kind in KINDS:
        with pytest.raises(DataError, match="not a readable"):
            list(read_source_rows(stat_source(stored(tmp_path / kind, table, kind), kind, ""), raise_bad))
