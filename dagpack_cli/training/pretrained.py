"""Hugging Face checkpoints: loaded, fitted with adapters if asked, trained on windows, saved in their own format."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dagpack_cli.errors import MismatchError, NoInputError, UsageError
from dagpack_cli.training.huggingface import (
    SEGMENTS,
    choose_attention,
    model_inputs,
    refuse_unsupported,
    register_segments,
)
from dagpack_cli.training.reader import Batch, PackedWindows

if TYPE_CHECKING:
    from transformers import PretrainedConfig

__all__ = ["LoraOptions", "Pretrained", "PretrainedOptions", "load_pretrained", "read_config"]

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tekken.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraOptions:
    """Low-rank adapters (Hu et al., 2021) instead of all parameters.

    Attributes:
        rank: of the adapters.
        alpha: their scale is ``alpha / rank``; None is twice the rank.
        targets: names of modules, or ``all-linear`` for all but the output.
    """

    rank: int
    alpha: float | None = None
    targets: tuple[str, ...] = ("all-linear",)

    def __post_init__(self) -> None:
        """Check ranges."""
        if self.rank < 1:
            raise UsageError("--lora", str(self.rank), "a rank of 1 or more")
        if self.alpha is not None and not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise UsageError("--lora-alpha", str(self.alpha), "a number above 0")
        if not self.targets:
            raise UsageError("--lora-targets", "none", "names of modules, or all-linear")


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainedOptions:
    """A model to fine-tune.

    Attributes:
        path: a folder in Hugging Face format, or a name that `transformers` can find.
        attention: one of transformers' implementations, ``dagpack_segments``, or auto, see `choose_attention`.
        lora: adapters; None trains all parameters.
        gradient_checkpointing: compute activations again in the backward pass instead of keeping them.
    """

    path: str
    attention: str = "auto"
    lora: LoraOptions | None = None
    gradient_checkpointing: bool = False


class Pretrained:
    """A Hugging Face causal language model that trains on windows; see `load_pretrained`."""

    def __init__(
        self, model: Any, options: PretrainedOptions, *, dtype: torch.dtype, saved_dtype: torch.dtype, tokenizer: Any
    ) -> None:
        self._model, self._options, self._dtype, self._saved_dtype = model, options, dtype, saved_dtype
        self._tokenizer = tokenizer
        base = model.get_base_model() if options.lora else model
        self._config: PretrainedConfig = base.config
        self._sparse = any(
            name.endswith("experts") and isinstance(module, nn.ModuleList) for name, module in base.named_modules()
        )
        names = set(getattr(base, "_no_split_modules", None) or ())
        self._blocks = [module for module in base.modules() if type(module).__name__ in names]

    @property
    def module(self) -> nn.Module:
        """Return the model, adapters included."""
        module: nn.Module = self._model
        return module

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Return the modules that transformers says must stay whole: its layers."""
        return self._blocks

    @property
    def sparse(self) -> bool:
        """Return whether it has experts that are modules of their own, of which a batch may use some."""
        return self._sparse

    @property
    def identity(self) -> dict[str, Any]:
        """Return the architecture and the adapters; not the path, which may move, nor the attention."""
        lora = asdict(self._options.lora) if self._options.lora else None
        if lora:
            lora["targets"] = list(lora["targets"])
        text = self._config.get_text_config()
        sizes = {name: getattr(text, name, None) for name in ("vocab_size", "hidden_size", "num_hidden_layers")}
        return {"model_type": self._config.model_type, "lora": lora, **sizes}

    @property
    def config(self) -> Any:
        """Return the model's configuration."""
        return self._config

    def logits(self, call: Callable[..., Any], batch: Batch) -> Tensor:
        """Return the logits of a batch: with its mask and depths, and without labels that would be shifted again."""
        logits: Tensor = call(**model_inputs(self._config, batch, dtype=self._dtype)).logits
        return logits

    def plain_logits(self, tokens: Tensor) -> Tensor:
        """Return the logits of one sequence by itself: token ids and nothing else, through the model's own mask."""
        used = self._config._attn_implementation
        base = self._model.get_base_model() if self._options.lora else self._model
        base.set_attn_implementation("sdpa" if getattr(base, "_supports_sdpa", False) else "eager")
        try:
            logits: Tensor = self._model(input_ids=tokens[None], use_cache=False).logits[0]
        finally:
            base.set_attn_implementation(used)
        return logits

    @property
    def exports(self) -> bool:
        """Return True."""
        return True

    def save(self, folder: Path, state: dict[str, Tensor]) -> None:
        """Write the model, or its adapters, and the tokenizer."""
        rounded = {
            name: value.to(self._saved_dtype) if value.is_floating_point() else value for name, value in state.items()
        }
        with _quietly():
            self._model.save_pretrained(folder, state_dict=rounded)
        if not self._options.lora:  # whose configuration says what parameters are in memory, not in the file
            config = copy.deepcopy(self._config)
            config.dtype = self._saved_dtype
            config.save_pretrained(folder)
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(folder)


def read_config(path: str) -> Any:
    """Return the configuration of a model.

    Args:
        path: a folder in Hugging Face format, or a name that `transformers` can find.

    Raises:
        NoInputError: there is none, or it needs code of its own, which is not run.
        UsageError: `transformers` is not installed.
    """
    try:
        from transformers import AutoConfig
    except ImportError:
        raise UsageError(
            "--model", "transformers is not installed", "it reads models", hint="pip install 'dagpack-cli[hf]'"
        ) from None
    try:
        with _quietly():
            return AutoConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise _unreadable(path, error) from None


def load_pretrained(
    options: PretrainedOptions,
    windows: PackedWindows,
    *,
    dtype: torch.dtype,
    device: torch.device,
    frozen_dtype: torch.dtype | None = None,
) -> Pretrained:
    """Return a model that fits the windows, on a device, ready to train.

    Args:
        options: which, and how.
        windows: that it is to train on.
        dtype: of the trained parameters.
        device: where it goes.
        frozen_dtype: of parameters that adapters leave alone; None is ``dtype``.

    Raises:
        NoInputError: no such model.
        MismatchError: its vocabulary or its tokenizer is not the shards', or its architecture cannot train on a tree.
        UsageError: an option it does not have, or a package that is not installed.
    """
    config = read_config(options.path)
    refuse_unsupported(config, longest_depth=windows.num_positions - 1)
    _check_vocabulary(config, windows, options.path)
    tokenizer = _tokenizer_of(options.path)
    _check_tokenizer(windows, tokenizer, options.path)
    attention = _attention(options.attention, config, device, dtype)
    given = getattr(config, "dtype", None)
    saved_dtype = given if isinstance(given, torch.dtype) else torch.float32
    base_dtype = (frozen_dtype or dtype) if options.lora else dtype
    from transformers import AutoModelForCausalLM

    try:
        with _quietly():
            model: Any = AutoModelForCausalLM.from_pretrained(
                options.path, dtype=base_dtype, attn_implementation=attention
            )
    except (OSError, ValueError, ImportError) as error:
        raise _unreadable(options.path, error) from None
    if base_dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # grouped products have no float64
    if options.lora:
        model = _with_adapters(model, options.lora)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(dtype)
    if options.gradient_checkpointing:
        # Named anew in transformers 5.
        for name in ("activation_checkpointing_enable", "gradient_checkpointing_enable"):
            if hasattr(model, name):
                getattr(model, name)({"use_reentrant": False})
                break
    return Pretrained(
        model.to(device).train(),
        options,
        dtype=base_dtype,
        saved_dtype=dtype if dtype == torch.float64 else saved_dtype,
        tokenizer=tokenizer if tokenizer is not None else _shards_tokenizer(windows),
    )


def _attention(name: str, config: Any, device: torch.device, dtype: torch.dtype) -> str:
    """Return the implementation of attention for a name."""
    if name == "auto":
        chosen = choose_attention(config, device)
        # No compiled FlexAttention takes float64; SDPA is its equal, at the price of a mask of all pairs.
        return "sdpa" if chosen == "flex_attention" and dtype == torch.float64 else chosen
    if name not in ("sdpa", "eager", "flex_attention", SEGMENTS):
        raise UsageError("--attention", name, f"auto, sdpa, eager, flex_attention or {SEGMENTS}")
    if name == "flex_attention" and device.type == "cpu":
        raise UsageError(
            "--attention flex_attention", "it has no backward on a CPU", "another", hint="leave --attention out"
        )
    if name == SEGMENTS:
        register_segments()
    return name


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep transformers from drawing bars and from telling of every try to reach a hub; errors come anyway.

    A log takes no carriage returns, and with ``--log-json`` every line of it is an object.
    """
    from huggingface_hub.utils import logging as untyped_hub
    from transformers.utils import logging as untyped

    hub: Any = untyped_hub
    logging: Any = untyped
    shown, told = logging.is_progress_bar_enabled(), hub.get_verbosity()
    logging.disable_progress_bar()
    hub.set_verbosity_error()
    try:
        yield
    finally:
        hub.set_verbosity(told)
        if shown:
            logging.enable_progress_bar()


def _with_adapters(model: Any, lora: LoraOptions) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise UsageError(
            "--lora", "peft is not installed", "it makes adapters", hint="pip install 'dagpack-cli[lora]'"
        ) from None
    targets: str | list[str] = "all-linear" if lora.targets == ("all-linear",) else list(lora.targets)
    alpha: Any = 2 * lora.rank if lora.alpha is None else lora.alpha  # typed int, used as a number
    transposed = any(type(module).__name__ == "Conv1D" for module in model.modules())  # GPT-2's kind of linear layer
    config = LoraConfig(
        r=lora.rank, lora_alpha=alpha, target_modules=targets, fan_in_fan_out=transposed, task_type="CAUSAL_LM"
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of names that peft still uses in transformers
            warnings.filterwarnings("ignore", "The following .*_pattern keys", RuntimeWarning)  # its own, for experts
            return get_peft_model(model, config)
    except ValueError as error:
        raise UsageError("--lora-targets", str(error).splitlines()[0], "modules that the model has") from None


def _unreadable(path: str, error: Exception) -> NoInputError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return NoInputError(
        f"--model {path}",
        f"not a model that transformers can load ({reason})",
        "a folder in Hugging Face format",
        hint="name the folder that holds config.json and the weights",
    )


def _check_vocabulary(config: Any, windows: PackedWindows, path: str) -> None:
    size = config.get_text_config().vocab_size
    if size < windows.vocab_size:
        raise MismatchError(
            f"--model {path}",
            f"a vocabulary of {size:,} ids",
            f"at least the {windows.vocab_size:,} of the shards",
            hint="build the shards with the model's tokenizer: --tokenizer DIR",
        )


def _tokenizer_of(path: str) -> Any:
    """Return the tokenizer beside a model, None where there is none."""
    from transformers import AutoTokenizer

    folder = Path(path)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return None  # transformers would make an empty one of the configuration alone

    try:
        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError, TypeError, ImportError):
        return None


def _shards_tokenizer(windows: PackedWindows) -> Any:
    """Return the Hugging Face tokenizer that the shards were built with; None where it was none."""
    import transformers

    if windows.manifest.tokenizer["kind"] != "huggingface":
        return None
    make: Any = transformers.PreTrainedTokenizerFast
    return make(tokenizer_file=str(windows.paths[0] / "tokenizer" / "tokenizer.json"))


def _check_tokenizer(windows: PackedWindows, tokenizer: Any, path: str) -> None:
    """Raise where the model's tokenizer gives another id to a token of the shards'.

    Ids without a tokenizer cannot be checked; neither can a model that has none.
    """
    kind = windows.manifest.tokenizer["kind"]
    if kind == "none" or tokenizer is None:
        return
    hint = "build the shards with the model's tokenizer: --tokenizer DIR"
    if kind != "huggingface":
        raise MismatchError(f"--model {path}", "a tokenizer of its own", f"shards of its ids, not of {kind}", hint=hint)
    theirs = tokenizer.get_vocab()
    for token, number in sorted(_shards_tokenizer(windows).get_vocab().items(), key=lambda entry: entry[1]):
        if theirs.get(token) != number:
            found = "no such token" if token not in theirs else f"id {theirs[token]:,}"
            raise MismatchError(
                f"--model {path}", f"{found} for {token!r}", f"id {number:,}, as the shards' tokenizer has", hint=hint
            )
