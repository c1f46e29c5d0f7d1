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
from commands import BROKEN, TINY, Ran, build, command, environment, run, run_process

from dagpack_cli.errors import DagpackError
from dagpack_cli.storage import translate_os_error

SKIP = "correct it, or leave it out with --on-error skip"
TAKES = "dagpack COMMAND --help says what each option takes"
READS = "dagpack build --help says what can be read"
FORMAT = "name the format with --format"
LOOK = "look into the files, or name what they hold with --format"
SUPERVISE = "chat needs assistant messages; input_ids need labels other than -100; or lower --val-fraction"
BUILD = "dagpack build CORPUS OUT"
REBUILD = "build again: dagpack build CORPUS OUT --rehash"
KNOWN = "expected text, JSON lines or Parquet with known fields"
PACKAGE = Path(__file__).resolve().parent.parent / "dagpack_cli"


@dataclass(frozen=True)
class ExpectFail:
    """A command that fails, and all that it prints: ``error: where: found; expected`` and ``hint: hint``.

    ``<broken>``, ``<tiny>`` and ``<out>`` stand for folders; ``*`` for words that are a library's.
    """

    id: str
    arguments: str
    code: int
    where: str
    found: str
    expected: str
    hint: str

    def words(self, out: Path) -> list[str]:
        """The command's arguments, for an output."""
        return [_filled(word, out) for word in self.arguments.split()]

    def check(self, ran: Ran, out: Path) -> None:
        """Assert the exit status, the exact text, and that nothing went to standard output."""
        expected = f"; {self.expected}" if self.expected else ""
        text = _filled(f"error: {self.where}: {self.found}{expected}\nhint: {self.hint}\n", out)
        assert ran.out == ""
        assert re.fullmatch(re.escape(text).replace(r"\*", "[^\n]*"), ran.err), f"{ran.err}instead of\n{text}"
        assert ran.code == self.code


def _filled(text: str, out: Path) -> str:
    for name, folder in (("<broken>", BROKEN), ("<tiny>", TINY), ("<out>", out)):
        text = text.replace(name, str(folder))
    return text


FAILURES = [
    ExpectFail(
        "mixed-kinds",
        "build <broken>/mixed-kinds <out>",
        2,
        "--tokenizer auto",
        "the corpus mixes chat.jsonl (text), ids.jsonl (token ids)",
        "one tokenizer reads one of them",
        "name the tokenizer that made the ids: --tokenizer PATH",
    ),
    ExpectFail(
        "negative-weight",
        "build <broken>/negative-weight.jsonl <out> --objective unique",
        2,
        "--objective unique",
        "some example weights are negative",
        "counted: one vote has no sign",
        "--objective counted",
    ),
    ExpectFail("no-argument", "build", 2, "dagpack build", "missing argument 'CORPUS'", "", "dagpack build --help"),
    ExpectFail(
        "one-argument",
        "build <tiny>/pretokenised",
        2,
        "dagpack build",
        "missing argument 'OUT'",
        "",
        "dagpack build --help",
    ),
    ExpectFail(
        "seq-len-zero",
        "build <tiny>/pretokenised <out> --seq-len 0",
        2,
        "--seq-len",
        "0",
        "a number of rows from 1 to 2,147,483,647",
        TAKES,
    ),
    ExpectFail(
        "merge-none-of-dag",
        "build <tiny>/pretokenised <out> --merge none",
        2,
        "--merge none",
        "does not go with --layout dag",
        "--merge prefix or state",
        "--layout dag takes --merge prefix or state; or choose --layout best-fit",
    ),
    ExpectFail(
        "merge-of-packed",
        "build <tiny>/pretokenised <out> --merge prefix --layout packed",
        2,
        "--merge prefix",
        "does not go with --layout packed",
        "--merge none",
        "--layout packed takes --merge none; or choose --layout dag",
    ),
    ExpectFail(
        "merge-state-of-best-fit",
        "build <tiny>/pretokenised <out> --merge state --layout best-fit",
        2,
        "--merge state",
        "does not go with --layout best-fit",
        "--merge none",
        "--layout best-fit takes --merge none; or choose --layout dag",
    ),
    ExpectFail(
        "merge-state-of-text",
        "build <tiny>/text <out> --merge state",
        2,
        "--merge state",
        "the bytes tokenizer: what follows a token depends on all tokens before it",
        "game transitions or given ids, whose next step depends on the state alone",
        "leave --merge out: equal prefixes are merged",
    ),
    ExpectFail(
        "drop-of-states",
        "build <tiny>/transitions <out> --merge state --on-long drop",
        2,
        "--on-long drop",
        "under --merge state an example is not a path of the trie",
        "split, truncate or error",
        TAKES,
    ),
    ExpectFail(
        "strict-markov-of-prefixes",
        "build <tiny>/pretokenised <out> --strict-markov",
        2,
        "--strict-markov",
        "has nothing to check under --merge prefix",
        "--merge state",
        "add --merge state",
    ),
    ExpectFail(
        "val-fraction-over-one",
        "build <tiny>/pretokenised <out> --val-fraction 1.5",
        2,
        "--val-fraction",
        "1.5",
        "a number from 0 up to, not including, 1",
        TAKES,
    ),
    ExpectFail("no-workers", "build <tiny>/pretokenised <out> --workers 0", 2, "--workers", "0", "at least 1", TAKES),
    ExpectFail("keep-nothing", "build <tiny>/pretokenised <out> --keep 0", 2, "--keep", "0", "at least 1", TAKES),
    ExpectFail(
        "compression-level",
        "build <tiny>/pretokenised <out> --compression-level 30",
        2,
        "--compression-level",
        "30",
        "1 to 22, a level of zstd",
        TAKES,
    ),
    ExpectFail(
        "bos-no-id",
        "build <tiny>/pretokenised <out> --bos first",
        2,
        "--bos",
        '"first"',
        "expected a token id or none",
        TAKES,
    ),
    ExpectFail(
        "bos-outside-vocabulary",
        "build <tiny>/text <out> --bos 900",
        2,
        "--bos",
        "token id 900 is outside the vocabulary",
        "expected 0 to 265",
        "--bos none",
    ),
    ExpectFail(
        "virtual-root-without-bos",
        "build <tiny>/pretokenised <out> --virtual-root",
        2,
        "--virtual-root",
        "the tokenizer has no BOS",
        "an id of its vocabulary",
        "--virtual-root-id ID",
    ),
    ExpectFail(
        "virtual-root-negative",
        "build <tiny>/pretokenised <out> --virtual-root-id=-5",
        2,
        "--virtual-root-id",
        "-5",
        "an id of the vocabulary, 0 to 8",
        TAKES,
    ),
    ExpectFail(
        "drop-rule",
        "build <tiny>/transitions <out> --drop-transition noise",
        2,
        "--drop-transition",
        '"noise"',
        "expected self, action=JSON or state=JSON",
        TAKES,
    ),
    ExpectFail(
        "drop-rule-not-json",
        "build <tiny>/transitions <out> --drop-transition action={a",
        2,
        "--drop-transition",
        '"action={a" is not valid JSON: Expecting property name enclosed in double quotes at character 2',
        "quote JSON for the shell",
        TAKES,
    ),
    ExpectFail(
        "empty-step-in-path",
        "build <tiny>/transitions <out> --state-field a..b",
        2,
        "--state-field",
        '"a..b"',
        "expected a field name or a dotted path",
        TAKES,
    ),
    ExpectFail(
        "array-not-closed",
        "build <broken>/array-not-closed.json <out>",
        65,
        "<broken>/array-not-closed.json:1",
        "the array is not closed",
        "the file may be truncated",
        SKIP,
    ),
    ExpectFail(
        "attention-mask-hole",
        "build <broken>/attention-mask-hole.jsonl <out>",
        65,
        "<broken>/attention-mask-hole.jsonl:1",
        "attention_mask[1] is 0 between ones",
        "only padding at either end can be left out",
        SKIP,
    ),
    ExpectFail(
        "bad-json-line",
        "build <broken>/bad-json-line.jsonl <out>",
        65,
        "<broken>/bad-json-line.jsonl:2",
        "not valid JSON: Unterminated string starting at at character 10",
        "",
        SKIP,
    ),
    ExpectFail(
        "checksum",
        "build <broken>/checksum.jsonl.gz <out>",
        65,
        "<broken>/checksum.jsonl.gz",
        "the compressed file is damaged: CRC check failed 0xbd7f2e52 != 0xbd7e2e52",
        "",
        SKIP,
    ),
    ExpectFail(
        "completion-missing",
        "build <broken>/completion-missing.jsonl <out>",
        65,
        "<broken>/completion-missing.jsonl:2",
        'the record has "prompt"',
        "expected messages, or prompt and completion",
        SKIP,
    ),
    ExpectFail(
        "content-is-an-image",
        "build <broken>/content-is-an-image.jsonl <out>",
        65,
        "<broken>/content-is-an-image.jsonl:1, message 1",
        'a part of the content is "image_url"',
        "only text can be read",
        SKIP,
    ),
    ExpectFail(
        "end-behind-record",
        "build <broken>/end-behind-record.jsonl <out>",
        65,
        "<broken>/end-behind-record.jsonl:1",
        "start 1, end 4",
        "expected 0 <= start <= end <= 3",
        SKIP,
    ),
    ExpectFail(
        "episode-missing",
        "build <broken>/episode-missing.jsonl <out>",
        65,
        "<broken>/episode-missing.jsonl:3",
        'field "episode" is missing',
        "every record names its episode",
        "name the field with --episode-field, or --episode-field none where a file is one episode",
    ),
    ExpectFail(
        "half-a-surrogate-pair",
        "build <broken>/half-a-surrogate-pair.jsonl <out>",
        65,
        "<broken>/half-a-surrogate-pair.jsonl:2",
        "character 1 is \\ud83d, half of a surrogate pair",
        "text must be valid Unicode",
        "leave the record out with --on-error skip",
    ),
    ExpectFail(
        "id-negative",
        "build <broken>/id-negative.jsonl <out>",
        65,
        "<broken>/id-negative.jsonl:2",
        "input_ids[1] is -1",
        "expected 0 to 2,147,483,647",
        SKIP,
    ),
    ExpectFail(
        "id-not-whole",
        "build <broken>/id-not-whole.jsonl <out>",
        65,
        "<broken>/id-not-whole.jsonl:2",
        "input_ids[1] is 6.5",
        "expected a whole number",
        SKIP,
    ),
    ExpectFail(
        "id-outside-int32",
        "build <broken>/id-outside-int32.jsonl <out>",
        65,
        "<broken>/id-outside-int32.jsonl:2",
        "input_ids[1] is 2,147,483,648",
        "expected 0 to 2,147,483,647",
        SKIP,
    ),
    ExpectFail(
        "id-outside-vocabulary",
        "build <broken>/id-outside-vocabulary.jsonl <out> --tokenizer bytes",
        65,
        "<broken>/id-outside-vocabulary.jsonl:2",
        "token id 266 is outside the vocabulary",
        "expected 0 to 265",
        "name the tokenizer that made the ids with --tokenizer PATH",
    ),
    ExpectFail(
        "invalid-utf8.jsonl",
        "build <broken>/invalid-utf8.jsonl <out>",
        65,
        "<broken>/invalid-utf8.jsonl:2",
        "byte 15 (0xDF) is not UTF-8",
        "dagpack reads UTF-8 only",
        "convert the file first, or leave it out with --on-error skip",
    ),
    ExpectFail(
        "labels-and-loss-mask",
        "build <broken>/labels-and-loss-mask.jsonl <out>",
        65,
        "<broken>/labels-and-loss-mask.jsonl:1",
        'both "labels" and "loss_mask" are given',
        "expected one of them",
        SKIP,
    ),
    ExpectFail(
        "labels-shifted",
        "build <broken>/labels-shifted.jsonl <out>",
        65,
        "<broken>/labels-shifted.jsonl:2",
        "labels[1] is 7, input_ids[1] is 6: labels look shifted",
        "labels[i] must be input_ids[i] or -100",
        SKIP,
    ),
    ExpectFail(
        "lengths-differ",
        "build <broken>/lengths-differ.jsonl <out>",
        65,
        "<broken>/lengths-differ.jsonl:2",
        '"labels" has 2 entries',
        '"input_ids" has 3',
        SKIP,
    ),
    ExpectFail(
        "longer-than-a-window",
        "build <broken>/longer-than-a-window <out> --seq-len 16",
        65,
        "--seq-len 16",
        "1 example is longer than a window; the longest has 33 pairs, the first is long.txt, record 0",
        "at most 16 pairs",
        "--seq-len 64 holds them whole; --on-long split cuts them and keeps every pair",
    ),
    ExpectFail(
        "loss-mask-not-0-or-1",
        "build <broken>/loss-mask-not-0-or-1.jsonl <out>",
        65,
        "<broken>/loss-mask-not-0-or-1.jsonl:2",
        "loss_mask[2] is 2",
        "expected 0 or 1",
        SKIP,
    ),
    ExpectFail(
        "message-weight",
        "build <broken>/message-weight.jsonl <out>",
        65,
        "<broken>/message-weight.jsonl:1, message 2",
        '"weight" of a message is 0.5',
        "expected 0 or 1",
        SKIP,
    ),
    ExpectFail(
        "messages-not-a-list",
        "build <broken>/messages-not-a-list.jsonl <out>",
        65,
        "<broken>/messages-not-a-list.jsonl:2",
        'messages are "hello"',
        "expected a list",
        SKIP,
    ),
    ExpectFail(
        "not-markov",
        "build <broken>/not-markov.jsonl <out> --merge state --strict-markov",
        65,
        "--strict-markov",
        ('1 (state, action) pairs lead to more than one next state, such as state "a" with action "x": "b", "c"'),
        "one next state for each",
        "use --merge prefix: the graph stays a tree",
    ),
    ExpectFail(
        "record-id-not-text",
        "build <broken>/record-id-not-text.jsonl <out>",
        65,
        "<broken>/record-id-not-text.jsonl:2",
        '"id" is a list of 1',
        "expected a string or a whole number",
        SKIP,
    ),
    ExpectFail(
        "record-not-an-object",
        "build <broken>/record-not-an-object.jsonl <out>",
        65,
        "<broken>/record-not-an-object.jsonl:2",
        "the record is an array",
        "expected a JSON object",
        SKIP,
    ),
    ExpectFail(
        "rejected-answer",
        "build <broken>/rejected-answer.jsonl <out>",
        65,
        "<broken>/rejected-answer.jsonl:2",
        '"label" judges this record',
        "a plain chat was expected, with nothing rejected",
        SKIP,
    ),
    ExpectFail(
        "state-missing",
        "build <broken>/state-missing.jsonl <out>",
        65,
        "<broken>/state-missing.jsonl:3",
        'field "state" is missing',
        'the record has "episode", "action"',
        "name the field with --state-field, or leave such records out with --on-error skip",
    ),
    ExpectFail(
        "text-behind-array",
        "build <broken>/text-behind-array.json <out>",
        65,
        "<broken>/text-behind-array.json:1",
        "there is text behind the array",
        "one array fills the whole file",
        SKIP,
    ),
    ExpectFail(
        "text-missing",
        "build <broken>/text-missing.jsonl <out>",
        65,
        "<broken>/text-missing.jsonl:2",
        'field "text" is missing',
        'the record has "body", "id"',
        "name the field with --text-field",
    ),
    ExpectFail(
        "tool-arguments-not-json",
        "build <broken>/tool-arguments-not-json.jsonl <out>",
        65,
        "<broken>/tool-arguments-not-json.jsonl:1, message 2, tool arguments",
        "not valid JSON: Expecting property name enclosed in double quotes at character 2",
        "",
        SKIP,
    ),
    ExpectFail(
        "truncated-last-line",
        "build <broken>/truncated-last-line.jsonl <out>",
        65,
        "<broken>/truncated-last-line.jsonl:2",
        "not valid JSON: Unterminated string starting at at character 10",
        "",
        SKIP,
    ),
    ExpectFail(
        "truncated.jsonl.gz",
        "build <broken>/truncated.jsonl.gz <out>",
        65,
        "<broken>/truncated.jsonl.gz",
        "the compressed file is truncated",
        "it ends in the middle of its data",
        SKIP,
    ),
    ExpectFail(
        "truncated.jsonl.zst",
        "build <broken>/truncated.jsonl.zst <out>",
        65,
        "<broken>/truncated.jsonl.zst",
        "the compressed file is truncated",
        "it ends in the middle of its data",
        SKIP,
    ),
    ExpectFail(
        "truncated.parquet",
        "build <broken>/truncated.parquet <out>",
        65,
        "<broken>/truncated.parquet",
        "not a readable Parquet file: *",
        "",
        SKIP,
    ),
    ExpectFail(
        "unknown-role",
        "build <broken>/unknown-role.jsonl <out>",
        65,
        "<broken>/unknown-role.jsonl:2, message 2",
        'unknown role "oracle"',
        "known roles: system, developer, user, assistant, tool, function",
        SKIP,
    ),
    ExpectFail(
        "weight-nan",
        "build <broken>/weight-nan.jsonl <out>",
        65,
        "<broken>/weight-nan.jsonl:2",
        '"weight" is NaN',
        "expected a finite number",
        SKIP,
    ),
    ExpectFail(
        "weight-sum-too-large",
        "build <broken>/weight-sum-too-large.jsonl <out>",
        65,
        "weights",
        "the sum for a pair is too large for float32",
        "at most 3.4e+38",
        "divide every weight by the same number",
    ),
    ExpectFail(
        "weight-too-large",
        "build <broken>/weight-too-large.jsonl <out>",
        65,
        "<broken>/weight-too-large.jsonl:2",
        '"weight" is 1e+39',
        "expected 0, or a magnitude of 1.18e-38 to 3.4e+38: float32 holds it",
        SKIP,
    ),
    ExpectFail(
        "invalid-utf8-as-text",
        "build <broken>/invalid-utf8.txt <out> --format text",
        65,
        "<broken>/invalid-utf8.txt:1",
        "byte 5 (0xDF) is not UTF-8",
        "dagpack reads UTF-8 only",
        "convert the file first, or leave it out with --on-error skip",
    ),
    ExpectFail(
        "text-as-chat",
        "build <tiny>/text <out> --format chat",
        65,
        "<tiny>/text/a.txt:1",
        "not valid JSON: Expecting value at character 1",
        "",
        SKIP,
    ),
    ExpectFail(
        "ids-as-chat",
        "build <tiny>/pretokenised <out> --format chat",
        65,
        "<tiny>/pretokenised/ids.jsonl:1",
        'the record has "id", "input_ids", "group"',
        "expected messages, or prompt and completion",
        SKIP,
    ),
    ExpectFail(
        "all-empty",
        "build <broken>/all-empty <out>",
        66,
        "the corpus",
        "no example of 2 has two tokens",
        "at least one pair of a token and the next",
        LOOK,
    ),
    ExpectFail(
        "empty-folder",
        "build <broken>/empty-folder <out>",
        66,
        "<broken>/empty-folder",
        "is empty: no file in it is input",
        "hidden files and outputs of dagpack are never input",
        READS,
    ),
    ExpectFail(
        "invalid-utf8.txt",
        "build <broken>/invalid-utf8.txt <out>",
        66,
        "<broken>/invalid-utf8.txt",
        "nothing in it is recognised: neither UTF-8 text nor a known format: byte 5 is 0xDF",
        KNOWN,
        FORMAT,
    ),
    ExpectFail(
        "no-assistant-message",
        "build <broken>/no-assistant-message.jsonl <out>",
        66,
        "the corpus",
        "no pair of its 7 is supervised",
        "at least one to train on",
        SUPERVISE,
    ),
    ExpectFail(
        "nothing-recognised",
        "build <broken>/nothing-recognised <out>",
        66,
        "<broken>/nothing-recognised",
        "nothing in it is recognised: picture.png (binary: it holds NUL bytes) and 1 more",
        KNOWN,
        FORMAT,
    ),
    ExpectFail(
        "nothing-supervised",
        "build <broken>/nothing-supervised.jsonl <out>",
        66,
        "the corpus",
        "no pair of its 2 is supervised",
        "at least one to train on",
        SUPERVISE,
    ),
    ExpectFail(
        "preferences",
        "build <broken>/preferences.jsonl <out>",
        66,
        "<broken>/preferences.jsonl",
        'nothing in it is recognised: no format has such records: "prompt", "chosen", "rejected"',
        KNOWN,
        FORMAT,
    ),
    ExpectFail(
        "single-tokens",
        "build <broken>/single-tokens.jsonl <out>",
        66,
        "the corpus",
        "no example of 2 has two tokens",
        "at least one pair of a token and the next",
        LOOK,
    ),
    ExpectFail(
        "corpus-missing",
        "build <broken>/no-such-folder <out>",
        66,
        "<broken>/no-such-folder",
        "does not exist",
        "expected a folder or a file",
        READS,
    ),
    ExpectFail(
        "tokenizer-missing",
        "build <tiny>/pretokenised <out> --tokenizer <broken>/no-such-folder",
        66,
        "--tokenizer <broken>/no-such-folder",
        "does not exist",
        "expected bytes, none, symbols, a tokenizer.json or its directory",
        READS,
    ),
    ExpectFail(
        "everything-for-validation",
        "build <tiny>/pretokenised <out> --val-fraction 0.99",
        66,
        "the training partition",
        "no pair of its 0 is supervised",
        "at least one to train on",
        SUPERVISE,
    ),
    ExpectFail(
        "stats-of-nothing", "stats <out>", 66, "<out>", "no such directory", "a directory written by dagpack", BUILD
    ),
    ExpectFail(
        "verify-of-a-file",
        "verify <tiny>/text/a.txt",
        66,
        "<tiny>/text/a.txt",
        "no finished build in it",
        "a directory written by dagpack",
        BUILD,
    ),
    ExpectFail(
        "stats-of-a-corpus",
        "stats <tiny>/text",
        66,
        "<tiny>/text",
        "no finished build in it",
        "a directory written by dagpack",
        BUILD,
    ),
    ExpectFail(
        "dedup-of-nothing",
        "dedup <out>",
        66,
        "<out>",
        "no such directory",
        "a finished ingest",
        "dagpack ingest CORPUS <out>, then this again",
    ),
    ExpectFail(
        "pack-of-nothing", "pack <out>", 66, "<out>", "no such directory", "a directory written by dagpack", BUILD
    ),
    ExpectFail(
        "symbols-for-ids",
        "build <tiny>/pretokenised <out> --tokenizer symbols",
        78,
        "--tokenizer symbols",
        "cannot read ids.jsonl, which holds token ids",
        "it reads symbols",
        "use --tokenizer none",
    ),
    ExpectFail(
        "no-tokenizer-for-text",
        "build <tiny>/text <out> --tokenizer none",
        78,
        "--tokenizer none",
        "cannot read a.txt, which holds text",
        "it reads tokens",
        "use --tokenizer bytes",
    ),
]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with one finished build, which no failure may touch."""
    out = tmp_path_factory.mktemp("published") / "out"
    build(out)
    return out


@pytest.fixture
def copy(published: Path, tmp_path: Path) -> Path:
    """A copy of that output to damage."""
    shutil.copytree(published, tmp_path / "out")
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
            elif isinstance(node, ast.Assign) and any(
                isinstance(target, ast.Name) and re.search("hint|_REBUILD", target.id, re.IGNORECASE)
                for target in node.targets
            ):
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
        case = ExpectFail(
            "", "build <tiny>/text <out>", 73, "<out>", "not a directory", "a directory, or a new name for one", OTHER
        )
        case.check(run(*case.words(out)), out)
    assert (tmp_path / "file").read_text() == "mine"


OTHER = "choose another output directory"
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
            case = ExpectFail(
                "",
                f"{words} <out>",
                75,
                "<out>",
                "another build holds the lock",
                "one build at a time",
                "try again when it has ended",
            )
            case.check(run(*case.words(copy)), copy)
        assert run("stats", copy).code == 0
        holder.communicate()
    build(copy, corpus=TINY / "text")


def _generation(out: Path) -> Path:
    return out / "generations" / json.loads((out / "CURRENT").read_text())["generation"]


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
    assert ran.err == f"error: {copy}: 1 failure; what the build wrote\nhint: {REBUILD}\n"
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
    name = _generation(out).name
    shutil.rmtree(_generation(out))
    return "<out>/CURRENT", f"generation {name} is missing; the directory it names"


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
    path = _rewrite_manifest(out, lambda value: value.update(format_version=2))
    return str(path), "format version 2; format version 1"


def _unknown_field(out: Path) -> tuple[str, str]:
    path = _rewrite_manifest(out, lambda value: value.update(colour="blue"))
    return str(path), "unknown field colour; the fields dagpack writes"


def _lost_field(out: Path) -> tuple[str, str]:
    path = _rewrite_manifest(out, lambda value: value.pop("ledger"))
    return str(path), "field ledger is missing; the fields dagpack writes"


AGAIN = "build again with this version: dagpack build CORPUS OUT"
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
        case = ExpectFail("", words, code, where, found, "", hint)
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
        case = ExpectFail("", words, 76, str(shard), "the file is missing", "", REBUILD)
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
    found = "the trie merges states, in which examples are not apart"
    case = ExpectFail("", "pack <out> --layout packed", 2, "--layout packed", found, "dag or walk", TAKES)
    case.check(run(*case.words(tmp_path / "out")), tmp_path / "out")
    found = "merge state: examples are not paths of the graph"
    case = ExpectFail(
        "", "export <out>", 78, str(path), found, "merge prefix or none", "dagpack export --transitions OUT"
    )
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
        cases = [
            (f"build {corpus} <out>", corpus / "b.txt", "cannot be read", "the operating system refuses access"),
            (f"build {corpus / 'a.txt'} {closed / 'new'}", closed / "new", "permission denied", "access to it"),
        ]
        for words, where, found, expected in cases:
            hint = f"check the owner and mode: ls -ld {where}"
            case = ExpectFail("", words, 77, str(where), found, expected, hint)
            case.check(run(*case.words(folder / "out")), folder / "out")
        assert run("verify", folder / "out").code == 0


@pytest.mark.parametrize(
    ("number", "code", "hint"),
    [
        (errno.ENOSPC, 74, "free some space and run the same command again"),
        (errno.EDQUOT, 74, "free some space and run the same command again"),
        (errno.EIO, 74, "check the disk and run the same command again"),
        (errno.EROFS, 73, "choose another output directory"),
        (errno.EACCES, 77, "check the owner and mode: ls -ld out/x"),
    ],
)
def test_system_errors_have_their_own_status(number: int, code: int, hint: str) -> None:
    """An error of the operating system becomes the kind that tells cron what to do."""
    error = translate_os_error(OSError(number, os.strerror(number), "out/x"))
    assert (error.exit_code, error.where, error.advice) == (code, "out/x", hint)
    assert os.strerror(number).lower() in str(error)


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
    for words in (("stats", "--json"), ("export",)):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                command(*words, published),
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
                env=environment(),
            )
        assert done.stderr == (
            "error: file system: no space left on device; room for the build\n"
            "hint: free some space and run the same command again\n"
        )
        assert done.returncode == 74


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus that takes a moment to read."""
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    path.write_text("".join(json.dumps({"text": f"record {number} " * 20}) + "\n" for number in range(8000)))
    return path


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_build_by_itself(number: signal.Signals, large: Path, tmp_path: Path) -> None:
    """An interrupted build dies by that signal, says nothing, publishes nothing, and a rerun works."""
    out = tmp_path / "out"
    with subprocess.Popen(
        command("build", large, out), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:
        while process.poll() is None and not any(out.glob(".staging/*/splits/*/tokens.i32")):
            time.sleep(0.005)
        process.send_signal(number)
        printed = process.communicate(timeout=60)
    assert printed == ("", "")
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

    monkeypatch.setattr("dagpack_cli.pipeline._publish", fail)
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
    kinds = [DagpackError, *DagpackError.__subclasses__()]
    assert sorted({kind.exit_code for kind in kinds}) == [1, 2, 65, 66, 73, 74, 75, 76, 77, 78]
    assert all(kind("here", "found").advice for kind in kinds)
