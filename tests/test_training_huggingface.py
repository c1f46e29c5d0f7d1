"""Models of transformers on packed windows: what each example computes alone, and by name what cannot be packed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from exactness import Alone, TemporaryDirectory, build_layout, contexts_of, random_examples, worst, worst_of
from huggingface_models import run_alone, tiny_config, tiny_model
from oracle import Example
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from dagpack_cli.errors import UsageError
from dagpack_cli.training import collate, tree_bool_mask, weighted_loss
from dagpack_cli.training.huggingface import (
    attention_mask_for,
    choose_attention,
    model_inputs,
    refuse_unsupported,
)
from dagpack_cli.training.precision import float64_only

Batch = dict[str, Any]
SDPA = ["llama", "qwen2", "qwen2-windowed", "qwen3", "qwen3-moe", "gemma3", "mistral", "mistral-unwindowed"]
SDPA += ["llama4", "gpt-neox", "gpt2", "opt", "deepseek-v3"]
WINDOWED = {"qwen2-windowed", "gemma3", "mistral", "gemma2", "gpt-oss"}
EVERYWHERE = [(name, attention) for name in SDPA for attention in ("sdpa", "eager", "dagpack_segments")]
CASES = [*EVERYWHERE, ("gemma2", "eager"), ("gpt-oss", "eager"), ("falcon", "sdpa"), ("falcon", "eager")]
FLEX = ["llama", "qwen2-windowed", "qwen3", "qwen3-moe", "gemma3", "gemma2", "mistral", "gpt-neox", "llama4"]


_DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}


@cache
def corpus() -> tuple[list[Example], Batch, Batch]:
    """Return examples, and all their windows in one batch: short, and of 128 rows."""
    examples = [example for seed in (3, 4, 8) for example in random_examples(seed)]
    with TemporaryDirectory() as folder:
        longest = max(len(example.tokens) for example in examples) - 1
        windows, _, _ = build_layout(Path(folder), examples, "dag", longest + 9)
        rows = windows.__getitems__(range(len(windows)))
        batches = [collate(rows, length) for length in (max(row["num_rows"] for row in rows) + 3, 128)]
    assert batches[0]["position_ids"].max() >= 6
    assert len(rows) > 1
    return examples, batches[0], batches[1]


@cache
def alone(name: str) -> Alone:
    """Return what every example of the corpus computes alone in a model, by transformers' own masks."""
    model = tiny_model(name, "eager")
    with float64_only():
        return run_alone(model, corpus()[0])


def run(model: Any, batch: Batch, **changes: Any) -> tuple[Tensor, Tensor]:
    """Return the logits and the summed loss of a batch."""
    inputs = model_inputs(model.config, batch, dtype=torch.float64) | changes
    logits = model(**inputs).logits
    return logits, weighted_loss(logits, batch["targets"], batch["weights"], 1.0)


def gradients(model: Any, loss: Tensor) -> list[Tensor]:
    """Return the gradient of every parameter, 0 where there is none."""
    parameters = list(model.parameters())
    found: Sequence[Tensor | None] = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [
        torch.zeros_like(parameter) if gradient is None else gradient
        for parameter, gradient in zip(parameters, found, strict=True)
    ]


def assert_as_alone(model: Any, name: str, batch: Batch) -> None:
    """Check logits of every row, the loss and every gradient of a batch against the examples alone."""
    expected = alone(name)
    with float64_only():
        logits, loss = run(model, batch)
        found = gradients(model, loss)
    contexts = contexts_of(batch)
    rows = torch.stack([logits[place] for place in contexts])
    assert worst(rows, torch.stack([expected.logits[context] for context in contexts.values()])) <= 1
    total, summed = expected.summed(list(range(len(expected.losses))))
    assert worst(loss, total) <= 1
    assert worst_of(found, summed) <= 1
    assert sum(float(gradient.abs().max()) > 1e-3 for gradient in found) > len(found) / 2


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_packed_windows_compute_what_the_examples_alone_do(name: str, attention: str) -> None:
    """Logits of every row, weighted loss and every gradient, in float64, for every attention a model has."""
    assert_as_alone(tiny_model(name, attention), name, corpus()[1])


@pytest.fixture
def uncompiled_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let FlexAttention train on a CPU: uncompiled, and without torch's check that it should not."""
    import torch.nn.attention.flex_attention as module
    from transformers.integrations import flex_attention as integration

    def direct(query: Tensor, key: Tensor, value: Tensor, training: bool = False, **others: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
            return flex_attention(query, key, value, **others)

    monkeypatch.setattr(module, "_validate_device", lambda *_: None)
    monkeypatch.setattr(integration, "compile_friendly_flex_attention", direct)


@pytest.mark.usefixtures("uncompiled_flex")
@pytest.mark.parametrize("name", FLEX)
def test_flex_attention_computes_what_the_examples_alone_do(name: str) -> None:
    """The same under block masks, which on a CPU only a test can train with."""
    assert_as_alone(tiny_model(name, "flex_attention"), name, corpus()[2])


def test_compiled_flex_attention_makes_one_graph_a_kind_of_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows change, block masks change, and what is compiled stays: one graph for full layers, one for windowed."""
    from transformers.integrations import flex_attention as integration

    torch._dynamo.reset()
    graphs = 0

    def backend(module: Any, given: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module.forward  # the graph itself; what inductor makes of it is tested with the masks

    compiled = torch.compile(flex_attention, backend=backend, dynamic=False)

    def counted(query: Tensor, key: Tensor, value: Tensor, training: bool = False, **others: Any) -> Any:
        return compiled(query, key, value, **others)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", counted)
    model, other = (tiny_model("gemma3", attention).float() for attention in ("flex_attention", "sdpa"))
    batch = corpus()[2]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for shift in range(3):
            turned = {name: value.roll(shift, 0) for name, value in batch.items() if isinstance(value, Tensor)}
            logits = model(**model_inputs(model.config, turned)).logits
            expected = other(**model_inputs(other.config, turned)).logits
            assert torch.allclose(logits, expected, rtol=1e-4, atol=1e-4)
    assert graphs == 2


def checkpoint_layers(model: Any, **options: Any) -> None:
    """Compute activations again in backward; by the name that transformers has for it since 5."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(activation_checkpointing_kwargs=options)
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("attention", ["sdpa", "dagpack_segments"])
def test_gradient_checkpointing_changes_nothing(attention: str, reentrant: bool) -> None:
    """Activations that are computed again give the same gradients, to the bit, and the same loss."""
    model = tiny_model("gemma3", attention)
    found = {}
    for again in (False, True):
        if again:
            checkpoint_layers(model, use_reentrant=reentrant)
        _, loss = run(model, corpus()[1])
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch's own
        found[again] = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    assert all(torch.equal(left, right) for left, right in zip(found[False], found[True], strict=True))


@pytest.mark.parametrize("name", sorted({"mistral", "gemma3", "qwen2-windowed"}))
def test_a_windowed_model_needs_its_own_mask(name: str) -> None:
    """The plain tree mask runs in a windowed model and is wrong: the comparison above would notice."""
    model, batch = tiny_model(name, "sdpa"), corpus()[1]
    right, _ = run(model, batch)
    wrong, _ = run(model, batch, attention_mask=tree_bool_mask(batch["subtree_ends"]))
    assert float((right - wrong).detach().abs().max()) > 0.01


def test_depths_without_a_mask_are_guessed_to_be_packed_sequences() -> None:
    """Left with depths alone, transformers computes something else without a word; so inputs always have a mask."""
    model, batch = tiny_model("llama", "sdpa"), corpus()[1]
    right, _ = run(model, batch)
    wrong, _ = run(model, batch, attention_mask=None)
    assert float((right - wrong).detach().abs().max()) > 0.01
    inputs = model_inputs(model.config, batch)
    assert set(inputs) == {"input_ids", "position_ids", "attention_mask", "use_cache"}
    assert inputs["attention_mask"] is not None
    assert inputs["use_cache"] is False


def test_every_attention_gets_its_own_kind_of_mask() -> None:
    """Booleans never reach eager attention, which would add them; mixed layers get a mask for each kind."""
    _, short, padded = corpus()
    for name in ("llama", "mistral", "gemma3"):
        for attention, batch in (
            ("sdpa", short),
            ("eager", short),
            ("dagpack_segments", short),
            ("flex_attention", padded),
        ):
            given = attention_mask_for(tiny_config(name, attn_implementation=attention), batch, dtype=torch.bfloat16)
            masks = list(given.values()) if isinstance(given, dict) else [given]
            assert len(masks) == (2 if name == "gemma3" else 1)
            for mask in masks:
                assert isinstance(mask, BlockMask) == (attention == "flex_attention")
                assert mask.shape[0] == len(batch["input_ids"])
                if isinstance(mask, Tensor):
                    kinds = {"sdpa": torch.bool, "eager": torch.bfloat16, "dagpack_segments": torch.int32}
                    assert mask.dtype == kinds[attention]
    mixed = attention_mask_for(tiny_config("gemma3", attn_implementation="sdpa"), short)
    assert isinstance(mixed, dict)
    full, near = mixed["full_attention"], mixed["sliding_attention"]
    assert isinstance(full, Tensor)
    assert isinstance(near, Tensor)
    assert torch.equal(full, tree_bool_mask(short["subtree_ends"]))
    assert 0 < int(near.sum()) < int(full.sum())
    mistral = tiny_config("mistral", attn_implementation="sdpa")
    mistral.layer_types = ["full_attention"] * 2  # a field that this architecture does not read
    given = attention_mask_for(mistral, short)
    assert isinstance(given, Tensor)
    assert torch.equal(given, near)
    for used, expected in ((False, full), (True, near)):
        switch = tiny_config("llama", attn_implementation="sdpa", sliding_window=3, use_sliding_window=used)
        given = attention_mask_for(switch, short)
        assert isinstance(given, Tensor)
        assert torch.equal(given, expected)


def test_a_composite_configuration_is_read_by_its_text_part() -> None:
    """A model of text and images takes the masks of its text model."""
    from transformers import CONFIG_MAPPING

    kind: Any = CONFIG_MAPPING["gemma3"]
    composite = kind(text_config=tiny_config("gemma3").to_dict(), attn_implementation="sdpa")
    found = attention_mask_for(composite, corpus()[1])
    assert isinstance(found, dict)
    assert set(found) == {"full_attention", "sliding_attention"}
    refuse_unsupported(composite)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("mamba", {}, "state|position_ids"),
        ("mamba2", {}, "state|position_ids"),
        ("falcon_mamba", {}, "state|position_ids"),
        ("jamba", {}, "linear_attention|mamba"),
        ("bamba", {}, "linear_attention|mamba"),
        ("zamba", {}, "hybrid|mamba"),
        ("zamba2", {}, "hybrid|mamba"),
        ("falcon_h1", {}, "hybrid|mamba"),
        ("nemotron_h", {}, "linear_attention|mamba"),
        ("qwen3_next", {}, "linear_attention"),
        ("minimax", {}, "linear_attention"),
        ("recurrent_gemma", {}, "linear_attention|recurrent"),
        ("lfm2", {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2}, "conv"),
        ("rwkv", {}, "position_ids"),
        ("bloom", {}, "alibi"),
        ("mpt", {}, "alibi"),
        ("falcon-alibi", {}, "alibi"),
        ("bart", {}, "position_ids|encoder"),
        ("t5", {}, "no causal language model"),
        ("bert", {}, "not causal"),
        ("roberta", {}, "not causal"),
        ("bert-generation", {}, "not causal"),
        ("vit", {}, "no causal language model"),
        ("gpt_neo", {}, "counts rows"),
        ("gemma3", {"use_bidirectional_attention": True}, "not causal"),
        ("moshi", {}, "see more"),
        ("openai-gpt", {}, "its own"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(name: str, changes: dict[str, Any], reason: str) -> None:
    """States from row to row, biases by distance of rows, encoders: refused before anything runs, with the reason."""
    config = tiny_config(name, **changes)
    with pytest.raises(UsageError, match=reason) as raised:
        refuse_unsupported(config)
    assert raised.value.where == f"model {config.model_type}"
    assert raised.value.hint
    if "no causal" not in reason:
        with pytest.raises(UsageError, match=reason):
            attention_mask_for(config, corpus()[1])


@pytest.mark.parametrize("name", [*SDPA, "gemma2", "gpt-oss", "falcon", "granite", "olmo2", "phi3", "lfm2"])
def test_what_can_be_packed_is_not_refused(name: str) -> None:
    """The architectures that were measured pass, at every depth below their positions."""
    refuse_unsupported(tiny_config(name), longest_depth=63)


@pytest.mark.parametrize(
    ("name", "changes", "limit", "reason"),
    [
        ("gpt2", {"n_positions": 12}, 12, "learned positions"),
        ("opt", {"max_position_embeddings": 12}, 12, "learned positions"),
        (
            "llama",
            {"max_position_embeddings": 12, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            12,
            "rotary",
        ),
        (
            "phi3",
            {
                "max_position_embeddings": 64,
                "original_max_position_embeddings": 12,
                "hidden_size": 16,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]},
            },
            12,
            "rotary",
        ),
    ],
)
def test_positions_end_somewhere(name: str, changes: dict[str, Any], limit: int, reason: str) -> None:
    """Learned positions that run out, and angles that depend on the longest depth of a batch."""
    config = tiny_config(name, **changes, attn_implementation="sdpa")
    refuse_unsupported(config, longest_depth=limit - 1)
    with pytest.raises(UsageError, match=reason):
        refuse_unsupported(config, longest_depth=limit)
    batch = corpus()[1]
    depth = int(batch["position_ids"].max())
    assert depth < limit < batch["position_ids"].shape[1]
    model_inputs(config, batch)  # the window is longer, its depths are not
    deeper = batch | {"position_ids": batch["position_ids"] + limit - depth}
    with pytest.raises(UsageError, match=reason):
        model_inputs(config, deeper)


def test_rotary_positions_without_a_limit_have_none() -> None:
    """A plain rotary model may see any depth, whatever length it was made for."""
    refuse_unsupported(tiny_config("llama", max_position_embeddings=8), longest_depth=1_000_000)


def test_an_unknown_architecture_is_refused_until_it_is_asked_for() -> None:
    """Nobody knows how code that is not of transformers attends; what its configuration tells still counts."""
    from transformers import PretrainedConfig

    class Custom(PretrainedConfig):  # type: ignore[no-untyped-call]  # transformers' own
        model_type = "custom"

        def __init__(self, **fields: Any) -> None:
            super().__init__(**fields)

    with pytest.raises(UsageError, match="nothing is known"):
        refuse_unsupported(Custom())
    refuse_unsupported(Custom(), allow_unknown=True)
    with pytest.raises(UsageError, match="state"):
        refuse_unsupported(Custom(mamba_d_state=16), allow_unknown=True)
    for config, reason in (
        (Custom(layer_types=["sliding_attention"]), "no size"),
        (Custom(layer_types=["something_else"]), "something_else"),
        (Custom(is_causal=False), "not causal"),
        (Custom(is_encoder_decoder=True), "encoder-decoder"),
    ):
        with pytest.raises(UsageError, match=reason):
            refuse_unsupported(config, allow_unknown=True)


def test_batches_and_attentions_that_do_not_fit_are_refused() -> None:
    """Lengths that FlexAttention gets wrong, models without it, shapes that would broadcast, attention of no mask."""
    _, batch, padded = corpus()
    flex = tiny_config("llama", attn_implementation="flex_attention")
    assert isinstance(attention_mask_for(flex, padded), BlockMask)
    for length in (batch["input_ids"].shape[1], 64, 127):
        cut = {name: padded[name][:, :length] for name in ("input_ids", "position_ids", "subtree_ends")}
        with pytest.raises(UsageError, match="multiple of 128"):
            attention_mask_for(flex, cut)
    with pytest.raises(UsageError, match="no FlexAttention"):
        attention_mask_for(tiny_config("gpt2", attn_implementation="flex_attention"), padded)
    with pytest.raises(UsageError, match="its attention is its own"):
        attention_mask_for(tiny_config("falcon", attn_implementation="dagpack_segments"), batch)
    for attention in ("flash_attention_2", None):
        with pytest.raises(UsageError, match="takes no tree mask"):
            attention_mask_for(tiny_config("llama", attn_implementation=attention), batch)
    config = tiny_config("llama", attn_implementation="sdpa")
    ends = batch["subtree_ends"]
    for wrong in ({"subtree_ends": ends[:1]}, {"subtree_ends": ends.long()}, {"position_ids": ends[:, :-1].long()}):
        with pytest.raises(UsageError, match="all \\(batch, length\\)"):
            model_inputs(config, batch | wrong)


def test_the_fastest_exact_attention_is_chosen() -> None:
    """FlexAttention on a GPU where heads are wide enough; segments on a CPU; what scores need, elsewhere."""
    wide = {"hidden_size": 64, "head_dim": 16}
    for name, changes, device, expected in (
        ("llama", wide, "cuda", "flex_attention"),
        ("llama", {}, "cuda", "sdpa"),
        ("llama", wide, "mps", "sdpa"),
        ("llama", {}, "cpu", "dagpack_segments"),
        ("gemma3", {}, "cpu", "dagpack_segments"),
        ("gemma2", {}, "cpu", "eager"),
        ("gemma2", {"head_dim": 16}, "cuda", "flex_attention"),
        ("gpt-oss", {}, "cpu", "eager"),
        ("gpt2", {}, "cuda", "sdpa"),
        ("gpt2", {}, "cpu", "dagpack_segments"),
        ("falcon", {}, "cpu", "sdpa"),
        ("gemma4_text", {}, "cpu", "dagpack_segments"),
        ("gemma4_text", {}, "cuda", "flex_attention"),
    ):
        assert choose_attention(tiny_config(name, **changes), device) == expected, (name, device)
    with pytest.raises(UsageError, match="linear_attention"):
        choose_attention(tiny_config("qwen3_next"), "cpu")


def test_segments_serve_ordinary_masks_too_and_refuse_scores_they_would_change() -> None:
    """Without a tree the model attends as with SDPA, padding included; soft caps and sinks are an error, not lost."""
    model, other = tiny_model("llama", "dagpack_segments"), tiny_model("llama", "sdpa")
    ids = torch.arange(3, 15).view(2, 6)
    padding = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    for mask in (None, padding):
        assert torch.equal(model(ids, attention_mask=mask).logits, other(ids, attention_mask=mask).logits)
    for name, what in (("gemma2", "softcap"), ("gpt-oss", "s_aux")):
        model = tiny_model(name, "eager")
        model.config._attn_implementation = "dagpack_segments"
        with pytest.raises(UsageError, match=what):
            run(model, corpus()[1])


def test_segments_can_be_set_on_a_model_that_is_loaded() -> None:
    """``set_attn_implementation`` takes the name, and logits stay."""
    model, batch = tiny_model("qwen3", "sdpa"), corpus()[1]
    before, _ = run(model, batch)
    model.set_attn_implementation("dagpack_segments")
    after, _ = run(model, batch)
    assert float((before - after).detach().abs().max()) < 1e-6


def test_float64_only_leaves_no_float32() -> None:
    """Calls that name float32 give float64 within it, and models lose their float32 parts."""
    value = torch.tensor([1.0 / 3.0, 2.0 / 3.0], dtype=torch.float64)
    calls: list[Callable[[], Tensor]] = [
        lambda: value.float(),
        lambda: value.to(torch.float32),
        lambda: value.to(dtype=torch.float32),
        lambda: torch.softmax(value, -1, dtype=torch.float32),
        lambda: torch.nn.functional.softmax(value, dim=-1, dtype=torch.float32),
        lambda: value.sum(dtype=torch.float32),
        lambda: torch.arange(2).float(),
    ]
    assert all(call().dtype == torch.float32 for call in calls)
    with float64_only():
        assert all(call().dtype == torch.float64 for call in calls)
    model, batch = tiny_model("llama", "eager"), corpus()[1]
    with torch.no_grad():
        rounded, _ = run(model, batch)
        with float64_only():
            exact, _ = run(model, batch)
    assert 1e-9 < float((rounded - exact).abs().max()) < 1e-4
