"""Cutting text before it is encoded: the ids of the whole, for tokenizers of every kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from chat_templates import CHATML, byte_level, chat
from hypothesis import given, settings
from hypothesis import strategies as st

from dagpack_cli.errors import DataError
from dagpack_cli.tokenizing import ByteTokenizer, HuggingFaceTokenizer, IdArray, load_tokenizer
from dagpack_cli.tokenizing.chat import Piece, PieceEncoder, targets_of
from dagpack_cli.tokenizing.cutting import Control, Controls
from dagpack_cli.tokenizing.templates import load_template

tokenizers = pytest.importorskip("tokenizers")

REAL = Path(__file__).resolve().parents[2] / "shared" / "tokenizers"
LEARNED = "Hello world assistant user q b x = 1 the cat sat on a mat answer a:\n ü \n\n" * 20
ANYWHERE, INNER, CONTROLS, WHOLE = (True, True, False), (True, True, True), (False, True, False), (False, False, False)


def learned(
    before: Any = None,
    normaliser: Any = None,
    specials: Sequence[str] = ("<s>", "</s>", "<|u|>", "<|u|>>"),
    **special: bool,
) -> HuggingFaceTokenizer:
    """Return a small BPE tokenizer."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    if before is not None:
        inner.pre_tokenizer = before
    if normaliser is not None:
        inner.normalizer = normaliser
    alphabet = sorted(
        set("abcdefghijklmnopqrstuvwxyzH▁\n ü=:1<|>/") | set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    )
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420, special_tokens=["<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([LEARNED], trainer)
    options = {"normalized": False, **special}
    inner.add_special_tokens([tokenizers.AddedToken(text, special=True, **options) for text in specials])
    return HuggingFaceTokenizer(inner.to_str().encode(), label="small", eos_id=None)


def metaspace(scheme: str, **options: Any) -> Any:
    """Return the pre-tokenizer of SentencePiece."""
    return tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme, **options)


def prepend() -> Any:
    """Return the normaliser of older conversions of SentencePiece."""
    kinds = tokenizers.normalizers
    return kinds.Sequence([kinds.Prepend("▁"), kinds.Replace(" ", "▁")])


@cache
def made(name: str) -> tuple[HuggingFaceTokenizer, tuple[bool, bool, bool]]:
    """Return a tokenizer by name, and how it may be cut: anywhere, at controls, as an inner text."""
    level = tokenizers.pre_tokenizers.ByteLevel
    if name in ("qwen3", "anthropic-claude2"):
        if not (REAL / name).exists():
            pytest.skip(f"no real tokenizer at shared/tokenizers/{name}")
        found = load_tokenizer(str(REAL / name), eos="none")
        assert isinstance(found, HuggingFaceTokenizer)
        return found, ANYWHERE
    kinds: dict[str, tuple[Any, tuple[bool, bool, bool]]] = {
        "bytes": (lambda: HuggingFaceTokenizer(byte_level(), label="bytes", eos_id=None), ANYWHERE),
        "byte level": (lambda: learned(level(add_prefix_space=False)), ANYWHERE),
        "strips": (lambda: learned(level(add_prefix_space=False), lstrip=True, rstrip=True), ANYWHERE),
        "strips behind": (lambda: learned(metaspace("first"), rstrip=True), INNER),
        "prefix space": (lambda: learned(level(add_prefix_space=True)), CONTROLS),
        "always": (lambda: learned(metaspace("always")), CONTROLS),
        "first": (lambda: learned(metaspace("first")), INNER),
        "first, not split": (lambda: learned(metaspace("first", split=False)), INNER),
        "never": (lambda: learned(metaspace("never")), ANYWHERE),
        "prepend": (lambda: learned(None, prepend()), CONTROLS),
        "prepend once": (lambda: learned(None, prepend(), normalized=True), WHOLE),
        "no specials": (lambda: learned(level(add_prefix_space=False), specials=()), ANYWHERE),
        "always, no specials": (lambda: learned(metaspace("always"), specials=()), CONTROLS),
        "first, no specials": (lambda: learned(metaspace("first"), specials=()), INNER),
    }
    make, cut = kinds[name]
    return make(), cut


NAMES = [
    "bytes",
    "byte level",
    "strips",
    "strips behind",
    "prefix space",
    "always",
    "first",
    "first, not split",
    "never",
    "prepend",
    "prepend once",
    "no specials",
    "always, no specials",
    "first, no specials",
    "qwen3",
    "anthropic-claude2",
]


@pytest.mark.parametrize("name", NAMES)
def test_how_each_kind_is_cut(name: str) -> None:
    """The freest way is found for every kind, and any but the free one is told."""
    tokenizer, (anywhere, controls, inner) = made(name)
    assert (tokenizer.cut.anywhere, tokenizer.cut.controls, tokenizer.cut.inner) == (anywhere, controls, inner)
    assert bool(tokenizer.cut.note) == (not anywhere)


def at_controls(tokenizer: HuggingFaceTokenizer, text: str) -> list[Piece]:
    """Return the pieces of a string that is cut at its control tokens."""
    pieces: list[Piece] = []
    start = 0
    for found in tokenizer.controls.find(text):
        pieces += [Piece(text[start : found.left])] * (found.left > start)
        pieces.append(Piece(found.id))
        start = found.right
    return pieces + [Piece(text[start:])] * (start < len(text))


BITS = [
    "<s>",
    "</s>",
    "<|u|>",
    "<|u|>>",
    "<|im_end|>",
    "<EOT>",
    "Hello",
    " ",
    "\n",
    "  the cat",
    "a",
    ":",
    "1",
    "\u2003",
    "\x1c",
]


@pytest.mark.parametrize("name", NAMES)
@given(bits=st.lists(st.sampled_from(BITS), max_size=10))
@settings(max_examples=40, deadline=None)
def test_ids_are_those_of_the_whole(name: str, bits: list[str]) -> None:
    """Cut at control tokens, any text has the ids of the whole string."""
    tokenizer, _ = made(name)
    text = "".join(bits)
    assert PieceEncoder(tokenizer).encode(at_controls(tokenizer, text)).ids.tolist() == reference_of(name, text)


@cache
def _package(name: str) -> Any:
    return tokenizers.Tokenizer.from_buffer(made(name)[0].definition)


def reference_of(name: str, text: str) -> list[int]:
    """Return the ids of a whole string by the package itself, control tokens read."""
    ids: list[int] = _package(name).encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_gets_no_space_that_nobody_wrote(name: str) -> None:
    """Cut where an answer begins, the text comes back as it was, and the answer is what is supervised."""
    tokenizer, _ = made(name)
    pieces = [Piece("assistant\n"), Piece("Hello", supervised=True, turn=3), Piece("\n")]
    found = PieceEncoder(tokenizer).encode(pieces)
    assert found.ids.tolist() == reference_of(name, "assistant\nHello\n")
    (start, end), turns = found.runs.tolist()[0], found.turns.tolist()
    assert turns == [3]
    text = "".join(_package(name).id_to_token(token) for token in found.ids[start:end].tolist())
    assert text == "Hello"


def test_a_token_across_the_border_is_trained() -> None:
    """Where text is encoded together, a token that holds the first letter of an answer belongs to the answer."""
    tokenizer, _ = made("always")
    found = PieceEncoder(tokenizer).encode([Piece("the c"), Piece("at", supervised=True), Piece(" sat")])
    names = [_package("always").id_to_token(token) for token in found.ids.tolist()]
    (start, end) = found.runs.tolist()[0]
    assert "a" in "".join(names[start:end])
    assert "sat" not in "".join(names[start:end])


def test_neighbours_never_share_a_token() -> None:
    """Runs stay disjoint where two trained pieces meet inside a token."""
    tokenizer, _ = made("prepend")
    pieces = [Piece("the c", supervised=True, turn=1), Piece("at sat", supervised=True, turn=2)]
    found = PieceEncoder(tokenizer).encode(pieces)
    assert found.runs[0, 0] == 0
    assert found.runs[0, 1] == found.runs[1, 0]
    assert found.runs[1, 1] == len(found.ids)


def test_whole_conversations_refuse_control_tokens_in_texts() -> None:
    """Where only whole strings can be read, a text that spells a control token is refused by name."""
    tokenizer, _ = made("prepend once")
    with pytest.raises(DataError, match='message 2: a text spells the control token "</s>"'):
        PieceEncoder(tokenizer).encode([Piece(0), Piece("a </s> b", turn=1)])


def test_the_private_mark_is_no_text() -> None:
    """The text that stands for "something before" is refused, not read."""
    tokenizer, _ = made("first")
    with pytest.raises(DataError, match="private mark"):
        tokenizer.encode_inner(["a\U000f0001dagpack\U000f0001b"])


def test_marks_change_no_vocabulary() -> None:
    """What is added to prove a cut is in no definition, no size and no text."""
    tokenizer = learned(metaspace("first"))
    before = (tokenizer.identity(), tokenizer.vocab_size)
    assert tokenizer.cut.inner
    assert (tokenizer.identity(), tokenizer.vocab_size) == before
    assert tokenizer.decode([tokenizer.vocab_size]) == ""


def test_controls_are_found_as_the_package_finds_them() -> None:
    """The longest of several, with the white space that is theirs; U+001C is none."""
    controls = Controls(
        [
            Control(1, "<a>"),
            Control(2, "<a>b"),
            Control(3, "<l>", lstrip=True),
            Control(4, "<r>", rstrip=True),
            Control(5, ""),
        ]
    )
    text = "x<a>b <l><r> \u2003\x1c<r>\n<l>"
    found = controls.find(text)
    assert [item.id for item in found] == [2, 3, 4, 4, 3]
    assert [text[item.left : item.right] for item in found] == ["<a>b", " <l>", "<r> \u2003", "<r>\n", "<l>"]
    assert Controls([]).find("anything") == []


@pytest.mark.parametrize("name", ["always", "first", "prepend once", "prefix space"])
def test_templates_with_such_tokenizers(name: str, tmp_path: Path) -> None:
    """A conversation in any of these has the ids of its whole text, answers trained, and the note says how."""
    pytest.importorskip("transformers")
    tokenizer, _ = made(name)
    path = tmp_path / "template.jinja"
    path.write_text(CHATML.replace("<|im_start|>", "<s>").replace("<|im_end|>", "</s>"))
    template = load_template(str(path), tokenizer)
    assert tokenizer.cut.note in template.note
    messages = chat(2)
    found = PieceEncoder(tokenizer).encode(template.pieces(messages, (), targets_of(messages)))
    text = "".join(f"<s>{message.role}\n{message.content}</s>\n" for message in messages)
    if name == "first":
        # The answer is cut from its header as at inference; the package may join them.
        assert len(found.runs) == 2
    else:
        assert found.ids.tolist() == reference_of(name, text)
    if name != "prepend once":  # it does not read its own control tokens inside a string
        end = tokenizer.token_to_id("</s>")
        assert [found.ids[last - 1] for _, last in found.runs.tolist()] == [end, end]


class Counting(ByteTokenizer):
    """Counts what it encodes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def encode_pieces(self, texts: Sequence[str]) -> list[IdArray]:
        """Count, and encode."""
        self.seen.extend(texts)
        return super().encode_pieces(texts)


def test_a_batch_larger_than_the_memory_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning a batch and then encoding its conversations forgets none of it in between."""
    monkeypatch.setattr("dagpack_cli.tokenizing.encoding._HELD_BYTES", 1000)
    tokenizer = Counting()
    encoder = PieceEncoder(tokenizer)
    for batch in range(3):
        texts = [f"{batch} {number}" for number in range(200)]
        encoder.learn(texts)
        for text in texts:
            encoder.encode([Piece(text)])
    assert len(tokenizer.seen) == 600


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not used again is forgotten, what is used stays."""
    monkeypatch.setattr("dagpack_cli.tokenizing.encoding._HELD_BYTES", 20_000)
    tokenizer = Counting()
    encoder = PieceEncoder(tokenizer)
    for number in range(1000):
        encoder.encode([Piece("system"), Piece(f"text {number}")])
    assert tokenizer.seen.count("system") == 1
    held: Any = encoder._texts
    assert len(held._young) + len(held._old) < 100
    encoder.encode([Piece("text 1")])
    assert tokenizer.seen.count("text 1") == 2


def test_definitions_stay_what_they_are() -> None:
    """Proving a cut leaves special tokens unread in texts."""
    tokenizer, _ = made("byte level")
    assert tokenizer.cut.anywhere
    end = tokenizer.token_to_id("</s>")
    assert end not in tokenizer.encode_pieces(["a </s> b"])[0].tolist()
    assert end in tokenizer.locate_whole("a </s> b").ids.tolist()
    assert end not in tokenizer.encode_pieces(["a </s> b"])[0].tolist()
    assert json.loads(tokenizer.definition)["added_tokens"]
