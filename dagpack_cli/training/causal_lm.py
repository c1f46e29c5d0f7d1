"""What `train` needs of a model: its module, its logits of a batch, and what makes two runs of it the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dagpack_cli.training.attention import mask_for
from dagpack_cli.training.masks import tree_bool_mask
from dagpack_cli.training.model import Decoder, DecoderConfig
from dagpack_cli.training.reader import Batch

__all__ = ["BuiltIn", "CausalLM"]


class CausalLM(Protocol):
    """A causal language model that trains on windows."""

    @property
    def module(self) -> nn.Module:
        """Return the whole model; its parameters that want gradients are trained."""

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Return its layers, which may be sharded apart."""

    @property
    def sparse(self) -> bool:
        """Return whether a forward pass may leave parameters out."""

    @property
    def identity(self) -> dict[str, Any]:
        """Return plain values that a run which goes on must have in common with its beginning."""

    def logits(self, call: Callable[..., Any], batch: Batch) -> Tensor:
        """Return logits (batch, length, vocabulary) of a batch on the model's device.

        Args:
            call: the module, as wrapped for several processes.
            batch: of `collate`.
        """

    def plain_logits(self, tokens: Tensor) -> Tensor:
        """Return the logits (length, vocabulary) of one sequence by itself, through plain causal attention.

        Args:
            tokens: shape (length,), int64, on the model's device.
        """

    @property
    def exports(self) -> bool:
        """Return whether others can load what `save` writes."""

    def save(self, folder: Path, state: dict[str, Tensor]) -> None:
        """Write the model for others to load.

        Args:
            folder: where; it does not exist yet.
            state: parameters and buffers by name, whole.
        """


class BuiltIn:
    """The built-in decoder, from its first weights on.

    Args:
        config: its size.
        dtype: of its parameters.
        device: where they are.
    """

    def __init__(self, config: DecoderConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.config = config
        self._decoder = Decoder(config).to(device=device, dtype=dtype)

    @property
    def module(self) -> nn.Module:
        """Return the decoder."""
        return self._decoder

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Return its blocks."""
        return list(self._decoder.blocks)

    @property
    def sparse(self) -> bool:
        """Return False: it is dense."""
        return False

    @property
    def identity(self) -> dict[str, Any]:
        """Return its sizes."""
        return asdict(self.config)

    def logits(self, call: Callable[..., Any], batch: Batch) -> Tensor:
        """Return the logits of a batch."""
        ends = batch["subtree_ends"]
        wide = next(self._decoder.parameters()).dtype == torch.float64  # which no compiled FlexAttention takes
        mask = tree_bool_mask(ends) if wide and ends.is_cuda else mask_for(ends)
        logits: Tensor = call(batch["input_ids"], batch["position_ids"], mask)
        return logits

    def plain_logits(self, tokens: Tensor) -> Tensor:
        """Return the logits of one sequence by itself."""
        size = len(tokens)
        causal = torch.ones(size, size, dtype=torch.bool, device=tokens.device).tril()[None, None]
        logits: Tensor = self._decoder(tokens[None], torch.arange(size, device=tokens.device)[None], causal)[0]
        return logits

    @property
    def exports(self) -> bool:
        """Return False: its checkpoints are all there is."""
        return False

    def save(self, folder: Path, state: dict[str, Tensor]) -> None:
        """Do nothing."""
