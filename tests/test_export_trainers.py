"""Windows for other trainers: the same targets, the same loss, and a file that is there whole or not at all."""

from __future__ import annotations

import copy
import fcntl
import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from builds import UNMERGED, Built, Window, built, write_examples
from commands import AGENTS, Ran, build, command, environment, run
from exactness import SIZES, build_layout, gradients_of, make_model, random_examples, run_alone, run_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Example, Plan, Policy, plan
from strategies import DYADIC, corpora, graphs
from torch import Tensor

from dagpack_cli.errors import DagpackError, NoInputError
from dagpack_cli.export import Destination, WindowExport
from dagpack_cli.failpoints import listen
from dagpack_cli.manifest import Manifest, PackOptions, TrieOptions
from dagpack_cli.stages.receipts import SilentListener
from dagpack_cli.training import Decoder, PackedWindows, collate

ROOTS = st.sampled_from([None, 0, 11])
ON_LONG = st.sampled_from(["split", "split", "truncate", "drop"])
ZERO_OR_ONE = st.sampled_from([1.0, 1.0, 1.0, 0.0])


def export(path: Path, manifest: Manifest, folder: Path, form: str, **options: Any) -> list[dict[str, Any]]:
    """Export a generation as Parquet and as JSON lines, a few windows at a time; return the rows of both."""
    chosen = WindowExport(path=path, manifest=manifest, form=form, **options)
    rows: list[list[dict[str, Any]]] = []
    for name in ("rows.parquet", "rows.jsonl"):
        with mock.patch("dagpack_cli.export.windows._BATCH_ROWS", 5):
            found = Destination(str(folder / name), force=True).write_windows(chosen, SilentListener())
        if name.endswith("parquet"):
            rows.append(pq.read_table(folder / name).to_pylist())
        else:
            rows.append([json.loads(line) for line in (folder / name).read_text().splitlines()])
    assert rows[0] == rows[1]
    lengths = [len(row["input_ids"]) for row in rows[0]]
    assert (found.windows, found.tokens, found.longest) == (len(rows[0]), sum(lengths), max(lengths, default=0))
    assert found.targets == sum(label != -100 for row in rows[0] for label in row["labels"])
    assert found.documents == sum(len(row.get("seq_lengths", ())) for row in rows[0])
    assert found.longer == sum(length > manifest.pack.capacity for length in lengths)
    return rows[0]


def planned(of: Built, examples: Sequence[Example], partition: str, policy: Policy) -> Plan:
    """Return the oracle's account of one partition."""
    return plan([examples[number] for number in of.of(partition)], policy)


def documents(row: dict[str, Any]) -> list[dict[str, list[Any]]]:
    """Return the documents of one row of TRL's form, each with its share of every column."""
    assert len(row["input_ids"]) == len(row["labels"]) == len(row["position_ids"]) == sum(row["seq_lengths"])
    found, start = [], 0
    for length in row["seq_lengths"]:
        found.append({name: row[name][start : start + length] for name in row.keys() - {"seq_lengths", "partition"}})
        start += length
    return found


# -- what is in the rows ---------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    examples=corpora(max_examples=8, weights=DYADIC | ZERO_OR_ONE),
    layout=st.sampled_from(UNMERGED),
    seq_len=st.integers(1, 9),
    on_long=ON_LONG,
    prune=st.booleans(),
    root=ROOTS,
    val_fraction=st.sampled_from([0.0, 0.0, 0.4]),
    shard_format=st.sampled_from(["parquet", "parquet", "npy"]),
)
def test_the_documents_of_trl_are_the_examples(
    examples: list[Example],
    layout: str,
    seq_len: int,
    on_long: Any,
    prune: bool,
    root: int | None,
    val_fraction: float,
    shard_format: Any,
) -> None:
    """Every kept piece of an example is a document once, with its own labels and weight: none lost, none double."""
    policy = Policy(seq_len, on_long, prune, root, "none")
    pack = PackOptions(seq_len=seq_len, layout=layout, on_long=on_long, prune=prune, shard_format=shard_format)
    trie = TrieOptions(virtual_root=None if root is None else str(root), val_fraction=val_fraction)
    try:
        with built(examples, pack, trie) as of, TemporaryDirectory() as folder:
            manifest = of.result.manifest
            for part in manifest.partitions:
                rows = export(of.result.path, manifest, Path(folder), "trl", partition=part, weights="column")
                _check_documents(rows, planned(of, examples, part, policy), of.windows[part])
            _check_refusal(of, Path(folder))
    except NoInputError:
        return


def _check_documents(rows: list[dict[str, Any]], expected: Plan, windows: list[Window]) -> None:
    """Compare the rows of a partition with the oracle's pieces, and window by window with the shards."""
    pieces: Counter[tuple[Any, ...]] = Counter()
    for piece in expected.pieces:
        labels = [token if flag else -100 for token, flag in zip(piece.path, piece.trained, strict=True)]
        weights = [float(piece.weight) if flag else 0.0 for flag in piece.trained]
        pieces[(piece.first, *piece.path), (-100, *labels), (0.0, *weights)] += 1
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        for document in documents(row):
            found[tuple(tuple(document[name]) for name in ("input_ids", "labels", "loss_weights"))] += 1
            assert document["position_ids"] == list(range(len(document["input_ids"])))
    assert found == pieces
    assert len(rows) == len(windows)
    for row, window in zip(rows, windows, strict=True):
        stored: dict[int, list[int]] = {}
        for one in window.rows:
            stored.setdefault(one.segment, [one.input]).append(one.target)
        assert [document["input_ids"] for document in documents(row)] == list(stored.values())
        assert len(row["input_ids"]) == len(window.rows) + len(stored)


def _check_refusal(of: Built, folder: Path) -> None:
    """Without the column, weights other than 0 and 1 are refused, and only they."""
    weights = {row.weight for windows in of.windows.values() for window in windows for row in window.rows}
    if weights <= {0.0, 1.0}:
        plain = export(of.result.path, of.result.manifest, folder, "trl", partition="all")
        column = export(of.result.path, of.result.manifest, folder, "trl", partition="all", weights="column")
        assert plain == [{name: row[name] for name in row if name != "loss_weights"} for row in column]
        assert [row["partition"] for row in plain] == [part for part in of.windows for _ in of.windows[part]]
    else:
        with pytest.raises(DagpackError, match="targets have another weight than 1"):
            export(of.result.path, of.result.manifest, folder, "trl", partition="all")


@settings(max_examples=60)
@given(
    examples=corpora(max_examples=8),
    layout=st.sampled_from(["dag", "dag", "walk", *UNMERGED]),
    seq_len=st.integers(1, 9),
    on_long=ON_LONG,
    prune=st.booleans(),
    root=ROOTS,
    val_fraction=st.sampled_from([0.0, 0.0, 0.4]),
)
def test_the_rows_of_a_tree_are_the_paths_of_the_corpus(
    examples: list[Example],
    layout: str,
    seq_len: int,
    on_long: Any,
    prune: bool,
    root: int | None,
    val_fraction: float,
) -> None:
    """Read with the mask alone, rows are the distinct paths of the corpus, and weights sum to what it gives them."""
    policy = Policy(seq_len, on_long, prune, root, "prefix" if layout in ("dag", "walk") else "none")
    pack = PackOptions(seq_len=seq_len, layout=layout, on_long=on_long, prune=prune)
    trie = TrieOptions(virtual_root=None if root is None else str(root), val_fraction=val_fraction)
    try:
        with built(examples, pack, trie) as of, TemporaryDirectory() as folder:
            for part in of.result.manifest.partitions:
                rows = export(of.result.path, of.result.manifest, Path(folder), "tree", partition=part)
                _check_paths(rows, planned(of, examples, part, policy))
                assert [row["input_ids"] for row in rows] == [window.column("input") for window in of.windows[part]]
    except NoInputError:
        return


def _check_paths(rows: list[dict[str, Any]], expected: Plan) -> None:
    contexts = set()
    weights: dict[tuple[int, ...], float] = {}
    for row in rows:
        for at, (label, depth, weight) in enumerate(
            zip(row["labels"], row["position_ids"], row["weights"], strict=True)
        ):
            context = seen(row, at)
            contexts.add(context)
            assert len(context) == depth + 1
            assert (label == -100) == (weight == 0)
            if weight:
                weights[*context, label] = weights.get((*context, label), 0.0) + weight
    wanted: dict[tuple[int, ...], float] = {}
    for named, total in expected.totals.items():
        path = (expected.first_tokens[named.tree], *named.path)
        wanted[path] = wanted.get(path, 0.0) + float(total.weight)
    assert contexts == {path[:-1] for path in wanted}
    assert {path: weight for path, weight in weights.items() if weight} == {
        path: weight for path, weight in wanted.items() if weight
    }


def seen(row: dict[str, Any], query: int) -> tuple[int, ...]:
    """Return the tokens that a row may use, by the rule that the metadata state."""
    return tuple(
        token
        for key, (token, end) in enumerate(zip(row["input_ids"], row["subtree_end"], strict=True))
        if key <= query < end
    )


@settings(max_examples=30)
@given(examples=graphs(), layout=st.sampled_from(["dag", "walk"]), seq_len=st.integers(2, 9))
def test_a_graph_is_exported_as_the_reader_gives_it(examples: list[Example], layout: str, seq_len: int) -> None:
    """Under merge state, where each transition has one vote, the weights are those of dagpack's own reader."""
    positive = [Example(one.tokens, one.trained, abs(one.weight)) for one in examples]
    pack = PackOptions(seq_len=seq_len, layout=layout, on_long="split", objective="unique")
    try:
        with built(positive, pack, TrieOptions(merge="state")) as of, TemporaryDirectory() as folder:
            rows = export(of.result.path, of.result.manifest, Path(folder), "tree")
            windows = PackedWindows(of.result.path.parent.parent)
            assert len(rows) == len(windows)
            for number, row in enumerate(rows):
                window = windows[number]
                assert row["weights"] == window["weights"].tolist()
                assert row["subtree_end"] == window["subtree_ends"].tolist()
                assert {1.0} >= set(row["weights"]) - {0.0}
    except NoInputError:
        return


# -- what a model makes of them --------------------------------------------------------------------------


def exported(out: Path, folder: Path, form: str, **options: Any) -> list[dict[str, Any]]:
    """Export the current generation of an output."""
    windows = PackedWindows(out)
    path = out / "generations" / json.loads((out / "CURRENT").read_bytes())["generation"]
    return export(path, windows.manifest, folder, form, **options)


def loss_of(logits: Tensor, labels: list[int], weights: list[float]) -> Tensor:
    """Return the weighted sum of the cross entropies, a position at a time."""
    logs = torch.log_softmax(logits, -1)
    terms = [
        -weight * logs[at, label]
        for at, (label, weight) in enumerate(zip(labels, weights, strict=True))
        if label != -100
    ]
    return torch.stack(terms).sum() if terms else logits.sum() * 0


def run_tree(model: Decoder, row: dict[str, Any]) -> Tensor:
    """Return the loss of one row of the tree form: the mask pair by pair, a target a row, nothing moved."""
    size = len(row["input_ids"])
    mask = torch.zeros(1, 1, size, size, dtype=torch.bool)
    for query in range(size):
        for key in range(size):
            mask[0, 0, query, key] = key <= query < row["subtree_end"][key]
    logits = model(torch.tensor([row["input_ids"]]), torch.tensor([row["position_ids"]]), mask)[0]
    return loss_of(logits, row["labels"], row["weights"])


def run_documents(model: Decoder, row: dict[str, Any]) -> Tensor:
    """Return the loss of one row of TRL's form: documents apart, labels moved by one over the whole row."""
    owner = [number for number, length in enumerate(row["seq_lengths"]) for _ in range(length)]
    size = len(owner)
    mask = torch.zeros(1, 1, size, size, dtype=torch.bool)
    for query in range(size):
        for key in range(query + 1):
            mask[0, 0, query, key] = owner[key] == owner[query]
    logits = model(torch.tensor([row["input_ids"]]), torch.tensor([row["position_ids"]]), mask)[0]
    return loss_of(logits[:-1], row["labels"][1:], row["loss_weights"][1:])


def with_gradients(model: Decoder, loss: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return a loss and the gradient of every parameter."""
    return loss.detach(), gradients_of(model, loss)


def assert_same(found: tuple[Tensor, list[Tensor]], expected: tuple[Tensor, list[Tensor]]) -> None:
    """Compare losses and gradients."""
    torch.testing.assert_close(found[0], expected[0], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("layout", ["dag", "walk", "packed", "best-fit", "padded"])
@pytest.mark.parametrize("seed", range(4))
def test_loss_and_gradient_are_the_readers(seed: int, layout: str, tmp_path: Path) -> None:
    """Through masks written by hand, each row has the loss and gradient of dagpack's reader on that window."""
    examples = random_examples(seed)
    longest = max(len(example.tokens) for example in examples) - 1
    windows, owners, _ = build_layout(tmp_path, examples, layout, longest + 2)
    model = make_model(SIZES[seed % 2], seed)
    alone = run_alone(model, examples)
    forms = {"tree": run_tree} | ({"trl": run_documents} if layout in UNMERGED else {})
    for form, run_form in forms.items():
        more = {"weights": "column"} if form == "trl" else {}
        rows = exported(tmp_path / layout, tmp_path, form, **more)
        assert len(rows) == len(windows)
        parts = []
        for number, row in enumerate(rows):
            parts.append(with_gradients(model, run_form(model, row)))
            assert_same(parts[-1], with_gradients(model, run_batch(model, collate([windows[number]]))[1]))
            if layout != "walk":
                assert_same(parts[-1], alone.summed([n for n, held in enumerate(owners) if number in held]))
        summed_up = [torch.stack(gradients).sum(0) for gradients in zip(*(part[1] for part in parts), strict=True)]
        whole = alone.summed(list(range(len(examples))))
        assert_same((torch.stack([part[0] for part in parts]).sum(), summed_up), whole)


# -- the peers -------------------------------------------------------------------------------------------

CORPUS = [
    Example((5, 6, 7, 8, 9), frozenset({2, 3, 4})),
    Example((5, 6, 7, 8, 9), frozenset({2, 3, 4})),
    Example((5, 6, 7, 10), frozenset({3}), 0.0),
    Example((5, 6, 11, 12, 13, 14, 15, 16), frozenset({1, 4, 5, 7})),
    Example((20, 21), frozenset({1})),
    Example((22, 23, 24), frozenset({2})),
    Example((25,), frozenset({0})),
    Example((5, 6, 7, 8, 30, 31), frozenset({4, 5})),
]

PEERS = ("--seq-len", "6", "--on-long", "split", "--no-prune")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with duplicates, a lone token, a rejected answer and one example that is cut."""
    path = tmp_path_factory.mktemp("peers") / "corpus"
    write_examples(path, CORPUS)
    return path


@pytest.fixture(scope="module")
def llama() -> Any:
    """A tiny Llama with random weights, in float64."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
        attn_implementation="sdpa",
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config).double().eval()


def load(out: Path, folder: Path, *options: str) -> Any:
    """Export an output for TRL with the command, and load the file as a trainer does."""
    datasets = pytest.importorskip("datasets", reason="needs the extra `bench`")
    file = folder / "windows.parquet"
    ran = run("export", out, "--to", "trl", "--output", file, *options)
    assert ran.code == 0, ran.err
    return datasets.load_dataset("parquet", data_files=str(file), split="train", cache_dir=str(folder / "cache"))


def summed(llama: Any, batch: dict[str, Any]) -> Tensor:
    """Return the loss that the model makes of a batch itself, as a sum over its targets.

    As trainers do, without a cache: with one, transformers does not look for documents in the positions.
    """
    loss: Tensor = llama(**batch, num_items_in_batch=1, use_cache=False).loss
    return loss


def alone_sum(llama: Any, seq_len: int) -> tuple[Tensor, int]:
    """Return the summed loss of the corpus, a piece of an example at a time, and its number of targets."""
    total, targets = torch.zeros((), dtype=torch.float64), 0
    for piece in plan(CORPUS, Policy(seq_len, prune=False, merge="none")).pieces:
        tokens = torch.tensor([[piece.first, *piece.path]])
        logs = torch.log_softmax(llama(input_ids=tokens).logits[0], -1)
        for at, flag in enumerate(piece.trained):
            if flag:
                total, targets = total - logs[at, piece.path[at]], targets + 1
    return total, targets


def reader_sum(llama: Any, out: Path) -> Tensor:
    """Return the summed loss of dagpack's reader over all windows."""
    total = torch.zeros((), dtype=torch.float64)
    windows = PackedWindows(out)
    for number in range(len(windows)):
        window = windows[number]
        batch = collate([window])
        size = batch["input_ids"].shape[1]
        rows = torch.arange(size)
        mask = (rows[None] <= rows[:, None]) & (rows[:, None] < batch["subtree_ends"][0][None])
        logits = llama(
            input_ids=batch["input_ids"], position_ids=batch["position_ids"], attention_mask=mask[None, None]
        ).logits
        labels = [
            int(target) if weight else -100
            for target, weight in zip(batch["targets"][0], window["weights"], strict=True)
        ]
        total = total + loss_of(logits[0], labels, window["weights"].tolist())
    return total


@pytest.mark.parametrize("layout", UNMERGED)
@pytest.mark.parametrize("together", [1, 2, 100])
def test_trl_trains_on_the_same_loss(layout: str, together: int, corpus: Path, llama: Any, tmp_path: Path) -> None:
    """TRL's own collator makes batches whose loss is that of the documents alone, and of dagpack's reader."""
    sft = pytest.importorskip("trl.trainer.sft_trainer", reason="needs the extra `bench`")
    build(tmp_path / "out", *PEERS, "--layout", layout, corpus=corpus)
    rows = load(tmp_path / "out", tmp_path)
    collator = sft.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    batches = [
        collator([rows[at] for at in range(low, min(low + together, len(rows)))])
        for low in range(0, len(rows), together)
    ]
    found = torch.stack([summed(llama, batch) for batch in batches]).sum()
    expected, targets = alone_sum(llama, 6)
    assert sum(int((batch["labels"] != -100).sum()) for batch in batches) == targets
    torch.testing.assert_close(reader_sum(llama, tmp_path / "out"), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.double(), expected, rtol=3e-6, atol=0)  # transformers computes losses in float32
    parameters = list(llama.parameters())
    for one, other in zip(
        torch.autograd.grad(found, parameters), torch.autograd.grad(expected, parameters), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of transformers, about an option that TRL sets
def test_the_trainer_of_trl_computes_the_same_loss(corpus: Path, llama: Any, tmp_path: Path) -> None:
    """`SFTTrainer` takes the file as it is: the losses of an epoch add up to those of the documents alone."""
    trl = pytest.importorskip("trl", reason="needs the extra `bench`")
    transformers: Any = pytest.importorskip("transformers", reason="needs transformers")
    from tokenizers import Tokenizer, models

    build(tmp_path / "out", *PEERS, "--layout", "best-fit", corpus=corpus)
    words = models.WordLevel({f"t{number}": number for number in range(40)}, unk_token="t1")
    trainer = trl.SFTTrainer(
        model=copy.deepcopy(llama),
        args=trl.SFTConfig(
            output_dir=str(tmp_path / "run"),
            padding_free=True,
            max_length=None,
            per_device_train_batch_size=2,
            use_cpu=True,
            bf16=False,
            report_to=[],
        ),
        train_dataset=load(tmp_path / "out", tmp_path),
        processing_class=transformers.PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(words), pad_token="t0", eos_token="t1"
        ),
    )
    batches = list(trainer.get_train_dataloader())
    losses = [trainer.compute_loss(trainer.model, batch, num_items_in_batch=1).item() for batch in batches]
    assert len(batches) == 3
    assert sum(losses) == pytest.approx(alone_sum(llama, 6)[0].item(), rel=3e-6)


def test_transformers_flattens_padded_windows(corpus: Path, llama: Any, tmp_path: Path) -> None:
    """`DataCollatorWithFlattening` restarts positions at each row alone: one document a row is what it takes."""
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    build(tmp_path / "out", *PEERS, "--layout", "padded", corpus=corpus)
    rows = load(tmp_path / "out", tmp_path)
    batch = transformers.DataCollatorWithFlattening()([{n: row[n] for n in ("input_ids", "labels")} for row in rows])
    torch.testing.assert_close(summed(llama, batch).double(), alone_sum(llama, 6)[0], rtol=3e-6, atol=0)


# -- the command -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def best_fit(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus of the peers, packed by best fit."""
    out = tmp_path_factory.mktemp("best-fit") / "out"
    build(out, "--layout", "best-fit", "--seq-len", "6", "--on-long", "split", corpus=corpus)
    return out


def test_the_metadata_say_what_the_rows_are(best_fit: Path, tmp_path: Path) -> None:
    """A file names its form, its build and its tokenizer, and says what labels mean; equal builds, equal bytes."""
    manifest = PackedWindows(best_fit).manifest
    for form, other in (("trl", "moves the labels by one itself"), ("tree", "not to be moved by one")):
        file, again = tmp_path / f"{form}.parquet", tmp_path / f"{form}-again.parquet"
        for name in (file, again):
            assert run("export", best_fit, "--to", form, "--output", name).code == 0
        assert file.read_bytes() == again.read_bytes()
        found = {name.decode(): text.decode() for name, text in pq.read_schema(file).metadata.items()}
        assert found["dagpack.form"] == form
        assert found["dagpack.form_version"] == "1"
        assert (found["dagpack.seq_len"], found["dagpack.vocab_size"]) == ("6", str(manifest.vocab_size))
        assert found["dagpack.tokenizer_sha256"] == str(manifest.tokenizer["sha256"])
        assert found["dagpack.fingerprint"] == manifest.fingerprint
        assert other in found["dagpack.labels"]
        assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


def test_standard_output_has_what_a_file_has(best_fit: Path, tmp_path: Path) -> None:
    """Without --output the lines go to standard output; with it a line says where they are."""
    for options in (("--to", "trl"), ("--to", "tree"), ("--sequences",), ()):
        file = tmp_path / ("-".join(("rows", *options)) + ".jsonl")
        told = run("export", best_fit, *options, "--output", file)
        assert told.code == 0
        assert told.out.splitlines()[-1] == f"written: {file}"
        assert run("export", best_fit, *options).out == file.read_text()


def test_longer_rows_are_named(best_fit: Path, tmp_path: Path) -> None:
    """A window holds up to --seq-len pairs, and so more tokens; which is said, with what to do."""
    told = run("export", best_fit, "--to", "trl", "--output", tmp_path / "a.jsonl")
    lengths = [len(json.loads(line)["input_ids"]) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    longer = sum(length > 6 for length in lengths)
    assert told.out.splitlines()[0] == (
        f"{len(lengths)} windows, 7 documents, {sum(lengths)} tokens, 14 targets; the longest has {max(lengths)} tokens"
    )
    assert told.err.splitlines()[-1].startswith(
        f"note: {longer} of {len(lengths)} windows have more tokens than the 6 rows of a window"
    )
    assert longer
    assert "note:" not in run("export", best_fit, "--to", "tree", "--output", tmp_path / "b.jsonl").err


def _refused(ran: Ran, code: int, error: str, hint: str = "") -> None:
    assert (ran.code, ran.out) == (code, "")
    lines = ran.err.splitlines()[-2:]  # behind what a slow machine is told of the progress
    assert error in lines[0]
    assert hint in lines[1]


@pytest.mark.parametrize(
    ("options", "code", "error"),
    [
        (("--to", "arrow"), 2, "--to: arrow; one of trl, tree"),
        (("--to", "trl", "--sequences"), 2, "--to: --sequences is given too"),
        (("--to", "tree", "--transitions"), 2, "--to: --transitions is given too"),
        (("--partition", "val"), 2, "--partition: is given without --to"),
        (("--weights", "one"), 2, "--weights: is given without --to"),
        (("--to", "trl", "--partition", "val"), 2, "--partition: val; one of train, all"),
        (("--to", "tree", "--weights", "one"), 2, "--weights: does not go with --to tree"),
        (("--to", "trl", "--weights", "two"), 2, "--weights: two; one of one, column"),
        (("--to", "trl", "--output", "s3://bucket/a.parquet"), 2, "--output: s3://bucket/a.parquet is a URI"),
        (("--to", "trl", "--output", "a.csv"), 2, "--output: a.csv"),
        (("--output", "a.parquet"), 2, "--output: a.parquet without --to"),
        (("--to", "trl", "--force"), 2, "--force: there is no --output"),
        (("--to", "trl", "--output", "none/a.parquet"), 73, "none/a.parquet: its folder does not exist"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_work_is_refused(options: tuple[str, ...], code: int, error: str, best_fit: Path) -> None:
    """Options that exclude each other, and places that cannot be written, are named before anything is read."""
    _refused(run("export", best_fit, *options), code, error)


def test_trees_are_no_documents(corpus: Path, tmp_path: Path) -> None:
    """TRL's form is refused for merged windows, with a command that packs others; the command works."""
    for layout in ("dag", "walk"):
        out = tmp_path / layout
        build(out, "--layout", layout, "--seq-len", "6", "--on-long", "split", corpus=corpus)
        ran = run("export", out, "--to", "trl")
        _refused(ran, 78, f"layout {layout}", "dagpack pack OUT NEW --layout best-fit --seq-len 6 --on-long split;")
        words = ran.err.splitlines()[-1].split("hint: dagpack ")[1].split(";")[0].split()
        new = tmp_path / f"{layout}-new"
        assert run(*[{"OUT": str(out), "NEW": str(new)}.get(word, word) for word in words]).code == 0
        assert run("export", new, "--to", "trl").code == 0
    build(tmp_path / "state", "--merge", "state", "--seq-len", "6", "--on-long", "split", corpus=corpus)
    _refused(run("export", tmp_path / "state", "--to", "trl"), 78, "layout dag", "build CORPUS NEW --merge none")


def test_a_file_that_exists_stays(best_fit: Path, tmp_path: Path) -> None:
    """An existing file is replaced with --force only; a folder, or what is no file, never."""
    file, folder = tmp_path / "a.parquet", tmp_path / "b.parquet"
    file.write_text("mine")
    folder.mkdir()
    (tmp_path / "c.parquet").symlink_to(tmp_path / "nothing")
    _refused(run("export", best_fit, "--to", "tree", "--output", file), 73, "exists already", "--force")
    assert file.read_text() == "mine"
    for name in (folder, tmp_path / "c.parquet"):
        _refused(run("export", best_fit, "--to", "tree", "--output", name, "--force"), 73, "exists, and is no file")
    assert run("export", best_fit, "--to", "tree", "--output", file, "--force").code == 0
    assert pq.read_table(file).num_rows
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("where", ["export-write.before", "export-write.after", "export-sync.after"])
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_full_disk_leaves_what_was_there(where: str, name: str, best_fit: Path, tmp_path: Path) -> None:
    """Where there is no room the old file stays, nothing half written is left, and the error says what is full."""
    (tmp_path / name).write_text("mine")
    with mock.patch.dict("os.environ", {"DAGPACK_FAILPOINT": f"{where}:1:enospc"}):
        ran = run("export", best_fit, "--to", "tree", "--output", tmp_path / name, "--force")
    listen(None)
    _refused(ran, 74, f"{tmp_path / name}: no space left on device; room for the export", "--output")
    assert (tmp_path / name).read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("options", [(), ("--to", "trl"), ("--to", "tree"), ("--transitions",)])
def test_a_full_standard_output(options: tuple[str, ...], best_fit: Path) -> None:
    """What cannot be printed is named as what it is."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command("export", best_fit, *options),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=environment(),
        )
    error, hint = done.stderr.splitlines()[-2:]
    assert error == "error: standard output: no space left on device; room for the export"
    assert hint == "hint: write to a disk that has room: --output FILE"
    assert done.returncode == 74


def test_an_export_that_is_stopped_leaves_nothing(best_fit: Path, tmp_path: Path) -> None:
    """A signal in the midst of it removes what was written; a second export meanwhile is refused."""
    file, reached = tmp_path / "a.parquet", tmp_path / "reached"
    words = command("export", best_fit, "--to", "tree", "--output", file)
    env = environment(DAGPACK_FAILPOINT=f"export-write.after:1:pause={reached}")
    with subprocess.Popen(words, env=env, stderr=subprocess.PIPE) as process:
        while not reached.exists():
            assert process.poll() is None
            time.sleep(0.01)
        _refused(run("export", best_fit, "--to", "tree", "--output", file), 75, "another export writes it")
        assert [path.name for path in tmp_path.glob(".*")] == [".a.parquet.partial"]
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["reached"]


def test_what_a_killed_export_left_is_used_again(best_fit: Path, tmp_path: Path) -> None:
    """A partial file that nobody holds is no obstacle, whatever is in it."""
    partial = tmp_path / ".a.jsonl.partial"
    partial.write_text("x" * 100_000)
    with partial.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        _refused(run("export", best_fit, "--to", "trl", "--output", tmp_path / "a.jsonl"), 75, "another export")
    assert run("export", best_fit, "--to", "trl", "--output", tmp_path / "a.jsonl").code == 0
    assert (tmp_path / "a.jsonl").read_text() == run("export", best_fit, "--to", "trl").out
    assert not partial.exists()


@pytest.mark.parametrize("form", ["trl", "tree"])
def test_damaged_windows_are_not_exported(form: str, corpus: Path, tmp_path: Path) -> None:
    """Windows are checked before the first is given away: a changed row, or a missing window, is damage."""
    build(
        tmp_path / "out",
        "--layout",
        "padded",
        "--seq-len",
        "6",
        "--on-long",
        "split",
        "--shard-format",
        "npy",
        corpus=corpus,
    )
    shard = next((tmp_path / "out").glob("generations/*/shards/train-*"))
    for name, change in (("parents", 1), ("targets", 10_000), ("weights", np.nan)):
        whole = (shard / f"{name}.npy").read_bytes()
        column = np.load(shard / f"{name}.npy")
        column[2, 1] = change
        np.save(shard / f"{name}.npy", column)
        ran = run("export", tmp_path / "out", "--to", form)
        assert (ran.code, ran.out) == (76, ""), name
        (shard / f"{name}.npy").write_bytes(whole)
    assert run("export", tmp_path / "out", "--to", form).code == 0
    for file in shard.glob("*.npy"):
        np.save(file, np.load(file)[:-1])
    _refused(run("export", tmp_path / "out", "--to", form), 76, "windows of train; ")


def test_a_branch_in_a_layout_of_documents_is_damage(corpus: Path, tmp_path: Path) -> None:
    """Rows that are a sound tree, but no documents, are not what a layout that does not merge writes."""
    path = build(tmp_path / "out", "--layout", "dag", "--seq-len", "9", corpus=corpus)
    manifest = Manifest.from_bytes((path / "manifest.json").read_bytes(), path)
    tree = WindowExport(path=path, manifest=manifest, form="tree")
    assert tree.survey().windows
    object.__setattr__(tree, "form", "trl")
    object.__setattr__(tree, "weights", "column")
    with pytest.raises(DagpackError, match="does not follow the row before it"):
        tree.survey()


def test_both_partitions_in_one_file(tmp_path: Path) -> None:
    """`--partition all` gives train, then val, each row named; one alone has no such column."""
    out = tmp_path / "out"
    build(out, "--val-fraction", "0.4", "--layout", "best-fit", corpus=AGENTS)
    parts = {}
    for part in ("train", "val", "all"):
        ran = run("export", out, "--to", "tree", "--partition", part)
        assert ran.code == 0, ran.err
        parts[part] = [json.loads(line) for line in ran.out.splitlines()]
    assert parts["train"]
    assert parts["val"]
    named = [row | {"partition": part} for part in ("train", "val") for row in parts[part]]
    assert parts["all"] == named
    assert run("export", out, "--to", "tree").out == run("export", out, "--to", "tree", "--partition", "train").out
