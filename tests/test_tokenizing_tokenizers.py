"""Tokenizers: the ids they give, their identity, and what survives saving."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.errors import DamageError, DataError, MismatchError, NoInputError, UsageError
from dagpack_cli.tokenizing import (
    ByteTokenizer,
    GivenIds,
    HuggingFaceTokenizer,
    Symbols,
    Tokenizer,
    load_saved,
    load_tokenizer,
)
from dagpack_cli.tokenizing.huggingface import canonical_definition
from dagpack_cli.tokenizing.symbols import SYMBOLS_NAME

TOKENIZERS = Path(__file__).resolve().parents[2] / "shared" / "tokenizers"


def real(name: str) -> Path:
    """Return a real tokenizer's path, or skip where there is none."""
    path = TOKENIZERS / name
    if not path.exists():
        pytest.skip(f"no real tokenizer at shared/tokenizers/{name}")
    return path


def word_level(**extra: object) -> bytes:
    """Return a small tokenizer.json whose words are a, b and an EOS."""
    special = {"id": 3, "content": "</s>", "single_word": False, "lstrip": False, "rstrip": False}
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [{**special, "normalized": False, "special": True}],
            "normalizer": None,
            "pre_tokenizer": {"type": "Whitespace"},
            "post_processor": None,
            "decoder": None,
            "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"},
            **extra,
        }
    ).encode()


def test_bytes_worked_string() -> None:
    """The word "ab" is BOS, its bytes plus two, EOS."""
    tokenizer = load_tokenizer("bytes")
    assert [ids.tolist() for ids in tokenizer.encode_documents(["ab", "", "ü"])] == [
        [0, 99, 100, 1],
        [0, 1],
        [0, 0xC3 + 2, 0xBC + 2, 1],
    ]
    assert tokenizer.encode_pieces(["ab"])[0].dtype == np.int32
    assert tokenizer.vocab_size == 266
    assert tokenizer.virtual_root_id == 265


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_bytes_are_lossless(text: str) -> None:
    """Every text comes back from its piece's ids, and every id is in the vocabulary."""
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode_pieces([text])[0]
    assert tokenizer.decode(ids) == text
    assert all(2 <= token < 258 for token in ids.tolist())


def test_bytes_decode_replaces_what_is_no_text() -> None:
    """Half a character, structure and unknown ids are shown, not raised."""
    assert ByteTokenizer().decode([0, 0xC3 + 2, 262, 999]) == "<bos>\ufffd<end-of-turn><999>"


@pytest.mark.parametrize(
    ("bos", "eos", "expected"),
    [("none", None, [99, 1]), (None, "none", [0, 99]), (7, "8", [7, 99, 8]), ("none", 99, [99])],
)
def test_ends_can_be_chosen(bos: str | int | None, eos: str | int | None, expected: list[int]) -> None:
    """BOS and EOS are overridden or left out, and EOS is not repeated where it is already last."""
    assert load_tokenizer("bytes", bos=bos, eos=eos).encode_documents(["a"])[0].tolist() == expected


@pytest.mark.parametrize("value", [266, "266", -1, "x", "-1", "1.5", ""])
def test_ids_outside_the_vocabulary_are_refused(value: str | int) -> None:
    """An EOS that no token can be is a mistake in the option."""
    with pytest.raises(UsageError) as error:
        load_tokenizer("bytes", eos=value)
    assert error.value.where == "--eos"


def test_lone_surrogate_names_the_place() -> None:
    """Half of a surrogate pair is an error of the data, not a crash."""
    with pytest.raises(DataError, match=r"character 2 is \\ud83d"):
        ByteTokenizer().encode_documents(["a\ud83d"])


def test_symbols_virtual_root_is_one_more_id() -> None:
    """The root's id is asked for, lies behind all symbols and counts in the vocabulary."""
    plain, rooted = Symbols([b"1", b"2"]), Symbols([b"1", b"2"], virtual_root=True)
    assert (plain.vocab_size, plain.virtual_root_id) == (2, None)
    assert (rooted.vocab_size, rooted.virtual_root_id) == (3, 2)
    assert plain.identity() != rooted.identity()
    assert rooted.encode_values([b"2"]).tolist() == [1]
    with pytest.raises(DataError, match="not one of the 2 symbols"):
        rooted.encode_values([b"3"])


def test_symbols_are_listed_once() -> None:
    """A list with a value twice is not one that dagpack made."""
    with pytest.raises(DamageError):
        Symbols([b"1", b"1"])


@pytest.mark.parametrize(
    "tokenizer",
    [
        ByteTokenizer(),
        ByteTokenizer(bos_id=None, eos_id=5),
        GivenIds(eos_id=9),
        Symbols([b"1", b'{"a":"\\n"}'], virtual_root=True),
        Symbols([]),
    ],
)
def test_saved_tokenizers_come_back(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """What was saved loads with the same identity, and saves to the same bytes."""
    tokenizer.save(tmp_path / "a")
    loaded = load_saved(tmp_path / "a")
    loaded.save(tmp_path / "b")
    assert loaded.identity() == tokenizer.identity()
    assert isinstance(loaded, Tokenizer)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_changed_saved_tokenizer_is_noticed(tmp_path: Path) -> None:
    """One altered symbol no longer fits the identity beside it."""
    Symbols([b"1", b"2"]).save(tmp_path)
    Symbols([b"1", b"3"]).save(tmp_path / "other")
    (tmp_path / "other" / SYMBOLS_NAME).replace(tmp_path / SYMBOLS_NAME)
    with pytest.raises(DamageError):
        load_saved(tmp_path)
    (tmp_path / SYMBOLS_NAME).unlink()
    with pytest.raises(DamageError, match="is missing"):
        load_saved(tmp_path)


def test_nothing_saved_is_damage(tmp_path: Path) -> None:
    """A folder without a saved tokenizer says so."""
    with pytest.raises(DamageError, match="holds no saved tokenizer"):
        load_saved(tmp_path)


@pytest.mark.parametrize("spec", ["none", "symbols"])
def test_kinds_without_text_refuse_text(spec: str) -> None:
    """What cannot encode text says which tokenizer can."""
    with pytest.raises(MismatchError) as error:
        load_tokenizer(spec).encode_documents(["a"])
    assert "--tokenizer bytes" in error.value.hint


def test_missing_tokenizer_path_names_it(tmp_path: Path) -> None:
    """A path without tokenizer.json is named, and so is one that does not exist."""
    with pytest.raises(NoInputError, match=r"holds no tokenizer\.json"):
        load_tokenizer(str(tmp_path))
    with pytest.raises(NoInputError, match="does not exist"):
        load_tokenizer(str(tmp_path / "nothing"))


def test_huggingface_extra_is_named_when_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the tokenizers package the message holds the command that installs it."""
    (tmp_path / "tokenizer.json").write_bytes(word_level())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MismatchError) as error:
        load_tokenizer(str(tmp_path))
    assert error.value.hint == "pip install 'dagpack-cli[hf]'"


@pytest.mark.parametrize(
    ("file", "fields"),
    [
        ("tokenizer_config.json", {"eos_token": "</s>"}),
        ("tokenizer_config.json", {"eos_token": {"content": "</s>"}}),
        ("special_tokens_map.json", {"eos_token": "</s>"}),
        ("generation_config.json", {"eos_token_id": [3, 1]}),
        ("config.json", {"eos_token_id": 3}),
    ],
)
def test_eos_is_found_beside_the_definition(file: str, fields: dict[str, object], tmp_path: Path) -> None:
    """Each of the files that Hugging Face writes can name the EOS."""
    (tmp_path / "tokenizer.json").write_bytes(word_level())
    (tmp_path / file).write_text(json.dumps(fields))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert load_tokenizer(str(path)).encode_documents(["a b", "b"])[0].tolist() == [1, 2, 3]


def test_eos_that_nobody_names_must_be_given(tmp_path: Path) -> None:
    """Without a known EOS the error names the option; given, it is used."""
    (tmp_path / "tokenizer.json").write_bytes(word_level())
    with pytest.raises(UsageError, match="no EOS is known"):
        load_tokenizer(str(tmp_path))
    assert load_tokenizer(str(tmp_path), eos="3").encode_documents(["a"])[0].tolist() == [1, 3]
    assert load_tokenizer(str(tmp_path), eos="none").encode_documents(["a"])[0].tolist() == [1]
    with pytest.raises(UsageError, match="0 to 3"):
        load_tokenizer(str(tmp_path), eos=4)


def test_truncation_and_padding_are_taken_out(tmp_path: Path) -> None:
    """Settings stored in the file neither cut nor pad, nor change the identity."""
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    pad = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[UNK]"}
    pad["pad_to_multiple_of"] = None
    plain = HuggingFaceTokenizer(word_level(), label="x", eos_id=3)
    called = HuggingFaceTokenizer(word_level(truncation=cut, padding=pad), label="y", eos_id=3)
    assert called.encode_documents(["a b a b"])[0].tolist() == [1, 2, 1, 2, 3]
    assert called.identity() == plain.identity()


def test_bos_comes_from_the_post_processor() -> None:
    """Special tokens that the tokenizer adds stay, EOS is not doubled, and BOS can be replaced."""
    sequence, token = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}
    processor = {
        "type": "TemplateProcessing",
        "single": [token, sequence, token],
        "pair": [sequence, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"</s>": {"id": "</s>", "ids": [3], "tokens": ["</s>"]}},
    }
    definition = word_level(post_processor=processor)
    tokenizer = HuggingFaceTokenizer(definition, label="x", eos_id=3)
    assert tokenizer.bos_id == 3
    assert tokenizer.encode_documents(["a"])[0].tolist() == [3, 1, 3]
    assert tokenizer.encode_pieces(["a"])[0].tolist() == [1]
    without = HuggingFaceTokenizer(definition, label="x", eos_id=3, bos_id=None)
    assert without.encode_documents(["a"])[0].tolist() == [1, 3]


def test_special_tokens_in_text_are_data() -> None:
    """A text that spells the EOS does not become the EOS."""
    tokenizer = HuggingFaceTokenizer(word_level(), label="x", eos_id=3)
    assert 3 not in tokenizer.encode_pieces(["a </s> b"])[0].tolist()


@pytest.mark.parametrize("definition", [b"{", b"[]", b'{"model": 1}', b'{"model": {"type": "Nothing"}}'])
def test_damaged_definitions_are_mismatches(definition: bytes) -> None:
    """What is no tokenizer.json is refused by name."""
    with pytest.raises(MismatchError) as error:
        HuggingFaceTokenizer(definition, label="here", eos_id=None)
    assert error.value.where == "here"


def test_canonical_definition_ignores_key_order() -> None:
    """The same fields in another order are the same tokenizer."""
    fields = json.loads(word_level())
    turned = json.dumps(dict(reversed(fields.items()))).encode()
    assert canonical_definition(turned, "x") == canonical_definition(word_level(), "x")


def test_real_chat_tokenizer(tmp_path: Path) -> None:
    """Qwen3: EOS from its config, no BOS, added tokens in the vocabulary, text unharmed, saved and loaded."""
    tokenizer = load_tokenizer(str(real("qwen3")))
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.vocab_size) == (None, 151645, 151669)
    text = "Hello, wörld!\n\n  x = 1\0 <|im_end|>"
    document, piece = tokenizer.encode_documents([text])[0], tokenizer.encode_pieces([text])[0]
    assert document.tolist() == [*piece.tolist(), 151645]
    assert 151645 not in piece
    assert tokenizer.decode(piece) == text
    with pytest.raises(DataError):
        tokenizer.encode_pieces(["\ud83d"])
    tokenizer.save(tmp_path)
    loaded = load_saved(tmp_path)
    assert loaded.identity() == tokenizer.identity()
    assert loaded.encode_documents([text])[0].tolist() == document.tolist()


def test_real_tokenizer_without_eos() -> None:
    """Claude 2's file names no EOS: the user must."""
    path = real("anthropic-claude2/tokenizer.json")
    with pytest.raises(UsageError, match="no EOS is known"):
        load_tokenizer(str(path))
    tokenizer = load_tokenizer(str(path), eos=0)
    assert tokenizer.vocab_size == 65_000
    assert tokenizer.encode_documents(["hello"])[0].tolist()[-1] == 0
