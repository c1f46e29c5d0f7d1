"""The contract of failures: every kind of bad input, one exit status, exactly two lines, nothing published."""

from __future__ import annotations

import ast
import errno
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import BROKEN, FIXTURES, TINY, Ran, build, command, environment, run, run_process

from dagpack_cli.errors import DagpackError
from dagpack_cli.storage import translate_os_error

TAKES = "dagpack COMMAND --help says what each option takes"
REBUILD = "build again: dagpack build CORPUS OUT --rehash"
AGAIN = "build again with this version: dagpack build CORPUS OUT"
OTHER = "choose another output directory"
LATER = "try again when it has ended, or let this command wait: --wait SECONDS"
PACKAGE = Path(__file__).resolve().parent.parent / "dagpack_cli"


@dataclass(frozen=True)
class ExpectFail:
    """A command that fails, and the two lines that are all it prints.

    ``<broken>``, ``<tiny>`` and ``<out>`` stand for folders, ``*`` for words that are a library's.
    """

    id: str
    arguments: str
    code: int
    error: str
    hint: str

    def words(self, out: Path) -> list[str]:
        """The command's arguments, for an output."""
        return [_filled(word, out) for word in self.arguments.split()]

    def check(self, ran: Ran, out: Path) -> None:
        """Assert the exit status, the exact text, and that nothing went to standard output."""
        text = _filled(f"error: {self.error}\nhint: {self.hint}\n", out)
        assert ran.out == ""
        assert re.fullmatch(re.escape(text).replace(r"\*", "[^\n]*"), ran.err), f"{ran.err}instead of\n{text}"
        assert ran.code == self.code


def _filled(text: str, out: Path) -> str:
    for name, folder in (("<broken>", BROKEN), ("<tiny>", TINY), ("<out>", out)):
        text = text.replace(name, str(folder))
    return text


def _read_failures() -> list[ExpectFail]:
    """Return the failures that are written down beside the fixtures."""
    pattern = r"^(.+): exit (\d+)\n\$ dagpack (.+)\nerror: (.+)\nhint: (.+)$"
    found = re.findall(pattern, (FIXTURES / "broken.txt").read_text(encoding="utf-8"), re.MULTILINE)
    return [ExpectFail(name, words, int(code), error, hint) for name, code, words, error, hint in found]


FAILURES = _read_failures()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with one finished build, which no failure may touch."""
    out = tmp_path_factory.mktemp("published") / "out"
    build(out)
    return out


@pytest.fixture
def copy(published: Path, tmp_path: Path) -> Path:
    """A copy of that output to damage."""
    shutil.copytree(published, tmp_path / "out", ignore=shutil.ignore_patterns(".staging"))
    return tmp_path / "out"


def _named(case: ExpectFail) -> str:
    return case.id


@pytest.mark.parametrize("case", FAILURES, ids=_named)
def test_failure_is_two_lines_and_publishes_nothing(case: ExpectFail, tmp_path: Path) -> None:
    """A failing command prints its error and its hint, and leaves no current generation."""
    out = tmp_path / "out"
    case.check(run(*case.words(out)), out)
    assert not (out / "CURRENT").exists()


@pytest.mark.parametrize("case", [case for case in FAILURES if "build" in case.arguments], ids=_named)
def test_failure_leaves_the_previous_build_as_it_is(case: ExpectFail, published: Path) -> None:
    """A failing build changes neither CURRENT nor a byte of the generation it names."""
    before = (published / "CURRENT").read_bytes()
    case.check(run(*case.words(published)), published)
    assert (published / "CURRENT").read_bytes() == before
    assert run("verify", published).code == 0


def test_every_broken_fixture_is_in_the_table() -> None:
    """No fixture of a failure lies there without a test."""
    used = {word.removeprefix("<broken>/") for case in FAILURES for word in case.arguments.split()}
    assert {path.name for path in BROKEN.iterdir()} <= used


@pytest.mark.parametrize("case", [case for case in FAILURES if "--on-error skip" in case.hint], ids=_named)
def test_hint_to_skip_works(case: ExpectFail, tmp_path: Path) -> None:
    """Where a hint says that a record can be left out, it can: what remains is built, if anything does."""
    ran = run(*case.words(tmp_path / "out"), "--on-error", "skip")
    assert ran.code in (0, 66), ran.err
    if ran.code == 0:
        stats = json.loads(run("stats", tmp_path / "out", "--json").out)
        assert stats["ledger"]["reading"]["bad_records"] == 1


@pytest.mark.parametrize("options", [["--seq-len", "64"], ["--seq-len", "16", "--on-long", "split"]], ids=" ".join)
def test_hint_for_long_examples_works(options: list[str], tmp_path: Path) -> None:
    """Both ways out that the hint for over-long examples names end in a build that keeps every pair."""
    build(tmp_path / "out", *options, corpus=BROKEN / "longer-than-a-window")
    pairs = json.loads(run("stats", tmp_path / "out", "--json").out)["ledger"]["total"]["pairs"]
    assert pairs["in"] == pairs["in_windows"] == 36


@pytest.mark.parametrize(
    ("words", "start"),
    [
        ("bild", "error: dagpack: no such command 'bild'"),
        ("build a b --seq-length 8", "error: dagpack build: no such option: --seq-length"),
        ("build a b --seq-len many", "error: --seq-len: "),
        ("build a b --layout heap", "error: --layout: 'heap' is not one of "),
        ("show a --rows", "error: dagpack"),
    ],
)
def test_parser_errors_have_the_shape_of_all_errors(words: str, start: str) -> None:
    """What the option parser refuses is also two lines, exit 2, lower case and without a full stop."""
    ran = run(*words.split())
    error, hint = ran.err.splitlines()
    assert (ran.code, ran.out) == (2, "")
    assert error.startswith(start)
    assert not error.endswith(".")
    assert re.fullmatch(r"hint: dagpack( \w+)? --help", hint)


def _strings(node: ast.AST) -> Iterator[str]:
    return (part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))


def _hints() -> Iterator[str]:
    """Yield every piece of text that the package passes as a hint."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                yield from _strings(node.value)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                if any(re.search("hint|_REBUILD", name, re.IGNORECASE) for name in names):
                    yield from _strings(node.value)


@pytest.fixture(scope="module")
def helps() -> dict[str, str]:
    """The help of every command, and of dagpack itself under an empty name."""
    page = run("--help").out
    names = re.findall(r"^  (\w+)  ", page[page.index("Commands") :], re.MULTILINE)
    return {"": page} | {name: run(name, "--help").out for name in names}


def test_hints_name_only_flags_and_commands_that_exist(helps: dict[str, str]) -> None:
    """Every flag and every command in a hint, of the package and of the table above, is in the help."""
    hints = [*_hints(), *(case.hint for case in FAILURES)]
    flags = {flag for hint in hints for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", hint)}
    commands = {name for hint in hints for name in re.findall(r"\bdagpack ([a-z]+)\b", hint)}
    assert len(flags) > 10
    assert len(hints) > 40
    page = "\n".join(helps.values())
    assert [flag for flag in sorted(flags) if not re.search(rf"{flag}(?![\w-])", page)] == []
    assert commands <= set(helps)


def test_output_that_is_a_file(tmp_path: Path) -> None:
    """A file where the output should be, or above it, is left alone: exit 73."""
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "under"):
        error = "<out>: not a directory; a directory, or a new name for one"
        case = ExpectFail("", "build <tiny>/text <out>", 73, error, OTHER)
        case.check(run(*case.words(out)), out)
    assert (tmp_path / "file").read_text() == "mine"


_HOLD = """
import fcntl, sys
file = open(sys.argv[1], "ab")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def test_lock_held_by_another_process(copy: Path) -> None:
    """While another process holds the lock every writer ends with 75, readers work, and afterwards all do."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(copy / "LOCK")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for words in ("build <tiny>/text", "ingest <tiny>/text", "dedup", "pack"):
            error = "<out>: another build holds the lock; one build at a time"
            case = ExpectFail("", f"{words} <out>", 75, error, LATER)
            case.check(run(*case.words(copy)), copy)
        assert run("stats", copy).code == 0
        holder.communicate()
    build(copy, corpus=TINY / "text")


def _generation(out: Path) -> Path:
    name: str = json.loads((out / "CURRENT").read_text())["generation"]
    return out / "generations" / name


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def _sha12(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


FILES = [
    "shards/train-00000.parquet",
    "trie/train/tokens.npy",
    "trie/train/subtree_ends.npy",
    "examples.parquet",
    "tokenizer/tokenizer-identity.json",
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["flipped", "missing", "longer"])
def test_damaged_file_is_named_and_can_be_rebuilt(name: str, how: str, copy: Path) -> None:
    """One flipped bit, a file too long or none: verify names it, exit 76, and what the hint says mends it."""
    path = _generation(copy) / name
    size, sha = path.stat().st_size, _sha12(path)
    if how == "flipped":
        _flip(path, size - 1)
        found = f"sha256 {_sha12(path)}; {sha} as the manifest says"
    elif how == "missing":
        path.unlink()
        found = f"the file is missing; {size:,} bytes"
    else:
        path.write_bytes(path.read_bytes() + b"\0")
        found = f"{size + 1:,} bytes; {size:,} as the manifest says"
    ran = run("verify", copy)
    assert ran.out == f"{path}: {found}\n"
    assert ran.err == f"error: {path}: {found}\nhint: {REBUILD}\n"
    assert ran.code == 76
    assert json.loads(run("verify", copy, "--json").out)["failures"] == [f"{path}: {found}"]
    build(copy, "--rehash")
    assert run("verify", copy).code == 0


@pytest.mark.parametrize("name", FILES[1:])
def test_pack_refuses_a_damaged_trie(name: str, copy: Path, tmp_path: Path) -> None:
    """A flipped bit in what `pack` reads is found before it could be published under a new checksum."""
    path = _generation(copy) / name
    sha = _sha12(path)
    _flip(path, path.stat().st_size - 1)
    ran = run("pack", copy, tmp_path / "new", "--seq-len", "16")
    assert ran.err == f"error: {path}: sha256 {_sha12(path)}; {sha} as the manifest says\nhint: {REBUILD}\n"
    assert ran.code == 76
    assert not (tmp_path / "new" / "CURRENT").exists()


def test_extra_file_is_a_failure(copy: Path) -> None:
    """A file that the build did not write is named by verify."""
    extra = _generation(copy) / "shards" / "train-00001.parquet"
    extra.write_bytes(b"")
    ran = run("verify", copy)
    assert (ran.code, ran.out) == (76, f"{extra}: not in the manifest; only files the build wrote\n")


def _cut_current(out: Path) -> tuple[str, str]:
    (out / "CURRENT").write_bytes((out / "CURRENT").read_bytes()[:20])
    return "<out>/CURRENT", "not a pointer to a generation; JSON written by dagpack"


def _lose_generation(out: Path) -> tuple[str, str]:
    path = _generation(out)
    shutil.rmtree(path)
    return str(path), "missing; what CURRENT names"


def _flip_manifest(out: Path) -> tuple[str, str]:
    path = _generation(out) / "manifest.json"
    sha = _sha12(path)
    _flip(path, 100)
    return str(path), f"sha256 {_sha12(path)}; {sha}, as in CURRENT"


def _rewrite_manifest(out: Path, change: Callable[[dict[str, object]], object]) -> Path:
    """Change the manifest and its checksum in CURRENT, as another version of dagpack would have written them."""
    path = _generation(out) / "manifest.json"
    value = json.loads(path.read_bytes())
    change(value)
    path.write_text(json.dumps(value))
    current = json.loads((out / "CURRENT").read_text())
    current["manifest_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (out / "CURRENT").write_text(json.dumps(current))
    return path


def _other_version(out: Path) -> tuple[str, str]:
    path = _rewrite_manifest(out, lambda value: value.update(format_version=3))
    return str(path), "format version 3; format version 2"


def _unknown_field(out: Path) -> tuple[str, str]:
    path = _rewrite_manifest(out, lambda value: value.update(colour="blue"))
    return str(path), "unknown field colour; the fields dagpack writes"


def _lost_field(out: Path) -> tuple[str, str]:
    path = _rewrite_manifest(out, lambda value: value.pop("ledger"))
    return str(path), "field ledger is missing; the fields dagpack writes"


POINTERS = [
    (_cut_current, 76, REBUILD),
    (_lose_generation, 76, REBUILD),
    (_flip_manifest, 76, REBUILD),
    (_unknown_field, 76, AGAIN),
    (_lost_field, 76, AGAIN),
    (_other_version, 78, AGAIN),
]


@pytest.mark.parametrize(("damage", "code", "hint"), POINTERS)
def test_damaged_pointer_or_manifest(
    damage: Callable[[Path], tuple[str, str]], code: int, hint: str, copy: Path
) -> None:
    """Every reader refuses it with one message, and a build, which cannot trust it, replaces it and says so."""
    where, found = damage(copy)
    for words in ("stats <out>", "verify <out>", "show <out>", "export <out>", "path <out>", "pack <out>"):
        case = ExpectFail("", words, code, f"{where}: {found}", hint)
        case.check(run(*case.words(copy)), copy)
    ran = run("build", TINY / "pretokenised", copy)
    assert ran.code == 0
    assert ran.err == f"note: the current generation is replaced: {_filled(where, copy)}: {found}\n"
    assert run("verify", copy).code == 0


def test_missing_shard_is_damage_for_every_reader(copy: Path) -> None:
    """Where a shard is gone `show` and `export` name it instead of failing inside."""
    shard = _generation(copy) / "shards" / "train-00000.parquet"
    shard.unlink()
    for words in ("show <out>", "export <out>"):
        case = ExpectFail("", words, 76, f"{shard}: the file is missing", REBUILD)
        case.check(run(*case.words(copy)), copy)


def test_lost_run_json_hurts_nothing(copy: Path, tmp_path: Path) -> None:
    """Nothing that is verified depends on the record of the run: without it every command still works."""
    (_generation(copy) / "run.json").unlink()
    assert run("verify", copy).code == 0
    assert run("pack", copy, tmp_path / "new", "--seq-len", "16").code == 0
    assert run("build", TINY / "pretokenised", copy).out.startswith("unchanged: ")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--window 7", "--window: 7; 0 to 0, the windows of train"),
        ("--window -1", "--window: -1; 0 to 0, the windows of train"),
        ("--partition val", "--partition: val; one of train"),
        ("--first-row 6", "--first-row: 6; 0 to 5, the rows of the window"),
        ("--rows -3", "--rows: -3; at least 1, or 0 for all"),
    ],
)
def test_show_refuses_what_is_not_there(options: str, text: str, published: Path) -> None:
    """A window, partition or row that does not exist is a usage error that says what does."""
    ran = run("show", published, *options.split())
    assert (ran.code, ran.out, ran.err) == (2, "", f"error: {text}\nhint: {TAKES}\n")


def test_export_takes_one_form(published: Path) -> None:
    """The two ways to export without provenance exclude each other."""
    ran = run("export", published, "--sequences", "--transitions")
    assert ran.err == f"error: --sequences: --transitions is given too; one of the two\nhint: {TAKES}\n"
    assert ran.code == 2


def test_merged_states_cannot_be_told_apart(tmp_path: Path) -> None:
    """A trie that merges states is refused by layouts and exports that need its examples apart."""
    path = build(tmp_path / "out", "--merge", "state", corpus=TINY / "transitions")
    error = "--layout packed: the trie merges states, in which examples are not apart; dag or walk"
    case = ExpectFail("", "pack <out> --layout packed", 2, error, TAKES)
    case.check(run(*case.words(tmp_path / "out")), tmp_path / "out")
    error = f"{path}: merge state: examples are not paths of the graph; merge prefix or none"
    case = ExpectFail("", "export <out>", 78, error, "dagpack export --transitions OUT")
    case.check(run(*case.words(tmp_path / "out")), tmp_path / "out")
    assert run("export", "--transitions", tmp_path / "out").code == 0


@contextmanager
def _unprivileged() -> Iterator[Path]:
    """Give a folder in which this process has no more rights than anybody."""
    run("--help")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        root = os.geteuid() == 0
        if root:
            os.chown(folder, 65534, 65534)
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if root:
                os.seteuid(0)
            for path in folder.rglob("*"):
                path.chmod(0o755)


def test_no_permission(published: Path) -> None:
    """A file, a folder or an output that the system keeps from us is named, exit 77."""
    with _unprivileged() as folder:
        corpus, closed = folder / "corpus", folder / "closed"
        corpus.mkdir()
        closed.mkdir()
        (corpus / "a.txt").write_text("ab")
        assert run("build", corpus, folder / "out").code == 0
        (corpus / "b.txt").write_text("c")
        (corpus / "b.txt").chmod(0)
        closed.chmod(0o555)
        refused, denied = "cannot be read; the operating system refuses access", "permission denied; access to it"
        cases = [
            (f"build {corpus} <out>", corpus / "b.txt", refused, corpus / "b.txt"),
            (f"build {corpus / 'a.txt'} {closed / 'new'}", closed / "new", denied, closed),
            (f"build {corpus / 'a.txt'} {closed / 'deep' / 'new'}", closed / "deep", denied, closed),
        ]
        for words, where, found, there in cases:
            hint = f"check the owner and mode: ls -ld {there}"
            case = ExpectFail("", words, 77, f"{where}: {found}", hint)
            case.check(run(*case.words(folder / "out")), folder / "out")
        assert run("verify", folder / "out").code == 0


@pytest.mark.parametrize(
    ("number", "code", "hint"),
    [
        (errno.ENOSPC, 74, "free some space and run the same command again"),
        (errno.EDQUOT, 74, "free some space and run the same command again"),
        (errno.EIO, 74, "check the disk and run the same command again"),
        (errno.EROFS, 73, "choose another output directory"),
        (errno.EACCES, 77, "check the owner and mode: ls -ld ."),
    ],
)
def test_system_errors_have_their_own_status(
    number: int, code: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the operating system becomes the kind that tells cron what to do."""
    monkeypatch.chdir(tmp_path)
    error = translate_os_error(OSError(number, os.strerror(number), "out/x"))
    assert (error.exit_code, error.where, error.advice) == (code, "out/x", hint)
    assert os.strerror(number).lower() in str(error)


def test_a_system_error_that_names_no_file_gives_no_path() -> None:
    """Where the system does not say what it keeps from us, the hint makes no path up."""
    error = translate_os_error(PermissionError(errno.EPERM, os.strerror(errno.EPERM)))
    assert (error.where, error.advice) == ("file system", "check the owner and mode: of what is read and written")


@pytest.mark.parametrize("name", [".staging", "cache", "generations", "LOCK", "CURRENT"])
def test_what_stands_in_our_place_is_named(name: str, tmp_path: Path) -> None:
    """A file where dagpack keeps a folder, or the other way round, stops every command that writes; none removes it."""
    out, path = tmp_path / "out", tmp_path / "out" / name
    out.mkdir()
    if name in ("LOCK", "CURRENT"):
        path.mkdir()
    else:
        path.write_text("mine")
    kind = "folder" if path.is_dir() else "file"
    writers = ["build <tiny>/text <out>", "ingest <tiny>/text <out>", "dedup <out>"]
    if name == "CURRENT":
        case = ExpectFail("", "stats <out>", 76, f"{path}: a folder; JSON written by dagpack", REBUILD)
        case.check(run(*case.words(out)), out)
    else:
        writers.append("pack <out>")
    for words in writers:
        error = f"{path}: a {kind}; what dagpack makes under this name, or nothing"
        case = ExpectFail("", words, 73, error, f"move it away: mv {path} ELSEWHERE")
        case.check(run(*case.words(out)), out)
    assert path.is_dir() or path.read_text() == "mine"
    path.rename(tmp_path / "ELSEWHERE")
    assert run("build", TINY / "text", out).code == 0


def test_pack_after_ingest_alone_names_the_step_between(tmp_path: Path) -> None:
    """What is ingested and not merged is no trie yet, and the hint is the command that makes it one."""
    out = tmp_path / "out"
    assert run("ingest", TINY / "text", out).code == 0
    error = "<out>: what was ingested is not merged yet; a finished dedup"
    case = ExpectFail("", "pack <out>", 66, error, "dagpack dedup <out>, then this again")
    case.check(run(*case.words(out)), out)
    assert run("dedup", out).code == 0
    assert run("pack", out).code == 0


def test_failed_write_publishes_nothing_and_can_be_repeated(tmp_path: Path) -> None:
    """Where a file cannot grow the build ends with 74, and the same command later ends in the usual bytes."""
    corpus, out = tmp_path / "corpus.txt", tmp_path / "out"
    corpus.write_text("".join(f"line {number}, " for number in range(4000)))
    options = ("--on-long", "split")
    limited = subprocess.run(
        command("build", corpus, out, *options),
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert limited.returncode == 74, limited.stderr
    error, hint = limited.stderr.splitlines()
    assert error.startswith("error: ")
    assert "file too large" in error
    assert hint == "hint: check the disk and run the same command again"
    assert not (out / "CURRENT").exists()
    again, fresh = build(out, *options, corpus=corpus), build(tmp_path / "fresh", *options, corpus=corpus)
    assert (again / "manifest.json").read_bytes() == (fresh / "manifest.json").read_bytes()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_standard_output(published: Path) -> None:
    """Data that cannot be written to standard output is an error of its own, not silence."""
    again, elsewhere = "send it to a disk that has room", "write to a disk that has room: --output FILE"
    for words, where, room, hint in (
        (("stats", "--json"), "standard output", "room for what the command prints", again),
        (("export",), "standard output", "room for the export", elsewhere),
    ):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                command(*words, published),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                env=environment(),
            )
        assert done.stderr == f"error: {where}: no space left on device; {room}\nhint: {hint}\n"
        assert done.returncode == 74


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that takes a moment to read."""
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    path.write_text("".join(json.dumps({"text": f"record {number} " * 20}) + "\n" for number in range(8000)))
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_build_by_itself(number: signal.Signals, large: Path, tmp_path: Path) -> None:
    """An interrupted build dies by that signal, says what is next, publishes nothing, and a rerun works."""
    out = tmp_path / "out"
    with subprocess.Popen(
        command("build", large, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        while process.poll() is None and not any(out.glob(".staging/*/splits/*/*")):
            time.sleep(0.005)
        process.send_signal(number)
        printed = process.communicate(timeout=60)
    goes_on = "the current build stays, and the same command goes on where this one stopped"
    assert printed == ("", f"stopped: {number.name}; {goes_on}\n")
    assert process.returncode == -number
    assert not (out / "CURRENT").exists()
    assert run("build", large, out, "--quiet").code == 0
    assert run("verify", out).code == 0


@pytest.mark.parametrize("name", ["unknown-role", "mixed-kinds", "all-empty", "symbols-for-ids"])
def test_process_ends_as_main_does(name: str, tmp_path: Path) -> None:
    """The installed command's exit status and text are those of the table."""
    case = next(case for case in FAILURES if case.id == name)
    case.check(run_process(command(*case.words(tmp_path / "out"))), tmp_path / "out")


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With DAGPACK_DEBUG=1 the traceback comes before the same two lines."""
    words = ("build", BROKEN / "unknown-role.jsonl", tmp_path / "out")
    plain = run(*words).err
    monkeypatch.setenv("DAGPACK_DEBUG", "1")
    shown = run(*words)
    assert shown.code == 65
    assert shown.err.startswith("Traceback (most recent call last):\n")
    assert shown.err.endswith(plain)


def test_bug_is_reported_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An exception that nobody expected is exit 1, with its traceback, and nothing is published."""

    def fail(*_arguments: object) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr("dagpack_cli.pipeline.publishing.publish_staged", fail)
    ran = run("build", TINY / "text", tmp_path / "out")
    assert ran.code == 1
    assert ran.err.startswith("Traceback (most recent call last):\n")
    assert ran.err.endswith(
        "error: dagpack: ValueError, a bug in dagpack; the lines above say where\n"
        "hint: nothing was published; please report it with the command and these lines\n"
    )
    assert not (tmp_path / "out" / "CURRENT").exists()


def test_every_kind_has_its_status_and_a_hint() -> None:
    """The exit statuses are those of the contract, and no kind is without advice."""
    kinds: list[type[DagpackError]] = [DagpackError, *DagpackError.__subclasses__()]
    assert sorted({kind.exit_code for kind in kinds}) == [1, 2, 65, 66, 73, 74, 75, 76, 77, 78]
    assert all(kind("here", "found").advice for kind in kinds)
