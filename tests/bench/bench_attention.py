"""What attention over a tree costs on a CPU: time per pair of the corpus, for whole training steps of a small Llama.

One trie fills one window. The same sequences are run by themselves, packed by best fit into windows of the
same length, and merged; packed and merged ones with SDPA under a mask of the whole window, and by segments.
All sides compute the same loss, which is checked.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dagpack_cli import preorder
from dagpack_cli.packing import best_fit_decreasing

from .measure import cpu_seconds, print_table

__all__ = ["attention"]

Ints = npt.NDArray[np.int64]
_VOCABULARY = 1_024
_LAYERS = {1_024: 4, 2_048: 4, 4_096: 4, 8_192: 1}
_SIDES = ("alone", "best-fit mask", "best-fit segments", "dag mask", "dag segments")


def grpo(length: int) -> tuple[Ints, Ints]:
    """Return the parents of a prompt of a third and eight completions, and the last row of each sequence."""
    prompt = length // 3
    return _branches(prompt, [prompt] * 8, (length - prompt) // 8)


def agent(length: int) -> tuple[Ints, Ints]:
    """Return the parents of a session of half the rows and fourteen that fork off early in it, and the last rows."""
    forks = np.linspace(length // 7, 1, 14).astype(int).tolist()
    parents, lasts = _branches(length // 2, forks, length // 28)
    return parents, np.concatenate(([length // 2 - 1], lasts))


def _branches(trunk: int, forks: Sequence[int], size: int) -> tuple[Ints, Ints]:
    """Return a trunk with branches of ``size`` rows that hang below its first so many rows, deepest fork first."""
    parents, lasts = list(range(-1, trunk - 1)), []
    for fork in forks:
        start = len(parents)
        parents += [fork - 1, *range(start, start + size - 1)]
        lasts.append(start + size - 1)
    return np.array(parents), np.array(lasts)


def attention(lengths: Sequence[int], repeats: int) -> None:
    """Print CPU and wall time per pair of every way to train on a trie, at window lengths of `_LAYERS`."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = []
        for length in lengths:
            rows += [_measure(family, make, length, repeats) for family, make in (("grpo", grpo), ("agent", agent))]
    finally:
        torch.set_num_threads(threads)
    ratios = ("of alone, mask", "segments", "of best-fit segments")
    print_table(
        "attention on one CPU thread: microseconds of CPU (wall) per pair, forward and backward of a Llama, "
        "256 wide, 4 heads; lower is better",
        ("family, rows", "layers", "pairs/rows", *_SIDES, *(f"dag {name}" for name in ratios)),
        rows,
    )


def _measure(family: str, make: Callable[[int], tuple[Ints, Ints]], length: int, repeats: int) -> tuple[str, ...]:
    parents, lasts = make(length)
    sides, pairs = _sides(parents, lasts, length)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    losses = {}
    for _ in range(repeats if length < 4_096 else 1):
        for name, step in sides.items():
            started = time.perf_counter()
            seconds, losses[name] = cpu_seconds(step)
            spent[name].append((seconds, time.perf_counter() - started))
    for name, loss in losses.items():
        assert math.isclose(loss, losses["alone"], rel_tol=1e-4), f"{name} computes another loss"
    cpu = {name: 1e6 * statistics.median(one for one, _ in found) / pairs for name, found in spent.items()}
    wall = {name: 1e6 * statistics.median(one for _, one in found) / pairs for name, found in spent.items()}
    return (
        f"{family}, {length:,}",
        str(_LAYERS[length]),
        f"{pairs / len(parents):.2f}",
        *(f"{cpu[name]:.0f} ({wall[name]:.0f})" for name in _SIDES),
        f"{cpu['dag mask'] / cpu['alone']:.2f}",
        f"{cpu['dag segments'] / cpu['alone']:.2f}",
        f"{cpu['dag segments'] / cpu['best-fit segments']:.2f}",
    )


def _sides(parents: Ints, lasts: Ints, length: int) -> tuple[dict[str, Callable[[], float]], int]:
    """Return a training step for every side, and how many pairs the sequences have together."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from dagpack_cli.training.huggingface import SEGMENTS, register_segments

    register_segments()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=_LAYERS[length],
        num_attention_heads=4,
        max_position_embeddings=length,
    )
    model = LlamaForCausalLM(config)
    tokens = np.random.default_rng(0).integers(3, _VOCABULARY, (2, len(parents)))  # inputs and targets
    paths = [_path(parents, int(last)) for last in lasts]
    counts = np.zeros(len(parents), dtype=np.int64)
    for path in paths:
        counts[path] += 1
    merged = [_window(tokens, np.arange(len(parents)), parents, counts, length)]
    bins: dict[int, list[Ints]] = {}
    for path, number in zip(paths, _bins(paths, length), strict=True):
        bins.setdefault(number, []).append(path)
    packed = [_packed(tokens, window, length) for window in bins.values()]
    alone = [_packed(tokens, [path], len(path)) for path in paths]
    pairs = sum(len(path) for path in paths)
    sides = {
        name: _step(model, windows, pairs, attention)
        for name, windows, attention in zip(
            _SIDES, (alone, packed, packed, merged, merged), (None, "sdpa", SEGMENTS, "sdpa", SEGMENTS), strict=True
        )
    }
    return sides, pairs


def _path(parents: Ints, last: int) -> Ints:
    path = [last]
    while parents[path[-1]] >= 0:
        path.append(int(parents[path[-1]]))
    return np.array(path[::-1])


def _bins(paths: Sequence[Ints], length: int) -> list[int]:
    found = best_fit_decreasing(np.array([len(path) for path in paths]), length, engine="numpy")
    return [int(number) for number in found]


def _packed(tokens: Ints, paths: Sequence[Ints], length: int) -> dict[str, Any]:
    """Return sequences end to end as a window: a tree of chains."""
    chains = np.concatenate([np.concatenate(([-1], np.arange(len(path) - 1))) for path in paths])
    starts = np.repeat(np.cumsum([0, *(len(path) for path in paths[:-1])]), [len(path) for path in paths])
    parents = np.where(chains < 0, -1, chains + starts)
    return _window(tokens, np.concatenate(paths), parents, np.ones(len(parents), dtype=np.int64), length)


def _window(tokens: Ints, rows: Ints, parents: Ints, counts: Ints, length: int) -> dict[str, Any]:
    """Return a batch of one window, as `collate` would."""
    import torch

    def column(values: npt.NDArray[Any], beyond: Any) -> Any:
        return torch.from_numpy(np.concatenate((values, beyond[len(values) : length])))[None]

    zeros = np.zeros(length, dtype=np.int64)
    return {
        "input_ids": column(tokens[0][rows], zeros),
        "targets": column(tokens[1][rows], zeros),
        "weights": column(counts.astype(np.float32), zeros.astype(np.float32)),
        "position_ids": column(preorder.depths_from_parents(parents).astype(np.int64), zeros),
        "subtree_ends": column(preorder.subtree_ends(parents), np.arange(1, length + 1, dtype=np.int32)),
    }


def _step(model: Any, windows: Sequence[dict[str, Any]], pairs: int, implementation: str | None) -> Callable[[], float]:
    """Return a training step over windows: forward, backward, and the loss. None attends causally, without a mask."""
    from dagpack_cli.training.huggingface import model_inputs
    from dagpack_cli.training.loss import weighted_loss

    def step() -> float:
        model.zero_grad()
        model.set_attn_implementation(implementation or "sdpa")
        total = 0.0
        for window in windows:
            plain = {"input_ids": window["input_ids"], "use_cache": False}
            inputs = plain if implementation is None else model_inputs(model.config, window)
            loss = weighted_loss(model(**inputs).logits, window["targets"], window["weights"], pairs)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            total += float(loss.detach())
        return total

    return step
