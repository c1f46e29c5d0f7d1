"""Tiny models of transformers with random weights, by name; nothing is loaded from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from exactness import Alone
from oracle import Example
from torch import Tensor

from dagpack_cli.training.huggingface import register_segments

__all__ = ["MODELS", "run_alone", "tiny_config", "tiny_model"]

_VOCABULARY = 266
_COMMON: dict[str, Any] = {
    "vocab_size": _VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = _COMMON | {"num_key_value_heads": 2}
_MIXED = _GROUPED | {"head_dim": 8, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "head_dim": 8}
_GPT2 = {"n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": _VOCABULARY}
# By a name of ours: transformers' type, and what is not its default.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _GROUPED),
    "qwen2": ("qwen2", _GROUPED),
    "qwen2-windowed": ("qwen2", _GROUPED | {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 1}),
    "qwen3": ("qwen3", _GROUPED | {"head_dim": 8}),
    "qwen3-moe": ("qwen3_moe", _GROUPED | _EXPERTS),
    "gemma3": ("gemma3_text", _MIXED),
    "gemma2": ("gemma2", _MIXED),
    "gpt-oss": ("gpt_oss", _MIXED | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mistral": ("mistral", _GROUPED | {"sliding_window": 3}),
    "mistral-unwindowed": ("mistral", _GROUPED | {"sliding_window": None}),
    "llama4": (
        "llama4_text",
        _GROUPED
        | {
            "head_dim": 8,
            "intermediate_size_mlp": 24,
            "num_local_experts": 2,
            "attention_chunk_size": 3,
            "layer_types": ["chunked_attention", "full_attention"],
        },
    ),
    "gpt-neox": ("gpt_neox", _COMMON),
    "gpt2": ("gpt2", _GPT2 | {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}),
    "falcon": ("falcon", _COMMON | {"alibi": False}),
    "falcon-alibi": ("falcon", _COMMON | {"alibi": True}),
    "opt": ("opt", _COMMON | {"ffn_dim": 24, "word_embed_proj_dim": 16, "dropout": 0.0}),
    "deepseek-v3": (
        "deepseek_v3",
        _COMMON
        | _EXPERTS
        | {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_group": 1,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 8,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 4,
            "head_dim": 8,
        },
    ),
    "bert": ("bert", _COMMON),
}


def tiny_config(name: str, **changes: Any) -> Any:
    """Return the configuration of a tiny model, or of the defaults of a type of transformers, with some changes."""
    from transformers import CONFIG_MAPPING

    model_type, sizes = MODELS.get(name, (name, {}))
    return CONFIG_MAPPING[model_type](**sizes | changes)


def tiny_model(name: str, attention: str, *, seed: int = 0, **changes: Any) -> Any:
    """Return a tiny model in float64, ready to train, whose weights are large enough for attention to matter."""
    from transformers import AutoModelForCausalLM

    register_segments()
    torch.manual_seed(seed)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(tiny_config(name, **changes), attn_implementation=attention)
    if getattr(model.config, "num_experts", None):
        model.set_experts_implementation("eager")  # the grouped product takes no float64
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    return model.double().train()


def run_alone(model: Any, examples: list[Example]) -> Alone:
    """Run every example by itself: token ids and nothing else, so the model's own causal mask; a loss by hand."""
    alone = Alone({}, [], [])
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for example in examples:
        logits = model(input_ids=torch.tensor([example.tokens[:-1]]), use_cache=False).logits[0]
        loss = torch.zeros((), dtype=torch.float64)
        for target in sorted(example.trained):
            loss = loss - example.weight * torch.log_softmax(logits[target - 1], -1)[example.tokens[target]]
        for end in range(1, len(example.tokens)):
            alone.logits[example.tokens[:end]] = logits[end - 1].detach()
        alone.losses.append(loss.detach())
        gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, parameters, allow_unused=True)
        alone.gradients.append(
            [
                torch.zeros_like(parameter) if gradient is None else gradient
                for parameter, gradient in zip(parameters, gradients, strict=True)
            ]
        )
    return alone
