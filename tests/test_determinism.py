"""The same inputs, options and versions give the same bytes, whatever else is different or goes wrong."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from killed import contents, failures_of

import dagpack_cli.pipeline.publishing
import dagpack_cli.stages.ingest
from dagpack_cli.errors import BusyError
from dagpack_cli.locks import lock_output
from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.pipeline import BuildResult, Execution, TokenizerChoice, build, dedup, ingest, pack
from dagpack_cli.stages.receipts import SilentListener
from dagpack_cli.storage import open_current, read_current
from dagpack_cli.trie import Engine

SPLIT = PackOptions(seq_len=64, on_long="split")
OPTIONS = ("--seq-len", "64", "--on-long", "split")  # the same on the command line
HERE = Path(__file__).resolve().parent


def token_files(seed: int, num_files: int = 6, num_records: int = 12) -> dict[str, str]:
    """Files of ids by name: shared beginnings, labels, weights, groups, in folders."""
    draw = random.Random(seed)
    trunks = [[draw.randrange(1, 40) for _ in range(draw.randrange(3, 40))] for _ in range(4)]
    files = {}
    for number in range(num_files):
        lines = []
        for record in range(num_records):
            trunk = draw.choice(trunks)
            ids = trunk[: draw.randrange(1, len(trunk) + 1)] + [
                draw.randrange(1, 40) for _ in range(draw.randrange(60))
            ]
            labels = [token if draw.random() < 0.6 else -100 for token in ids]
            example: dict[str, Any] = {"input_ids": ids, "labels": labels, "weight": draw.choice([1, 0.5, 2.25, 0.1])}
            lines.append(json.dumps(example | ({"group": f"g{draw.randrange(9)}"} if record % 3 == 0 else {})))
        files[f"d{number % 3}/f{number:02d}.jsonl"] = "\n".join(lines) + "\n"
    return files


def game_files(seed: int, num_files: int = 5) -> dict[str, str]:
    """Files of episodes by name: small states, actions that decide the next state, cycles."""
    draw = random.Random(seed)
    files = {}
    for number in range(num_files):
        lines = []
        for episode in range(4):
            state = 0
            lines.append({"episode": f"{number}-{episode}", "state": {"at": state}})
            for _ in range(draw.randrange(1, 12)):
                action = draw.choice(["left", "right", "up"])
                state = (3 * state + len(action)) % 11
                lines.append({"episode": f"{number}-{episode}", "state": {"at": state}, "action": action})
        files[f"games-{number}.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines)
    return files


def chat_files(seed: int, num_files: int = 4) -> dict[str, str]:
    """Files of short conversations below one system prompt, by name."""
    draw = random.Random(seed)
    files = {}
    for number in range(num_files):
        lines = []
        for _ in range(5):
            messages = [{"role": "system", "content": "be brief"}]
            for turn in range(draw.randrange(1, 4)):
                messages.append({"role": "user", "content": f"question {draw.randrange(5)} of turn {turn}"})
                messages.append({"role": "assistant", "content": "é" * draw.randrange(1, 6)})
            lines.append(json.dumps({"messages": messages}))
        files[f"chat-{number}.jsonl"] = "\n".join(lines) + "\n"
    return files


def write(corpus: Path, files: dict[str, str]) -> Path:
    """Write files by name, in the order given."""
    for name, text in files.items():
        path = corpus / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return corpus


def run(
    corpus: Path,
    out: Path,
    pack_options: PackOptions = SPLIT,
    trie_options: TrieOptions | None = None,
    *,
    tokenizer: str = "auto",
    execution: Execution | None = None,
) -> BuildResult:
    """Build with defaults for what a test does not speak of."""
    return build(
        corpus,
        out,
        tokenizer=TokenizerChoice(spec=tokenizer, eos="none" if tokenizer.endswith(".json") else None),
        ingest_options=IngestOptions(),
        trie_options=trie_options or TrieOptions(),
        pack_options=pack_options,
        execution=execution or Execution(),
    )


def command(*arguments: str | Path, split_bytes: int | None = None, **variables: str) -> subprocess.Popen[bytes]:
    """Start the command line in a session of its own, with splits of another size where one is given."""
    start = ["-m", "dagpack_cli"] if split_bytes is None else ["-c", _COMMAND.format(split_bytes)]
    return subprocess.Popen(
        [sys.executable, *start, *map(str, arguments)],
        env=os.environ | variables,
        cwd=HERE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


_COMMAND = """
import dagpack_cli.stages.ingest
from dagpack_cli.cli import main
dagpack_cli.stages.ingest._SPLIT_BYTES = {}
main()
"""


def finish(process: subprocess.Popen[bytes], code: int = 0) -> str:
    """Wait for a command, check its exit code and return what it said."""
    said = process.communicate(timeout=60)[1].decode()
    assert process.returncode == code, said
    return said


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, modification time and size of everything below a folder."""
    return {
        str(path.relative_to(folder)): (found.st_ino, found.st_mtime_ns, found.st_size)
        for path in (folder, *folder.rglob("*"))
        for found in [path.lstat()]
    }


def generations(out: Path) -> list[str]:
    """Names of the generations that are there."""
    return sorted(path.name for path in (out / "generations").iterdir())


class Splits(SilentListener):
    """Remembers how many splits were read."""

    total = 0

    def progress(self, stage: str, done: int, total: int) -> None:
        """Hear it."""
        if stage == "read":
            self.total = total


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A corpus of ids in folders."""
    return write(tmp_path / "corpus", token_files(1))


@pytest.fixture
def expected(corpus: Path, tmp_path: Path) -> dict[str, str]:
    """What an undisturbed build of `corpus` holds."""
    run(corpus, tmp_path / "expected")
    return contents(tmp_path / "expected")


def test_files_are_those_of_the_manifest(corpus: Path, tmp_path: Path) -> None:
    """The manifest lists every file of the generation with its own checksum, so equal manifests are equal bytes."""
    manifest = run(corpus, tmp_path / "out").manifest
    found = contents(tmp_path / "out")
    del found["manifest.json"]
    assert {entry.path: entry.sha256 for entry in manifest.files} == found


@pytest.mark.parametrize("make", [token_files, game_files, chat_files])
def test_order_of_the_listing(
    make: Callable[[int], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the order in which files were made nor that in which they are listed matters."""
    files = make(3)
    names = list(files)
    random.Random(5).shuffle(names)
    run(write(tmp_path / "a", files), tmp_path / "out-a")
    write(tmp_path / "b", {name: files[name] for name in names})
    with monkeypatch.context() as patched:
        _reverse_listings(patched)
        run(tmp_path / "b", tmp_path / "out-b")
    assert contents(tmp_path / "out-a") == contents(tmp_path / "out-b")


def _reverse_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every function that lists a directory answer in reverse."""
    scandir, listdir = os.scandir, os.listdir

    class Reversed:
        def __init__(self, *arguments: Any) -> None:
            with scandir(*arguments) as entries:
                self._entries = iter(list(entries)[::-1])

        def __enter__(self) -> Reversed:
            return self

        def __exit__(self, *_: object) -> None:
            self.close()

        def __iter__(self) -> Iterator[os.DirEntry[Any]]:
            return self._entries

        def __next__(self) -> os.DirEntry[Any]:
            return next(self._entries)

        def close(self) -> None:
            """Nothing is open."""

    monkeypatch.setattr(os, "scandir", Reversed)
    monkeypatch.setattr(os, "listdir", lambda *arguments: listdir(*arguments)[::-1])


def test_hash_seed(tmp_path: Path) -> None:
    """Sets and dictionaries of another order, in another process, change nothing."""
    corpora = {
        "tokens": (token_files(1), ["--val-fraction", "0.3"]),
        "games": (game_files(1), ["--merge", "state", "--virtual-root"]),
    }
    processes = []
    for name, (files, options) in corpora.items():
        write(tmp_path / name, files)
        for seed in ("1", "2"):
            arguments = ("build", tmp_path / name, tmp_path / f"{name}-{seed}", *OPTIONS)
            processes.append(command(*arguments, *options, PYTHONHASHSEED=seed))
    for process in processes:
        finish(process)
    for name in corpora:
        assert contents(tmp_path / f"{name}-1") == contents(tmp_path / f"{name}-2")


@pytest.mark.parametrize("make", [token_files, game_files, chat_files])
def test_workers_and_splits(
    make: Callable[[int], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process or three, one split or many: the bytes are those of one."""
    source = write(tmp_path / "corpus", make(2))
    options = TrieOptions(val_fraction=0.3)
    run(source, tmp_path / "whole", trie_options=options)
    monkeypatch.setattr(dagpack_cli.stages.ingest, "_SPLIT_BYTES", 1_500)
    for workers in (1, 3):
        splits = Splits()
        out = tmp_path / f"out-{workers}"
        run(source, out, trie_options=options, execution=Execution(workers=workers, listener=splits))
        assert splits.total >= 3
        assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("make", "pack_options", "trie_options"),
    [
        (token_files, SPLIT, TrieOptions()),
        (token_files, replace(SPLIT, seq_len=9), TrieOptions(val_fraction=0.4, virtual_root="0")),
        (token_files, replace(SPLIT, layout="walk"), TrieOptions(val_fraction=0.4)),
        (token_files, replace(SPLIT, layout="packed", shard_format="npy"), TrieOptions()),
        (token_files, replace(SPLIT, layout="best-fit"), TrieOptions()),
        (token_files, replace(SPLIT, layout="padded", on_long="truncate"), TrieOptions()),
        (token_files, replace(SPLIT, on_long="drop", prune=False), TrieOptions()),
        (token_files, replace(SPLIT, seq_len=40), TrieOptions(merge="state")),
        (game_files, replace(SPLIT, objective="unique"), TrieOptions(merge="state", virtual_root="auto")),
        (game_files, replace(SPLIT, layout="walk"), TrieOptions(merge="state")),
        (chat_files, replace(SPLIT, seq_len=128), TrieOptions(val_fraction=0.3)),
    ],
    ids=lambda value: None if callable(value) else "",
)
def test_engines(
    make: Callable[[int], dict[str, str]], pack_options: PackOptions, trie_options: TrieOptions, tmp_path: Path
) -> None:
    """Compiled kernels and plain loops write the same bytes."""
    source = write(tmp_path / "corpus", make(4))
    engines: tuple[Engine, ...] = ("numpy", "numba")
    for engine in engines:
        run(source, tmp_path / engine, pack_options, trie_options, execution=Execution(engine=engine))
    assert contents(tmp_path / "numpy") == contents(tmp_path / "numba")


def test_paths_host_and_clock(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another place, host and time give the same bytes, and none of the three is in them."""
    run(corpus, tmp_path / "here" / "first-out")
    elsewhere = tmp_path / "elsewhere" / "texts"
    shutil.copytree(corpus, elsewhere)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1, 1))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(platform, "node", lambda: "host-without-equal")
    monkeypatch.setattr(time, "time", lambda: 86_400.0)
    built = run(Path("elsewhere/texts"), Path("second-out"))
    assert contents(tmp_path / "here" / "first-out") == contents(tmp_path / "second-out")
    names = [str(tmp_path), "elsewhere", "second-out", "host-without-equal", "1970-01-0"]
    for path in built.path.rglob("*"):
        if path.is_file() and path.name != "run.json":
            data = path.read_bytes()
            assert not [name for name in names if name.encode() in data], path
    assert b"host-without-equal" in (built.path / "run.json").read_bytes()


def test_three_commands_are_a_build(corpus: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """Ingest, dedup and pack, each in a call of its own, end in the bytes of build."""
    out = tmp_path / "out"
    ingest(corpus, out, tokenizer=TokenizerChoice(), ingest_options=IngestOptions(), execution=Execution())
    dedup(out, trie_options=TrieOptions(), execution=Execution())
    pack(out, None, pack_options=SPLIT, execution=Execution())
    assert contents(out) == expected
    assert run(corpus, out).unchanged


@pytest.mark.parametrize("options", [replace(SPLIT, seq_len=200), replace(SPLIT, seq_len=20, layout="packed")])
def test_windows_of_another_length(options: PackOptions, tmp_path: Path) -> None:
    """Packing a published trie again gives what a fresh build with those options gives, here or elsewhere."""
    trie_options = TrieOptions(val_fraction=0.3)
    source = write(tmp_path / "corpus", token_files(6))
    run(source, tmp_path / "out", replace(SPLIT, on_long="drop"), trie_options)
    run(source, tmp_path / "fresh", options, trie_options)
    pack(tmp_path / "out", tmp_path / "new", pack_options=options, execution=Execution())
    assert contents(tmp_path / "new") == contents(tmp_path / "fresh")
    pack(tmp_path / "out", None, pack_options=options, execution=Execution())
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_killed_at_every_stage(tmp_path: Path) -> None:
    """A build killed around any rename leaves the old generation whole, and the next one ends in the same bytes."""
    write(tmp_path / "first", token_files(1, num_files=4))
    write(tmp_path / "second", token_files(1, num_files=4) | {"extra.jsonl": token_files(2)["d0/f00.jsonl"]})
    ran = subprocess.run(
        [sys.executable, HERE / "killed.py", tmp_path], capture_output=True, text=True, timeout=300, check=True
    )
    assert ran.stdout == ""
    assert int(ran.stderr) > 20


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are listed in /proc")
def test_workers_end_with_a_killed_build(tmp_path: Path) -> None:
    """Processes that read splits do not outlive their build: they would write where the next one works."""
    source = write(tmp_path / "corpus", token_files(8, num_files=12, num_records=400))
    out = tmp_path / "out"

    def reads() -> bool:
        return any(out.rglob("tokens.i32"))

    with killed_after(reads, "build", source, out, *OPTIONS, "--workers", "3", split_bytes=1) as process:
        _wait_for(lambda: not _session(process.pid))


@contextmanager
def killed_after(
    moment: float | Callable[[], bool], *arguments: str | Path, split_bytes: int
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command, kill it after some seconds or once something is so; at the end what it started, too."""
    process = command(*arguments, split_bytes=split_bytes)
    try:
        if callable(moment):
            _wait_for(moment)
        else:
            time.sleep(moment)
        process.kill()
        process.wait()
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the group that the command led
        process.communicate()


def _wait_for(happens: Callable[[], bool]) -> None:
    """Wait until something is so, at most ten seconds."""
    for _ in range(1000):
        if happens():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def _session(leader: int) -> list[int]:
    """Return the processes of a session, but for its leader and those that have ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[3]) == leader and fields[0] != "Z" and int(path.parent.name) != leader:
            found.append(int(path.parent.name))
    return found


def test_a_stopped_build_is_not_packed_instead_of_the_current_one(tmp_path: Path) -> None:
    """What an older, unfinished build left behind is not what `pack` takes after a newer one has published."""
    source = write(tmp_path / "corpus", token_files(1))
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dagpack_cli.pipeline.publishing, "publish", _stop)
        with pytest.raises(KeyboardInterrupt):
            run(source, out)
    write(source, {"extra.jsonl": token_files(2)["d0/f00.jsonl"]})
    newer = run(source, out)
    packed = pack(out, None, pack_options=replace(SPLIT, seq_len=200), execution=Execution())
    assert packed.manifest.inputs == newer.manifest.inputs


def _stop(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("call", ["enable_padding", "enable_truncation"])
def test_a_tokenizer_that_was_called_otherwise(call: str, tmp_path: Path) -> None:
    """Padding and truncation that some earlier call left in a tokenizer.json are not part of it."""
    source = write(tmp_path / "corpus", {"a.txt": "a b a b a b", "b.txt": "a b b"})
    tokenizer = _words(["a", "b"])
    tokenizer.save(str(tmp_path / "before.json"))
    tokenizer.enable_padding(length=16) if call == "enable_padding" else tokenizer.enable_truncation(2)
    tokenizer.encode_batch(["a", "a b a"])
    tokenizer.save(str(tmp_path / "after.json"), pretty=False)
    for name in ("before", "after"):
        run(source, tmp_path / name, tokenizer=str(tmp_path / f"{name}.json"))
    assert contents(tmp_path / "before") == contents(tmp_path / "after")
    assert run(source, tmp_path / "before", tokenizer=str(tmp_path / "after.json")).unchanged


def _words(words: list[str]) -> Any:
    """Return a tokenizer of whole words, made by the library itself."""
    import tokenizers

    vocabulary = {word: number for number, word in enumerate(["?", *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return tokenizer


def test_another_tokenizer(tmp_path: Path) -> None:
    """Another vocabulary, another EOS or the bytes in the same output never mix with what was read before."""
    source = write(tmp_path / "corpus", {"a.txt": "a b a b a b", "b.txt": "a b b"})
    _words(["a", "b"]).save(str(tmp_path / "one.json"))
    _words(["b", "a"]).save(str(tmp_path / "two.json"))
    seen = []
    for number, spec in enumerate(["one", "two", "bytes", "one"]):
        tokenizer = str(tmp_path / f"{spec}.json") if spec != "bytes" else spec
        built = run(source, tmp_path / "out", tokenizer=tokenizer)
        assert not built.unchanged
        run(source, tmp_path / f"alone-{number}", tokenizer=tokenizer)
        assert contents(tmp_path / "out") == contents(tmp_path / f"alone-{number}")
        seen.append(built.manifest.fingerprint)
    assert len(set(seen)) == 3
    stopped = tmp_path / "stopped"
    for spec in ("one", "two"):
        choice = TokenizerChoice(spec=str(tmp_path / f"{spec}.json"), eos="none")
        ingest(source, stopped, tokenizer=choice, ingest_options=IngestOptions(), execution=Execution())
    run(source, stopped, tokenizer=str(tmp_path / "one.json"))
    assert contents(stopped) == contents(tmp_path / "alone-0")


def _edit(corpus: Path) -> None:
    path = corpus / "d0" / "f00.jsonl"
    times = path.stat()
    text = path.read_text()
    path.write_text(text.replace('"weight": 0.5', '"weight": 1.5'))  # as long as before
    assert path.read_text() != text
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _remove(corpus: Path) -> None:
    (corpus / "d1" / "f01.jsonl").unlink()


def _add(corpus: Path) -> None:
    write(corpus, {"d1/a.jsonl": '{"input_ids": [1, 2, 3]}\n'})


def _rename(corpus: Path) -> None:
    (corpus / "d1" / "f01.jsonl").rename(corpus / "d1" / "zz.jsonl")


def _swap(corpus: Path) -> None:
    names = [corpus / "d0" / "f00.jsonl", corpus / "d2" / "f02.jsonl"]
    texts = [path.read_text() for path in names]
    for path, text in zip(names, reversed(texts), strict=True):
        path.write_text(text)


@pytest.mark.parametrize("change", [_edit, _remove, _add, _rename, _swap])
def test_a_changed_corpus_is_noticed(change: Callable[[Path], None], corpus: Path, tmp_path: Path) -> None:
    """An edit that keeps size and time, a removal, an addition, a new name: each builds what a first build would."""
    out = tmp_path / "out"
    before = run(corpus, out).manifest.fingerprint
    change(corpus)
    built = run(corpus, out)
    assert not built.unchanged
    assert built.manifest.fingerprint != before
    run(corpus, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")


def test_unchanged_writes_nothing(corpus: Path, tmp_path: Path) -> None:
    """Where nothing has changed the command ends with 0 and no file or folder of the output is another."""
    out = tmp_path / "out"
    run(corpus, out)
    before = state(out)
    finish(command("build", corpus, out, *OPTIONS))
    assert run(corpus, out, execution=Execution(workers=3, engine="numpy", keep=1, rehash=True)).unchanged
    assert state(out) == before


def test_a_touched_input_is_unchanged(corpus: Path, tmp_path: Path) -> None:
    """Another time on an input with the same content rebuilds nothing."""
    out = tmp_path / "out"
    run(corpus, out)
    before = state(out)
    for path in corpus.rglob("*.jsonl"):
        os.utime(path, (1_000_000, 1_000_000))
    assert run(corpus, out).unchanged
    assert state(out) == before


def test_a_moved_output_is_unchanged(corpus: Path, tmp_path: Path) -> None:
    """An output that was moved or copied is still what a build would write."""
    first = run(corpus, tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", tmp_path / "copied")
    for name in ("moved", "copied"):
        again = run(corpus, tmp_path / name)
        assert again.unchanged
        assert again.manifest.fingerprint == first.manifest.fingerprint
        assert failures_of(tmp_path / name) == []


_HOLD = """
import sys
from pathlib import Path
from dagpack_cli.storage import open_current
with open_current(Path(sys.argv[1])) as generation:
    print(generation.name, flush=True)
    sys.stdin.readline()
    print(len((generation.path / "manifest.json").read_bytes()), flush=True)
"""


def test_a_reader_keeps_its_generation(corpus: Path, tmp_path: Path) -> None:
    """A generation that another process reads outlives later builds, and the first build after that removes it."""
    out = tmp_path / "out"
    run(corpus, out, execution=Execution(keep=1))
    arguments = [sys.executable, "-c", _HOLD, str(out)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE) as reader:
        assert reader.stdout is not None
        held = reader.stdout.readline().strip()
        for number in range(2):
            write(corpus, {f"more-{number}.jsonl": f'{{"input_ids": [1, 2, {number}]}}\n'})
            run(corpus, out, execution=Execution(keep=1))
        assert generations(out)[0] == held
        assert len(generations(out)) == 2
        said, _ = reader.communicate("\n", timeout=60)
        assert int(said) > 0
    write(corpus, {"last.jsonl": '{"input_ids": [1, 2, 3, 4]}\n'})
    run(corpus, out, execution=Execution(keep=1))
    assert len(generations(out)) == 1
    assert held not in generations(out)


def test_two_builds_at_once(corpus: Path, expected: dict[str, str], tmp_path: Path) -> None:
    """While one build holds the output the other ends with 75 and touches nothing; the first is not disturbed."""
    out = tmp_path / "out"
    with lock_output(out):
        before = state(out)
        with pytest.raises(BusyError):
            run(corpus, out)
        assert "holds the lock" in finish(command("build", corpus, out), BusyError.exit_code)
        assert state(out) == before
    processes = [command("build", corpus, out, *OPTIONS) for _ in range(3)]
    codes = set()
    for process in processes:
        process.communicate(timeout=60)
        codes.add(process.returncode)
    assert 0 in codes
    assert codes <= {0, BusyError.exit_code}
    assert contents(out) == expected
    assert read_current(out) is not None
    with open_current(out) as generation:
        assert generation.name.startswith("000001-")
