"""Conversations end to end: who is trained, what is dropped and counted, and where sharing stops."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import FIXTURES, Ran, run

from dagpack_cli.corpora import ReadOptions, discover, read_examples
from dagpack_cli.corpora.records import Example
from dagpack_cli.lints import sharing_stops
from dagpack_cli.provenance import read_provenance
from dagpack_cli.tokenizing import ByteTokenizer
from dagpack_cli.trie import build_trie
from dagpack_cli.trie.store import open_trie

CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "q1"},
    {"role": "assistant", "content": "a1", "reasoning_content": "t1"},
    {"role": "user", "content": "q2"},
    {"role": "assistant", "content": "a2", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": 1}'}}]},
    {"role": "tool", "content": "r"},
    {"role": "assistant", "content": "a3"},
]


def write(path: Path, rows: Sequence[Any]) -> Path:
    """Write JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def text_of(tokens: Sequence[int]) -> str:
    """Return the text of byte tokens, control tokens left out."""
    return bytes(token - 2 for token in tokens if 2 <= token < 258).decode()


def trained(example: Example) -> list[str]:
    """Return the texts that are supervised, control tokens left out."""
    tokens = example.tokens.tolist()
    return [
        bytes(token - 2 for token in tokens[low:high] if 2 <= token < 258).decode()
        for low, high in example.runs.tolist()
    ]


def read(path: Path, **options: Any) -> list[Example]:
    """Return the examples of one file, as bytes."""
    reading = ReadOptions(**options)
    [source] = discover(path, options=reading).inputs
    return list(read_examples(source, ByteTokenizer(), reading))


def generation(out: Path) -> Path:
    """Return the folder of the current generation."""
    return Path(run("path", out).out.strip())


def weights_of(out: Path) -> dict[tuple[int, ...], float]:
    """Return the weight of every distinct pair of a build's trie, by its path."""
    trie = open_trie(generation(out) / "trie" / "train")
    found: dict[tuple[int, ...], float] = {}
    paths: list[tuple[int, ...]] = []
    for node in range(trie.num_nodes):
        path = paths[trie.parents[node]] if trie.parents[node] >= 0 else ()
        for position in range(int(trie.offsets[node]), int(trie.offsets[node + 1])):
            path = (*path, int(trie.tokens[position]))
            if trie.weights[position]:
                found[path] = float(trie.weights[position])
        paths.append(path)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["t1a1", 'a2{"name": "f", "arguments": {"x": 1}}', "a3"]),
        ({"supervise": "last-turn"}, ["a3"]),
        ({"supervise": "completion"}, ["a3"]),
        ({"thinking": False}, ["a1", 'a2{"name": "f", "arguments": {"x": 1}}', "a3"]),
        ({"tool_calls": False}, ["t1a1", "a2", "a3"]),
    ],
)
def test_what_is_supervised(options: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    """The options say which messages and which of their parts are targets; the tokens stay the same."""
    path = write(tmp_path / "chat.jsonl", [{"messages": CHAT}])
    [example] = read(path, **options)
    assert trained(example) == expected
    assert example.tokens.tolist() == read(path)[0].tokens.tolist()
    [all_of] = read(path, supervise="all")
    assert sum(high - low for low, high in all_of.runs.tolist()) == len(all_of.tokens)


def test_one_example_a_turn(tmp_path: Path) -> None:
    """Each turn stands alone behind its context, and the weights of all rows are those of the whole chat."""
    path = write(tmp_path / "in" / "chat.jsonl", [{"messages": CHAT, "id": "c"}])
    whole, turns = read(path)[0], read(path, per_turn=True)
    assert [example.id for example in turns] == ["c@2", "c@4", "c@6"]
    assert [trained(example) for example in turns] == [[text] for text in trained(whole)]
    for example in turns:
        assert example.tokens.tolist() == whole.tokens[: len(example.tokens)].tolist()
    for name, more in (("a", ()), ("b", ("--per-turn",))):
        assert run("build", path.parent, tmp_path / name, *more).code == 0
    assert weights_of(tmp_path / "a") == weights_of(tmp_path / "b")


def test_a_session_with_forks_weighs_the_same_either_way(tmp_path: Path) -> None:
    """Branches, a compaction, a fork file and an old version: the same rows with the same weight 1 both ways."""
    for name, more in (("a", ()), ("b", ("--per-turn",))):
        ran = run("build", FIXTURES / "pi", tmp_path / name, *more)
        assert ran.code == 0, ran.err
    weights = weights_of(tmp_path / "a")
    assert weights == weights_of(tmp_path / "b")
    assert set(weights.values()) == {1.0}
    table = read_provenance(generation(tmp_path / "a") / "examples.parquet").to_pylist()
    assert [row["status"] for row in table].count("untrained") == 1


def test_nothing_trained_is_dropped_and_counted(tmp_path: Path) -> None:
    """One chat of users alone among many is left out, counted, in the ledger, and in the provenance."""
    rows = [{"messages": CHAT, "id": str(number)} for number in range(20)]
    rows.insert(7, {"messages": [{"role": "user", "content": "hello?"}], "id": "alone"})
    ran = run("build", write(tmp_path / "in" / "chat.jsonl", rows).parent, tmp_path / "out")
    assert ran.code == 0, ran.err
    assert "dropped: 1 conversation in which nothing is trained" in ran.out
    facts = json.loads(run("stats", tmp_path / "out", "--json").out)
    examples, pairs = facts["ledger"]["total"]["examples"], facts["ledger"]["total"]["pairs"]
    assert examples == {"in": 21, "kept": 20, "empty": 0, "single_token": 0, "dropped": 1}
    assert pairs["dropped"] == len("hello?") + 2
    assert facts["ledger"]["reading"]["untrained"] == 1
    table = read_provenance(generation(tmp_path / "out") / "examples.parquet").to_pylist()
    assert [row["id"] for row in table if row["status"] == "untrained"] == ["alone"]
    assert run("verify", tmp_path / "out").code == 0


def test_a_session_family_is_never_parted(tmp_path: Path) -> None:
    """A fork file stays in its session's partition, whatever the seed."""
    parts = set()
    for seed in range(6):
        ran = run("build", FIXTURES / "pi", tmp_path / f"{seed}", "--val-fraction", "0.5", "--seed", str(seed))
        if ran.code == 66:  # all of it in val
            continue
        table = read_provenance(generation(tmp_path / f"{seed}") / "examples.parquet").to_pylist()
        family = {row["partition"] for row in table if not row["file"].startswith("old")}
        assert len(family) == 1
        parts |= family
    assert parts  # some seed leaves something to train


def test_system_prompt_and_tools_are_given_to_sessions_without(tmp_path: Path) -> None:
    """They stand first in every conversation that stores none, and change nothing in one that does."""
    own = {"messages": [{"role": "system", "content": "own"}, *CHAT], "tools": [{"name": "mine"}]}
    path = write(tmp_path / "chat.jsonl", [{"messages": CHAT}, own])
    plain, kept = read(path)
    given, same = read(path, system="be kind", tools='[{"name": "theirs"}]')
    assert same.tokens.tolist() == kept.tokens.tolist()
    text = text_of(given.tokens.tolist())
    assert text.startswith("be kind\n\n# Tools")
    assert '{"name": "theirs"}' in text
    assert trained(given) == trained(plain)


@pytest.mark.parametrize(
    ("option", "content", "code", "words"),
    [
        ("--system", None, 66, "does not exist"),
        ("--system", b"  \n", 2, "is empty"),
        ("--system", b"\xff", 2, "is not UTF-8"),
        ("--tools", None, 66, "does not exist; a file with a JSON list of tools"),
        ("--tools", b"{", 65, "not valid JSON"),
        ("--tools", b"{}", 65, "a JSON list of tools"),
        ("--tools", b"[1]", 65, "a tool is no JSON object"),
    ],
)
def test_files_of_options_are_checked(
    option: str, content: bytes | None, code: int, words: str, tmp_path: Path
) -> None:
    """What is wrong with a file that an option names is said before anything is read."""
    file = tmp_path / "file"
    if content is not None:
        file.write_bytes(content)
    ran: Ran = run("build", FIXTURES / "pi", tmp_path / "out", option, file)
    assert ran.code == code
    error, hint = ran.err.splitlines()
    assert error.startswith(f"error: {option} {file}: ")
    assert words in error
    advice = f"name a file: {option} FILE" if content is None else f"correct {file}, or leave {option} out"
    assert hint == f"hint: {advice}"


def test_per_turn_with_all_is_refused(tmp_path: Path) -> None:
    """A turn alone trains one message; every token of it would train its context once a turn."""
    ran = run("build", FIXTURES / "pi", tmp_path / "out", "--per-turn", "--supervise", "all")
    assert ran.code == 2
    assert ran.err.startswith("error: --per-turn: does not go with --supervise all")


def test_rows_of_every_shape_render_the_same(tmp_path: Path) -> None:
    """Content as text, parts or null; arguments as an object or as text: the same ids, no null, nothing twice."""
    call = {"name": "f", "arguments": {"b": [1, "x"], "a": None}}
    text_call = {"function": call | {"arguments": json.dumps(call["arguments"])}}
    shapes: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": call}]},
        {"role": "assistant", "content": "", "tool_calls": [text_call]},
        {"role": "assistant", "content": [], "tool_calls": [call], "name": 3},
        {"role": "assistant", "content": [{"type": "text", "text": ""}], "tool_calls": [{"id": 1, "function": call}]},
        {"role": "assistant", "content": None, "function_call": call, "extra": {"deep": [1]}},
    ]
    user: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"role": "user", "content": [{"type": "text", "text": "q"}]},
    ]
    rows = [{"messages": [user[number % 2], shape], "id": number} for number, shape in enumerate(shapes)]
    found = read(write(tmp_path / "rows.jsonl", rows))
    assert len({example.tokens.tobytes() for example in found}) == 1
    assert trained(found[0]) == ['{"name": "f", "arguments": {"b": [1, "x"], "a": null}}']


def test_sharing_stops_at_a_field(tmp_path: Path) -> None:
    """Two prompts that differ in a folder and then say the same for pages: the line, its kind, and how much."""
    rules = " ".join(f"rule {number}" for number in range(200))
    texts = [f"You are an agent.\nFolder: /home/{name}/work\n{rules}" for name in ("ann", "bob")]
    rows = [{"messages": [{"role": "system", "content": text}, *CHAT]} for text in texts]
    assert run("build", write(tmp_path / "in" / "c.jsonl", rows).parent, tmp_path / "out").code == 0
    [stop] = json.loads(run("stats", tmp_path / "out", "--json").out)["partitions"]["train"]["trie"]["sharing_stops"]
    same = len("/work\n" + rules) + 1  # and the end of the turn
    rest = sum([len(str(message["content"])) + 30 for message in CHAT])
    assert (stop["kind"], stop["one"], stop["other"]) == ("path", "Folder: /home/ann/work", "Folder: /home/bob/work")
    assert stop["shared_tokens"] == 2 + len("You are an agent.\nFolder: /home/")
    assert same <= stop["equal_tokens"] <= same + rest
    page = run("stats", tmp_path / "out").out
    assert "sharing stops here" in page
    assert "part over a path" in page


def test_branches_that_go_their_own_way_are_no_lint() -> None:
    """Unlike text behind a fork is no loss: nothing is reported."""
    chance = np.random.default_rng(0)
    rows = [[1, 2, 3, *chance.integers(4, 200, 2_000).tolist()] for _ in range(6)]
    tokens = np.array([token for row in rows for token in row], dtype=np.int32)
    offsets = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    trie, _ = build_trie(tokens, offsets)
    assert sharing_stops(trie, str) == []


MARKED = (
    "{% for m in messages %}[{{ m.role }}]{% if m.role == 'assistant' %}{% generation %}{{ m.content }}|"
    "{% endgeneration %}{% else %}{{ m.content }}|{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
# The last answer is written with a mark that goes when another message follows.
REWRITING = (
    "{% for m in messages %}[{{ m.role }}]{{ '*' if m.role == 'assistant' and loop.last }}{{ m.content }}|{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SHORT = [
    {"role": role, "content": text}
    for role, text in [("user", "q"), ("assistant", "a"), ("user", "r"), ("assistant", "b")]
]


def test_a_template_of_the_users_writes_and_marks(tmp_path: Path) -> None:
    """A Jinja file is used as it is: its text, its marks; it is kept with the build."""
    file = tmp_path / "chat.jinja"
    file.write_text(MARKED)
    corpus = write(tmp_path / "in" / "c.jsonl", [{"messages": SHORT}]).parent
    ran = run("build", corpus, tmp_path / "out", "--chat-template", file)
    assert ran.code == 0, ran.err
    rows = [json.loads(line) for line in run("export", tmp_path / "out").out.splitlines()]
    assert [text_of(row["input_ids"]) for row in rows] == ["[user]q|[assistant]a|[user]r|[assistant]b|"]
    supervised = [token for token, label in zip(rows[0]["input_ids"], rows[0]["labels"], strict=True) if label != -100]
    assert text_of(supervised) == "a|b|"
    assert (generation(tmp_path / "out") / "tokenizer" / "chat_template.jinja").read_text() == MARKED
    page = run("stats", tmp_path / "out").out
    assert "template     Jinja, default sha256 " in page
    assert "0 of 3 prefixes looked at are written differently" in page


def test_a_template_that_rewrites_is_refused_or_trains_the_last_turn(tmp_path: Path) -> None:
    """What was written before must not change; one example a turn is as inference would have it."""
    file = tmp_path / "chat.jinja"
    file.write_text(REWRITING)
    corpus = write(tmp_path / "in" / "c.jsonl", [{"messages": SHORT}]).parent
    ran = run("build", corpus, tmp_path / "out", "--chat-template", file)
    assert ran.code == 65
    assert f"{corpus}/c.jsonl:1, message 2: " in ran.err
    assert "chat.jinja" in ran.err
    ran = run("build", corpus, tmp_path / "out", "--chat-template", file, "--per-turn")
    assert ran.code == 0, ran.err
    rows = [json.loads(line) for line in run("export", tmp_path / "out").out.splitlines()]
    assert [text_of(row["input_ids"]) for row in rows] == [
        "[user]q|[assistant]*a|",
        "[user]q|[assistant]a|[user]r|[assistant]*b|",
    ]
    page = run("stats", tmp_path / "out").out
    assert "prefixes looked at are written differently in the longer conversation: last turn" in page


def test_a_folder_may_mix_formats(tmp_path: Path) -> None:
    """Every text format of the fixtures in one folder: each file is read as what it is, and all of it trains."""
    corpus = tmp_path / "in"
    formats = set()
    for folder in ("pi", "claude-code", "codex", "gemini", "swe-agent", "mini-swe-agent", "openhands", "atif", "tiny"):
        for source in discover(FIXTURES / folder).inputs:
            if source.format in ("transitions", "pretokenised", "atif-ids", "text"):
                continue
            target = corpus / folder / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.path, target)
            formats.add(source.format)
    assert len(formats) > 12
    ran = run("build", corpus, tmp_path / "out", "--seq-len", "65536")
    assert ran.code == 0, ran.err
    assert run("verify", tmp_path / "out").code == 0
    found = {source.name: source.format for source in discover(corpus).inputs}
    assert set(found.values()) == formats
    table = read_provenance(generation(tmp_path / "out") / "examples.parquet").to_pylist()
    trained_files = {row["file"] for row in table if row["status"] == "kept"}
    assert {found[name] for name in trained_files} == formats
