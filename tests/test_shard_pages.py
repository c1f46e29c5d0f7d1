"""Parquet shards, whose pages are dagpack's own: pyarrow reads what it would have written itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

import dagpack_cli
from dagpack_cli.errors import DamageError, DiskError
from dagpack_cli.manifest import library_versions
from dagpack_cli.shards import ROW_COLUMNS, WindowRows, levels
from dagpack_cli.shards.parquet import read_attention_edges, read_parquet, windows_per_group, write_parquet
from dagpack_cli.storage import translate_os_error

SCALARS = {
    "num_rows": pa.int32(),
    "num_supervised": pa.int64(),
    "weight_sum": pa.float64(),
    "attention_edges": pa.int64(),
}
TYPES = {np.int32: pa.int32(), np.float32: pa.float32(), np.bool_: pa.bool_()}
MIB_ROWS = (1 << 20) // 4
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def make_windows(lengths: list[int], seed: int = 0, *, flat: bool = False) -> WindowRows:
    """Return windows of some lengths with numbers from the whole range of every column, or all the same."""
    generator = np.random.default_rng(seed)
    num_windows, num_rows = len(lengths), sum(lengths)

    def numbers(dtype: Any, size: int) -> Any:
        limits = np.iinfo(dtype)
        found = generator.integers(limits.min, limits.max, size, dtype=dtype, endpoint=True)
        found[:2] = [limits.min, limits.max][: len(found[:2])]
        return np.full(size, -1, dtype=dtype) if flat else found

    def weights(dtype: Any, size: int) -> Any:
        found = generator.standard_normal(size).astype(dtype) * dtype(1e30)
        found[:4] = np.array([-0.0, np.inf, np.finfo(dtype).smallest_subnormal, -np.finfo(dtype).max])[: len(found[:4])]
        return np.full(size, -1.5, dtype=dtype) if flat else found

    return WindowRows(
        row_offsets=np.concatenate(([0], np.cumsum(np.array(lengths, dtype=np.int64)))),
        **{name: numbers(np.int32, num_rows) for name, dtype in ROW_COLUMNS.items() if dtype is np.int32},
        weights=weights(np.float32, num_rows),
        owned=np.full(num_rows, True) if flat else generator.random(num_rows) < 0.5,
        num_supervised=numbers(np.int64, num_windows),
        weight_sum=weights(np.float64, num_windows),
        attention_edges=numbers(np.int64, num_windows),
        blocks=np.zeros(num_windows, dtype=np.int64),
    )


def write_by_pyarrow(path: Path, windows: WindowRows, window_len: int, metadata: Mapping[str, str]) -> None:
    """Write a shard as pyarrow writes it."""
    offsets = pa.array(windows.row_offsets, type=pa.int32())
    fields, columns = [], []
    for name, dtype in ROW_COLUMNS.items():
        kind = pa.list_(pa.field("element", TYPES[dtype], nullable=False))
        fields.append(pa.field(name, kind, nullable=False))
        columns.append(pa.ListArray.from_arrays(offsets, pa.array(getattr(windows, name)), type=kind))
    for name, kind in SCALARS.items():
        fields.append(pa.field(name, kind, nullable=False))
        found = np.diff(windows.row_offsets) if name == "num_rows" else getattr(windows, name)
        columns.append(pa.array(found, type=kind))
    pq.write_table(
        pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=dict(metadata))),
        path,
        row_group_size=max(1, 65_536 // window_len),
        compression="zstd",
        use_dictionary=False,
        use_byte_stream_split=[f"{name}.list.element" for name, dtype in ROW_COLUMNS.items() if dtype is not np.bool_],
        write_page_checksum=True,
        write_statistics=False,
    )


def columns_of(windows: WindowRows) -> dict[str, tuple[str, bytes]]:
    """Return the type and bytes of everything that a shard stores."""
    names = ["row_offsets", *ROW_COLUMNS, *(name for name in SCALARS if name != "num_rows")]
    arrays = {name: np.asarray(getattr(windows, name)) for name in names}
    return {name: (array.dtype.str, array.tobytes()) for name, array in arrays.items()}


LENGTHS = st.lists(st.integers(0, 40) | st.sampled_from([1, 63, 64, 65, 127, 128, 8_191, 8_192]), max_size=12)
PAIRS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text(max_size=300), max_size=20
)


@given(
    lengths=LENGTHS,
    seed=st.integers(0, 1_000),
    flat=st.booleans(),
    window_len=st.sampled_from([16, 8_192, 20_000, 65_536, 1 << 20]),
    page_rows=st.sampled_from([1_000, levels.PAGE_ROWS]),
    metadata=PAIRS,
    compression_level=st.sampled_from([1, 3]),
)
@example([], 0, False, 4, levels.PAGE_ROWS, {}, 1)
@example([0], 0, False, 4, levels.PAGE_ROWS, {}, 1)
@example([0, 0, 3, 0], 0, False, 4, levels.PAGE_ROWS, {"": ""}, 1)
@example([1], 0, False, 1, 1, {"dagpack.seq_len": "1"}, 1)
@example([17], 0, False, 1 << 20, 3, {str(number): "" for number in range(15)}, 1)
def test_pyarrow_reads_what_it_would_have_written(
    lengths: list[int],
    seed: int,
    flat: bool,
    window_len: int,
    page_rows: int,
    metadata: dict[str, str],
    compression_level: int,
) -> None:
    """Tables, schemas and metadata are equal, also one row group at a time, and so is what comes back as windows."""
    windows = make_windows(lengths, seed, flat=flat)
    with TemporaryDirectory() as folder:
        path, by_pyarrow = Path(folder, "shard.parquet"), Path(folder, "pyarrow.parquet")
        write_by_pyarrow(by_pyarrow, windows, window_len, metadata)
        with mock.patch.object(levels, "PAGE_ROWS", page_rows):
            write_parquet(path, windows, window_len, metadata, compression_level)
        with pq.ParquetFile(path, page_checksum_verification=True) as ours, pq.ParquetFile(by_pyarrow) as theirs:
            assert ours.schema.equals(theirs.schema)
            assert str(ours.schema).partition("\n")[2] == str(theirs.schema).partition("\n")[2]  # with logical types
            found, expected = ours.read(), theirs.read()
            assert found.schema.equals(expected.schema, check_metadata=True)
            assert found.equals(expected)
            found.validate(full=True)
            assert ours.num_row_groups == (theirs.num_row_groups if lengths else 0)
            for group in range(ours.num_row_groups):
                assert ours.read_row_group(group).equals(theirs.read_row_group(group))
        assert columns_of(read_parquet(path)) == columns_of(windows)
        np.testing.assert_array_equal(read_attention_edges(path), windows.attention_edges)


@pytest.mark.parametrize("num_rows", [MIB_ROWS, MIB_ROWS + 1, 3 * MIB_ROWS - 5])
def test_long_windows_are_cut_into_pages(num_rows: int, tmp_path: Path) -> None:
    """A window of any length is read whole, and no page is much longer than a MiB."""
    windows = make_windows([num_rows, 5], 1)
    path = tmp_path / "shard.parquet"
    write_parquet(path, windows, 1 << 20, {}, 1)
    assert columns_of(read_parquet(path)) == columns_of(windows)
    assert columns_of(read_parquet(path, 1))["owned"] == (windows.owned.dtype.str, windows.owned[-5:].tobytes())
    with pq.ParquetFile(path) as file:
        chunk = file.metadata.row_group(0).column(0)
    raw = path.read_bytes()[chunk.data_page_offset :][: chunk.total_compressed_size]
    num_pages = -(-num_rows // MIB_ROWS)
    assert raw.count(ZSTD_MAGIC) == num_pages
    assert chunk.total_uncompressed_size - 4 * num_rows < 64 * num_pages


def test_the_footer_says_what_is_there(tmp_path: Path) -> None:
    """Encodings, compression, sizes and counts are told; nothing lies between the pages; no more is stored."""
    lengths = [16_384, 9_000, 0, 16_000, 16_384, 1, 2]
    path = tmp_path / "shard.parquet"
    write_parquet(path, make_windows(lengths), 16_384, {"dagpack.seq_len": "16384"}, 1)
    with pq.ParquetFile(path) as file:
        found = file.metadata
    assert found.created_by == f"dagpack version {dagpack_cli.__version__}"
    assert found.format_version == "2.6"
    assert found.metadata == {b"dagpack.seq_len": b"16384"}
    assert (found.num_rows, found.num_columns, found.num_row_groups) == (7, 12, 2)
    raw = path.read_bytes()
    step = windows_per_group(16_384)
    position = 4
    for number in range(found.num_row_groups):
        group = found.row_group(number)
        rows = lengths[number * step :][:step]
        assert group.num_rows == len(rows)
        chunks = [group.column(at) for at in range(group.num_columns)]
        assert group.total_byte_size == sum(chunk.total_uncompressed_size for chunk in chunks)
        for name, chunk in zip([*ROW_COLUMNS, *SCALARS], chunks, strict=True):
            is_list = name in ROW_COLUMNS
            split = is_list and name != "owned"
            assert chunk.path_in_schema == (f"{name}.list.element" if is_list else name)
            assert set(chunk.encodings) == {"RLE", "BYTE_STREAM_SPLIT" if split else "PLAIN"}
            assert chunk.compression == "ZSTD"
            assert chunk.num_values == (sum(max(length, 1) for length in rows) if is_list else len(rows))
            assert not chunk.is_stats_set
            assert not chunk.has_dictionary_page
            assert chunk.data_page_offset == position
            body = raw.index(ZSTD_MAGIC, position)
            assert chunk.total_uncompressed_size == body - position + zstandard.frame_content_size(raw[body:])
            position += chunk.total_compressed_size
    assert position + found.serialized_size + 8 == len(raw)


def test_compression_level_is_of_zstd(tmp_path: Path) -> None:
    """Another level gives other bytes, the same one the same."""
    windows = make_windows([500] * 20, flat=False)
    sizes = {}
    for level in (1, 19):
        paths = [tmp_path / f"{level}-{at}.parquet" for at in range(2)]
        for path in paths:
            write_parquet(path, windows, 500, {}, level)
        assert paths[0].read_bytes() == paths[1].read_bytes()
        sizes[level] = paths[0].read_bytes()
    assert sizes[1] != sizes[19]


def test_every_flipped_bit_of_a_page_is_found(tmp_path: Path) -> None:
    """A byte changed below a checksum is damage; anywhere else it is damage or not noticed here, and no bug."""
    path = tmp_path / "shard.parquet"
    write_parquet(path, make_windows([3, 1, 12, 7]), 16, {"dagpack.seq_len": "16"}, 1)
    raw = path.read_bytes()
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        chunks = [group.column(at) for at in range(group.num_columns)]
    covered = set()
    for chunk in chunks:
        end = chunk.data_page_offset + chunk.total_compressed_size
        covered |= set(range(raw.index(ZSTD_MAGIC, chunk.data_page_offset, end), end))
    assert len(covered) > 500
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        try:
            read_parquet(path)
        except DamageError:
            continue
        assert at not in covered


def test_values_of_another_type_are_refused(tmp_path: Path) -> None:
    """Nothing is narrowed on the way into a page."""
    windows = make_windows([3])
    wider: Any = windows.inputs.astype(np.int64)
    with pytest.raises(TypeError, match="int64"):
        write_parquet(tmp_path / "shard.parquet", replace(windows, inputs=wider), 4, {}, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("num_rows", [3, 2_000_000], ids=["at the end", "on the way"])
def test_a_full_disk_is_told(num_rows: int) -> None:
    """Whether it fills up early or late, the error is that of a full disk."""
    with pytest.raises(OSError, match="No space left") as raised:
        write_parquet(Path("/dev/full"), make_windows([num_rows]), num_rows, {}, 1)
    error = translate_os_error(raised.value)
    assert isinstance(error, DiskError)
    assert "no space left" in str(error)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A file that cannot be made is named."""
    with pytest.raises(FileNotFoundError) as raised:
        write_parquet(tmp_path / "gone" / "shard.parquet", make_windows([3]), 4, {}, 1)
    assert str(tmp_path / "gone") in str(raised.value.filename)


@pytest.mark.parametrize("huggingface", [False, True])
def test_whatever_writes_shards_is_in_the_fingerprint(huggingface: bool) -> None:
    """The bytes of a shard depend on the compressor's version too."""
    assert {"dagpack", "pyarrow", "zstandard"} <= library_versions(huggingface=huggingface).keys()
