"""Finding and opening files: order, recognition, compression, lines and arrays."""

from __future__ import annotations

import gzip
import json
import os
import socket
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from dagpack_cli.corpora import BadRecords, ReadOptions, discover, raise_bad
from dagpack_cli.corpora.files.json_array import read_elements
from dagpack_cli.corpora.files.json_rows import NotFinite, canonical_json, parse_json, read_rows
from dagpack_cli.corpora.files.streams import open_stream, read_lines
from dagpack_cli.errors import DataError, NoInputError, UsageError

RECORD = b'{"text": "a"}\n'


class Bytes:
    """A stream that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int = 1 << 20) -> None:
        self.data, self.step = data, step

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, never more than a step."""
        size = self.step if size < 0 else min(size, self.step)
        part, self.data = self.data[:size], self.data[size:]
        return part


def lines(data: bytes, *, limit: int = 1 << 20, step: int = 1 << 20) -> list[tuple[int, bytes]]:
    """Return the lines of ``data``."""
    return list(read_lines(Bytes(data, step), "f", raise_bad, limit=limit))


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder, and return it."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def zst(*parts: bytes) -> bytes:
    """Return a zstd file of one frame a part, with a skippable frame in front."""
    skippable = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    return skippable + b"".join(zstandard.ZstdCompressor().compress(part) for part in parts)


def test_lines_end_at_line_feeds_only() -> None:
    """CRLF loses its CR, a BOM its bytes; U+2028, U+0085 and a lone CR stay in the line."""
    data = "\ufeffa\r\nb\u2028c\u0085d\re\n\nlast".encode()
    assert lines(data) == [(1, b"a"), (2, "b\u2028c\u0085d\re".encode()), (3, b""), (4, b"last")]
    assert lines(b"") == []
    assert lines(b"a\r\r\n") == [(1, b"a\r")]


@given(st.binary(max_size=60), st.integers(1, 9))
def test_lines_do_not_depend_on_chunks(data: bytes, step: int) -> None:
    """However the bytes arrive, the lines are those between line feeds."""
    data = data.replace(b"\r", b"\n").removeprefix(b"\xef\xbb\xbf")
    expected = data.split(b"\n")
    assert [line for _, line in lines(data, step=step)] == (expected if expected[-1] else expected[:-1])


def test_long_lines_are_named_and_skipped() -> None:
    """A line over the limit is an error with its number; skipped, the next one is read."""
    data = b"ab\n" + b"x" * 50 + b"\ncd\n"
    with pytest.raises(DataError, match="f:2: a line of more than 10 bytes"):
        lines(data, limit=10, step=7)
    bad = BadRecords()
    assert list(read_lines(Bytes(data, 7), "f", bad, limit=10)) == [(1, b"ab"), (3, b"cd")]
    assert bad.count == 1


@pytest.mark.parametrize("pack", [lambda *p: b"".join(map(gzip.compress, p)), zst], ids=["gzip", "zstd"])
def test_all_members_of_an_archive_are_read(pack: object, tmp_path: Path) -> None:
    """Concatenated gzip members and zstd frames are one file, whatever it is called."""
    path = tmp_path / "x.txt"
    path.write_bytes(pack(b"first\nsec", b"", b"ond\n" * 50_000))  # type: ignore[operator]
    with open_stream(path, "x") as stream:
        found = [line for _, line in read_lines(stream, "x", raise_bad)]
    assert found[:2] == [b"first", b"second"]
    assert len(found) == 50_001
    with open_stream(path, "x") as stream:
        assert len(stream.read()) == 9 + 4 * 50_000
    with open_stream(path, "x") as stream:
        assert (stream.read(3), stream.read(0), stream.read(2)) == (b"fir", b"", b"st")


@pytest.mark.parametrize("cut", [1, 9])
@pytest.mark.parametrize("pack", [gzip.compress, zst], ids=["gzip", "zstd"])
def test_cut_archives_are_named(pack: object, cut: int, tmp_path: Path) -> None:
    """A truncated archive is never taken for its first part."""
    path = tmp_path / "x"
    path.write_bytes(pack(os.urandom(3000))[:-cut])  # type: ignore[operator]
    with open_stream(path, "dir/x") as stream, pytest.raises(DataError, match="dir/x: the compressed file is trunc"):
        stream.read()


@pytest.mark.parametrize("pack", [gzip.compress, zst], ids=["gzip", "zstd"])
def test_damaged_archives_are_named(pack: object, tmp_path: Path) -> None:
    """Altered bytes, or garbage behind the last member, are damage."""
    path = tmp_path / "x"
    packed = pack(b"text" * 100)  # type: ignore[operator]
    path.write_bytes(packed + b"garbage behind")
    with open_stream(path, "x") as stream, pytest.raises(DataError, match="is damaged"):
        stream.read()


def test_skipping_keeps_what_stands_before_the_cut(tmp_path: Path) -> None:
    """Told to skip, the rows before the cut are read and the cut is counted once, with its line."""
    path = tmp_path / "x.gz"
    rows = b"".join(b'{"text": "%d"}\n' % number for number in range(200_000))
    path.write_bytes(gzip.compress(rows, mtime=0)[:-1000])
    bad = BadRecords()
    found = list(read_rows(path, "x.gz", bad))
    assert 100_000 < len(found) < 200_000
    assert bad.count == 1
    assert bad.first[0][0].startswith("x.gz:")


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1 << 20])
def test_array_elements_are_cut_out(step: int) -> None:
    """Brackets and quotes inside strings do not end an element, and lines are counted."""
    values = [{"a": '],}["\\'}, {"b": [1, [2, {"c": '\n\\"'}]]}, {}, {"d": "é"}]
    text = "\ufeff [\n" + ",\n\n ".join(json.dumps(value, ensure_ascii=False) for value in values) + "\n]\n"
    found = list(read_elements(Bytes(text.encode(), step), "f", raise_bad))
    assert [json.loads(element) for _, element in found] == values
    assert [line for line, _ in found] == [2, 4, 6, 8]


@pytest.mark.parametrize(
    ("text", "reason"),
    [(b'[{"a":1},', "not closed"), (b'[{"a":"', "not closed"), (b"[{}] x", "text behind"), (b"[{}]\n[{}]", "text beh")],
)
def test_broken_arrays_are_named(text: bytes, reason: str) -> None:
    """A cut array, or one that does not fill the file, is an error."""
    with pytest.raises(DataError, match=reason):
        list(read_elements(Bytes(text), "f", raise_bad))


def test_empty_and_trailing_elements(tmp_path: Path) -> None:
    """An empty array holds nothing; an empty element is a bad record."""
    assert list(read_elements(Bytes(b"[ \n ]"), "f", raise_bad)) == []
    (tmp_path / "f").write_bytes(b'[{"a":1},]')
    bad = BadRecords()
    assert [row for _, row in read_rows(tmp_path / "f", "f", bad)] == [{"a": 1}]
    assert bad.count == 1


def test_rows_skip_blanks_and_comments(tmp_path: Path) -> None:
    """Only records have numbers; lines count everything."""
    (tmp_path / "f").write_bytes(b'\xef\xbb\xbf// x\r\n\r\n{"a":1}\r\n   \n{"a":2,"a":3}')
    rows = list(read_rows(tmp_path / "f", "f", raise_bad))
    assert [(place.record, place.line, row) for place, row in rows] == [(0, 3, {"a": 1}), (1, 5, {"a": 3})]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": "ab', "not valid JSON"),
        (b'{"text": "\xff"}', r"byte 11 \(0xFF\) is not UTF-8"),
        (b"[1]", "the record is an array"),
        (b"null", "the record is null"),
        (b"3", "the record is a number"),
        (b'{"a":' * 3000, "nested too deeply"),
    ],
)
def test_bad_lines_are_named(line: bytes, reason: str, tmp_path: Path) -> None:
    """Every bad line says file, line and reason, and can be skipped."""
    (tmp_path / "f").write_bytes(RECORD + line + b"\n" + RECORD)
    with pytest.raises(DataError, match=f"f:2: .*{reason}"):
        list(read_rows(tmp_path / "f", "f", raise_bad))
    bad = BadRecords()
    assert len(list(read_rows(tmp_path / "f", "f", bad))) == 2
    assert (bad.count, bad.first[0][0]) == (1, "f:2")


def test_only_twenty_bad_records_are_kept(tmp_path: Path) -> None:
    """All are counted, the first twenty told."""
    (tmp_path / "f").write_bytes(b"x\n" * 30)
    bad = BadRecords()
    assert list(read_rows(tmp_path / "f", "f", bad)) == []
    assert (bad.count, len(bad.first)) == (30, 20)


def test_parsing_what_json_does_not_have() -> None:
    """NaN and numbers over 64 bits survive in fields nobody reads, exactly or not at all."""
    assert parse_json(b"[-9223372036854775809]", "f:1") == [-(2**63) - 1]
    value = parse_json(b'{"a":NaN,"b":18446744073709551616,"c":"\\ud83d"}', "f:1")
    assert isinstance(value["a"], NotFinite)
    assert value["b"] == 2**64
    with pytest.raises(DataError, match="NaN"):
        canonical_json(value["a"], "f:1")
    assert canonical_json([value["b"]], "f:1") == b"[18446744073709551616]"
    with pytest.raises(DataError, match="surrogate"):
        canonical_json(value["c"], "f:1")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner)))
def test_canonical_json_is_a_fixed_point(value: object) -> None:
    """Writing, reading and writing again gives the same bytes."""
    try:
        once = canonical_json(value, "x")
    except DataError:
        return
    assert canonical_json(parse_json(once, "x"), "x") == once


def test_order_is_that_of_path_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the listing says first, files come in the order of their relative paths."""
    names = ["b/a.txt", "b.txt", "a/z.txt", "a-b.txt", "é.txt", "B.txt"]
    fill(tmp_path, dict.fromkeys(names, b"x"))
    expected = sorted(names, key=os.fsencode)
    assert [source.name for source in discover(tmp_path).inputs] == expected
    original = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: sorted(original(self), reverse=True))
    assert [source.name for source in discover(tmp_path).inputs] == expected


def test_hidden_files_and_outputs_are_never_input(tmp_path: Path) -> None:
    """Dot files, the output folder and other builds are passed over."""
    fill(
        tmp_path,
        {
            "a.txt": b"x",
            ".hidden": b"x",
            ".git/config": b"x",
            "out/CURRENT": b"{}",
            "out/x.txt": b"x",
            "old/CURRENT": b"{}",
            "old/generations/1/manifest.json": b'{"dagpack_version": "1"}',
            "copied/manifest.json": b'{"format_version": 1, "fingerprint": "1", "trie_fingerprint": "2"}',
            "copied/x.txt": b"x",
            "mine/manifest.json": b'{"name": "x"}',
        },
    )
    found = discover(tmp_path, exclude=tmp_path / "out")
    assert [source.name for source in found.inputs] == ["a.txt"]
    assert [name for name, _ in found.ignored] == ["mine/manifest.json"]


def test_links_loops_and_special_files(tmp_path: Path) -> None:
    """Links are followed, but not in a circle, and to nothing that is read already; what is no file is named."""
    fill(tmp_path, {"a/x.txt": b"x"})
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "link.txt").symlink_to("a/x.txt")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "self").symlink_to("self")
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tmp_path / "sock"))
        found = discover(tmp_path)
    assert [source.name for source in found.inputs] == ["a/x.txt"]
    assert dict(found.ignored) == {
        "a/up": f"a link to a folder that is read as {tmp_path.name}",
        "broken": "a broken link",
        "link.txt": "a link to a file that is read as a/x.txt",
        "pipe": "a pipe",
        "self": "a broken link",
        "sock": "a socket",
    }


def test_text_beside_records_is_set_aside(tmp_path: Path) -> None:
    """A README is no training data where there are records, unless text is asked for."""
    fill(tmp_path, {"README": b"hello", "a.jsonl": RECORD, "empty": b""})
    found = discover(tmp_path)
    assert [source.name for source in found.inputs] == ["a.jsonl"]
    assert [name for name, _ in found.ignored] == ["README", "empty"]
    assert "--format text" in found.ignored[0][1]
    forced = discover(tmp_path, options=ReadOptions(format="text"))
    assert [source.format for source in forced.inputs] == ["text"] * 3


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "text"),
        (b"hello", "text"),
        (b"\xef\xbb\xbfhello", "text"),
        (b"[1] a footnote\n{not json", "text"),
        (b"// code\n{\n  int x;\n}\n", "text"),
        (b'# doc\n\n    {"text": 1}\n\nmore\n', "text"),
        (RECORD, "jsonl-text"),
        (b"\xef\xbb\xbf\r\n// note\r\n" + RECORD, "jsonl-text"),
        (b"garbage\n" + RECORD * 2, "jsonl-text"),
        (b'{"text": "cut\n' + RECORD, "jsonl-text"),
        (b'[{"text": "a"}]', "jsonl-text"),
        (gzip.compress(RECORD, mtime=0), "jsonl-text"),
        (zst(RECORD), "jsonl-text"),
        (b'{"text": "' + b"x" * 200_000 + b'"}\n', "jsonl-text"),
        (b'{"input_ids": [1]}', "pretokenised"),
        (b'{"messages": [{"role": "user"}]}', "chat"),
        (b'{"prompt": "p", "completion": "c"}', "chat"),
        (b'{"prompt": "p", "completion": "c", "label": "easy", "rejected": null}', "chat"),
        (b'{"prompt": "p", "completions": ["c"], "rewards": [1]}', "rl-groups"),
        (b'{"prompt": "p", "completion": "c", "label": false}', "preference"),
        (b'{"prompt": "p", "completions": ["c"], "labels": [true]}', "preference"),
        (b'{"prompt": "p", "chosen": "c", "rejected": "r"}', "preference"),
        (b'{"episode": 1, "state": 2}', "transitions"),
        (b'{"state": null, "action": 3}', "transitions"),
        (b'{"x": 1, "text": NaN}\n{"text": "a"}', "jsonl-text"),
        ("é".encode() * 40_000, "text"),
        (b"x" * 65_535 + "é".encode(), "text"),
    ],
)
def test_formats_are_told_by_content(data: bytes, expected: str, tmp_path: Path) -> None:
    """The first records decide, not the name."""
    (tmp_path / "file.bin").write_bytes(data)
    (source,) = discover(tmp_path).inputs
    assert source.format == expected
    assert source.size == len(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a\0b", "NUL"),
        (b"caf\xe9", "byte 4 is 0xE9"),
        ("hello".encode("utf-16"), "NUL"),
        (b'{"body": "a", "n": 1}', '"body", "n"'),
        (b'{"prompt": "p", "label": false}', '"label"'),
        (b'{\n  "a": 1,\n', "it cannot be read"),
    ],
)
def test_what_nobody_knows_is_named(data: bytes, reason: str, tmp_path: Path) -> None:
    """Binary files, foreign encodings, unknown fields and judged records are not read, and say why."""
    fill(tmp_path, {"a.txt": b"x", "file": data})
    found = discover(tmp_path)
    assert [name for name, _ in found.ignored] == ["file"]
    assert reason in found.ignored[0][1]


@pytest.mark.parametrize("data", [b'{"text": "cut', b'{"messages": [\n', b'[{"text": "a"}, {"text'])
def test_json_that_cannot_be_read_is_damage(data: bytes, tmp_path: Path) -> None:
    """Records that end in the middle stop a build, unless it is one line that goes on; skip counts it."""
    fill(tmp_path, {"a.jsonl": b'{"text": "x"}\n', "file": data})
    if data.startswith(b"["):
        assert [source.name for source in discover(tmp_path).inputs] == ["a.jsonl", "file"]
        return
    if not data.endswith(b"\n"):
        found = discover(tmp_path)
        assert ([source.name for source in found.inputs], found.unfinished) == (["a.jsonl"], ["file"])
        return
    with pytest.raises(DataError, match=r"^file:1: not valid JSON"):
        discover(tmp_path)
    bad = BadRecords()
    assert [source.name for source in discover(tmp_path, on_bad=bad).inputs] == ["a.jsonl"]
    assert bad.count == 1


def test_parquet_is_told_by_its_columns(tmp_path: Path) -> None:
    """Parquet is recognised by magic and columns; unknown columns are named, damage is an error."""
    pq.write_table(pa.table({"input_ids": [[1, 2]]}), tmp_path / "a")
    pq.write_table(pa.table({"text": [None, "x"]}), tmp_path / "b")
    pq.write_table(pa.table({"inputs": [[1]], "targets": [[2]]}), tmp_path / "c")
    found = discover(tmp_path)
    assert [(source.name, source.format) for source in found.inputs] == [("a", "pretokenised"), ("b", "jsonl-text")]
    assert found.ignored == [("c", 'no format has such records: "inputs", "targets"')]
    (tmp_path / "d").write_bytes((tmp_path / "a").read_bytes()[:-20])
    with pytest.raises(DataError, match="d: not a readable Parquet file"):
        discover(tmp_path)
    bad = BadRecords()
    assert len(discover(tmp_path, on_bad=bad).inputs) == 2
    assert bad.count == 1


def test_nothing_to_read_says_what_there_is(tmp_path: Path) -> None:
    """No such path, an empty folder, nothing recognised and an output are four different texts."""
    folder = tmp_path / "corpus"
    with pytest.raises(NoInputError, match="corpus: does not exist"):
        discover(folder)
    folder.mkdir()
    with pytest.raises(NoInputError, match="corpus: no file in it is input"):
        discover(folder)
    fill(folder, {".hidden": b"x", "sub/.x": b""})
    with pytest.raises(NoInputError, match="corpus: no file in it is input"):
        discover(folder)
    with pytest.raises(NoInputError, match="corpus: is an output"):
        discover(folder, exclude=folder)
    fill(folder, {"a": b"\0", "b": b"\0"})
    with pytest.raises(NoInputError, match=r"corpus: nothing in it is recognised: a \(binary.*and 1 more"):
        discover(folder)


def test_a_single_file_is_a_corpus(tmp_path: Path) -> None:
    """A file has its base name; one that cannot be read says so."""
    fill(tmp_path, {"dir/a.jsonl": RECORD, "b": b"\0"})
    (source,) = discover(tmp_path / "dir" / "a.jsonl").inputs
    assert (source.name, source.path) == ("a.jsonl", tmp_path / "dir" / "a.jsonl")
    with pytest.raises(NoInputError, match="nothing in it is recognised: binary"):
        discover(tmp_path / "b")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """A file name that is no UTF-8 is escaped, and still opens."""
    try:
        (tmp_path / os.fsdecode(b"a\xff.txt")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system refuses such names")
    (source,) = discover(tmp_path).inputs
    assert source.name == "a\\xff.txt"
    assert source.path.read_bytes() == b"x"


@pytest.mark.parametrize("field", [{"format": "csv"}, {"state_field": ""}, {"episode_field": "a..b"}])
def test_options_are_checked(field: dict[str, str]) -> None:
    """An option that cannot work is refused where it is made."""
    with pytest.raises(UsageError):
        ReadOptions(**field)  # type: ignore[arg-type]
