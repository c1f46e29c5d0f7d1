"""A file that is still being written gives its whole records, never half of one, and never stops a build."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from commands import AGENTS, Ran, run

from dagpack_cli.corpora import STILL_WRITTEN, discover
from dagpack_cli.corpora.reading import read_items
from dagpack_cli.stages import reading

LINES = [json.dumps({"text": f"record {number}"}).encode() + b"\n" for number in range(5)]
HALF = b'{"text": "not y'


def texts(out: Path) -> list[str]:
    """The texts of a build of text records with the byte tokenizer."""
    return [
        bytes(token - 2 for token in json.loads(line)["input_ids"][1:-1]).decode()
        for line in run("export", out).out.splitlines()
    ]


def built(corpus: Path, out: Path, *options: str) -> Ran:
    """A build that succeeds and verifies."""
    ran = run("build", corpus, out, *options)
    assert ran.code == 0, ran.err
    assert run("verify", out).code == 0
    return ran


def stored(out: Path) -> bytes:
    """The manifest, which holds the checksums of everything else."""
    return (Path(run("path", out).out.strip()) / "manifest.json").read_bytes()


def test_half_a_last_record_is_left_out_noted_and_counted(tmp_path: Path) -> None:
    """The record is in no window, on stderr, in the ledger and in stats; what is in the manifest was read."""
    corpus, out = tmp_path / "live.jsonl", tmp_path / "out"
    corpus.write_bytes(b"".join(LINES) + HALF)
    ran = built(corpus, out)
    assert ran.err == "note: live.jsonl:6: still being written, read up to the last whole record\n"
    assert texts(out) == [f"record {number}" for number in range(5)]
    manifest = json.loads(stored(out))
    assert manifest["inputs"][0]["size"] == len(b"".join(LINES))
    assert manifest["ignored"] == [["live.jsonl:6", STILL_WRITTEN]]
    reading = manifest["ledger"]["reading"]
    assert (reading["unfinished"], reading["bad_records"], reading["ignored_files"]) == (1, 0, 0)
    assert "1 still being written" in run("stats", out).out


def test_same_whole_records_are_the_same_bytes(tmp_path: Path) -> None:
    """How much of the next record is there changes nothing; the record, once whole, is a new build."""
    corpus = tmp_path / "live.jsonl"
    found = []
    for tail in (HALF, HALF[:1], HALF + b"et"):
        corpus.write_bytes(b"".join(LINES) + tail)
        built(corpus, tmp_path / "out")
        built(corpus, tmp_path / f"out{len(tail)}")
        found += [stored(tmp_path / "out"), stored(tmp_path / f"out{len(tail)}")]
    assert len(set(found)) == 1
    assert run("build", corpus, tmp_path / "out").out.startswith("unchanged: ")
    corpus.write_bytes(b"".join(LINES) + HALF + b'et"}\n')
    built(corpus, tmp_path / "out")
    assert texts(tmp_path / "out")[-1] == "not yet"
    corpus.write_bytes(b"".join(LINES))
    built(corpus, tmp_path / "out")
    built(corpus, tmp_path / "whole")
    assert stored(tmp_path / "out") == stored(tmp_path / "whole") != found[0]


def test_whole_last_record_needs_no_line_end(tmp_path: Path) -> None:
    """A file without a line feed at its end is not for that one that grows."""
    corpus = tmp_path / "live.jsonl"
    corpus.write_bytes(b"".join(LINES).removesuffix(b"\n"))
    assert built(corpus, tmp_path / "out").err == ""
    assert len(texts(tmp_path / "out")) == 5


def test_damage_that_is_closed_is_damage(tmp_path: Path) -> None:
    """A last line whose brackets are closed is whole, so what is wrong with it stops the build."""
    corpus = tmp_path / "live.jsonl"
    corpus.write_bytes(LINES[0] + b'{"text": nope}')
    assert run("build", corpus, tmp_path / "out").code == 65


def test_file_of_one_half_record_is_ignored(tmp_path: Path) -> None:
    """Beside others it is named and counted; alone it is no usable input; once whole it is read."""
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    (corpus / "new.jsonl").write_bytes(HALF)
    ran = run("build", corpus, out)
    assert ran.code == 66
    assert STILL_WRITTEN in ran.err
    (corpus / "old.jsonl").write_bytes(LINES[0])
    built(corpus, out)
    assert json.loads(stored(out))["ignored"] == [["new.jsonl", STILL_WRITTEN]]
    built(corpus, out, "--format", "jsonl-text")
    assert texts(out) == ["record 0"]
    (corpus / "new.jsonl").write_bytes(HALF + b'"}\n')
    built(corpus, out)
    assert texts(out) == ["not y", "record 0"]


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_archive_that_is_cut_gives_what_decompresses(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """Up to the last whole record of the frame that is cut, and all of those before it."""
    whole = pack(b"".join(LINES))
    lines = b"".join(json.dumps({"text": os.urandom(40).hex()}).encode() + b"\n" for _ in range(20_000))
    last = pack(lines)
    corpus, out = tmp_path / "live.jsonl.z", tmp_path / "out"
    corpus.write_bytes(whole + last[: len(last) * 2 // 3])
    ran = built(corpus, out)
    assert "still being written" in ran.err
    found = texts(out)
    assert found[:5] == [f"record {number}" for number in range(5)]
    assert found[5:] == [json.loads(line)["text"] for line in lines.splitlines()[: len(found) - 5]]
    assert 5_000 < len(found) < 20_000
    reading = json.loads(stored(out))["ledger"]["reading"]
    assert (reading["unfinished"], reading["bad_records"]) == (1, 0)
    assert json.loads(stored(out))["inputs"][0]["size"] == corpus.stat().st_size


def test_text_is_not_cut_inside_a_character(tmp_path: Path) -> None:
    """The first bytes of a character wait for the others; a single one after ASCII is another encoding."""
    for tail, size in ((b"\xe2\x82", 5), (b"\xe2", 5), (b"\xe2\x82\xac", 8)):
        (tmp_path / "a.txt").write_bytes("aé b".encode() + tail)
        [source] = discover(tmp_path / "a.txt").inputs
        assert (source.size, source.unfinished) == (size, 5 + len(tail) - size)
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert run("build", tmp_path / "a.txt", tmp_path / "out").code == 66


def test_session_that_goes_on_is_not_ended(tmp_path: Path) -> None:
    """An answer whose next line is being written gets no end of turn, as where a reader meets the half line itself."""
    whole = max((AGENTS.parent / "claude-code").rglob("*.jsonl"), key=lambda path: path.stat().st_size)
    lines = [line for line in whole.read_bytes().splitlines(keepends=True) if line.endswith(b"}\n")][:6]
    for keep in range(2, len(lines)):
        (tmp_path / "s.jsonl").write_bytes(b"".join(lines[:keep]) + lines[keep][:-5])
        inputs = discover(tmp_path / "s.jsonl").inputs
        assert [source.size for source in inputs] == [sum(map(len, lines[:keep]))]
        assert inputs[0].unfinished == len(lines[keep]) - 5


@pytest.fixture
def while_reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Do something to a corpus after the first example of a build has been read."""

    def arrange(act: Callable[[], object]) -> None:
        def read(*arguments: object, **options: object) -> object:
            for number, example in enumerate(read_items(*arguments, **options)):  # type: ignore[arg-type]
                if number == 0:
                    act()
                yield example

        monkeypatch.setattr(reading, "read_items", read)

    return arrange


def test_file_that_grows_while_it_is_read(while_reading: Callable[..., None], tmp_path: Path) -> None:
    """What was there when the build listed it is read, said so, and is the build of those bytes; the next sees more."""
    corpus = tmp_path / "live.jsonl"
    corpus.write_bytes(b"".join(LINES))
    built(corpus, tmp_path / "whole")
    while_reading(lambda: corpus.write_bytes(b"".join(LINES) + LINES[0] + HALF))
    ran = built(corpus, tmp_path / "out")
    assert ran.err == "note: live.jsonl: still being written, read up to the last whole record\n"
    assert stored(tmp_path / "out") == stored(tmp_path / "whole")
    while_reading(lambda: None)
    built(corpus, tmp_path / "out")
    assert len(texts(tmp_path / "out")) == 6


def _replace(path: Path) -> None:
    beside = path.with_name("beside")
    beside.write_bytes(path.read_bytes() + LINES[0])
    beside.replace(path)


def _become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "act",
    [
        lambda path: path.write_bytes(LINES[0]),
        lambda path: path.write_bytes(b"".join(LINES[::-1]) + LINES[0]),
        lambda path: path.unlink(),
        _replace,
        _become_a_folder,
    ],
    ids=["shorter", "other bytes", "gone", "other inode", "a folder"],
)
def test_file_that_is_rewritten_stops_a_build(
    act: Callable[[Path], object], while_reading: Callable[..., None], tmp_path: Path
) -> None:
    """What was read is not there any more, so nobody can say of what the build would be."""
    corpus = tmp_path / "live.jsonl"
    corpus.write_bytes(b"".join(LINES))
    while_reading(lambda: act(corpus))
    ran = run("build", corpus, tmp_path / "out")
    assert ran.code == 65
    assert ran.err.startswith(f"error: {corpus}: the file was rewritten while it was read; ")
    assert ran.err.endswith("\nhint: run the same command again\n")


def test_file_that_is_touched_is_the_same(while_reading: Callable[..., None], tmp_path: Path) -> None:
    """Other times on the same bytes are no change."""
    corpus = tmp_path / "live.jsonl"
    corpus.write_bytes(b"".join(LINES))
    while_reading(lambda: os.utime(corpus, (1, 1)))
    assert built(corpus, tmp_path / "out").err == ""
