"""The built-in decoder: small, plain, exact in float64; what `dagpack train` trains without a model of yours.

RMSNorm before each half of a block, rotary embeddings at the rows' depths, SwiGLU, no biases, the
output tied to the embedding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from dagpack_cli.errors import UsageError
from dagpack_cli.training import attention

__all__ = ["Decoder", "DecoderConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The size of a decoder.

    Attributes:
        vocab_size: ids, 0 up to here.
        width: of the residual stream; a multiple of 2 x ``heads``.
        heads: of the attention.
        feed_forward: inner width of SwiGLU.
        layers: number of blocks.
    """

    vocab_size: int
    width: int = 256
    heads: int = 4
    feed_forward: int = 768
    layers: int = 4

    def __post_init__(self) -> None:
        """Check that the sizes fit one another."""
        if min(self.vocab_size, self.width, self.heads, self.feed_forward, self.layers) < 1:
            raise UsageError("model", "a size below 1", "positive sizes")
        if self.width % (2 * self.heads):
            raise UsageError(
                "--width", f"{self.width} with {self.heads} heads", "a multiple of twice the heads, for rotary pairs"
            )


class Decoder(nn.Module):
    """A decoder-only transformer over windows.

    ``forward(input_ids, position_ids, mask)`` gives logits of shape (batch, length, vocabulary). The
    mask is a `BlockMask` (FlexAttention, on a GPU), a boolean tensor (SDPA) or an `interval_mask` (segments).
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.norm = _RMSNorm(config.width)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        mask: Tensor | BlockMask,
        *,
        embeddings: Tensor | None = None,
    ) -> Tensor:
        """Return the logits of every row.

        Args:
            input_ids: shape (batch, length), int64.
            position_ids: shape (batch, length), int64; the rows' depths.
            mask: of the batch; as `dagpack_cli.training.attention.mask_for` gives it.
            embeddings: shape (batch, length, width); instead of looking ``input_ids`` up.
        """
        hidden = self.embedding(input_ids) if embeddings is None else embeddings
        angles = _angles(position_ids, self.config.width // self.config.heads)
        for block in self.blocks:
            hidden = block(hidden, angles, mask)
        return torch.nn.functional.linear(self.norm(hidden), self.embedding.weight)


class _RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: Tensor) -> Tensor:
        normed: Tensor = torch.nn.functional.rms_norm(
            hidden, (hidden.shape[-1],), self.weight.to(hidden.dtype), eps=1e-6
        )
        return normed


class _Block(nn.Module):
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm, self.feed_forward_norm = _RMSNorm(width), _RMSNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, config.feed_forward, bias=False) for _ in range(2))
        self.down = nn.Linear(config.feed_forward, width, bias=False)

    def forward(self, hidden: Tensor, angles: tuple[Tensor, Tensor], mask: Tensor | BlockMask) -> Tensor:
        normed = self.attention_norm(hidden)
        query, key, value = (self._split(layer(normed)) for layer in (self.query, self.key, self.value))
        mixed = attention.attend(_rotate(query, angles), _rotate(key, angles), value, mask)
        hidden = hidden + self.output(mixed.transpose(1, 2).flatten(2))
        normed = self.feed_forward_norm(hidden)
        inner: Tensor = nn.functional.silu(self.gate(normed)) * self.up(normed)
        result: Tensor = hidden + self.down(inner)
        return result

    def _split(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        return hidden.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


def _angles(position_ids: Tensor, head_width: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the rotary angles: (batch, 1, length, head_width / 2), float64.

    Computed in float64 and rounded where they are used: depths of long windows need the digits.
    """
    exponents = torch.arange(0, head_width, 2, device=position_ids.device, dtype=torch.float64) / head_width
    angles = position_ids[:, None, :, None].double() * 10_000.0**-exponents
    return angles.cos(), angles.sin()


def _rotate(heads: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Return queries or keys, (batch, heads, length, head width), turned by their rows' angles."""
    cosine, sine = (part.to(heads.dtype) for part in angles)
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
