"""The command line: what each command prints and where, what it loads, and that stages compose."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from commands import AGENTS, BROKEN, TINY, Ran, build, command, environment, run, run_process

COMMANDS = ["build", "ingest", "dedup", "pack", "stats", "verify", "plan", "show", "draw", "export", "path"]
SILENCE = Ran(0, "", "")
FORMATS = ["text", "source", "jsonl-text", "pretokenised", "chat", "prompt-completion", "transitions"]


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished build of the sessions of an agent, which no test changes."""
    out = tmp_path_factory.mktemp("agents") / "out"
    build(out, corpus=AGENTS)
    return out


def _files(generation: Path) -> dict[str, bytes]:
    """Every file of a generation that equal builds share."""
    paths = [path for path in generation.rglob("*") if path.is_file() and path.name != "run.json"]
    return {path.relative_to(generation).as_posix(): path.read_bytes() for path in paths}


def test_no_arguments_print_help() -> None:
    """Without arguments dagpack lists its commands and ends as a usage error."""
    ran = run()
    assert (ran.code, ran.err) == (2, "")
    assert ran.out == run("--help").out
    assert run("-h").code == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    """Help says in a sentence what a command does, and explains every argument and option it takes."""
    ran = run(name, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert name in run("--help").out
    assert re.search(rf"^Usage: dagpack {name} .+\n\n  [A-Z].+\.", ran.out)
    options = ran.out[ran.out.index("\nOptions:") :].split("\n  -")[1:]
    assert options
    for option in options:
        assert re.search(r"\S\s{2,}\S", option), f"-{option} has no help"


def test_help_lists_every_command() -> None:
    """No command is missing from the tests above."""
    page = run("--help").out
    listed = re.findall(r"^  ([a-z]+)  ", page[page.index("Commands") :], re.MULTILINE)
    assert set(COMMANDS) <= set(listed)
    assert set(listed) == {*COMMANDS, "check", "train"}


_LOADED = """
import sys
from dagpack_cli.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert stop.code == 0
heavy = {"torch", "numba", "pyarrow", "pydantic", "rich", "transformers", "tokenizers"}
print(*sorted(heavy & set(sys.modules)), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words", [["--help"], ["build", "--help"], ["stats"], ["stats", "--json"], ["path"]], ids=" ".join
)
def test_looking_loads_nothing_heavy(words: list[str], agents: Path) -> None:
    """Help, `stats` and `path` load no torch, numba, pyarrow or pydantic."""
    arguments = words if "--help" in words else [*words, str(agents)]
    ran = run_process([sys.executable, "-c", _LOADED, *arguments])
    assert (ran.code, ran.err) == (0, "\n")


@pytest.mark.parametrize(
    "words", [["stats"], ["verify"], ["show"], ["show", "--rows", "3", "--first-row", "2"]], ids=" ".join
)
def test_json_parses_and_says_what_the_text_says(words: list[str], agents: Path) -> None:
    """`--json` prints one JSON object on standard output and nothing else anywhere."""
    text, data = run(*words, agents), run(*words, agents, "--json")
    assert (text.code, text.err, data.code, data.err) == (0, "", 0, "")
    value = json.loads(data.out)
    if words[0] == "stats":
        assert f"{value['ledger']['total']['pairs']['in']:,}" in text.out
    elif words[0] == "verify":
        assert value["ok"]
        assert (
            text.out == f"ok: {value['files']:,} files, {value['windows']:,} windows, {value['rows']:,} rows verified\n"
        )
    else:
        assert f"{value['num_rows']:,} of {value['window_len']:,} rows" in text.out
        assert len(value["rows"]["inputs"]) == (3 if "3" in words else 48)


def test_path_prints_the_directory_alone(agents: Path) -> None:
    """`path` prints one line: a directory that holds a manifest."""
    ran = run("path", agents)
    assert ran.err == ""
    assert ran.out.count("\n") == 1
    assert (Path(ran.out.rstrip("\n")) / "manifest.json").is_file()


@pytest.mark.parametrize("words", [[], ["--sequences"], ["--transitions"]], ids=" ".join)
def test_export_prints_only_records(words: list[str], agents: Path) -> None:
    """Every line that `export` prints is one JSON object."""
    ran = run("export", *words, agents)
    assert (ran.code, ran.err) == (0, "")
    records = [json.loads(line) for line in ran.out.splitlines()]
    assert len(records) == 19 or words == ["--transitions"]
    assert all(isinstance(record, dict) for record in records)


def test_export_is_input_again(agents: Path, tmp_path: Path) -> None:
    """What `export` prints builds into the same windows: nothing was lost on the way."""
    (tmp_path / "again.jsonl").write_text(run("export", agents).out)
    again = build(tmp_path / "out", corpus=tmp_path / "again.jsonl")
    first = Path(run("path", agents).out.rstrip("\n"))
    columns = [f"trie/train/{name}.npy" for name in ("tokens", "parents", "counts", "weights")]
    assert [_files(again)[name] for name in columns] == [_files(first)[name] for name in columns]


def test_build_prints_a_summary_and_no_carriage_return(tmp_path: Path) -> None:
    """Without a terminal a build prints its summary once, on standard output, and no bar anywhere."""
    ran = run_process(command("build", AGENTS, tmp_path / "out"))
    assert (ran.code, ran.err) == (0, "")
    assert "\r" not in ran.out
    assert ran.out.startswith("train: 19 examples, 106,993 pairs in ")
    assert "nothing lost: 106,993 pairs in = 106,993 in windows + 0 pruned" in ran.out
    assert ran.out.endswith(f"written: {tmp_path / 'out' / 'generations'}/{ran.out.rsplit('/', 1)[1]}")


def test_agents_are_cheaper_than_best_fit(agents: Path) -> None:
    """The demonstration corpus fits the default windows and saves more than half of the rows of best-fit packing."""
    stats = json.loads(run("stats", agents, "--json").out)
    saving = stats["partitions"]["train"]["savings"]["best_fit"]
    assert saving["windows"] >= 2.5
    assert saving["rows"] > 2.3
    assert saving["attention_edges"] > 2
    assert "ignored README.md: plain text beside structured files" in run("stats", agents).out


@pytest.mark.parametrize("name", FORMATS)
def test_every_tiny_corpus_builds(name: str, tmp_path: Path) -> None:
    """Each format's smallest corpus is recognised without an option, verified and exported."""
    build(tmp_path / "out", corpus=TINY / name)
    assert run("verify", tmp_path / "out").code == 0
    assert run("export", tmp_path / "out").code == 0
    assert run("show", tmp_path / "out", "--rows", "0").code == 0


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    """With `--quiet` every writing command is silent, also when nothing changed."""
    out = tmp_path / "out"
    commands: list[tuple[str | Path, ...]] = [
        ("build", AGENTS, out),
        ("build", AGENTS, out),
        ("ingest", TINY / "text", out),
        ("dedup", out),
        ("pack", out),
        ("pack", out, tmp_path / "new"),
    ]
    for words in commands:
        assert run(*words, "--quiet") == SILENCE


def test_unchanged_build_writes_nothing(tmp_path: Path) -> None:
    """The same build again exits 0, says "unchanged" and touches no file of the generation."""
    generation = build(tmp_path / "out", corpus=TINY / "text")
    before = {path: path.stat().st_mtime_ns for path in generation.rglob("*")}
    for options in ([], ["--rehash"], ["--workers", "2"]):
        ran = run("build", TINY / "text", tmp_path / "out", *options)
        assert ran.code == 0
        assert ran.out == f"unchanged: {generation} is what this build would write\n"
    assert {path: path.stat().st_mtime_ns for path in generation.rglob("*")} == before
    assert [path.name for path in (tmp_path / "out" / "generations").iterdir()] == [generation.name]


@pytest.mark.parametrize("name", ["chat", "pretokenised", "transitions"])
def test_three_commands_give_the_bytes_of_one(name: str, tmp_path: Path) -> None:
    """`ingest`, `dedup` and `pack` publish the generation that `build` would, byte for byte."""
    whole = build(tmp_path / "whole", "--val-fraction", "0.3", corpus=TINY / name)
    out = tmp_path / "stages"
    told = run("ingest", TINY / name, out).out
    assert told.endswith(f"; next: dagpack dedup {out}\n")
    told = run("dedup", out, "--val-fraction", "0.3").out
    assert told.endswith(f"; next: dagpack pack {out}\n")
    assert run("pack", out).code == 0
    staged = Path(run("path", out).out.rstrip("\n"))
    assert staged.name == whole.name
    assert _files(staged) == _files(whole)


def test_pack_needs_no_corpus(tmp_path: Path) -> None:
    """`pack OUT NEW` windows a trie anew after the corpus is gone, as a build with that length would have."""
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes((TINY / "chat" / "sessions.jsonl").read_bytes())
    old = build(tmp_path / "old", corpus=corpus)
    options = ("--seq-len", "128", "--on-long", "split")
    direct = build(tmp_path / "direct", *options, corpus=corpus)
    corpus.unlink()
    before = _files(old)
    ran = run("pack", tmp_path / "old", tmp_path / "new", *options)
    assert ran.code == 0
    assert " windows of 128;" in ran.out
    assert _files(Path(run("path", tmp_path / "new").out.rstrip("\n"))) == _files(direct)
    assert _files(old) == before


def test_skip_counts_and_lists_the_first_twenty(tmp_path: Path) -> None:
    """`--on-error skip` keeps the good records, counts the bad ones and lists twenty with file and line."""
    corpus = tmp_path / "corpus.jsonl"
    lines = ['{"text": "good"}' if number % 2 else '{"text": bad}' for number in range(50)]
    corpus.write_text("\n".join(lines) + "\n")
    ran = run("build", corpus, tmp_path / "out", "--on-error", "skip")
    assert ran.code == 0
    assert "skipped: 25 bad records; dagpack stats lists the first 20\n" in ran.out
    stats = run("stats", tmp_path / "out")
    listed = re.findall(r"skipped corpus\.jsonl:(\d+): not valid JSON", stats.out)
    assert [int(line) for line in listed] == list(range(1, 41, 2))
    reading = json.loads(run("stats", tmp_path / "out", "--json").out)["ledger"]["reading"]
    assert (reading["bad_records"], reading["records"], len(reading["bad"])) == (25, 25, 20)


def test_skip_leaves_out_a_damaged_file(tmp_path: Path) -> None:
    """A file that cannot be opened as what it is counts as one bad record; its neighbours are built."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "bad.jsonl.gz").write_bytes((BROKEN / "checksum.jsonl.gz").read_bytes())
    (corpus / "good.jsonl").write_text('{"text": "good"}\n')
    assert run("build", corpus, tmp_path / "out").code == 65
    ran = run("build", corpus, tmp_path / "out", "--on-error", "skip")
    assert ran.code == 0
    assert "skipped: 1 bad record" in ran.out
    assert "bad.jsonl.gz" in run("stats", tmp_path / "out").out


@pytest.mark.parametrize("words", [["export"], ["stats"], ["show", "--json", "--rows", "200"]], ids=" ".join)
def test_reader_that_has_enough(words: list[str], agents: Path) -> None:
    """Where the reader of a pipe stops early the command ends without a word."""
    with subprocess.Popen(
        command(*words, agents), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode in (0, -signal.SIGPIPE)


def test_progress_on_a_terminal_stays_off_standard_output(tmp_path: Path) -> None:
    """With a terminal for standard error the bar is drawn there and taken away; the data stays clean."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    done = subprocess.run(
        command("build", AGENTS, tmp_path / "out"),
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env=environment(),
        check=False,
    )
    seen = os.read(ours, 1 << 16).decode()
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0
    assert "\r" not in done.stdout
    assert "\r" in seen
    assert "Traceback" not in seen
