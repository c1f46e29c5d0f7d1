"""Packed training is exact: the logits, losses and gradients of every example run alone, whatever the layout.

Tolerance: 1e-10 + 1e-9 x the larger value, in float64, for every logit and every parameter's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import (
    LAYOUTS,
    SIZES,
    TemporaryDirectory,
    all_windows,
    build_layout,
    contexts_of,
    gradients_of,
    make_model,
    random_examples,
    run_alone,
    run_batch,
    worst,
    worst_of,
)
from oracle import Example

from dagpack_cli.errors import DataError
from dagpack_cli.manifest import IngestOptions, PackOptions, TrieOptions
from dagpack_cli.pipeline import Execution, TokenizerChoice, build
from dagpack_cli.training import PackedWindows, allowed, collate, tree_bool_mask, weighted_loss

SEEDS = 100
Batch = dict[str, Any]


@pytest.mark.parametrize("group", range(10))
def test_every_layout_computes_what_the_examples_alone_do(group: int) -> None:
    """100 seeds x two sizes: logits of every row, summed loss and every gradient agree for all five layouts."""
    checked = 0
    for seed in range(group, SEEDS, 10):
        examples = random_examples(seed)
        longest = max(len(example.tokens) for example in examples) - 1
        with TemporaryDirectory() as name:
            layouts = {
                layout: build_layout(Path(name), examples, layout, longest + seed % 7, prune=seed % 3 == 0)
                for layout in LAYOUTS
            }
            for config in SIZES:
                model = make_model(config, seed)
                alone = run_alone(model, examples)
                loss, gradients = alone.summed(list(range(len(examples))))
                for layout, (windows, owners, _) in layouts.items():
                    batch = all_windows(windows)
                    logits, found = run_batch(model, batch)
                    contexts = contexts_of(batch)
                    found_rows = torch.stack([logits[place] for place in contexts])
                    expected_rows = torch.stack([alone.logits[context] for context in contexts.values()])
                    assert worst(found_rows, expected_rows) <= 1, (seed, layout)
                    checked += found_rows.numel()
                    assert worst(found, loss) <= 1, (seed, layout)
                    assert worst_of(gradients_of(model, found), gradients) <= 1, (seed, layout)
                    if layout == "walk":
                        continue
                    for number in range(len(windows)):
                        own = [example for example, homes in enumerate(owners) if number in homes]
                        own_loss, own_gradients = alone.summed(own)
                        _, one = run_batch(model, collate([windows[number]]))
                        assert worst(one, own_loss) <= 1, (seed, layout, number)
                        assert worst_of(gradients_of(model, one), own_gradients) <= 1, (seed, layout, number)
    assert checked > 100_000


def _wrong_mask(batch: Batch) -> tuple[Batch, Any, Any]:
    size = batch["input_ids"].shape[1]
    return batch, torch.ones(size, size, dtype=torch.bool).tril()[None, None], None


def _wrong_depth(batch: Batch) -> tuple[Batch, Any, Any]:
    rows = torch.arange(batch["input_ids"].shape[1])
    return batch, None, rows.expand_as(batch["position_ids"]) * (1 + batch["position_ids"] % 2)


def _wrong_weight(batch: Batch) -> tuple[Batch, Any, Any]:
    # As if every crossing trained, whatever the labels and the weights say.
    return batch | {"weights": batch["counts"].float()}, None, None


def _wrong_owner(batch: Batch) -> tuple[Batch, Any, Any]:
    # As if a repeated row's whole weight were its owner's, and nobody else's.
    return batch | {"weights": batch["weights"] * batch["owned"]}, None, None


def _wrong_segment(batch: Batch) -> tuple[Batch, Any, Any]:
    # As if sharing a segment were enough to see one another.
    segments = batch["segments"]
    mask = (
        tree_bool_mask(batch["subtree_ends"])
        | ((segments[:, :, None] == segments[:, None, :]) & (segments[:, None, :] >= 0)).tril()[:, None]
    )
    return batch, mask, None


@pytest.mark.parametrize("breaks", [_wrong_mask, _wrong_depth, _wrong_weight, _wrong_owner, _wrong_segment])
def test_each_part_of_a_window_matters(breaks: Callable[[Batch], tuple[Batch, Any, Any]], tmp_path: Path) -> None:
    """With a wrong mask, depth, weight, owner or segment rule the same comparison fails by far."""
    examples = [
        Example((1, 2, 3, 4, 5), frozenset({1, 2, 3, 4}), 1.0),
        Example((1, 2, 3, 6, 7), frozenset({2, 3, 4}), 2.0),
        Example((1, 2, 8, 9), frozenset({1, 3}), 0.5),
        Example((10, 11, 12), frozenset({1, 2}), 1.0),
    ]
    windows, owners, _ = build_layout(tmp_path, examples, "dag", 6)
    assert len(windows) > 1
    model = make_model(SIZES[1], 0)
    alone = run_alone(model, examples)
    failures = 0
    for number in range(len(windows)):
        own = [example for example, homes in enumerate(owners) if number in homes]
        loss, gradients = alone.summed(own)
        batch = collate([windows[number]])
        _, right = run_batch(model, batch)
        assert worst(right, loss) <= 1
        broken, mask, positions = breaks(batch)
        _, found = run_batch(model, broken, mask=mask, positions=positions)
        failures += worst(found, loss) > 1e3 and worst_of(gradients_of(model, found), gradients) > 1e3
    assert failures


BRANCHES = [Example((1, 2, 3, 4, 5), frozenset({3, 4}), 1.0), Example((1, 2, 3, 6, 7), frozenset({3, 4}), 1.0)]


def _branch_window(tmp_path: Path) -> tuple[Batch, list[int], list[int]]:
    """Return one window with a trunk and two branches, padded, and the rows of each branch."""
    windows, _, _ = build_layout(tmp_path, BRANCHES, "dag", 8)
    batch = collate([windows[0]], 8)
    contexts = contexts_of(batch)
    targets = batch["targets"][0].tolist()
    first = [row for (_, row), context in contexts.items() if 4 in (*context, targets[row])]
    second = [row for (_, row), context in contexts.items() if 6 in (*context, targets[row])]
    assert len(first) == len(second) == 2
    return batch, first, second


@pytest.mark.parametrize("guarded", [True, False])
def test_a_branch_the_future_and_padding_have_no_influence(guarded: bool, tmp_path: Path) -> None:
    """Changing another branch or padding changes no bit of logits, loss or gradients; without the mask it does."""
    batch, first, second = _branch_window(tmp_path)
    model = make_model(SIZES[1], 3)
    size = batch["input_ids"].shape[1]
    mask = None if guarded else torch.ones(size, size, dtype=torch.bool)[None, None]
    only_second = torch.zeros_like(batch["weights"])
    only_second[0, second] = 1.0
    results = []
    for change in (0, 17):
        changed = batch | {"input_ids": batch["input_ids"].clone()}
        changed["input_ids"][0, first[-1]] += change  # a token of the first branch
        changed["input_ids"][0, int(batch["num_rows"][0]) :] += change  # padding
        logits, _ = run_batch(model, changed, mask=mask)
        loss = weighted_loss(logits, changed["targets"], only_second, 1.0)
        results.append((logits[0, second], loss, gradients_of(model, loss)))
    same_logits = torch.equal(results[0][0], results[1][0])
    same_loss = torch.equal(results[0][1], results[1][1])
    # The embedding's row of the changed token is another one; every other parameter's gradient is compared.
    pairs = list(zip(results[0][2], results[1][2], strict=True))[1:]
    same_gradients = all(torch.equal(before, after) for before, after in pairs)
    assert (same_logits, same_loss, same_gradients) == ((True,) * 3 if guarded else (False,) * 3)


@pytest.mark.parametrize("guarded", [True, False])
def test_derivatives_into_what_a_row_does_not_see_are_zero(guarded: bool, tmp_path: Path) -> None:
    """The derivative of a row's loss into the other branch, the future and padding is exactly 0; else it is not."""
    batch, first, second = _branch_window(tmp_path)
    model = make_model(SIZES[1], 4)
    size = batch["input_ids"].shape[1]
    embeddings = model.embedding(batch["input_ids"]).detach().requires_grad_()
    mask = tree_bool_mask(batch["subtree_ends"]) if guarded else torch.ones(size, size, dtype=torch.bool)[None, None]
    logits = model(batch["input_ids"], batch["position_ids"], mask, embeddings=embeddings)
    weights = torch.zeros_like(batch["weights"])
    weights[0, second[0]] = 1.0
    (gradient,) = torch.autograd.grad(weighted_loss(logits, batch["targets"], weights, 1.0), embeddings)
    unseen = [row for row in range(size) if not allowed(_row_of(batch), second[0], row)]
    assert set(first) < set(unseen)
    assert second[1] in unseen
    assert size - 1 in unseen
    assert bool((gradient[0, unseen] == 0).all()) is guarded
    seen = [row for row in range(size) if row not in unseen]
    assert (gradient[0, seen].abs().sum(-1) > 0).all()


def _row_of(batch: Batch) -> Batch:
    return {"subtree_ends": batch["subtree_ends"][0], "num_rows": batch["num_rows"][0]}


def test_positions_and_isolation_are_separate(tmp_path: Path) -> None:
    """Row-global positions change no logit of an isolated segment; resetting alone isolates nothing."""
    examples = [Example((5, 6, 7), frozenset({1, 2}), 1.0), Example((8, 9, 10, 11), frozenset({1, 2, 3}), 1.0)]
    windows, _, _ = build_layout(tmp_path, examples, "packed", 8)
    batch = collate([windows[0]])
    model = make_model(SIZES[1], 5)
    right, _ = run_batch(model, batch)
    size = batch["input_ids"].shape[1]
    shifted, _ = run_batch(model, batch, positions=torch.arange(size)[None])
    assert worst(shifted, right) <= 1
    causal = torch.ones(size, size, dtype=torch.bool).tril()[None, None]
    joined, _ = run_batch(model, batch, mask=causal)
    assert worst(joined, right) > 1e3


def test_a_window_without_its_mask_is_an_error_not_a_silent_run(tmp_path: Path) -> None:
    """Two documents in one window: positions restart, no target crosses, and the model asks for the mask."""
    examples = [Example((5, 6, 7), frozenset({1, 2}), 1.0), Example((8, 9), frozenset({1}), 1.0)]
    windows, _, _ = build_layout(tmp_path, examples, "packed", 8)
    batch = collate([windows[0]])
    assert batch["position_ids"].tolist() == [[0, 1, 0]]
    assert batch["targets"].tolist() == [[6, 7, 9]]
    model: Any = make_model(SIZES[0], 0)
    with pytest.raises(TypeError, match="mask"):
        model(batch["input_ids"], batch["position_ids"])


def _three_files(tmp_path: Path, layout: str) -> PackedWindows:
    corpus = tmp_path / "corpus"
    corpus.mkdir(exist_ok=True)
    for name, text in (("a.txt", "ab"), ("b.txt", "c"), ("c.txt", "def")):
        (corpus / name).write_text(text)
    build(
        corpus,
        tmp_path / layout,
        tokenizer=TokenizerChoice(),
        ingest_options=IngestOptions(),
        trie_options=TrieOptions(),
        pack_options=PackOptions(seq_len=6, layout=layout),
        execution=Execution(),
    )
    return PackedWindows(tmp_path / layout)


def _constructed_logits(batch: Batch) -> torch.Tensor:
    """Return logits that give the gold target 1/2, 1/4 and 1/2 in the three documents, 265 others equal."""
    gold = torch.tensor([0.5, 0.25, 0.5], dtype=torch.float64)
    logits = torch.zeros(*batch["input_ids"].shape, 266, dtype=torch.float64)
    for window, row in (batch["weights"] > 0).nonzero().tolist():
        probability = float(gold[int(batch["segments"][window, row])])
        logits[window, row, batch["targets"][window, row]] = math.log(265 * probability / (1 - probability))
    return logits


def test_the_loss_is_weighted_by_targets_and_divided_once(tmp_path: Path) -> None:
    """11 ln 2 summed, 0.847180 per target; a mean of rows' means or of documents' is another number."""
    windows = _three_files(tmp_path, "packed")
    batch = collate([windows[0], windows[1]], 6)
    logits = _constructed_logits(batch).requires_grad_()
    summed = weighted_loss(logits, batch["targets"], batch["weights"], 1.0).detach()
    assert float(summed) == pytest.approx(11 * math.log(2), abs=1e-12)
    assert f"{float(summed):.6f}" == "7.624619"
    mean = weighted_loss(logits, batch["targets"], batch["weights"])
    assert f"{float(mean.detach()):.6f}" == "0.847180"
    rows = [weighted_loss(logits[at], batch["targets"][at], batch["weights"][at]).detach() for at in range(2)]
    assert f"{float(sum(rows)) / 2:.6f}" == "0.831777"
    documents = []
    for segment in range(3):
        own = batch["weights"] * (batch["segments"] == segment)
        documents.append(weighted_loss(logits, batch["targets"], own).detach())
    assert f"{float(sum(documents)) / 3:.6f}" == "0.924196"
    (gradient,) = torch.autograd.grad(mean, logits)
    probabilities = torch.softmax(logits, -1)
    for window, row in (batch["weights"] > 0).nonzero().tolist():
        expected = probabilities[window, row].clone()
        expected[batch["targets"][window, row]] -= 1
        assert torch.allclose(gradient[window, row], expected / 9, rtol=1e-12, atol=1e-15)


def test_an_end_of_sequence_with_the_id_of_padding_is_trained(tmp_path: Path) -> None:
    """Padding is known by its position, not its id: with EOS 0, as pads have, every EOS trains and no pad does."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for name, text in (("a.txt", "ab"), ("b.txt", "c")):
        (corpus / name).write_text(text)
    build(
        corpus,
        tmp_path / "out",
        tokenizer=TokenizerChoice(spec="bytes", bos="none", eos="0"),
        ingest_options=IngestOptions(),
        trie_options=TrieOptions(),
        pack_options=PackOptions(seq_len=6, layout="packed"),
        execution=Execution(),
    )
    batch = collate([PackedWindows(tmp_path / "out")[0]], 6)
    assert batch["input_ids"].tolist() == [[99, 100, 101, 0, 0, 0]]
    assert batch["targets"].tolist() == [[100, 0, 0, -100, -100, -100]]
    assert batch["weights"].tolist() == [[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]]


def test_nan_in_an_excluded_logit_does_not_spread(tmp_path: Path) -> None:
    """NaN and infinity in the logits of padding reach neither the loss nor any gradient."""
    windows = _three_files(tmp_path, "packed")
    batch = collate([windows[0], windows[1]], 6)
    logits = _constructed_logits(batch)
    excluded = batch["weights"] == 0
    logits[excluded] = float("nan")
    logits[excluded.nonzero()[0, 0], excluded.nonzero()[0, 1], 3] = float("inf")
    logits.requires_grad_()
    loss = weighted_loss(logits, batch["targets"], batch["weights"])
    (gradient,) = torch.autograd.grad(loss, logits)
    assert f"{float(loss.detach()):.6f}" == "0.847180"
    assert torch.isfinite(gradient).all()
    assert (gradient[excluded] == 0).all()


def test_a_loss_without_weights_needs_a_denominator(tmp_path: Path) -> None:
    """A batch that trains nothing is an error alone, and adds exactly 0 to a step."""
    windows = _three_files(tmp_path, "packed")
    batch = collate([windows[0]], 6)
    logits = _constructed_logits(batch).requires_grad_()
    nothing = torch.zeros_like(batch["weights"])
    with pytest.raises(DataError, match="weights: they sum to 0"):
        weighted_loss(logits, batch["targets"], nothing)
    loss = weighted_loss(logits, batch["targets"], nothing, 9.0)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert float(loss.detach()) == 0.0
    assert (gradient == 0).all()


def test_the_merged_layout_of_the_three_files_gives_the_same_loss(tmp_path: Path) -> None:
    """The dag of "ab", "c", "def", which share their BOS alone, gives the packed layout's loss of a real model."""
    model = make_model(SIZES[1], 42)
    losses = []
    for layout in ("packed", "dag", "walk"):
        windows = _three_files(tmp_path, layout)
        _, loss = run_batch(model, all_windows(windows))
        losses.append(float(loss.detach()))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-12)
