"""Windows for training: what `PackedWindows` reads, what `PackedLoader` hands out, and where it stands."""

from __future__ import annotations

import gc
import json
import multiprocessing
import pickle
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import pytest
import torch
from builds import Window, read_windows, write_examples
from commands import TINY, build
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import Example

from dagpack_cli.errors import DagpackError, DamageError, MismatchError, NoInputError, UsageError
from dagpack_cli.manifest import Manifest
from dagpack_cli.shards import access, files, parquet
from dagpack_cli.training import PackedLoader, PackedWindows, collate
from dagpack_cli.training.loader import window_order

SEQ_LEN = 8
GOLDEN = {  # order of ten windows by (seed, epoch)
    (0, 0): [3, 7, 2, 0, 8, 5, 9, 4, 6, 1],
    (0, 1): [4, 6, 8, 3, 1, 5, 7, 2, 9, 0],
    (7, 3): [9, 6, 1, 5, 4, 2, 7, 8, 0, 3],
}
COLUMNS = ("inputs", "targets", "depths", "parents", "counts", "segments", "weights", "owned")
State = dict[str, Any]
Batch = dict[str, Any]


def publish(folder: Path, examples: Sequence[Example], *options: str) -> Path:
    """Build examples with windows of 8 rows; return the output directory."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / f"corpus-{len(list(folder.iterdir()))}"
    write_examples(corpus, examples)
    build(folder / "out", "--seq-len", str(SEQ_LEN), *options, corpus=corpus)
    return folder / "out"


def chain(number: int, length: int, weight: float = 1.0) -> Example:
    """Return an example that starts like no other and is trained on all it can be."""
    tokens = (100 + number, *range(1, length + 1))
    return Example(tokens, frozenset(range(1, len(tokens))), weight)


def branches(count: int) -> list[Example]:
    """Return examples that share a trunk, some trained on their last pair alone, some doubled."""
    examples = []
    for number in range(count):
        tokens = (1, 2, 3, 4 + number % 3, 10 + number, 11 + number)
        trained = frozenset({5}) if number % 4 == 0 else frozenset(range(1, 6))
        examples += [Example(tokens, trained, 0.5 + number % 2, str(number))] * (1 + (number % 5 == 0))
    return examples


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with ten windows of 1 to 7 rows and different weights, which no test changes."""
    examples = [chain(number, 1 + number % 7, 1.0 + number) for number in range(10)]
    return publish(tmp_path_factory.mktemp("ten"), examples, "--layout", "padded")


@pytest.fixture
def windows(ten: Path) -> PackedWindows:
    """The ten windows as a dataset."""
    return PackedWindows(ten)


def ends_of(parents: Sequence[int]) -> list[int]:
    """Return where each row's descendants end, found by walking up from every row."""
    ends = list(range(1, len(parents) + 1))
    for row in range(len(parents)):
        above = row
        while above >= 0:
            ends[above] = row + 1
            above = parents[above]
    return ends


def assert_window(read: Mapping[str, Any], stored: Window, number: int) -> None:
    """Compare a window of a dataset with the same one of a shard that was read whole."""
    for name in COLUMNS:
        column = {"inputs": "input", "targets": "target", "weights": "weight"}.get(name, name.removesuffix("s"))
        assert read[name].tolist() == stored.column(column), name
    assert read["subtree_ends"].tolist() == ends_of(stored.column("parent"))
    assert (read["num_rows"], read["window"]) == (len(stored.rows), number)
    assert read["denominator"] == pytest.approx(sum(stored.column("weight")), abs=0)


def every(windows: Any) -> list[dict[str, Any]]:
    """Return all windows of a dataset, as a plain loop over it finds them."""
    return list(windows)


def numbers_of(batch: Batch) -> list[int]:
    """Return the windows in a batch, fillers included."""
    return [int(number) for number in batch["window"]]


# -- datasets


@pytest.mark.parametrize("shard_format", ["parquet", "npy"])
@pytest.mark.parametrize("layout", ["dag", "packed"])
def test_windows_are_those_of_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_format: str, layout: str
) -> None:
    """In any order, across row groups, files and what is kept in memory, a window is what its shard holds."""
    monkeypatch.setattr(files, "_FILE_ROWS", 5 * SEQ_LEN)
    monkeypatch.setattr(parquet, "_GROUP_ROWS", 2 * SEQ_LEN)
    monkeypatch.setattr(access, "_KEPT_GROUPS", 2)
    options = ["--layout", layout, "--shard-format", shard_format, "--val-fraction", "0.5"]
    out = publish(tmp_path, branches(80), *options)
    for partition in ("train", "val"):
        windows = PackedWindows(out, partition=partition)
        generation = next((out / "generations").iterdir())
        stored = read_windows(generation, partition)
        assert len(windows.manifest.shards(partition)) > 1
        assert len(windows) == len(stored) > 5
        order = np.random.default_rng(0).permutation(2 * len(stored)) % len(stored)
        for number in order.tolist():
            assert_window(windows[number], stored[number], number)
        assert [window["window"] for window in windows.__getitems__([3, 0, -1])] == [3, 0, -1]


def test_only_numbers_of_windows_are_read(windows: PackedWindows) -> None:
    """-1 is a window without rows; every other number outside the dataset is refused, so plain loops end."""
    assert len(every(windows)) == len(windows) == 10
    for number in (10, 11, -2):
        with pytest.raises(IndexError, match=f"window {number} of 10"):
            windows[number]
    empty = windows[-1]
    assert (empty["num_rows"], empty["denominator"], empty["window"]) == (0, 0.0, -1)
    assert {name: (len(empty[name]), empty[name].dtype) for name in COLUMNS} == {
        name: (0, windows[0][name].dtype) for name in COLUMNS
    }
    assert set(empty) == set(windows[0])


@pytest.mark.parametrize("layout", ["dag", "walk"])
def test_objectives(tmp_path: Path, layout: str) -> None:
    """Counted weights are the stored ones; unique gives one vote to each distinct row that trains."""
    out = publish(tmp_path, branches(12), "--layout", layout)
    counted, unique = PackedWindows(out, objective="counted"), PackedWindows(out, objective="unique")
    assert PackedWindows(out).objective == counted.objective == "counted"
    total = 0.0
    for number in range(len(counted)):
        stored, voted = counted[number], unique[number]
        expected = [float(own and weight != 0) for own, weight in zip(stored["owned"], stored["weights"], strict=True)]
        assert voted["weights"].tolist() == expected
        assert voted["weights"].dtype == np.float32
        assert voted["denominator"] == sum(expected)
        assert stored["denominator"] == sum(float(weight) for weight in stored["weights"])
        total += voted["denominator"]
    trained = {tokens.tokens[: at + 1] for tokens in branches(12) for at in tokens.trained}
    assert total == len(trained)
    assert any(counted[number]["weights"].max() > 1 for number in range(len(counted)))


def test_the_builds_objective_is_the_default(tmp_path: Path) -> None:
    """Without an objective the build's own is used, and another one replaces it."""
    out = publish(tmp_path, branches(6), "--objective", "unique")
    assert PackedWindows(out).objective == "unique"
    assert set(PackedWindows(out)[0]["weights"].tolist()) <= {0.0, 1.0}
    assert PackedWindows(out, objective="counted")[0]["weights"].max() > 1


def test_negative_weights_are_divided_by_pairs(tmp_path: Path) -> None:
    """With negative weights the denominator counts supervised pairs, in every output; unique is refused."""
    signed = publish(tmp_path / "signed", [chain(0, 4, -1.5), chain(1, 6, 0.5), chain(2, 3)], "--layout", "padded")
    plain = publish(tmp_path / "plain", [chain(2, 5, 3.0)], "--layout", "padded")
    windows = PackedWindows(signed)
    assert windows.negative_weights
    assert [window["denominator"] for window in every(windows)] == [4.0, 6.0, 3.0]
    assert windows[0]["weights"].tolist() == [-1.5] * 4
    assert [window["denominator"] for window in every(PackedWindows(plain))] == [15.0]
    assert [window["denominator"] for window in every(PackedWindows(plain, signed))] == [5.0, 4.0, 6.0, 3.0]
    with pytest.raises(UsageError, match="negative") as caught:
        PackedWindows(plain, signed, objective="unique")
    assert caught.value.advice == "--objective counted"


def test_several_outputs_are_one_dataset(tmp_path: Path, ten: Path) -> None:
    """Windows of several outputs follow one another, and metadata name every build."""
    other = publish(tmp_path, [chain(number, 3) for number in range(5, 10)], "--layout", "padded")
    both = PackedWindows(other, ten)
    parts = [PackedWindows(other), PackedWindows(ten)]
    assert len(both) == len(every(both)) == 15
    for number, window in enumerate(every(both)):
        alone = parts[0][number] if number < 5 else parts[1][number - 5]
        assert window["window"] == number
        assert window["inputs"].tolist() == alone["inputs"].tolist()
    assert both.fingerprints == parts[0].fingerprints + parts[1].fingerprints
    assert len(set(both.fingerprints)) == 2


@pytest.mark.parametrize(
    ("options", "corpus", "kind", "message"),
    [
        (["--seq-len", "16"], None, MismatchError, "window length 16; 8, as .* has"),
        (["--seq-len", "8", "--objective", "unique"], None, MismatchError, "objective unique; counted, as"),
        (["--seq-len", "8", "--on-long", "split"], TINY / "text", MismatchError, "tokenizer .*; .*, as"),
        (["--seq-len", "8"], [chain(50, 3)], MismatchError, "vocabulary size 151|tokenizer"),
    ],
)
def test_outputs_that_do_not_fit_are_refused(
    tmp_path: Path,
    ten: Path,
    options: list[str],
    corpus: Path | list[Example] | None,
    kind: type[DagpackError],
    message: str,
) -> None:
    """Outputs of another tokenizer, length or objective are not read as one, and the message names both values."""
    if not isinstance(corpus, Path):
        write_examples(tmp_path / "corpus", corpus or [chain(number, 3) for number in range(10)])
        corpus = tmp_path / "corpus"
    build(tmp_path / "out", *options, corpus=corpus)
    with pytest.raises(kind, match=message):
        PackedWindows(ten, tmp_path / "out")
    assert len(PackedWindows(tmp_path / "out")) > 0


def test_an_objective_given_fits_builds_that_differ_in_it(tmp_path: Path, ten: Path) -> None:
    """Builds may differ in their default objective where the reader is told which one to use."""
    other = publish(tmp_path, [chain(number, 3) for number in range(10)], "--objective", "unique")
    assert PackedWindows(ten, other, objective="counted").objective == "counted"


def test_what_is_not_there_is_refused(tmp_path: Path, ten: Path) -> None:
    """No output, no directory, nothing published and no such partition are errors that say so."""
    with pytest.raises(UsageError, match="no directory"):
        PackedWindows()
    with pytest.raises(NoInputError, match="no such directory"):
        PackedWindows(tmp_path / "absent")
    with pytest.raises(NoInputError, match="no finished build"):
        PackedWindows(tmp_path)
    with pytest.raises(NoInputError, match="no such directory"):
        PackedWindows(ten, tmp_path / "absent")
    with pytest.raises(UsageError, match=r"partition val: .* has train") as caught:
        PackedWindows(ten, partition="val")
    assert "--val-fraction" in caught.value.advice


@pytest.mark.parametrize("shard_format", ["parquet", "npy"])
def test_damage_is_found(tmp_path: Path, shard_format: str) -> None:
    """A file that is missing or of another size is refused at once, another byte where checksums are asked for."""
    out = publish(tmp_path, [chain(number, 5) for number in range(4)], "--shard-format", shard_format)
    shard = next(path for path in sorted((out / "generations").rglob("shards/**/*")) if path.is_file())
    content = shard.read_bytes()
    assert len(PackedWindows(out, checksums=True)) > 0
    for damaged in (content + b"x", content[:-1], b""):
        shard.write_bytes(damaged)
        with pytest.raises(DamageError, match=f"{len(damaged):,} bytes; {len(content):,} bytes as the manifest says"):
            PackedWindows(out)
    shard.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    assert len(PackedWindows(out)) > 0
    with pytest.raises(DamageError, match="sha256") as caught:
        PackedWindows(out, checksums=True)
    assert shard.name in str(caught.value)
    shard.unlink()
    with pytest.raises(DamageError, match="the file is missing"):
        PackedWindows(out)


@pytest.mark.parametrize("shard_format", ["parquet", "npy"])
def test_datasets_pickle(tmp_path: Path, shard_format: str) -> None:
    """A dataset that has read windows pickles small, without open files, and its copy reads the same."""
    out = publish(tmp_path, [chain(number, 5) for number in range(200)], "--shard-format", shard_format)
    windows = PackedWindows(out)
    fresh = len(pickle.dumps(windows))
    expected = [windows[number]["inputs"].tolist() for number in range(len(windows))]
    packed = pickle.dumps(windows)
    assert len(packed) == fresh < 32_000
    copy = pickle.loads(packed)
    assert [window["inputs"].tolist() for window in every(copy)] == expected
    assert copy.metadata == windows.metadata


def test_a_generation_stays_while_its_dataset_lives(tmp_path: Path) -> None:
    """Later builds leave a generation in place until the last dataset on it is gone."""
    publish(tmp_path, [chain(0, 5)])
    windows = PackedWindows(tmp_path / "out")
    (first,) = (tmp_path / "out" / "generations").iterdir()
    for number in range(1, 4):
        publish(tmp_path, [chain(number, 5)])
    assert first.exists()
    assert windows[0]["inputs"].tolist() == [100, 1, 2, 3, 4]
    del windows
    gc.collect()
    publish(tmp_path, [chain(4, 5)])
    assert not first.exists()


# -- batches


def test_collate_pads(windows: PackedWindows) -> None:
    """Pads hold what no model, mask or loss can take for a row, and real rows are copied as they are."""
    chosen = [windows[2], windows[-1], windows[4]]
    for length, width in ((None, 5), (8, 8)):
        batch = collate(chosen, length)
        names = {"input_ids": "inputs", "position_ids": "depths"}
        pads: dict[str, tuple[torch.dtype, Any]] = {
            "input_ids": (torch.int64, 0),
            "targets": (torch.int64, -100),
            "position_ids": (torch.int64, 0),
            "parents": (torch.int32, -1),
            "segments": (torch.int32, -1),
            "counts": (torch.int32, 0),
            "weights": (torch.float32, 0.0),
            "owned": (torch.bool, False),
            "subtree_ends": (torch.int32, None),
        }
        for name, (dtype, pad) in pads.items():
            assert batch[name].shape == (3, width)
            assert batch[name].dtype == dtype
            for row, window in enumerate(chosen):
                values = window[names.get(name, name)].tolist()
                padding = [pad if pad is not None else at + 1 for at in range(len(values), width)]
                assert batch[name][row].tolist() == values + padding
        assert batch["num_rows"].tolist() == [3, 0, 5]
        assert batch["window"].tolist() == [2, -1, 4]
        assert batch["denominator"].tolist() == [9.0, 0.0, 25.0]
        assert batch["denominator"].dtype == torch.float64
        assert set(batch) == {*pads, "num_rows", "window", "denominator"}


def test_collate_owns_its_memory(windows: PackedWindows) -> None:
    """Changing a batch in place changes nothing that is read later."""
    first = collate([windows[3]])
    expected = first["weights"].clone()
    for name in ("weights", "input_ids", "parents"):
        first[name].fill_(7)
    assert torch.equal(collate([windows[3]])["weights"], expected)


def test_collate_refuses_what_does_not_fit(windows: PackedWindows) -> None:
    """A window is never cut to a length; a batch without rows still has a column."""
    with pytest.raises(ValueError, match="a window of 5 rows does not fit 4"):
        collate([windows[4]], 4)
    assert collate([windows[-1]])["input_ids"].shape == (1, 1)
    assert collate([], 4)["input_ids"].shape == (0, 4)


# -- the order


def test_order_is_golden() -> None:
    """The order of an epoch is the same on every machine and with every version, or old runs cannot be resumed."""
    assert window_order(10, 0, 0).tolist() == GOLDEN[0, 0]
    assert window_order(10, 0, 1).tolist() == GOLDEN[0, 1]
    assert window_order(10, 7, 3).tolist() == GOLDEN[7, 3]
    assert window_order(10, -1, 0).tolist() == window_order(10, 2**64 - 1, 0).tolist()


@given(st.integers(0, 60), st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_order_is_the_hash_of_seed_epoch_and_window(num_windows: int, seed: int, epoch: int) -> None:
    """Sorting window numbers by splitmix64 in Python's integers gives the order: a permutation, always the same."""
    bits = 2**64 - 1

    def mix(value: int) -> int:
        value = (value + 0x9E3779B97F4A7C15) & bits
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & bits
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & bits
        return value ^ (value >> 31)

    def key(window: int) -> int:
        return mix(mix(window ^ mix(seed & bits)) ^ mix(epoch & bits))

    assert window_order(num_windows, seed, epoch).tolist() == sorted(range(num_windows), key=key)


def test_orders_differ() -> None:
    """Epochs and seeds have orders of their own, and seed and epoch do not stand for one another."""
    orders = {tuple(window_order(50, seed, epoch).tolist()) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400
    first = Counter(int(window_order(10, seed, 0)[0]) for seed in range(2000))
    assert set(first) == set(range(10))
    assert min(first.values()) > 140


def test_loader_follows_the_order(windows: PackedWindows) -> None:
    """Batches take windows in the epoch's order, or in that of the shards without shuffle."""
    loader = PackedLoader(windows, 4, seed=3)
    for epoch in range(3):
        order = window_order(10, 3, epoch).tolist()
        assert [numbers_of(batch) for batch in loader] == [order[:4], order[4:8], order[8:]]
    plain = PackedLoader(windows, 4, shuffle=False)
    assert [[numbers_of(batch) for batch in plain] for _ in range(2)] == [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]] * 2


# -- ranks, workers, stops


class Ranks:
    """Loaders of every rank of a job, which take their steps together."""

    def __init__(self, windows: PackedWindows, world: int, state: State | None = None, **options: Any) -> None:
        self.loaders = [PackedLoader(windows, rank=rank, world=world, **options) for rank in range(world)]
        if state is not None:
            for loader in self.loaders:
                loader.load_state_dict(json.loads(json.dumps(state)))
        self._iterators: list[Iterator[Batch]] = []

    def step(self) -> tuple[int, list[Batch]]:
        """Return the epoch and every rank's next batch; all ranks begin an epoch at the same step."""
        while True:
            epochs = {loader.epoch for loader in self.loaders}
            assert len(epochs) == 1
            batches = [next(iterator, None) for iterator in self._iterators]
            handed = [batch for batch in batches if batch is not None]
            if handed:
                assert len(handed) == len(self.loaders), "ranks take different numbers of steps"
                return epochs.pop(), handed
            self._iterators = [iter(loader) for loader in self.loaders]

    def state(self) -> State:
        """Return where the job stands, which every rank must agree on."""
        states = [loader.state_dict() for loader in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]


def job(windows: PackedWindows, plan: Sequence[tuple[int, int, int, int]]) -> dict[int, Counter[int]]:
    """Run (world, workers, batch size, steps) after one another, each resumed; count windows by epoch."""
    state: State | None = None
    seen: dict[int, Counter[int]] = {}
    for world, workers, batch_size, steps in plan:
        ranks = Ranks(windows, world, state, workers=workers, batch_size=batch_size, seed=5)
        for _ in range(steps):
            epoch, batches = ranks.step()
            numbers = [number for batch in batches for number in numbers_of(batch)]
            seen.setdefault(epoch, Counter()).update(number for number in numbers if number >= 0)
        state = ranks.state()
    return seen


def assert_each_once(seen: Mapping[int, Counter[int]], num_windows: int) -> None:
    """Every finished epoch holds each window once; the last holds none twice."""
    *finished, last = sorted(seen)
    assert [*finished, last] == list(range(last + 1))
    for epoch in finished:
        assert seen[epoch] == Counter(range(num_windows)), epoch
    assert max(seen[last].values(), default=1) == 1


def test_three_ranks_of_two_workers(windows: PackedWindows) -> None:
    """Ten windows on three ranks: each exactly once an epoch, equal steps and shapes, fillers of weight 0."""
    ranks = Ranks(windows, 3, workers=2, batch_size=1, seed=1)
    assert [len(loader) for loader in ranks.loaders] == [4, 4, 4]
    orders = []
    for epoch in range(3):
        seen: list[int] = []
        for _ in range(4):
            found, batches = ranks.step()
            assert found == epoch
            for batch in batches:
                assert len(batch["window"]) == 1
                for row, number in enumerate(numbers_of(batch)):
                    seen.append(number)
                    weight = 0.0 if number < 0 else float(1 + number) * (1 + number % 7)
                    assert (float(batch["denominator"][row]), float(batch["weights"][row].sum())) == (weight, weight)
        assert Counter(seen) == Counter({**dict.fromkeys(range(10), 1), -1: 2})
        orders.append(tuple(seen))
    assert len(set(orders)) == 3


def test_stopping_twice_and_losing_a_rank(ten: Path) -> None:
    """Stopped, resumed, stopped past the end of an epoch, resumed on two ranks: each window once an epoch."""
    seen = job(PackedWindows(ten), [(3, 2, 1, 2), (3, 2, 1, 1), (3, 2, 1, 4), (2, 2, 1, 6), (2, 0, 2, 3)])
    assert_each_once(seen, 10)
    assert {epoch: windows.total() for epoch, windows in seen.items()} == dict.fromkeys(range(4), 10)


plans = st.lists(st.tuples(st.integers(1, 4), st.just(0), st.integers(1, 4), st.integers(0, 9)), min_size=1, max_size=6)


@settings(max_examples=30)
@given(plans)
def test_any_plan_uses_each_window_once(ten: Path, plan: list[tuple[int, int, int, int]]) -> None:
    """However a job is stopped, and with however many ranks and whatever batch size it goes on, nothing repeats."""
    seen = job(PackedWindows(ten), plan)
    if seen:
        assert_each_once(seen, 10)


def test_workers_change_nothing(windows: PackedWindows) -> None:
    """A run goes on with another number of workers exactly where it stopped, with the same tensors."""
    expected = list(PackedLoader(windows, 2, seed=4))
    state: State | None = None
    handed: list[Batch] = []
    for workers, steps in ((2, 1), (0, 1), (1, 2), (2, 1)):
        loader = PackedLoader(windows, 2, seed=4, workers=workers)
        if state is not None:
            loader.load_state_dict(state)
        iterator = iter(loader)
        handed += [next(iterator) for _ in range(steps)]
        state = loader.state_dict()
    assert state is not None
    assert (state["epoch"], state["position"]) == (1, 0)
    for left, right in zip(handed, expected, strict=True):
        assert left["metadata"] == right["metadata"]
        assert all(torch.equal(left[name], right[name]) for name in left.keys() - {"metadata"})


def test_state_counts_what_was_handed_out(windows: PackedWindows) -> None:
    """Batches that workers have read ahead are not in the state; they are handed out after a resume."""
    loader = PackedLoader(windows, 1, workers=2)
    iterator = iter(loader)
    for handed in range(1, 4):
        next(iterator)
        assert loader.state_dict()["position"] == handed
    fresh = PackedLoader(windows, 1)
    fresh.load_state_dict(loader.state_dict())
    left = [numbers_of(batch) for batch in fresh]
    assert left == [numbers_of(batch) for batch in iterator]
    assert len(left) == 7


def test_breaking_out_with_workers_that_stay(windows: PackedWindows) -> None:
    """An iteration that is left early goes on with the next batch in the next one, in the same processes."""
    before = {child.pid for child in multiprocessing.active_children()}
    loader = PackedLoader(windows, 1, seed=2, workers=2)
    seen: list[int] = []
    for batch in loader:
        seen += numbers_of(batch)
        if len(seen) == 3:
            break
    workers = {child.pid for child in multiprocessing.active_children()} - before
    assert len(workers) == 2
    for batch in loader:
        seen += numbers_of(batch)
    assert seen == window_order(10, 2, 0).tolist()
    seen = [number for batch in loader for number in numbers_of(batch)]
    assert seen == window_order(10, 2, 1).tolist()
    assert {child.pid for child in multiprocessing.active_children()} - before == workers


def test_workers_end_with_their_loader(windows: PackedWindows) -> None:
    """A loader that is let go is gone at once, and its processes with it; no collector has to find it."""
    before = {child.pid for child in multiprocessing.active_children()}
    gc.disable()
    try:
        loader = PackedLoader(windows, 1, workers=1)
        for _ in loader:
            pass
        gone = weakref.ref(loader)
        del loader
        assert gone() is None
        assert {child.pid for child in multiprocessing.active_children()} <= before
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, 1])
def test_damage_keeps_its_kind(tmp_path: Path, workers: int) -> None:
    """What goes wrong in a worker is the same error as in this process: its kind sets the exit status."""
    out = publish(tmp_path, [chain(number, 5) for number in range(4)])
    (shard,) = (out / "generations").rglob("shards/*.parquet")
    content = bytearray(shard.read_bytes())
    content[60] ^= 1
    shard.write_bytes(content)
    windows = PackedWindows(out)
    where = ""
    try:
        list(PackedLoader(windows, workers=workers))
    except DamageError as error:  # not kept: its frames hold the loader
        where = error.where
    assert where == str(shard)


def test_a_loader_leaves_torchs_random_numbers_alone(windows: PackedWindows) -> None:
    """Reading batches draws no number from the global generator, or dropout would differ after a resume."""
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    list(PackedLoader(windows, 2))
    assert torch.equal(torch.rand(3), expected)


# -- limits and positions


def test_the_last_batch(windows: PackedWindows) -> None:
    """A single process keeps a smaller last batch; fill, or a second rank, makes it as large as the others."""
    assert [len(batch["window"]) for batch in PackedLoader(windows, 4)] == [4, 4, 2]
    *_, last = PackedLoader(windows, 4, fill=True, length=SEQ_LEN)
    assert numbers_of(last)[2:] == [-1, -1]
    assert last["input_ids"].shape == (4, SEQ_LEN)
    assert (last["weights"][2:] == 0).all()
    assert last["denominator"][2:].tolist() == [0.0, 0.0]
    assert last["num_rows"][2:].tolist() == [0, 0]
    *_, last = PackedLoader(windows, 4, rank=1, world=2)
    assert numbers_of(last) == [-1] * 4
    assert len(PackedLoader(windows, 4)) == len(PackedLoader(windows, 4, fill=True)) == 3
    assert len(PackedLoader(windows, 10)) == len(PackedLoader(windows, 11)) == 1


def test_max_cells_limits_batches(windows: PackedWindows) -> None:
    """A batch has at most ``batch_size`` windows and ``max_cells`` cells of the length it may need."""
    for cells, length, size in ((8, None, 1), (31, None, 3), (32, None, 4), (1000, None, 5), (47, 16, 2), (48, 16, 3)):
        loader = PackedLoader(windows, 5, max_cells=cells, length=length)
        assert loader.batch_size == size
        batches = list(loader)
        assert len(batches) == len(loader) == -(-10 // size)
        assert all(batch["input_ids"].numel() <= cells for batch in batches)
        if length is not None:
            assert {batch["input_ids"].shape[1] for batch in batches} == {length}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "--batch-size: 0; at least 1"),
        ({"batch_size": -3}, "--batch-size: -3"),
        ({"max_cells": 7}, "--max-cells: 7; at least 8, the cells of one window"),
        ({"max_cells": 15, "length": 16}, "--max-cells: 15; at least 16"),
        ({"length": 7}, "length: 7; at least the 8 rows"),
        ({"rank": 2, "world": 2}, "rank: 2; 0 to 1"),
        ({"rank": -1, "world": 2}, "rank: -1"),
        ({"rank": 1}, "rank: 1; 0 to 0"),
    ],
)
def test_limits_that_cannot_work_are_refused(windows: PackedWindows, options: dict[str, Any], message: str) -> None:
    """A loader that could hand out nothing, or cut a window, says which option is wrong."""
    with pytest.raises(UsageError, match=message):
        PackedLoader(windows, **options)


def test_rank_and_world_come_from_torch(windows: PackedWindows) -> None:
    """Where torch.distributed runs, a loader takes its place from it; arguments win."""
    with (
        mock.patch("torch.distributed.is_initialized", return_value=True),
        mock.patch("torch.distributed.get_rank", return_value=2),
        mock.patch("torch.distributed.get_world_size", return_value=3),
    ):
        loader = PackedLoader(windows)
        given = PackedLoader(windows, rank=0, world=5)
    assert (loader.rank, loader.world, len(loader)) == (2, 3, 4)
    assert (given.rank, given.world, len(given)) == (0, 5, 2)
    assert (PackedLoader(windows).rank, PackedLoader(windows).world) == (0, 1)


def test_set_epoch(windows: PackedWindows) -> None:
    """Another epoch begins at its start; the current one, as after a resume, goes on where it stands."""
    loader = PackedLoader(windows, 2, seed=6)
    next(iter(loader))
    loader.set_epoch(0)
    assert numbers_of(next(iter(loader))) == window_order(10, 6, 0).tolist()[2:4]
    loader.set_epoch(4)
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (4, 0)
    assert [number for batch in loader for number in numbers_of(batch)] == window_order(10, 6, 4).tolist()
    assert loader.epoch == 5
    loader.set_epoch(0)
    assert numbers_of(next(iter(loader))) == window_order(10, 6, 0).tolist()[:2]


def test_a_state_of_something_else_is_refused(tmp_path: Path, windows: PackedWindows, ten: Path) -> None:
    """A position means nothing in another order: other shards, seeds and partitions are refused, and left alone."""
    examples = [chain(number, 4) for number in range(20)]
    other = publish(tmp_path, examples, "--layout", "padded", "--val-fraction", "0.5")
    loader = PackedLoader(windows, 2, seed=1)
    next(iter(loader))
    before = loader.state_dict()
    assert json.loads(json.dumps(before)) == before
    states: dict[str, State] = {
        "seed 2": PackedLoader(windows, seed=2).state_dict(),
        "shuffle False": PackedLoader(windows, seed=1, shuffle=False).state_dict(),
        "fingerprints": PackedLoader(PackedWindows(other), seed=1).state_dict(),
        "version": before | {"version": 2},
        "version None": {},
    }
    for message, state in states.items():
        with pytest.raises(MismatchError, match=f"loader state: {message}"):
            loader.load_state_dict(state)
        assert loader.state_dict() == before
    train, val = PackedLoader(PackedWindows(other)), PackedLoader(PackedWindows(other, partition="val"))
    with pytest.raises(MismatchError, match="loader state: partition val; train"):
        train.load_state_dict(val.state_dict())
    twice = PackedLoader(PackedWindows(ten, ten), seed=1)
    with pytest.raises(MismatchError, match="fingerprints"):
        twice.load_state_dict(before)


@pytest.mark.parametrize("objective", ["counted", "unique"])
def test_batches_say_where_they_come_from(ten: Path, objective: Literal["counted", "unique"]) -> None:
    """Every batch names its partition, its objective, its tokenizer and its builds."""
    (generation,) = (ten / "generations").iterdir()
    manifest = Manifest.from_bytes((generation / "manifest.json").read_bytes(), generation)
    for workers in (0, 1):
        for batch in PackedLoader(PackedWindows(ten, objective=objective), 5, workers=workers):
            assert batch["metadata"] == {
                "partition": "train",
                "tokenizer_sha256": manifest.tokenizer["sha256"],
                "fingerprints": [manifest.fingerprint],
                "objective": objective,
            }
