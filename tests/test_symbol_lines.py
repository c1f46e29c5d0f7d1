"""The symbols of inputs as they stand in the files of splits: any order of inputs, any lines."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.errors import DamageError
from dagpack_cli.stages import symbol_lines
from dagpack_cli.stages.symbol_lines import SymbolLines


@given(
    st.lists(st.lists(st.binary(max_size=5).map(lambda value: value.replace(b"\n", b"")), max_size=8), max_size=3),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 8), st.integers(0, 8)), max_size=8),
    st.integers(1, 9),
)
def test_lines_are_those_of_a_list(splits: list[list[bytes]], asked: list[tuple[int, int, int]], block: int) -> None:
    """Inputs that follow one another, go back, overlap, leave lines out or have none."""
    ranges = [
        (number, min(one, other, len(splits[number])), min(max(one, other), len(splits[number])))
        for number, one, other in asked
        if number < len(splits)
    ]
    with TemporaryDirectory() as folder, mock.patch.object(symbol_lines, "_BLOCK", block):
        for number, lines in enumerate(splits):
            Path(folder, f"{number}").write_bytes(b"".join(line + b"\n" for line in lines))
        found = SymbolLines((Path(folder, f"{number}"), first, last) for number, first, last in ranges)
        wanted = [splits[number][first:last] for number, first, last in ranges]
        for _ in range(2):
            lines = list(found)
            assert lines == [line for part in wanted for line in part]
        assert [lines[low:high] for low, high in zip(found.offsets, found.offsets[1:], strict=False)] == wanted
        assert len(found) == len(lines)


def test_a_file_that_is_too_short_is_named(tmp_path: Path) -> None:
    """Fewer lines than the receipt says, before or inside what is asked for, or half a line."""
    path = tmp_path / "symbols.jsonl"
    for data in (b"1\n2\n", b"1\n2\n3", b""):
        path.write_bytes(data)
        for first, last in ((0, 3), (2, 3), (4, 5)):
            with pytest.raises(DamageError, match=r"symbols.jsonl: fewer symbols"):
                list(SymbolLines([(path, first, last)]))
