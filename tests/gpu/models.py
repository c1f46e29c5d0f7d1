"""The models of the script: small ones whose numbers are looked at, and a stack of layers that is timed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dagpack_cli.training import DecoderConfig, PackedWindows, PretrainedOptions, choose_attention
from dagpack_cli.training.causal_lm import BuiltIn, CausalLM
from dagpack_cli.training.pretrained import load_pretrained

__all__ = ["ONE_BILLION", "TOY", "Stack", "llama_stack", "small_decoder", "small_llama"]

_WIDTH, _HEADS, _FEED_FORWARD, _LAYERS = 128, 4, 256, 2  # heads are 32 wide: FlexAttention's kernels want 16
_SPREAD = 4  # times 0.02, the usual spread of first weights: about 1 / sqrt(width), so that attention matters


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """The size of the layers that are timed.

    Attributes:
        hidden: width of the residual stream.
        heads: of queries.
        key_heads: of keys and values.
        feed_forward: inner width.
        layers: how many are timed.
    """

    hidden: int
    heads: int
    key_heads: int
    feed_forward: int
    layers: int

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


ONE_BILLION = Stack(hidden=2_048, heads=16, key_heads=8, feed_forward=8_192, layers=4)  # of 16
TOY = Stack(hidden=32, heads=2, key_heads=1, feed_forward=64, layers=1)


def _spread(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(_SPREAD)


def small_decoder(windows: PackedWindows, device: torch.device) -> CausalLM:
    """Return the built-in decoder, small, in float32."""
    torch.manual_seed(0)
    config = DecoderConfig(
        vocab_size=windows.vocab_size, width=_WIDTH, heads=_HEADS, feed_forward=_FEED_FORWARD, layers=_LAYERS
    )
    lm = BuiltIn(config, torch.float32, device)
    _spread(lm.module)
    return lm


def small_llama(windows: PackedWindows, device: torch.device, folder: Path) -> CausalLM:
    """Return a small Llama with grouped heads in float32, written to a folder and loaded as `dagpack train` does.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging as untyped

    logging: Any = untyped
    logging.disable_progress_bar()
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=windows.vocab_size,
        hidden_size=_WIDTH,
        intermediate_size=_FEED_FORWARD,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS // 2,
        max_position_embeddings=windows.window_len,
        tie_word_embeddings=False,
    )
    made: Any = LlamaForCausalLM(config)
    _spread(made)
    made.save_pretrained(folder)
    return load_pretrained(PretrainedOptions(path=str(folder)), windows, dtype=torch.float32, device=device)


def llama_stack(size: Stack, windows: PackedWindows, device: torch.device) -> Any:
    """Return layers of a Llama without its output, in bfloat16, with the attention that trains fastest there.

    Raises:
        ImportError: transformers is not installed.
    """
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=windows.vocab_size,
        hidden_size=size.hidden,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_heads,
        max_position_embeddings=windows.window_len,
        architectures=["LlamaForCausalLM"],
    )
    with device:  # numbers are drawn where they are wanted
        model: Any = LlamaModel(config)
    model.set_attn_implementation(choose_attention(config, device))
    return model.to(device=device, dtype=torch.bfloat16).train()
