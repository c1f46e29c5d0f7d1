"""What users of other tools ran into, where no test of one part of ours would notice it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import build, run
from killed import contents

from dagpack_cli.shards import read_shard, windows_per_file

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


def test_many_documents_that_share_one_token(tmp_path: Path) -> None:
    """A star of 50,000 leaves packs into full windows, and every pair is in one."""
    num = 50_000
    ids = np.stack((np.zeros(num, np.int32), np.arange(1, num + 1, dtype=np.int32)), axis=1)
    lists = pa.LargeListArray.from_arrays(np.arange(0, 2 * num + 1, 2), ids.ravel())
    pq.write_table(pa.table({"input_ids": lists}), tmp_path / "star.parquet")
    generation = build(tmp_path / "out", "--seq-len", "1000", corpus=tmp_path / "star.parquet")
    shards = [read_shard(path) for path in sorted((generation / "shards").iterdir())]
    assert np.concatenate([np.diff(shard.row_offsets) for shard in shards]).tolist() == [1000] * 50
    targets = np.concatenate([shard.targets for shard in shards])
    assert np.array_equal(np.sort(targets), ids[:, 1])
    ledger = json.loads(run("stats", tmp_path / "out", "--json").out)["ledger"]["total"]
    assert (ledger["examples"]["kept"], ledger["pairs"]["in_windows"]) == (num, num)


def _kinds(kind: pa.DataType) -> list[pa.DataType]:
    """Return a type and all types that it is made of."""
    return [kind, *(found for at in range(kind.num_fields) for found in _kinds(kind.field(at).type))]


def test_no_column_grows_beyond_its_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow's offsets of 32 bits end at 2^31: what grows with a corpus has 64, and a shard's lists cannot get there.

    A shard is one row group of so many windows that it has 2^21 rows, or of a single longer one; no window has 2^31.
    """
    ids = [[1, 2, *range(3 + number, 3 + number + number % 9)] for number in range(60)]
    mask = [[False, *(number % 3 > 0 for number in row[1:])] for row in ids]
    table = pa.table({"input_ids": pa.array(ids, pa.large_list(pa.int32())), "loss_mask": mask})
    (tmp_path / "corpus").mkdir()
    pq.write_table(table.slice(0, 40), tmp_path / "corpus" / "a.parquet", row_group_size=7)
    with pa.OSFile(str(tmp_path / "corpus" / "b.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table.slice(40), max_chunksize=9)
    monkeypatch.setattr("dagpack_cli.provenance.rewriting._GROUP_ROWS", 16)
    options = ("--seq-len", "12", "--on-long", "split", "--polish", "0", "--val-fraction", "0.3", "--no-cache")
    whole = build(tmp_path / "whole", *options, corpus=tmp_path / "corpus")
    for name, limit in {
        "corpora.files.parquet_rows._BATCH_BYTES": 1,  # a row at a time
        "examples.writing._META_ROWS": 5,
        "provenance.rewriting.BATCH_ROWS": 3,
        "provenance.columns.BATCH_ROWS": 3,
        "export.windows._BATCH_ROWS": 1,
    }.items():
        monkeypatch.setattr(f"dagpack_cli.{name}", limit)
    build(tmp_path / "little", *options, corpus=tmp_path / "corpus")
    assert contents(tmp_path / "little") == contents(tmp_path / "whole")
    assert run("verify", tmp_path / "little").code == 0
    given = [json.loads(line)["input_ids"] for line in run("export", tmp_path / "little").out.splitlines()]
    assert given == ids
    windows = run("export", tmp_path / "little", "--to", "tree", "--output", tmp_path / "windows.parquet")
    assert windows.code == 0
    exported = pq.ParquetFile(tmp_path / "windows.parquet").metadata
    assert exported.num_row_groups == exported.num_rows > 3

    provenance = pq.read_schema(whole / "examples.parquet")
    found = [kind for field in provenance for kind in _kinds(field.type)]
    assert any(pa.types.is_large_list(kind) for kind in found)
    assert not [kind for kind in found if kind in (pa.string(), pa.binary()) or pa.types.is_list(kind)]
    for window_len in (1, 2, 8_192, (1 << 21) - 1, 1 << 21, (1 << 21) + 1, 2**31 - 1):
        num_rows = windows_per_file(window_len) * window_len
        assert num_rows < 2**31
        assert num_rows == window_len or num_rows <= 1 << 21
    ran = run("build", tmp_path / "corpus", tmp_path / "out", "--seq-len", "1", "--window-len", str(2**31))
    assert ran.code == 2
    assert "to 2,147,483,647" in ran.err
