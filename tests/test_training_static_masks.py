"""Masks in fixed buffers; one compiled graph for all windows; and no silent way out of compiling."""

from __future__ import annotations

import contextvars
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_models import tiny_model
from test_training_masks import depths_of, random_ends
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from dagpack_cli.errors import UsageError
from dagpack_cli.training import Decoder, DecoderConfig, model_inputs, tree_block_mask, tree_bool_mask
from dagpack_cli.training import attention as attention_module
from dagpack_cli.training.static_masks import StaticBlockMask

BATCH, LENGTH, BLOCK = 2, 320, 64
NEARNESS: list[dict[str, Any]] = [{}, {"sliding_window": 5}, {"chunk": 7}]


def tensors_of(mask: BlockMask) -> list[Tensor]:
    """Return all that a kernel reads of a mask: its lists, and what its ``mask_mod`` captures."""
    captured = [cell.cell_contents for cell in mask.mask_mod.__closure__ or ()]
    return [value for value in (*mask.as_tuple(), *captured) if isinstance(value, Tensor)]


@pytest.mark.parametrize("near", NEARNESS, ids=str)
def test_every_batch_is_written_into_the_same_tensors(near: dict[str, Any]) -> None:
    """Over changing windows nothing moves, and every number is that of a mask made anew."""
    static = StaticBlockMask(BATCH, LENGTH, block_size=BLOCK, **near)
    mask, mask_mod = static.mask, static.mask.mask_mod
    places = [tensor.data_ptr() for tensor in tensors_of(mask)]
    assert len(set(places)) == 8 + (3 if near else 1)
    for seed in range(6):
        parents, ends = random_ends(seed, BATCH, LENGTH)
        depths = depths_of(parents)
        given = ends.clone(), depths.clone()
        assert static.update(*given) is mask
        for tensor in given:
            tensor.fill_(1)  # the mask has its own copy
        fresh = tree_block_mask(ends, BLOCK, depths=depths, **near)
        for found, expected in zip(tensors_of(mask), tensors_of(fresh), strict=True):
            assert found.dtype == expected.dtype
            assert torch.equal(found, expected)
        assert [tensor.data_ptr() for tensor in tensors_of(mask)] == places
        assert mask.mask_mod is mask_mod
        assert (mask.seq_lengths, mask.BLOCK_SIZE) == (fresh.seq_lengths, fresh.BLOCK_SIZE)
        seen = create_mask(mask_mod, BATCH, 1, LENGTH, LENGTH, device="cpu")
        assert torch.equal(seen, tree_bool_mask(ends, depths=depths, **near))


@pytest.mark.parametrize("near", NEARNESS, ids=str)
def test_before_any_batch_a_row_sees_itself_alone(near: dict[str, Any]) -> None:
    """A capture may warm up on it: no row is without a key."""
    mask = StaticBlockMask(1, 200, block_size=BLOCK, **near).mask
    assert torch.equal(create_mask(mask.mask_mod, 1, 1, 200, 200, device="cpu")[0, 0], torch.eye(200, dtype=torch.bool))
    assert mask.full_kv_num_blocks is not None
    assert not mask.full_kv_num_blocks.any()
    assert mask.kv_num_blocks.tolist() == [[[1, 1, 1, 1]]]


def test_what_does_not_fit_is_refused() -> None:
    """Buffers are of one shape and dtype; a wrong one would be broadcast or cut."""
    for sizes in ((0, 128), (1, 0)):
        with pytest.raises(ValueError, match="1 up"):
            StaticBlockMask(*sizes)
    with pytest.raises(ValueError, match="one of them"):
        StaticBlockMask(1, 128, sliding_window=2, chunk=2)
    static = StaticBlockMask(2, 128)
    for ends in (torch.ones(1, 128, dtype=torch.int32), torch.ones(2, 128, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"\(2, 128\) torch.int32"):
            static.update(ends)
    near = StaticBlockMask(2, 128, chunk=2)
    for depths in (None, torch.zeros(1, 128)):
        with pytest.raises(ValueError, match="depths of shape"):
            near.update(torch.ones(2, 128, dtype=torch.int32), depths)


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile on a CPU needs a C++ compiler")
def test_compiled_attention_reads_the_buffers_anew() -> None:
    """One graph and one mask object serve changing windows, and agree with SDPA in float32."""
    torch._dynamo.reset()
    graphs = 0

    def backend(module: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return torch._inductor.compile(module, inputs)

    static = StaticBlockMask(2, 256)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        compiled = torch.compile(flex_attention, backend=backend, dynamic=False)
        generator = torch.Generator().manual_seed(0)
        for seed in range(5):
            ends = random_ends(seed, 2, 256)[1]
            query, key, value = (torch.randn(2, 2, 256, 16, generator=generator) for _ in range(3))
            found = compiled(query, key, value, block_mask=static.update(ends))
            expected = scaled_dot_product_attention(query, key, value, attn_mask=tree_bool_mask(ends))
            assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert graphs == 1


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make graphs, and run them as they are: it is their number that counts, of which two are allowed."""
    from transformers.integrations.flex_attention import WrappedFlexAttention

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    monkeypatch.setattr(WrappedFlexAttention, "_instance", None)
    attention_module.compiled_flex_attention.cache_clear()
    yield
    attention_module.compiled_flex_attention.cache_clear()
    WrappedFlexAttention._instance = None
    torch._dynamo.reset()


def in_a_new_thread(function: Callable[[], Any]) -> Any:
    """Return what a function returns or raises in a thread that nothing has been set for."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=contextvars.Context().run, args=(run,))
    thread.start()
    thread.join()
    return found[0]


def batch_of(length: int, batch: int = 1) -> dict[str, Tensor]:
    """Return a batch of random windows."""
    parents, ends = random_ends(length, batch, length)
    ids = torch.from_numpy(np.random.default_rng(length).integers(0, 266, (batch, length)))
    return {"input_ids": ids, "position_ids": depths_of(parents), "subtree_ends": ends}


def forward(model: Any, shapes: list[tuple[int, int]], *, refuses: bool = True) -> int:
    """Call a model on batches of some shapes, with block masks and at most two graphs; return how many there were."""
    torch._dynamo.config.recompile_limit = 2
    with torch.no_grad():
        for number, (batch, length) in enumerate(shapes):
            given = batch_of(length, batch)
            given["position_ids"] %= 64
            if isinstance(model, Decoder):
                model(given["input_ids"], given["position_ids"], tree_block_mask(given["subtree_ends"]))
                continue
            inputs = model_inputs(model.config, given)
            if not refuses and number == 0:
                torch._dynamo.config.fail_on_recompile_limit_hit = False
            model(**inputs)
    return len(shapes)


SHAPES = [(1, 128), (1, 256), (2, 128), (1, 384)]


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore")
def test_a_hugging_face_model_does_not_fall_back_in_silence() -> None:
    """Transformers compiles FlexAttention itself; where graphs run out, its models raise too, in any thread."""
    model = tiny_model("llama", "flex_attention").float()
    assert in_a_new_thread(lambda: torch._dynamo.config.fail_on_recompile_limit_hit) is False
    assert in_a_new_thread(lambda: forward(model, SHAPES[:1] * 3)) == 3
    torch._dynamo.reset()
    assert isinstance(in_a_new_thread(lambda: forward(model, SHAPES)), torch._dynamo.exc.FailOnRecompileLimitHit)
    torch._dynamo.reset()
    # What a program sets after its first mask stays: it is asked once.
    assert in_a_new_thread(lambda: forward(model, SHAPES, refuses=False)) == len(SHAPES)


@pytest.mark.usefixtures("traced")
@pytest.mark.filterwarnings("ignore")
def test_the_built_in_decoder_says_what_is_wrong_with_its_batches() -> None:
    """Of one shape there may be any number; of too many shapes there is an error of ours, in any thread."""
    decoder = Decoder(DecoderConfig(vocab_size=266, width=8, heads=2, feed_forward=8, layers=2))
    assert in_a_new_thread(lambda: forward(decoder, SHAPES[:1] * 5)) == 5
    torch._dynamo.reset()
    masks = [tree_block_mask(batch_of(length)["subtree_ends"]) for length in (128, 256, 384)]

    def without_the_setting() -> None:
        # As in a thread of autograd, where activations are computed again under a mask made elsewhere.
        torch._dynamo.config.recompile_limit = 2
        for mask in masks:
            rows = torch.zeros(1, 2, mask.shape[-1], 4)
            attention_module.attend(rows, rows, rows, mask)

    for run, where in ((lambda: forward(decoder, SHAPES), "2 x 128"), (without_the_setting, "1 x 384")):
        torch._dynamo.reset()
        error = in_a_new_thread(run)
        assert isinstance(error, UsageError), error
        assert where in str(error)


def test_a_mask_may_be_made_in_compiled_code() -> None:
    """The setting is left alone while torch traces: nothing there may have effects."""
    torch._dynamo.reset()

    def lists(ends: Tensor) -> tuple[Tensor, Tensor]:
        mask = tree_block_mask(ends)
        return mask.kv_num_blocks, mask.kv_indices

    ends = random_ends(3, 2, 256)[1]
    compiled = torch.compile(lists, backend="eager", fullgraph=True)
    found = in_a_new_thread(lambda: (*compiled(ends), torch._dynamo.config.fail_on_recompile_limit_hit))
    assert not isinstance(found, Exception), found
    assert found[2] is False
    for one, other in zip(found[:2], lists(ends), strict=True):
        assert torch.equal(one, other)
