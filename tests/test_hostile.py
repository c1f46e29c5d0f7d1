"""Corpora and outputs that were made to do harm: each is refused in two lines, or left out and named."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from commands import Ran, build, run

from dagpack_cli.corpora import BadRecords, ReadOptions, discover, raise_bad
from dagpack_cli.corpora.files.limits import Limits
from dagpack_cli.corpora.files.parquet_footer import check_footer
from dagpack_cli.corpora.files.parquet_rows import read_parquet_rows
from dagpack_cli.errors import DagpackError, DamageError, DataError, PermissionDeniedError, UsageError
from dagpack_cli.manifest import Manifest, seal_run, unseal_run
from dagpack_cli.training import PackedWindows
from dagpack_cli.verify import verify_generation

GOOD = b'{"text": "good"}\n'


def refused(ran: Ran, code: int, *parts: str) -> None:
    """Assert two lines with these words in them, and this status."""
    error, hint = ran.err.splitlines()
    assert ran.code == code
    assert error.startswith("error: ")
    assert hint.startswith("hint: ")
    for part in parts:
        assert part in ran.err


BOMBS = {
    "gzip": (gzip.compress(bytes(70 << 20), mtime=0), "--max-ratio"),
    "zstd": (zstandard.compress(bytes(70 << 20)), "--max-ratio"),
    "zstd frames": (zstandard.compress(bytes(1 << 20)) * 300, "--max-ratio"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_archives_that_explode_are_stopped(name: str, tmp_path: Path) -> None:
    """A few bytes that would come to many are named after 64 MiB of them; skip leaves the file out."""
    bomb, option = BOMBS[name]
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "good.jsonl").write_bytes(GOOD)
    (tmp_path / "corpus" / "bomb.z").write_bytes(zstandard.compress(GOOD) + bomb if "zstd" in name else bomb)
    words = ("build", tmp_path / "corpus", tmp_path / "out", "--format", "jsonl-text")
    refused(run(*words), 65, "bomb.z", "the archive decompresses to", option)
    assert run(*words, "--on-error", "skip").code == 0
    assert json.loads(run("stats", tmp_path / "out", "--json").out)["ledger"]["reading"]["bad_records"] == 1


@pytest.mark.parametrize(
    ("data", "option", "value", "found"),
    [
        (b'{"text": "' + b"x" * 99 + b'"}\n', "--max-line-bytes", 99, "a line of more than 99 bytes"),
        (b'[{"text": "' + b"x" * 99 + b'"}]', "--max-line-bytes", 99, "a record of more than 99 bytes"),
        (gzip.compress(GOOD * 99, mtime=0), "--max-decompressed-bytes", 99, "more than 99 bytes"),
        (b'{"text": "a", "deep": [[[[{}]]]]}\n', "--max-depth", 5, "nested too deeply"),
    ],
)
def test_limits_are_options(data: bytes, option: str, value: int, found: str, tmp_path: Path) -> None:
    """What goes over a limit names the option; one more is enough, and changes no byte of the result."""
    (tmp_path / "a.jsonl").write_bytes(data)
    words = ("build", tmp_path / "a.jsonl", tmp_path / "out", "--format", "jsonl-text")
    refused(run(*words, option, str(value)), 65, found, option)
    refused(run(*words, option, "0"), 2, option)
    first = run(*words, option, "100000" if "depth" not in option else "6")
    assert first.code == 0, first.err
    assert run(*words).out.startswith("unchanged: ")
    skipped = (*words, "--on-error", "skip")
    assert run(*skipped).code == 0
    assert run(*skipped, option, str(value)).code == 66


def test_limits_have_ranges() -> None:
    """A depth that no parser reaches is refused."""
    with pytest.raises(UsageError, match="--max-depth: 501"):
        Limits(max_depth=501)


def table(rows: int = 50) -> pa.Table:
    """A table of texts."""
    return pa.table({"text": [f"row {number}" for number in range(rows)], "junk": [b"x" * 100] * rows})


def _varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else ((-value) << 1) - 1
    data = b""
    while value > 127:
        data, value = data + bytes([value & 127 | 128]), value >> 7
    return data + bytes([value])


FALSE = [
    ("rows", 50, 51, "rows"),
    ("rows", 50, -50, "rows"),
    ("rows", 50, 1 << 60, "rows"),
    ("stored", None, 1 << 40, "within"),
    ("stored", None, -5, "sizes that can be"),
    ("plain", None, 1 << 40, "--max-"),
    ("plain", None, -1, "sizes that can be"),
    ("start", None, 1 << 50, "within"),
    ("start", None, -4, "within"),
    ("start", None, 0, "within"),
]


@pytest.mark.parametrize(("what", "old", "new", "found"), FALSE)
def test_false_footers_are_refused_before_a_page_is_read(
    what: str, old: int | None, new: int, found: str, tmp_path: Path
) -> None:
    """Rows, sizes and offsets that the file cannot hold are data errors that name it."""
    path = tmp_path / "a.parquet"
    pq.write_table(table().select(["text"]), path, compression="none", use_dictionary=False, write_statistics=False)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    fields = {
        "stored": (column.total_compressed_size, b"\x16"),
        "plain": (column.total_uncompressed_size, b"\x16"),
        "start": (column.data_page_offset, b"\x26"),
        "rows": (old or 0, b"\x16"),
    }
    value, head = fields[what]
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    pages, footer = data[: -8 - length], data[-8 - length : -8]
    wanted = head + _varint(value)
    at = footer.index(wanted) if what != "stored" else footer.index(wanted, footer.index(wanted) + 1)
    changed = footer[:at] + head + _varint(new) + footer[at + len(wanted) :]
    path.write_bytes(pages + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(DataError, match="not a readable Parquet file") as raised:
        list(read_parquet_rows(path, "a.parquet", raise_bad))
    assert found in f"{raised.value} {raised.value.advice}"
    refused(run("build", path, tmp_path / "out"), 65, "a.parquet")


def test_dictionary_bombs_are_read_row_by_row(tmp_path: Path) -> None:
    """A value that a thousand rows share is decoded for a few at a time; one longer than a line may be is refused."""
    path = tmp_path / "a.parquet"
    big = os.urandom(1 << 19).hex()
    pq.write_table(pa.table({"text": [big] * 1000}), path, dictionary_pagesize_limit=1 << 22)
    [(row_bytes, shared_bytes)] = check_footer(path, "a", Limits())
    assert row_bytes < 1 << 11
    assert shared_bytes > 1 << 19
    assert sum(1 for _ in read_parquet_rows(path, "a", raise_bad)) == 1000
    with pytest.raises(DataError, match="a row of more than 1,000 bytes"):
        next(read_parquet_rows(path, "a", raise_bad, limits=Limits(max_line_bytes=1000)))


def test_columns_of_other_files_are_not_followed(tmp_path: Path) -> None:
    """A footer may name another file for a column: nothing of it is read."""
    outer = tmp_path / "meta"
    pq.write_table(table(), tmp_path / "a.parquet")
    metadata = pq.ParquetFile(tmp_path / "a.parquet").metadata
    metadata.set_file_path("../../etc/passwd")
    metadata.write_metadata_file(outer)
    with pytest.raises(DataError, match="in another file"):
        list(read_parquet_rows(outer, "meta", raise_bad))


def test_links_lead_to_each_file_once(tmp_path: Path) -> None:
    """Links are followed, out of the corpus too; files, folders and circles are met once, whatever the listing."""
    corpus, outside = tmp_path / "corpus", tmp_path / "outside"
    (corpus / "real").mkdir(parents=True)
    (outside / "inner").mkdir(parents=True)
    for path in (corpus / "real" / "a.txt", outside / "b.txt", outside / "inner" / "c.txt"):
        path.write_text(path.name)
    os.link(corpus / "real" / "a.txt", corpus / "real" / "hard.txt")
    for name, target in {
        "0": outside / "inner" / "c.txt",
        "1": outside,
        "2": outside / "inner",
        "3": corpus / "real" / "a.txt",
        "4": tmp_path,
        "5": corpus / "5",
    }.items():
        (corpus / name).symlink_to(target)
    found = discover(corpus)
    assert [source.name for source in found.inputs] == ["0", "1/b.txt", "real/a.txt", "real/hard.txt"]
    assert dict(found.ignored) == {
        "1/inner/c.txt": "a file that is read as 0",
        "2": "a link to a folder that is read as 1/inner",
        "3": "a link to a file that is read as real/a.txt",
        "4/corpus": "a folder that is read as corpus",
        "4/outside": "a folder that is read as 1",
        "5": "a broken link",
    }


def test_deep_folders_end_where_paths_do(tmp_path: Path) -> None:
    """Ten thousand folders in one another: no recursion, and what no path leads to is an error, or left out."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("ab")
    here = os.open(corpus, os.O_RDONLY)
    try:
        for _ in range(10_000):
            os.mkdir("d", dir_fd=here)
            inner = os.open("d", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
    finally:
        os.close(here)
    try:
        refused(run("build", corpus, tmp_path / "out"), 65, "the path is longer than the system takes")
        assert run("build", corpus, tmp_path / "out", "--on-error", "skip").code == 0
    finally:
        _remove_deep(corpus)


def _remove_deep(folder: Path) -> None:
    """Remove folders that no path leads to: each inner one is moved up before its own is removed."""
    while (folder / "d").exists():
        try:
            (folder / "d" / "d").rename(folder / "e")
        except FileNotFoundError:
            (folder / "d").rmdir()
            return
        (folder / "d").rmdir()
        (folder / "e").rename(folder / "d")


def test_names_of_any_bytes_go_through_everything(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, line breaks and escapes: one line in messages, whole in JSON, and built again alike."""
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    names = [b"caf\xe9.jsonl", b"two\nlines.jsonl", b"\x1b[31mred.jsonl", "\u202eright.jsonl".encode()]
    for name in names:
        Path(os.fsdecode(os.fsencode(corpus) + b"/" + name)).write_bytes(GOOD)
    build(out, corpus=corpus)
    shown = [entry["path"] for entry in json.loads((_generation(out) / "manifest.json").read_bytes())["inputs"]]
    assert sorted(shown) == sorted(["caf\\xe9.jsonl", *(name.decode() for name in names[1:])])
    assert run("verify", out).code == 0
    assert len(run("export", out).out.splitlines()) == 4
    assert run("build", corpus, out).out.startswith("unchanged: ")
    json.loads(run("stats", out, "--json").out)
    for name in names:
        Path(os.fsdecode(os.fsencode(corpus) + b"/" + name)).write_bytes(b'{"text": "x", "weight": "y"}\n')
        ran = run("build", corpus, out)
        refused(ran, 65)
        assert not set(ran.err) & set("\x1b\u202e")
        Path(os.fsdecode(os.fsencode(corpus) + b"/" + name)).write_bytes(GOOD)


def test_unreadable_files_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system refuses is exit 77, or with skip left out, named and counted."""
    (tmp_path / "corpus" / "shut").mkdir(parents=True)
    (tmp_path / "corpus" / "a.txt").write_text("ab")
    (tmp_path / "corpus" / "b.txt").write_text("cd")
    scandir, open_ = os.scandir, os.open

    def guarded(function: Callable[..., Any], ending: str) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            if str(path).endswith(ending):
                raise PermissionError(13, "Permission denied", str(path))
            return function(path, *arguments, **options)

        return call

    monkeypatch.setattr(os, "scandir", guarded(scandir, "shut"))
    monkeypatch.setattr(os, "open", guarded(open_, "b.txt"))
    with pytest.raises(PermissionDeniedError, match="shut: cannot be read"):
        discover(tmp_path / "corpus")
    bad = BadRecords()
    found = discover(tmp_path / "corpus", on_bad=bad)
    assert [source.name for source in found.inputs] == ["a.txt"]
    assert dict(found.ignored) == {"b.txt": "cannot be read", "shut": "cannot be read"}
    assert bad.count == 2


def test_file_that_became_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """Between the listing and the reading anything may take a file's place."""
    (tmp_path / "a.jsonl").write_bytes(GOOD)
    [source] = discover(tmp_path, options=ReadOptions(format="jsonl-text")).inputs
    source.path.unlink()
    os.mkfifo(source.path)
    from dagpack_cli.corpora.files.sources import read_source_rows

    with pytest.raises(DataError, match="is no file any more"):
        list(read_source_rows(source, raise_bad))


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished build."""
    out = tmp_path_factory.mktemp("published") / "out"
    build(out)
    return out


@pytest.fixture
def copy(published: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    shutil.copytree(published, tmp_path / "out")
    return tmp_path / "out"


def _generation(out: Path) -> Path:
    return out / "generations" / str(json.loads((out / "CURRENT").read_text())["generation"])


def _forge(out: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, and all that vouches for it."""
    path = _generation(out)
    value = json.loads((path / "manifest.json").read_bytes())
    change(value)
    raw = json.dumps(value).encode()
    (path / "manifest.json").write_bytes(raw)
    current = {"generation": path.name, "manifest_sha256": hashlib.sha256(raw).hexdigest()}
    (out / "CURRENT").write_text(json.dumps(current, sort_keys=True, separators=(",", ":")) + "\n")


READERS = ("stats", "verify", "show", "export", "path")


@pytest.mark.parametrize("where", ["../../../secret", "/etc/passwd", "shards/../../x", "", "./x", "a//b", "x\0y"])
def test_manifests_name_nothing_outside(where: str, copy: Path) -> None:
    """A file that is not below the generation is refused by every reader before it is looked at."""
    _forge(copy, lambda value: value["files"][0].update(path=where))
    for command in READERS:
        refused(run(command, copy), 76, "which is not below it")
    with pytest.raises(DamageError, match="which is not below it"):
        PackedWindows(copy)


@pytest.mark.parametrize("name", ["..", "../..", "/", "000001-0123456789ab/..", ".", "x", "", 7, None, ["a"]])
def test_current_leads_nowhere_else(name: Any, copy: Path) -> None:
    """CURRENT names a generation and nothing else."""
    digest = hashlib.sha256((_generation(copy) / "manifest.json").read_bytes()).hexdigest()
    (copy / "CURRENT").write_text(json.dumps({"generation": name, "manifest_sha256": digest}))
    for command in READERS:
        refused(run(command, copy), 76, "not a pointer to a generation")


def test_links_in_an_output_are_refused(copy: Path, tmp_path: Path) -> None:
    """A generation, its manifest or a file in it that is a link leads out of the output, right checksums or not."""
    generation = _generation(copy)
    for path in (
        generation / "shards" / "train-00000.parquet",
        generation / "trie",
        generation / "manifest.json",
        generation,
    ):
        moved = tmp_path / "moved"
        path.rename(moved)
        path.symlink_to(moved)
        for command in READERS:
            refused(run(command, copy), 76, f"{path}: a link")
        with pytest.raises(DamageError, match="a link"):
            PackedWindows(copy)
        path.unlink()
        moved.rename(path)
    manifest = Manifest.from_bytes((generation / "manifest.json").read_bytes(), generation)
    shard = generation / "shards" / "train-00000.parquet"
    shard.rename(tmp_path / "moved")
    shard.symlink_to(tmp_path / "moved")
    assert any("no regular file" in failure for failure in verify_generation(generation, manifest).failures)


HUGE = 10**400
WRONG: list[Any] = [HUGE, -1, None, "x", [], {}, [[]], {"a": HUGE}, True, 1.5]


@pytest.mark.parametrize("wrong", WRONG, ids=[str(value)[:12] for value in WRONG])
def test_wrong_values_in_a_manifest_are_damage(wrong: Any, published: Path, tmp_path: Path) -> None:
    """Whatever stands where, it is damage or another version, and never a bug."""
    fields = list(json.loads((_generation(published) / "manifest.json").read_bytes()))
    for field in fields:
        out = tmp_path / field
        shutil.copytree(published, out)
        _forge(out, lambda value, field=field: value.update({field: wrong}))  # type: ignore[misc]
        for command in ("stats", "verify"):
            ran = run(command, out)
            assert ran.code in (0, 76, 78), (field, command, ran.err)


_FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "packing": lambda value: value.update(packing={"train": {}}),
    "number": lambda value: value["packing"]["train"].update(windows="x"),
    "ledger": lambda value: value.update(ledger={}),
    "statistics": lambda value: value.update(statistics={"train": []}),
    "tokenizer": lambda value: value["tokenizer"].pop("kind"),
    "merge": lambda value: value["trie"].update(val_fraction=None),
    "length": lambda value: value["pack"].update(seq_len="x"),
}
_TINY_MODEL = "--width 8 --heads 2 --feed-forward 16 --layers 1 --device cpu --steps 1"


@pytest.mark.parametrize("name", _FORGERIES)
def test_what_a_manifest_leads_to_is_damage_everywhere(name: str, copy: Path, tmp_path: Path) -> None:
    """Values that dagpack did not write are damage to each command that goes by them, and no bug to any."""
    _forge(copy, _FORGERIES[name])
    codes = set()
    for words in (
        *(f"{reader} OUT" for reader in READERS),
        "pack OUT NEW --seq-len 64 --polish 0",
        "plan OUT --seq-len 64 --polish 0",
        "draw OUT",
        "draw OUT --trie",
        f"train --shards OUT {_TINY_MODEL}",
        "check OUT --windows 1 --device cpu",
    ):
        ran = run(*words.replace("OUT", str(copy)).replace("NEW", str(tmp_path / "new")).split())
        assert ran.code in (0, 76), (words, ran.err)
        assert ran.code == 0 or "manifest.json: " in ran.err.splitlines()[0], (words, ran.err)
        codes.add((words.split()[0], ran.code))
    assert {code for _, code in codes} >= {76}


def test_a_corpus_is_not_blamed_for_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command meets while it reads no build of ours is told as what it is."""
    from dagpack_cli.pipeline import planning

    def fail(*_: object, **__: object) -> NoReturn:
        raise KeyError("ours")

    monkeypatch.setattr(planning, "ingest", fail)
    (tmp_path / "a.txt").write_text("ab")
    ran = run("plan", tmp_path)
    assert (ran.code, "KeyError, a bug in dagpack" in ran.err) == (1, True)


def test_deep_json_is_damage(copy: Path) -> None:
    """Nesting that no parser follows is damage, in CURRENT and in a manifest."""
    (copy / "CURRENT").write_text("[" * 100_000)
    refused(run("stats", copy), 76, "not a pointer")
    with pytest.raises(DamageError, match="not JSON"):
        Manifest.from_bytes(b"[" * 100_000, Path("m"))


@pytest.mark.parametrize("name", ["../../victim", "/tmp", "a/../../b", "a/b/c", {"a": 1}, 7])
def test_pointer_to_a_stage_stays_in_staging(name: Any, copy: Path, tmp_path: Path) -> None:
    """`dedup` and `pack` go on with a stage of their own output only."""
    (copy / ".staging").mkdir(exist_ok=True)
    (copy / ".staging" / "next.json").write_text(json.dumps(name))
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "receipt.json").write_text("{}")
    refused(run("dedup", copy), 66, "nothing ingested")


def test_record_of_a_run_is_sealed() -> None:
    """Every flipped bit of it is noticed; without a seal it is not believed."""
    raw = seal_run({"corpus": "/x", "inputs": {"a": [1, 2, 3, 4, "f" * 64]}})
    assert unseal_run(raw) == {"corpus": "/x", "inputs": {"a": [1, 2, 3, 4, "f" * 64]}}
    for at in range(len(raw)):
        for bit in range(8):
            assert unseal_run(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]) is None
    assert unseal_run(b'{"corpus": "/x"}') is None


def test_checksums_are_read_on_request(copy: Path) -> None:
    """The reader looks at sizes always, and at every byte where it is asked to."""
    shard = _generation(copy) / "shards" / "train-00000.parquet"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    PackedWindows(copy)
    with pytest.raises(DamageError, match="sha256"):
        PackedWindows(copy, checksums=True)
    shard.write_bytes(bytes(data) + b"x")
    with pytest.raises(DamageError, match="bytes as the manifest says"):
        PackedWindows(copy)


def test_everything_raised_has_a_place() -> None:
    """Names in errors are one line, whatever is in them."""
    assert "\n" not in str(DagpackError("a\nb", "c\x1b", "d"))
