"""The vocabulary of grid games: ids as documented, text for people, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.errors import DamageError, DataError, MismatchError, UsageError
from dagpack_cli.tokenizing import GridTokenizer, Tokenizer, frame_cells, load_saved, load_tokenizer
from dagpack_cli.tokenizing.base import SAVED_NAME
from dagpack_cli.tokenizing.grid import ACTIONS, STATUSES, VOCAB_SIZE, action_ids, frame_ids

DIGITS = "0123456789abcdef"


def test_layout_of_the_ids() -> None:
    """The ids that the documentation gives are those that are written: they may never change."""
    assert frame_ids([DIGITS], "NOT_PLAYED").tolist() == [*range(2, 18), 18, 91]
    assert [action_ids(name)[0] for name in ACTIONS] == list(range(19, 27))
    assert action_ids("ACTION6", (0, 63)).tolist() == [25, 27, 90]
    assert [frame_ids(["0"], status)[-1] for status in STATUSES] == [91, 92, 93, 94]
    tokenizer = GridTokenizer()
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.virtual_root_id, tokenizer.vocab_size) == (0, 1, 95, 96)
    assert frame_ids(["0"], "WIN").dtype == action_ids("RESET").dtype == np.int32


def test_every_id_has_its_own_text() -> None:
    """No two ids read alike, and an id outside the vocabulary shows its number."""
    tokenizer = GridTokenizer()
    assert len({tokenizer.decode([token]) for token in range(VOCAB_SIZE)}) == VOCAB_SIZE
    assert tokenizer.decode([96, -1]) == "<96><-1>"
    assert tokenizer.decode([0, 25, 30, 28, 2, 17, 18, 3, 2, 18, 93, 1]) == "<bos><action6>(3)(1)0f\n10\n<win><eos>"


@given(
    st.integers(1, 64).flatmap(
        lambda width: st.lists(st.text(DIGITS, min_size=width, max_size=width), min_size=1, max_size=64)
    )
)
def test_frames_read_as_they_are(rows: list[str]) -> None:
    """A frame of any size gives one token a cell and one a row, and reads as its rows."""
    ids = frame_ids(rows, "GAME_OVER")
    assert len(ids) == sum(len(row) + 1 for row in rows) + 1
    assert frame_cells(rows).tolist() == [[int(digit, 16) for digit in row] for row in rows]
    assert GridTokenizer().decode(ids) == "".join(f"{row}\n" for row in rows) + "<game-over>"


@pytest.mark.parametrize("rows", [[], [""], ["0", "00"], ["00", "0g"], ["F"], ["\u0660"], ["-1"]])
def test_what_is_no_frame(rows: list[str]) -> None:
    """Rows of other lengths or characters are refused, never read as colours."""
    with pytest.raises(DataError, match="no grid"):
        frame_cells(rows)


def test_saved_and_loaded(tmp_path: Path) -> None:
    """The identity is all there is to keep; another layout is no longer this tokenizer."""
    tokenizer = GridTokenizer()
    assert isinstance(tokenizer, Tokenizer)
    tokenizer.save(tmp_path)
    loaded = load_saved(tmp_path)
    assert isinstance(loaded, GridTokenizer)
    assert loaded.identity() == tokenizer.identity()
    fields = orjson.loads((tmp_path / SAVED_NAME).read_bytes())
    (tmp_path / SAVED_NAME).write_bytes(orjson.dumps(fields | {"sha256": "0" * 64}))
    with pytest.raises(DamageError):
        load_saved(tmp_path)


def test_no_text_and_no_other_ends() -> None:
    """It encodes no text, and its BOS and EOS are its own."""
    assert isinstance(load_tokenizer("grid"), GridTokenizer)
    for option in ("bos", "eos"):
        with pytest.raises(UsageError, match=f"--{option}"):
            load_tokenizer("grid", **{option: "none"})
    for call in (GridTokenizer().encode_documents, GridTokenizer().encode_pieces):
        with pytest.raises(MismatchError, match="--grid-tokens"):
            call(["a"])
