"""The table of a build's symbols: Parquet, one row a symbol, in the order of their ids.

Columns are ``id`` (int32, 0 upwards) and ``payload`` (the canonical JSON as text). Payloads of one
game look alike, which zstd sees within a row group: 101 nodes of 64 x 64 cells, 450 KB as text, take 5 KB.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dagpack_cli.errors import DamageError
from dagpack_cli.native import open_native

__all__ = ["read_table", "write_table"]

_ROWS = 8192  # in a row group, which is what writing and reading hold besides the list
_SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("payload", pa.large_string(), nullable=False),  # 64-bit offsets: no limit at 2^31 bytes
    ]
)


def write_table(path: Path, symbols: Sequence[bytes]) -> None:
    """Write the table; the bytes depend on the symbols and on pyarrow alone.

    Args:
        path: the file.
        symbols: canonical JSON of every id; UTF-8.
    """
    with (
        open_native(path, "wb") as file,
        pq.ParquetWriter(
            file,
            _SCHEMA,
            compression="zstd",
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        ) as writer,
    ):
        for start in range(0, len(symbols), _ROWS):
            part = symbols[start : start + _ROWS]
            ids = pa.array(np.arange(start, start + len(part), dtype=np.int32))
            payloads = pa.array([value.decode() for value in part], pa.large_string())
            writer.write_table(pa.Table.from_arrays([ids, payloads], schema=_SCHEMA))


def read_table(path: Path) -> list[bytes]:
    """Return the payloads in the order of their ids.

    Raises:
        DamageError: missing, unreadable, a page checksum that differs, or not such a table.
    """
    symbols: list[bytes] = []
    try:
        with open_native(path, "rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as file:
            if file.schema_arrow.remove_metadata() != _SCHEMA:
                raise DamageError(str(path), f"columns {', '.join(file.schema_arrow.names)}", "id and payload")
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, use_threads=False)
                ids = table.column("id").to_numpy()
                if not np.array_equal(ids, np.arange(len(symbols), len(symbols) + len(ids))):
                    raise DamageError(str(path), "the ids are not 0, 1, 2 and so on", "one row a symbol, in order")
                symbols += [value.encode() for value in table.column("payload").to_pylist()]
    except FileNotFoundError:
        raise DamageError(str(path), "is missing", "it was saved with the tokenizer") from None
    except PermissionError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DamageError(str(path), f"unreadable ({str(error).splitlines()[0]})", "a table of symbols") from None
    return symbols
