"""What the configuration of a Hugging Face model says about packed trees: what its layers see, and what cannot be.

A tree mask is exact for a model whose rows meet only in attention, under the mask that it is given, at the
positions that it is given. What carries a state from row to row, counts rows itself or takes no positions
is refused by name. The kinds of layers decide, features of the configuration, and what the model's forward
takes; names alone only where nothing else tells.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dagpack_cli.errors import UsageError

__all__ = ["Layers", "check_depth", "layer_kinds", "model_class", "refusal", "refuse_unsupported", "text_config"]

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_ALONE = "train on whole sequences instead: dagpack build CORPUS OUT --layout best-fit"
_STATE_FIELDS = (
    "mamba_",
    "ssm_",
    "linear_conv_",
    "linear_num_",
    "lru_",
    "conv_",
    "conv1d_",
    "time_step_",
    "state_size",
)
# These do not attend through transformers' interface, yet were measured to be exact; see the tests.
_OWN_ATTENTION = {"biogpt", "falcon", "gpt_neo", "gpt_neox_japanese", "stablelm"}
_BY_NAME = {
    "blt": "it groups rows into patches by their order",
    "doge": "its attention makes a mask of its own",
    "moshi": "its layers see more than its configuration says",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """What layers of one kind see of a row's ancestors: all of them, or what is near in depth.

    Attributes:
        sliding_window: depths that a row sees, its own included.
        chunk: depths of a chunk; a row sees its own chunk.
    """

    sliding_window: int | None = None
    chunk: int | None = None


def refusal(config: Any, reason: str, *, hint: str = _ALONE) -> UsageError:
    """Return the error that refuses a model, by the name of its type."""
    return UsageError(f"model {getattr(config, 'model_type', '') or type(config).__name__}", reason, hint=hint)


def text_config(config: Any) -> Any:
    """Return the part of a configuration that describes the text model: mostly the configuration itself.

    Raises:
        UsageError: it holds several, and does not say which one decodes.
    """
    try:
        return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    except ValueError as error:
        raise refusal(config, "its configuration holds several text models", hint="give that of one") from error


def model_class(config: Any) -> Any | None:
    """Return the class that transformers makes a causal language model of, if there is one for the configuration."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    try:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    except KeyError:
        return None


def layer_kinds(config: Any) -> dict[str, Layers]:
    """Return what the layers of each kind see, by transformers' names for the kinds.

    Args:
        config: of a model.

    Returns:
        one entry where all layers are alike; a model of several kinds takes one mask for each.

    Raises:
        UsageError: a kind that is not attention under a mask, or that does not say how much it sees.
    """
    text = text_config(config)
    window, chunk = (getattr(text, name, None) or None for name in ("sliding_window", "attention_chunk_size"))
    kinds = getattr(text, "layer_types", None)
    if not kinds or text.model_type == "mistral":  # whose layers are alike, whatever a field says
        slides = window is not None and getattr(text, "use_sliding_window", True)
        kinds = [SLIDING if slides else CHUNKED if chunk is not None else FULL]
    seen = {FULL: Layers(), SLIDING: Layers(sliding_window=window), CHUNKED: Layers(chunk=chunk)}
    for kind in kinds:
        if kind not in seen:
            raise refusal(config, f"layers of kind {kind}: rows meet there outside of a mask that can be given")
        if kind != FULL and seen[kind] == Layers():
            raise refusal(config, f"layers of kind {kind}, and no size that says how much they see")
    return {kind: seen[kind] for kind in dict.fromkeys(kinds)}


def refuse_unsupported(config: Any, longest_depth: int | None = None, *, allow_unknown: bool = False) -> None:
    """Raise unless a tree mask can be exact for a model of this configuration.

    Args:
        config: of the model.
        longest_depth: the largest ``position_ids`` of any window; None where it is not known yet, and then
            positions are checked batch by batch.
        allow_unknown: whether code that is not part of transformers is let through. Nothing is known of it;
            compare its logits on windows with those of examples run alone before you trust it.

    Raises:
        UsageError: by the type of the model, with the reason.
    """
    found = model_class(config)
    if found is None:
        if not allow_unknown:
            reason = "transformers has no causal language model of this type, so nothing is known of its attention"
            raise refusal(config, reason, hint="allow_unknown=True takes it; compare its logits with examples alone")
    else:
        _refuse_class(config, found)
    for reason in _reasons(config):
        raise refusal(config, reason)
    layer_kinds(config)
    if longest_depth is not None:
        check_depth(config, longest_depth)


def _refuse_class(config: Any, found: Any) -> None:
    """Raise for what the class of a model tells."""
    if "position_ids" not in inspect.signature(found.forward).parameters:
        reason = "it takes no position_ids: it has positions of rows (alibi, relative), or a state from row to row"
        raise refusal(config, reason)
    own = not getattr(found, "_supports_attention_backend", False)
    if own and config.model_type not in _OWN_ATTENTION and not list(_reasons(config)):
        raise refusal(config, "its attention is its own, not transformers' interface, and was never measured")


def _reasons(config: Any) -> Iterator[str]:
    """Yield why a tree mask cannot be exact, by features of the configuration."""
    text = text_config(config)
    fields = [name.lower() for name, value in vars(text).items() if value not in (None, False)]
    kinds = getattr(text, "layer_types", None) or getattr(text, "layers_block_type", None)
    state = [name for name in fields if name.startswith(_STATE_FIELDS)]
    if kinds and not set(kinds) <= {FULL, SLIDING, CHUNKED, "attention"}:
        odd = sorted(set(kinds) - {FULL, SLIDING, CHUNKED, "attention"})
        yield f"layers of kind {', '.join(odd)}: rows meet there outside of a mask, in a state or an index of their own"
    elif not kinds and state:
        yield f"{state[0]} says that it carries a state from row to row (state space, convolution, linear attention)"
    if getattr(config, "is_encoder_decoder", False):
        yield "it is an encoder-decoder"
    if getattr(text, "is_causal", True) is False or getattr(text, "use_bidirectional_attention", None):
        yield "its attention is not causal"
    if _is_encoder(config) and not getattr(text, "is_decoder", False):
        yield "it is an encoder, whose attention is not causal"
    if getattr(text, "alibi", False):
        yield "alibi: biases by distances of rows, which are not distances in the tree"
    if "local" in (getattr(text, "attention_layers", None) or ()):
        yield "local attention that counts rows"
    if config.model_type in _BY_NAME:
        yield _BY_NAME[config.model_type]


def _is_encoder(config: Any) -> bool:
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    return config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES or config.model_type == "bert-generation"


def check_depth(config: Any, longest_depth: int) -> None:
    """Raise where positions up to a depth are not what they would be for an example alone.

    Args:
        config: of the model.
        longest_depth: the largest of ``position_ids``.

    Raises:
        UsageError: learned positions end before, or rotary angles that depend on the longest of the batch.
    """
    limit = position_limit(config)
    if limit is None or longest_depth < limit[0]:
        return
    hint = f"build with --seq-len {limit[0]} at most"
    raise refusal(config, f"{limit[1]} end at {limit[0]:,}, and a depth is {longest_depth:,}", hint=hint)


def position_limit(config: Any) -> tuple[int, str] | None:
    """Return how many positions are the same in every batch, and what they are; None without a limit."""
    text = text_config(config)
    rope: dict[str, Any] = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    longest = int(getattr(text, "max_position_embeddings", None) or 0)
    if not rope and getattr(text, "rope_theta", None) is None:
        return (longest, "learned positions") if longest > 0 else None
    nested = rope and all(isinstance(one, dict) for one in rope.values())  # one for each kind of layer
    original = getattr(text, "original_max_position_embeddings", None) or longest
    limits = [
        int(one.get("original_max_position_embeddings") or original)
        for one in (rope.values() if nested else [rope])
        if one.get("rope_type", one.get("type")) in ("dynamic", "longrope")
    ]
    return (min(limits), "rotary positions that do not depend on the batch") if limits else None
