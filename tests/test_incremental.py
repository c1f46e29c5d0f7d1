"""A second build reads only what is new, and writes the bytes of a build from nothing."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from killed import contents
from test_determinism import SPLIT, chat_files, game_files, run, token_files, write

import dagpack_cli.stages.ingest
from dagpack_cli.errors import NoInputError
from dagpack_cli.manifest import IngestOptions, TrieOptions
from dagpack_cli.pipeline import Execution, TokenizerChoice, build, dedup, ingest, pack
from dagpack_cli.stages import cache
from dagpack_cli.stages.cache import known_sources
from dagpack_cli.stages.reading import read_split
from dagpack_cli.stages.receipts import SilentListener, read_receipt

Make = Callable[[int], dict[str, str]]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of inputs in the order in which they are opened for reading, added to while a test runs."""
    names: list[str] = []
    whole = read_split

    def noted(job: Any) -> None:
        names.extend(source.name for source, *_ in job.sources)
        whole(job)

    monkeypatch.setattr("dagpack_cli.stages.ingest.read_split", noted)
    return names


def splits_of(out: Path) -> list[Path]:
    """Return the folders in the cache of an output."""
    return sorted((out / "cache").iterdir())


@pytest.mark.parametrize("make", [token_files, game_files, chat_files])
def test_files_come_go_and_change(make: Make, read: list[str], tmp_path: Path) -> None:
    """After every change only what is new or edited is read, and the bytes are those of a build from nothing."""
    files = make(3)
    names = sorted(files)
    others = {f"{path.removesuffix('.jsonl')}-b.jsonl": text for path, text in make(8).items()}
    corpus = write(tmp_path / "corpus", files)
    options = TrieOptions(val_fraction=0.3)
    steps: list[tuple[Callable[[], object], Sequence[str]]] = [
        (lambda: None, names),
        (lambda: write(corpus, others), sorted(others)),
        (lambda: (corpus / names[1]).unlink(), []),
        (lambda: write(corpus, {names[0]: files[names[0]] * 2}), [names[0]]),
        (lambda: write(corpus, {names[1]: files[names[1]]}), []),  # its split is still there
        (lambda: (corpus / names[2]).rename(corpus / "renamed.jsonl"), ["renamed.jsonl"]),
        (lambda: os.utime(corpus / names[0]), []),
    ]
    for number, (change, expected) in enumerate(steps):
        change()
        read.clear()
        run(corpus, tmp_path / "out", trie_options=options)
        assert sorted(read) == sorted(expected), number
        run(corpus, tmp_path / f"fresh-{number}", trie_options=options)
        assert contents(tmp_path / "out") == contents(tmp_path / f"fresh-{number}")
    inputs = {source["name"] for split in splits_of(tmp_path / "out") for source in read_receipt(split)["sources"]}  # type: ignore[index]
    assert {path.relative_to(corpus).as_posix() for path in corpus.rglob("*.jsonl")} <= inputs


def test_random_histories_end_in_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many builds led there, with whatever splits, put together or not: one corpus, one result."""
    monkeypatch.setattr(cache, "_MOST_SPLITS", 2)
    draw = random.Random(5)
    pool = {f"{seed}/{name}": text for seed in range(4) for name, text in game_files(seed).items()}
    corpus = tmp_path / "corpus"
    for number in range(8):
        shutil.rmtree(corpus, ignore_errors=True)
        write(corpus, {name: pool[name] for name in draw.sample(sorted(pool), draw.randrange(1, 7))})
        monkeypatch.setattr(dagpack_cli.stages.ingest, "_SPLIT_BYTES", draw.choice([100, 2_000, 1 << 20]))
        run(corpus, tmp_path / "out", execution=Execution(workers=draw.choice([1, 1, 2])))
        run(corpus, tmp_path / f"fresh-{number}")
        assert contents(tmp_path / "out") == contents(tmp_path / f"fresh-{number}")
        assert len(splits_of(tmp_path / "out")) <= 4


def test_what_is_mostly_out_of_date_is_put_together(read: list[str], tmp_path: Path) -> None:
    """A split of which more than half is not used any more gives way to one of the rest, which is not read again."""
    corpus = write(tmp_path / "corpus", token_files(3))
    names = sorted(path.relative_to(corpus).as_posix() for path in corpus.rglob("*.jsonl"))
    assert len(names) >= 3
    run(corpus, tmp_path / "out")
    (before,) = splits_of(tmp_path / "out")
    for name in names[1:]:
        (corpus / name).unlink()
    read.clear()
    run(corpus, tmp_path / "out")
    (after,) = splits_of(tmp_path / "out")
    assert after != before
    assert [source["name"] for source in read_receipt(after)["sources"]] == names[:1]  # type: ignore[index]
    write(corpus, {"new.jsonl": '{"input_ids": [1, 2, 3]}\n'})
    run(corpus, tmp_path / "out")
    assert read == ["new.jsonl"]
    run(corpus, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "receipt"])
def test_a_damaged_split_is_read_again(damage: str, read: list[str], tmp_path: Path) -> None:
    """Nothing of a split whose checksums are wrong is used."""
    corpus = write(tmp_path / "corpus", token_files(3))
    run(corpus, tmp_path / "out")
    (split,) = splits_of(tmp_path / "out")
    tokens = split / "tokens.i32"
    if damage == "flip":
        data = bytearray(tokens.read_bytes())
        data[len(data) // 2] ^= 1
        tokens.write_bytes(data)
    elif damage == "cut":
        tokens.write_bytes(tokens.read_bytes()[:-4])
    elif damage == "gone":
        tokens.unlink()
    else:
        (split / "receipt.json").write_text("{")
    write(corpus, {"new.jsonl": '{"input_ids": [1, 2, 3]}\n'})
    read.clear()
    run(corpus, tmp_path / "out")
    assert set(read) == {path.relative_to(corpus).as_posix() for path in corpus.rglob("*.jsonl")}
    run(corpus, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_other_options_read_again(read: list[str], tmp_path: Path) -> None:
    """What reading gives depends on its options: with others nothing of before is used, and it goes."""
    corpus = write(tmp_path / "corpus", chat_files(3))
    run(corpus, tmp_path / "out")
    first = splits_of(tmp_path / "out")
    read.clear()
    build(
        corpus,
        tmp_path / "out",
        tokenizer=TokenizerChoice(),
        ingest_options=IngestOptions(supervise="all"),
        trie_options=TrieOptions(),
        pack_options=SPLIT,
        execution=Execution(),
    )
    assert len(read) == len(chat_files(3))
    assert not set(first) & set(splits_of(tmp_path / "out"))


def test_other_windows_read_nothing(read: list[str], tmp_path: Path) -> None:
    """Packing and merging otherwise takes everything from the cache."""
    corpus = write(tmp_path / "corpus", token_files(3))
    run(corpus, tmp_path / "out")
    read.clear()
    run(corpus, tmp_path / "out", trie_options=TrieOptions(val_fraction=0.5))
    assert read == []


def test_without_a_cache(read: list[str], tmp_path: Path) -> None:
    """Nothing stays where nothing is to stay; the next build reads everything."""
    corpus = write(tmp_path / "corpus", token_files(3))
    run(corpus, tmp_path / "out", execution=Execution(cache=False))
    assert not (tmp_path / "out" / "cache").exists()
    write(corpus, {"new.jsonl": '{"input_ids": [1, 2, 3]}\n'})
    read.clear()
    run(corpus, tmp_path / "out")
    assert len(read) == len(token_files(3)) + 1


def test_commands_one_by_one_use_and_leave_the_cache(read: list[str], tmp_path: Path) -> None:
    """Ingest, dedup and pack are a build: what they read is there for the next one."""
    corpus = write(tmp_path / "corpus", token_files(3))
    out = tmp_path / "out"
    for _ in range(2):
        ingest(corpus, out, tokenizer=TokenizerChoice(), ingest_options=IngestOptions(), execution=Execution())
        dedup(out, trie_options=TrieOptions(), execution=Execution())
        pack(out, None, pack_options=SPLIT, execution=Execution())
    assert len(read) == len(token_files(3))
    write(corpus, {"new.jsonl": '{"input_ids": [1, 2, 3]}\n'})
    read.clear()
    run(corpus, out)
    assert read == ["new.jsonl"]


def test_an_ingest_whose_cache_is_gone_is_done_again(tmp_path: Path) -> None:
    """A finished ingest points into the cache: where somebody has emptied it, the build starts over."""
    corpus = write(tmp_path / "corpus", token_files(3))
    ingest(corpus, tmp_path / "out", tokenizer=TokenizerChoice(), ingest_options=IngestOptions(), execution=Execution())
    shutil.rmtree(tmp_path / "out" / "cache")
    run(corpus, tmp_path / "out")
    run(corpus, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


EVENTS = Path(__file__).resolve().parent.parent / "fixtures" / "openhands" / "events"


def test_a_folder_that_is_one_conversation_is_read_again_whole(tmp_path: Path) -> None:
    """Where the first file of a folder reads the others, a change of any of them reads it again."""
    corpus = tmp_path / "corpus"
    shutil.copytree(EVENTS, corpus / "events")
    names = sorted(path.name for path in (corpus / "events").iterdir())
    late = {name: (corpus / "events" / name).read_bytes() for name in names[-2:]}
    middle = corpus / "events" / names[3]

    def take_away() -> None:
        for name in late:
            (corpus / "events" / name).unlink()

    changes: list[Callable[[], object]] = [
        take_away,
        lambda: [(corpus / "events" / name).write_bytes(data) for name, data in late.items()],
        lambda: middle.write_bytes(middle.read_bytes().replace(b"Two at once", b"Three at once")),
        lambda: (corpus / "events" / names[0]).unlink(),
        lambda: (corpus / "events" / "aa.jsonl").write_text('{"text": "no event"}\n'),
    ]
    pack_options = replace(SPLIT, seq_len=4096)
    for number, change in enumerate(changes):
        change()
        run(corpus, tmp_path / "out", pack_options)
        run(corpus, tmp_path / f"fresh-{number}", pack_options)
        assert contents(tmp_path / "out") == contents(tmp_path / f"fresh-{number}"), number


def test_a_resumed_build_trusts_no_damaged_split(tmp_path: Path) -> None:
    """What a finished ingest points at is checked before it is used: a build reads again, dedup says to ingest."""
    corpus = write(tmp_path / "corpus", token_files(3))
    run(corpus, tmp_path / "fresh")
    for damage in ("flip", "cut", "gone"):
        out = tmp_path / damage
        ingest(corpus, out, tokenizer=TokenizerChoice(), ingest_options=IngestOptions(), execution=Execution())
        (split,) = splits_of(out)
        tokens = split / "tokens.i32"
        if damage == "gone":
            shutil.rmtree(split)
        else:
            data = tokens.read_bytes()
            tokens.write_bytes(data[:-4] if damage == "cut" else data[:8] + bytes([data[8] ^ 1]) + data[9:])
        with pytest.raises(NoInputError, match="what was ingested is gone or damaged"):
            dedup(out, trie_options=TrieOptions(), execution=Execution())
        run(corpus, out)
        assert contents(out) == contents(tmp_path / "fresh")


def test_packing_needs_no_cache(tmp_path: Path) -> None:
    """Once there is a trie the cache may go: packing publishes, and the next build works."""
    corpus = write(tmp_path / "corpus", token_files(3))
    out = tmp_path / "out"
    ingest(corpus, out, tokenizer=TokenizerChoice(), ingest_options=IngestOptions(), execution=Execution())
    dedup(out, trie_options=TrieOptions(), execution=Execution())
    shutil.rmtree(out / "cache")
    pack(out, None, pack_options=SPLIT, execution=Execution())
    write(corpus, {"new.jsonl": '{"input_ids": [1, 2, 3]}\n'})
    run(corpus, out)
    run(corpus, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")


def test_options_that_come_back_remove_nothing(tmp_path: Path) -> None:
    """A, B, A: three generations, as many as are to stay; only a damaged one is replaced."""
    corpus = write(tmp_path / "corpus", token_files(3))
    for seq_len in (16, 8, 16):
        run(corpus, tmp_path / "out", replace(SPLIT, seq_len=seq_len), execution=Execution(keep=5))
    assert len(list((tmp_path / "out" / "generations").iterdir())) == 3


def test_an_empty_or_strange_cache(tmp_path: Path) -> None:
    """No folder, or one with other things in it, is a cache in which nothing is found."""
    assert known_sources(tmp_path / "none", "x", [("a", "text", "0")], SilentListener()) == {}
    (tmp_path / "some" / "folder").mkdir(parents=True)
    (tmp_path / "some" / "file").write_text("x")
    assert known_sources(tmp_path / "some", "x", [("a", "text", "0")], SilentListener()) == {}


@pytest.mark.parametrize("make", [token_files, chat_files])
def test_memory_changes_no_byte(make: Make, tmp_path: Path) -> None:
    """Chunks of a few sequences and arrays in files give what is done at once."""
    corpus = write(tmp_path / "corpus", make(6))
    layouts: tuple[Literal["dag", "walk"], ...] = ("dag", "walk")
    for layout in layouts:
        options = replace(SPLIT, layout=layout)
        run(corpus, tmp_path / f"large-{layout}", options)
        run(corpus, tmp_path / f"small-{layout}", options, execution=Execution(memory=2_000))
        run(corpus, tmp_path / f"many-{layout}", options, execution=Execution(memory=2_000, engine="numba", workers=2))
        for name in ("small", "many"):
            assert contents(tmp_path / f"{name}-{layout}") == contents(tmp_path / f"large-{layout}")
