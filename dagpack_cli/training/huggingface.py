"""A batch of windows as the inputs of a causal language model of Hugging Face transformers.

``logits = model(**model_inputs(model.config, batch)).logits``, then `weighted_loss` of them with the batch's
targets and weights. There are no labels among the inputs: these models shift labels by a row, and a
window's rows have their targets already.

Depths never go without a mask: left alone with them, transformers takes the batch for packed sequences
and guesses where those start. Each kind of attention takes masks of its own kind, and a wrong one is often
added to the scores without a word, so the kind follows ``config._attn_implementation``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from dagpack_cli.errors import UsageError
from dagpack_cli.training import architectures
from dagpack_cli.training.architectures import Layers, check_depth, layer_kinds, refusal, refuse_unsupported
from dagpack_cli.training.masks import tree_additive_mask, tree_block_mask, tree_bool_mask
from dagpack_cli.training.segments import interval_mask, is_interval_mask, segment_attention

__all__ = [
    "SEGMENTS",
    "attention_mask_for",
    "choose_attention",
    "model_inputs",
    "refuse_unsupported",
    "register_segments",
]

Mask = Tensor | BlockMask
SEGMENTS = "dagpack_segments"
_FLEX_ROWS = 128
# What a call of attention may carry that changes scores, and that SDPA over segments would drop.
_SCORE_CHANGES = ("softcap", "s_aux", "sinks", "position_bias", "head_mask", "indices", "block_indices")


def attention_mask_for(
    config: Any, batch: Mapping[str, Any], *, dtype: torch.dtype = torch.float32
) -> Mask | dict[str, Mask]:
    """Return the ``attention_mask`` that a model takes for a batch of windows.

    Args:
        config: ``model.config``; its ``_attn_implementation`` decides the kind of mask.
        batch: of `collate`, on the device of the model.
        dtype: of an additive mask, for eager attention: the model's.

    Returns:
        for ``sdpa`` booleans, (batch, 1, length, length); for ``eager`` numbers to add, likewise; for
        ``flex_attention`` a `BlockMask`; for ``dagpack_segments`` what `interval_mask` gives. For layers that
        see a sliding window or a chunk, cut by depth. Where a model has layers of several kinds, a mask for
        each, by transformers' names of the kinds.

    Raises:
        UsageError: the model cannot take a tree, or attends in a way that takes no mask.
    """
    refuse_unsupported(config, allow_unknown=True)
    kinds = layer_kinds(config)
    implementation = _implementation(config)
    ends, depths = _intervals(batch)
    masks = {kind: _mask(config, implementation, ends, depths, layers, dtype) for kind, layers in kinds.items()}
    return masks if len(masks) > 1 else next(iter(masks.values()))


def _implementation(config: Any) -> str:
    text = architectures.text_config(config)
    name = getattr(text, "_attn_implementation", None) or getattr(config, "_attn_implementation", None)
    return str(name or "none")


def _intervals(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the subtree ends and depths of a batch, checked: a mask of another shape would be broadcast."""
    ends, depths, inputs = (batch[name] for name in ("subtree_ends", "position_ids", "input_ids"))
    if ends.dtype != torch.int32 or ends.ndim != 2 or not ends.shape == depths.shape == inputs.shape:
        found = f"{tuple(ends.shape)} {ends.dtype}, position_ids {tuple(depths.shape)}, input_ids {tuple(inputs.shape)}"
        raise UsageError(
            "batch", f"subtree_ends {found}", "all (batch, length), subtree_ends int32", hint="use collate"
        )
    return ends, depths


def _mask(config: Any, implementation: str, ends: Tensor, depths: Tensor, layers: Layers, dtype: torch.dtype) -> Mask:
    """Return the mask of layers of one kind."""
    near: dict[str, Any] = {"sliding_window": layers.sliding_window, "chunk": layers.chunk, "depths": depths}
    match implementation:
        case "sdpa":
            return tree_bool_mask(ends, **near)
        case "eager":
            return tree_additive_mask(ends, dtype, **near)
        case "dagpack_segments":
            _check_segments(config)
            return interval_mask(ends, **near)
        case "flex_attention":
            _check_flex(config, ends.shape[1])
            return tree_block_mask(ends, **near)
    raise refusal(
        config,
        f"attention {implementation} takes no tree mask",
        hint='model.set_attn_implementation("sdpa"), or what choose_attention names',
    )


def _check_segments(config: Any) -> None:
    found = architectures.model_class(config)
    if found is not None and not getattr(found, "_supports_attention_backend", False):
        reason = f"its attention is its own and takes no {SEGMENTS}"
        raise refusal(config, reason, hint="what choose_attention names")


def _check_flex(config: Any, length: int) -> None:
    found = architectures.model_class(config)
    if found is not None and not getattr(found, "_supports_flex_attn", False):
        raise refusal(config, "it has no FlexAttention", hint='model.set_attn_implementation("sdpa") or "eager"')
    if length % _FLEX_ROWS:
        hint = f"PackedLoader(length={-(-length // _FLEX_ROWS) * _FLEX_ROWS}), or collate with that length"
        raise UsageError("batch", f"{length:,} rows", f"a multiple of {_FLEX_ROWS} for FlexAttention", hint=hint)


def model_inputs(config: Any, batch: Mapping[str, Any], *, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Return what to call a causal language model with: ``model(**model_inputs(model.config, batch)).logits``.

    Args:
        config: ``model.config``.
        batch: of `collate`, on the device of the model.
        dtype: of an additive mask, for eager attention: the model's.

    Returns:
        ``input_ids``, ``position_ids``, ``attention_mask`` and ``use_cache``. No labels: see the module.

    Raises:
        UsageError: as `attention_mask_for`; or depths of the batch are past what the model's positions allow.
    """
    limit = architectures.position_limit(config)
    depths = batch["position_ids"]
    if limit is not None and depths.shape[-1] > limit[0]:  # depths are below the length, so mostly none is read
        check_depth(config, int(depths.max()))
    return {
        "input_ids": batch["input_ids"],
        "position_ids": depths,
        "attention_mask": attention_mask_for(config, batch, dtype=dtype),
        "use_cache": False,
    }


def choose_attention(config: Any, device: torch.device | str) -> str:
    """Return the fastest attention that is exact for a tree mask, by the name that transformers gives it.

    Args:
        config: of the model.
        device: that it will train on.

    Returns:
        for ``attn_implementation=`` or ``model.set_attn_implementation``.

    Raises:
        UsageError: the model cannot take a tree.
    """
    refuse_unsupported(config, allow_unknown=True)
    found = architectures.model_class(config)
    text = architectures.text_config(config)
    kind = torch.device(device).type
    if kind == "cuda" and getattr(found, "_supports_flex_attn", False) and _head_width(text) >= 16:
        return "flex_attention"
    if getattr(text, "attn_logit_softcapping", None) is not None or not getattr(found, "_supports_sdpa", True):
        return "eager"
    if kind != "cpu" or not getattr(found, "_supports_attention_backend", False):
        return "sdpa"
    register_segments()
    return SEGMENTS


def register_segments() -> None:
    """Tell transformers of `segment_attention`, as the attention implementation ``dagpack_segments``.

    `choose_attention` has done it where it names it; harmless to do again. A model with this implementation
    that is called with another mask, or none, attends as with ``sdpa``.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(SEGMENTS, _attend_by_segments)
    AttentionMaskInterface.register(SEGMENTS, sdpa_mask)


def _attend_by_segments(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers' interface asks: (batch, heads, rows, width) in, rows before heads out."""
    if changed := [name for name in _SCORE_CHANGES if others.get(name) is not None]:
        raise UsageError(
            f"attention {SEGMENTS}",
            f"the model asks for {changed[0]}",
            "SDPA's scores",
            hint="what choose_attention names",
        )
    if attention_mask is not None and is_interval_mask(attention_mask):
        return segment_attention(query, key, value, attention_mask, scale=scaling, dropout=dropout), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)


def _head_width(text: Any) -> int:
    """Return the width of a head; FlexAttention's kernels want 16.

    Read past properties: some configurations raise where layers may differ.
    """
    names = getattr(text, "attribute_map", None) or {}
    width, hidden, heads = (
        vars(text).get(names.get(name, name)) for name in ("head_dim", "hidden_size", "num_attention_heads")
    )
    return int(width or (hidden // heads if hidden and heads else 0))
