"""What users of other tools ran into, where no test of one part of ours would notice it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import build, run

MODEL = "--width 8 --heads 2 --feed-forward 16 --layers 1 --device cpu --steps 1"


def _tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the size and the time of everything below a folder, the folder included."""
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in (folder, *folder.rglob("*"))}


def test_readers_write_nothing_into_an_output(tmp_path: Path) -> None:
    """An output may be on a share that others only read: no command but those that build leaves anything in it."""
    out = tmp_path / "out"
    build(out, "--val-fraction", "0.5", "--polish", "0")
    before = _tree(out)
    for words in (
        *("stats OUT", "verify OUT", "show OUT", "export OUT", "path OUT", "plan OUT", "draw OUT", "draw OUT --trie"),
        f"train --shards OUT {MODEL}",
        "check OUT --windows 1 --device cpu",
        "pack OUT NEW --seq-len 64 --polish 0",
    ):
        ran = run(*words.replace("OUT", str(out)).replace("NEW", str(tmp_path / "new")).split())
        assert ran.code == 0, (words, ran.err)
        assert _tree(out) == before, words


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, "CORPUS: no file in it is input; "),
        ({"a.bin": "\0\1\2", "b/c.json": '{"x": 1}'}, "CORPUS: nothing in it is recognised: a.bin"),
        ({"a.jsonl": '{"text": ""}\n{"text": ""}\n'}, "CORPUS: no example of 2 has two tokens; "),
        ({"a.jsonl": '{"input_ids": [3]}\n{"input_ids": []}\n'}, "CORPUS: no example of 2 has two tokens; "),
    ],
)
def test_nothing_to_build_is_an_error_of_its_own(files: dict[str, str], found: str, tmp_path: Path) -> None:
    """No file, none that anything recognises, none with a pair in it: exit 66, and nothing that `train` takes."""
    corpus, out = tmp_path / "corpus", tmp_path / "out"
    corpus.mkdir()
    for name, text in files.items():
        (corpus / name).parent.mkdir(exist_ok=True)
        (corpus / name).write_text(text)
    words = ["--tokenizer", "none"] if "input_ids" in "".join(files.values()) else ["--bos", "none", "--eos", "none"]
    ran = run("build", corpus, out, *(words if "a.jsonl" in files else []))
    assert ran.code == 66
    assert found.replace("CORPUS", str(corpus)) in ran.err
    assert run("train", "--shards", out, *MODEL.split()).code == 66


def _chat(key: object, *messages: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"id": key, "messages": [{"role": "user", "content": "q"}, *messages], **fields}


def test_no_schema_is_made_of_the_first_rows(tmp_path: Path) -> None:
    """Rows may differ in the kinds of their fields: ids stay, and nothing is filled in or encoded twice."""
    function = {"name": "f", "arguments": {"x": 1}}
    text = {"name": "f", "arguments": '{"x": 1}'}
    rows = [
        _chat(1, {"role": "assistant", "content": "a"}),
        _chat("two", {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}, extra={"k": 1}),
        _chat("3", {"role": "assistant", "content": "", "tool_calls": [{"function": text}]}, extra=["k"]),
        _chat(None, {"role": "assistant", "content": [{"type": "text", "text": "a"}]}, extra=None),
    ]
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("build", corpus, tmp_path / "out").code == 0
    given = [json.loads(line) for line in run("export", tmp_path / "out").out.splitlines()]
    assert [row["id"] for row in given] == ["1", "two", "3", "a.jsonl:4"]
    assert given[0]["input_ids"] == given[3]["input_ids"]
    assert given[1]["input_ids"] == given[2]["input_ids"]
    rows.append({"id": 5, "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]})
    (corpus / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ran = run("build", corpus, tmp_path / "out")
    assert ran.code == 65
    assert ran.err.startswith(f'error: {corpus}/a.jsonl:5: the record has "id", "conversations"')
    assert run("build", corpus, tmp_path / "out", "--on-error", "skip").code == 0
