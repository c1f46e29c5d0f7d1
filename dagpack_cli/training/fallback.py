"""Torch's silent way out of compiling is made an error, wherever FlexAttention is compiled."""

from __future__ import annotations

from contextvars import ContextVar

import torch

__all__ = ["refuse_fallback"]

# Torch keeps its compiler's settings by context too: another thread has its own.
_REFUSED: ContextVar[bool] = ContextVar("_REFUSED", default=False)


def refuse_fallback() -> None:
    """Make torch raise ``FailOnRecompileLimitHit`` where a function has needed too many graphs.

    By default (8 graphs, ``torch._dynamo.config.recompile_limit``) the function then runs uncompiled with a
    warning alone, and FlexAttention uncompiled scores all pairs: quadratic memory, many times slower. The setting
    is one of the whole process as far as the calling thread goes, so that it also holds where transformers
    compiles FlexAttention itself; other functions that a program compiles raise too. It is set once a thread: a
    program that wants the fallback sets ``torch._dynamo.config.fail_on_recompile_limit_hit = False`` after its
    first block mask.

    Does nothing in code that is being compiled.
    """
    if torch.compiler.is_compiling() or _REFUSED.get():
        return
    _REFUSED.set(True)
    torch._dynamo.config.fail_on_recompile_limit_hit = True
