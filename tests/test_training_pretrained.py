"""Fine-tuning Hugging Face models: loaded and refused, adapted, saved, killed and resumed."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import write_examples
from commands import build, command, environment, run, run_process
from oracle import Example

from dagpack_cli.errors import DagpackError, MismatchError, NoInputError, UsageError
from dagpack_cli.training import (
    LoraOptions,
    PackedWindows,
    PretrainedOptions,
    TrainOptions,
    TrainResult,
    pretrained,
    train,
)

transformers = pytest.importorskip("transformers", reason="the extra hf")
models = pytest.importorskip("huggingface_models", reason="the extra hf")

OPTIONS = TrainOptions(device="cpu", precision="float64", learning_rate=1e-2, batch_size=2, steps=4)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with windows that branch, which no test changes."""
    folder = tmp_path_factory.mktemp("pretrained")
    examples = [
        Example((1, 5, 6 + number % 3, *range(9, 12 + number % 4), 30 + number), frozenset(range(1, 5)), 1.0)
        for number in range(20)
    ]
    write_examples(folder / "corpus", examples)
    build(folder / "out", "--seq-len", "24", corpus=folder / "corpus")
    return folder / "out"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in Hugging Face format, in float32, which no test changes."""
    folder = tmp_path_factory.mktemp("llama") / "model"
    models.tiny_model("llama", "sdpa").float().save_pretrained(folder)
    return folder


def tune(out: Path, path: Path, folder: Path | None, options: TrainOptions = OPTIONS, **model: Any) -> TrainResult:
    """Fine-tune a model."""
    return train(PackedWindows(out), PretrainedOptions(path=str(path), **model), options, run=folder)


def losses(result: TrainResult) -> list[float]:
    """Return the losses of a run."""
    return [step.loss for step in result.steps if step.loss is not None]


def test_all_attentions_and_checkpointing_train_the_same(out: Path, llama: Path) -> None:
    """The mask's form, the way attention is computed and what is kept for the backward pass change nothing."""
    expected = losses(tune(out, llama, None))
    assert expected[-1] < expected[0] - 0.01
    for attention in ("sdpa", "eager", "dagpack_segments"):
        for checkpointing in (False, True):
            found = losses(tune(out, llama, None, attention=attention, gradient_checkpointing=checkpointing))
            assert found == pytest.approx(expected, rel=1e-6)  # norms compute in float32


@pytest.mark.parametrize("name", ["qwen3-moe", "gemma3", "mistral", "gpt-neox", "gpt2"])
def test_other_architectures_train(out: Path, tmp_path: Path, name: str) -> None:
    """Experts, sliding windows in some layers or all, other positions: a few steps lower the loss."""
    models.tiny_model(name, "sdpa").save_pretrained(tmp_path / "model")
    found = losses(tune(out, tmp_path / "model", tmp_path / "run", replace(OPTIONS, steps=6)))
    assert found[-1] < found[0]
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    assert loaded.config.model_type == transformers.AutoConfig.from_pretrained(tmp_path / "model").model_type


def test_the_model_is_saved_as_it_was_given(out: Path, llama: Path, tmp_path: Path) -> None:
    """In Hugging Face format, in the dtype of the model that was loaded, with parameters as they are in memory."""
    options = replace(OPTIONS, precision="float32")
    result = tune(out, llama, tmp_path / "run", options)
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model", dtype="auto")
    for name, value in result.model.state_dict().items():
        assert torch.equal(saved.state_dict()[name], value)
    assert "attn" not in (tmp_path / "run" / "model" / "config.json").read_text().replace("use_attn", "")
    half = tmp_path / "half"
    transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).save_pretrained(half)
    result = tune(out, half, tmp_path / "second", options)
    assert {parameter.dtype for parameter in result.model.parameters()} == {torch.float32}
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "second" / "model", dtype="auto")
    assert saved.dtype == torch.bfloat16
    stored = pytest.importorskip("safetensors.torch", reason="the extra hf")
    file = stored.load_file(tmp_path / "second" / "model" / "model.safetensors")
    assert {value.dtype for value in file.values()} == {torch.bfloat16}
    assert not list(tmp_path.glob("*/.model.partial"))


def test_bfloat16_trains_float32_parameters(out: Path, llama: Path) -> None:
    """Activations in bfloat16, parameters and their updates in float32: near the float32 losses, not equal."""
    full = losses(tune(out, llama, None, replace(OPTIONS, precision="float32")))
    result = tune(out, llama, None, replace(OPTIONS, precision="bfloat16"))
    assert {parameter.dtype for parameter in result.model.parameters()} == {torch.float32}
    assert losses(result) == pytest.approx(full, rel=3e-2)
    assert losses(result) != full


# What peft calls a property that transformers has renamed.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_train_alone(out: Path, llama: Path, tmp_path: Path) -> None:
    """Only the adapters move and are saved, in checkpoints and at the end; peft loads them onto the base."""
    peft = pytest.importorskip("peft", reason="the extra lora")
    options = replace(OPTIONS, checkpoint_every=2)
    lora = LoraOptions(rank=2, alpha=8.0, targets=("q_proj", "v_proj"))
    result = tune(out, llama, tmp_path / "run", options, lora=lora)
    assert losses(result)[-1] < losses(result)[0]
    trained = {name for name, parameter in result.model.named_parameters() if parameter.requires_grad}
    assert len(trained) == 8
    assert all("lora" in name for name in trained)
    checkpoint = torch.load(tmp_path / "run" / "checkpoint-00000004.pt", weights_only=True)
    assert set(checkpoint["model"]) == trained
    base = transformers.AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float64)
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "run" / "model")
    assert loaded.peft_config["default"].r == 2
    tokens = torch.tensor([[1, 5, 6, 9]])
    with torch.no_grad():
        expected = result.model.eval()(input_ids=tokens, use_cache=False).logits
        torch.testing.assert_close(loaded(input_ids=tokens).logits, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("lora", [None, LoraOptions(rank=2)])
def test_a_resumed_run_is_the_same_run(out: Path, llama: Path, tmp_path: Path, lora: LoraOptions | None) -> None:
    """From a checkpoint in the middle, with dropout: the rest is as it would have been, to the bit."""
    config = transformers.AutoConfig.from_pretrained(llama)
    config.attention_dropout = 0.3
    config.save_pretrained(llama.parent / "noisy")
    (llama.parent / "noisy" / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    options = replace(OPTIONS, checkpoint_every=2, steps=6)
    model = PretrainedOptions(path=str(llama.parent / "noisy"), lora=lora, attention="eager")
    whole = train(PackedWindows(out), model, options, run=tmp_path / "whole")
    quiet = train(PackedWindows(out), replace(model, path=str(llama)), options)
    assert losses(whole) != losses(quiet)  # dropout is at work
    train(PackedWindows(out), model, options, run=tmp_path / "cut")
    for name in ("checkpoint-00000006.pt", "checkpoint-00000004.pt"):
        (tmp_path / "cut" / name).unlink()
    resumed = train(PackedWindows(out), model, options, run=tmp_path / "cut", resume=True)
    assert losses(resumed) == losses(whole)[2:]
    states = resumed.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
    other = replace(model, lora=LoraOptions(rank=3))
    with pytest.raises(MismatchError, match="lora"):
        train(PackedWindows(out), other, options, run=tmp_path / "cut", resume=True)


def test_old_checkpoints_go(out: Path, llama: Path, tmp_path: Path) -> None:
    """``keep_checkpoints`` bounds what a run takes on disk."""
    tune(out, llama, tmp_path / "run", replace(OPTIONS, steps=6, checkpoint_every=1, keep_checkpoints=2))
    assert [path.name for path in sorted((tmp_path / "run").glob("checkpoint-*"))] == [
        "checkpoint-00000005.pt",
        "checkpoint-00000006.pt",
    ]


def word_level(folder: Path, words: list[str], **numbers: int) -> Path:
    """Write a tokenizer of words, numbered as they come but for some."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra hf")
    vocabulary = {word: number for number, word in enumerate(words)} | numbers
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", unk_token="<unk>")
    wrapped.save_pretrained(folder)
    return folder


def test_tokenizers_have_to_agree(llama: Path, tmp_path: Path) -> None:
    """Shards of one tokenizer do not train a model of another; those of its own do, and it is saved with it."""
    words = ["<unk>", "<eos>", "the", "cat", "sat", "dog"]
    same = word_level(tmp_path / "same", words)
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("the cat sat the dog sat")
    build(tmp_path / "out", "--tokenizer", str(same), corpus=tmp_path / "corpus")
    models.tiny_model("llama", "sdpa").save_pretrained(same)
    tune(tmp_path / "out", same, tmp_path / "run")
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "run" / "model")
    assert saved.get_vocab() == transformers.AutoTokenizer.from_pretrained(same).get_vocab()
    tune(tmp_path / "out", llama, tmp_path / "without")  # no tokenizer beside it: nothing to compare
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "without" / "model").get_vocab() == saved.get_vocab()
    other = word_level(tmp_path / "other", words, cat=5, dog=3)
    models.tiny_model("llama", "sdpa").save_pretrained(other)
    with pytest.raises(MismatchError, match="id 5 for 'cat'; id 3"):
        tune(tmp_path / "out", other, None)
    build(tmp_path / "bytes", corpus=tmp_path / "corpus")
    with pytest.raises(MismatchError, match="a tokenizer of its own; shards of its ids, not of bytes"):
        tune(tmp_path / "bytes", same, None)


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        ({"path": "/nowhere/at/all"}, NoInputError, "not a model that transformers can load"),
        ({"attention": "quantum"}, UsageError, "--attention: quantum; auto, sdpa, eager, flex_attention or"),
        ({"attention": "flex_attention"}, UsageError, "no backward on a CPU"),
        ({"lora": LoraOptions(rank=2, targets=("nothing",))}, UsageError, "--lora-targets"),
    ],
)
def test_models_that_cannot_be_loaded(
    out: Path, llama: Path, model: dict[str, Any], kind: type[DagpackError], message: str
) -> None:
    """What is asked for and is not there is named, with what could be."""
    if "lora" in model:
        pytest.importorskip("peft", reason="the extra lora")
    with pytest.raises(kind, match=message):
        train(PackedWindows(out), PretrainedOptions(**({"path": str(llama)} | model)), OPTIONS)


@pytest.mark.parametrize(
    ("name", "changes", "kind", "message"),
    [
        ("mamba", {}, UsageError, "[Mm]amba"),
        ("bloom", {}, UsageError, "[Bb]loom"),
        ("llama", {"vocab_size": 20}, MismatchError, "a vocabulary of 20 ids"),
        ("gpt2", {"n_positions": 4}, UsageError, "4"),
    ],
)
def test_models_that_do_not_fit(
    out: Path, tmp_path: Path, name: str, changes: dict[str, Any], kind: type[DagpackError], message: str
) -> None:
    """Architectures that cannot train on a tree, vocabularies and positions that are too small."""
    models.tiny_config(name, **changes).save_pretrained(tmp_path)
    with pytest.raises(kind, match=message):
        tune(out, tmp_path, None)


def test_the_command(out: Path, llama: Path, tmp_path: Path) -> None:
    """The options of the command reach the model; a log takes no carriage returns."""
    words = ["--shards", str(out), "--model", str(llama), "--steps", "3", "--device", "cpu", "--learning-rate", "0.01"]
    ran = run_process(command("train", *words, "--run", tmp_path / "run"), env=environment(PYTHONWARNINGS="default"))
    assert ran.code == 0, ran.err
    assert "\r" not in ran.err + ran.out
    assert (tmp_path / "run" / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()
    pytest.importorskip("peft", reason="the extra lora")
    options = ["--lora", "3", "--lora-alpha", "5", "--lora-targets", "q_proj, o_proj", "--gradient-checkpointing"]
    ran = run("train", *words, *options, "--attention", "eager", "--run", tmp_path / "lora", "--quiet")
    assert (ran.code, ran.out) == (0, ""), ran.err
    config = json.loads((tmp_path / "lora" / "model" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], sorted(config["target_modules"])) == (3, 5, ["o_proj", "q_proj"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "M"], "--model: no --run is given"),
        (["--model", "M", "--run", "R", "--width", "8"], "--width: given with --model"),
        (["--lora", "2"], "--lora: given without --model"),
        (["--gradient-checkpointing"], "--gradient-checkpointing: given without --model"),
        (["--model", "M", "--run", "R", "--lora-alpha", "2"], "--lora-alpha: given without --lora"),
        (["--model", "M", "--run", "R", "--lora", "0"], "--lora: 0; a rank of 1 or more"),
        (["--model", "M", "--run", "R", "--lora", "2", "--lora-targets", ","], "--lora-targets: none"),
        (["--model", "M", "--run", "R", "--lora", "2", "--lora-alpha", "-1"], "--lora-alpha: -1.0"),
        (["--keep-checkpoints", "-1"], "--keep-checkpoints: -1"),
    ],
)
def test_options_that_do_not_go_together(out: Path, words: list[str], message: str) -> None:
    """Every option that would be ignored is refused instead."""
    ran = run("train", "--shards", out, *words)
    assert ran.code == 2
    assert f"error: {message}" in ran.err


def test_float64_has_no_compiled_attention(llama: Path) -> None:
    """On a GPU a float64 run attends through SDPA: FlexAttention's kernels take no float64."""
    config = transformers.AutoConfig.from_pretrained(llama)
    config.head_dim = 16
    gpu = torch.device("cuda")
    assert pretrained._attention("auto", config, gpu, torch.float32) == "flex_attention"
    assert pretrained._attention("auto", config, gpu, torch.float64) == "sdpa"


def test_a_model_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    """Of the configuration alone transformers would make an empty tokenizer: a folder without its files has none."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("the cat sat the dog sat")
    build(tmp_path / "bytes", corpus=tmp_path / "corpus")
    models.tiny_model("qwen3", "sdpa").save_pretrained(tmp_path / "model")
    tune(tmp_path / "bytes", tmp_path / "model", tmp_path / "run")
    assert not list((tmp_path / "run" / "model").glob("*token*"))


def test_a_refused_run_leaves_no_folder(out: Path, tmp_path: Path) -> None:
    """What cannot be trained leaves nothing behind that the next try would stumble over."""
    models.tiny_config("llama", vocab_size=20).save_pretrained(tmp_path / "model")
    with pytest.raises(MismatchError):
        tune(out, tmp_path / "model", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def _torch_full(*_: Any, **__: Any) -> None:
    """Fail as torch does on a full disk: with an error of its own, over that of the system."""
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    except OSError:
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")  # noqa: B904


def _safetensors_full(folder: Path, _: Any) -> None:
    """Fail as safetensors does on a full disk: with a text."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    raise ValueError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("kind", ["checkpoint", "model"])
def test_a_full_disk_is_one(out: Path, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Whatever torch or safetensors make of it: exit 74, and the disk gets back what was written."""
    if kind == "checkpoint":
        monkeypatch.setattr(torch, "save", _torch_full)
    else:
        monkeypatch.setattr(pretrained.Pretrained, "save", lambda _, folder, state: _safetensors_full(folder, state))
    words = ["--shards", str(out), "--model", str(llama), "--steps", "1", "--device", "cpu", "--quiet"]
    ran = run("train", *words, "--run", tmp_path / "run")
    assert ran.code == 74, ran.err
    assert "no space left on device" in ran.err
    assert not list((tmp_path / "run").glob(".*"))


def test_the_way_on_without_a_checkpoint(out: Path, tmp_path: Path) -> None:
    """A run that was stopped before its first checkpoint cannot go on: the errors say what can."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "steps.jsonl").write_text("")
    words = ["train", "--shards", str(out), "--run", str(tmp_path / "run"), "--steps", "1"]
    ran = run(*words, "--resume")
    assert ran.code == 66
    assert "hint: begin anew in another --run; --checkpoint-every N" in ran.err
    ran = run(*words)
    assert ran.code == 73
    assert "hint: take another --run, or --resume" in ran.err
