"""Several processes train as one does: the same losses, gradients and parameters, also after a kill."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builds import write_examples
from commands import build, environment
from distributed_runs import OPTIONS, RUNS, model_of, take_trainer
from oracle import Example
from torch import Tensor

from dagpack_cli.errors import DiskError, MismatchError, UsageError
from dagpack_cli.training import PackedWindows, train
from dagpack_cli.training.processes import Processes, join

TOGETHER = [name for name in RUNS if name != "killed"]
SCRIPT = Path(__file__).with_name("distributed_runs.py")
pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch without distributed"),
    pytest.mark.xdist_group("torchrun"),
]


def examples() -> list[Example]:
    """Return examples that share prefixes, of different lengths and weights."""
    found = []
    for number in range(47):
        tokens = (number % 3, 5, 6 + number % 4, *range(9, 11 + number % 5), 20 + number)
        found.append(Example(tokens, frozenset(range(1 + number % 2, len(tokens))), 1.0 + number % 3, str(number)))
    return found


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output with an odd number of windows to train on, and some to validate on."""
    folder = tmp_path_factory.mktemp("shards")
    write_examples(folder / "corpus", examples())
    build(folder / "out", "--seq-len", "16", "--val-fraction", "0.2", "--seed", "1", corpus=folder / "corpus")
    assert len(PackedWindows(folder / "out")) == 9
    return folder / "out"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny random models in Hugging Face format."""
    transformers = pytest.importorskip("transformers", reason="the extra hf")
    folder = tmp_path_factory.mktemp("models")
    sizes = {
        "vocab_size": 80, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
    }  # fmt: skip
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 8}
    configs = {
        "llama": transformers.LlamaConfig(**sizes, tie_word_embeddings=True),
        "experts": transformers.Qwen3MoeConfig(**sizes, **experts),
    }
    for name, config in configs.items():
        torch.manual_seed(3)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / name)
    return folder


def torchrun(shards: Path, models: Path, folder: Path, *names: str, processes: int = 2) -> int:
    """Take runs in several processes; return the exit code of ``torchrun``."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    words += [str(SCRIPT), str(shards), str(models), str(folder), *names]
    extra = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parent.parent), "PYTHONWARNINGS": "default"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600, env=environment(**extra))
    if done.returncode and "killed" not in names:
        raise AssertionError(done.stderr[-4000:])
    return done.returncode


@pytest.fixture(scope="module")
def together(shards: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of two processes, which no test changes."""
    folder = tmp_path_factory.mktemp("together")
    assert torchrun(shards, models, folder, *TOGETHER, "trainer") == 0
    return folder


def take_alone(kind: str, shards: Path, models: Path, run: Path, *, resume: bool = False, **changed: Any) -> Path:
    """Take the run of a kind of model in this process, both windows of each step one after the other."""
    windows, val = PackedWindows(shards), PackedWindows(shards, partition="val")
    options = replace(OPTIONS, accumulate=2, **changed)
    train(windows, model_of(kind, windows, models), options, val=val, run=run, resume=resume)
    return run


def steps_of(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run, without how long they took."""
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def state_of(run: Path, step: int = 9) -> dict[str, Tensor]:
    """Return the parameters and the optimiser's moments in a checkpoint."""
    state = torch.load(run / f"checkpoint-{step:08d}.pt", weights_only=True)
    moments = {
        f"{name}.{key}": value for name, entry in state["optimizer"]["state"].items() for key, value in entry.items()
    }
    return {**state["model"], **moments}


def assert_alike(left: Path, right: Path) -> None:
    """Check that two runs took the same steps to the same parameters, to rounding in float64."""
    for one, other in zip(steps_of(left), steps_of(right), strict=True):
        seen = {key for key, value in one.items() if value is not None}
        assert seen == {key for key, value in other.items() if value is not None}
        assert {key: one[key] for key in seen} == pytest.approx({key: other[key] for key in seen}, rel=1e-10)
    states = state_of(left), state_of(right)
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", TOGETHER)
def test_two_processes_are_one(together: Path, shards: Path, models: Path, tmp_path: Path, name: str) -> None:
    """Whole or sharded, full or adapters, dense or with experts: two processes take the steps that one takes."""
    assert_alike(take_alone(RUNS[name][0], shards, models, tmp_path / "alone"), together / name)


def test_steps_reach_over_the_end_of_an_epoch(together: Path, shards: Path) -> None:
    """Nine windows two at a time are five steps, the last of one window: in an epoch everything is trained once."""
    windows = PackedWindows(shards)
    steps = steps_of(together / "ddp")
    assert [step["epoch"] for step in steps] == [0] * 5 + [1] * 4
    for name, column in {"denominator": "denominator", "rows": "num_rows"}.items():
        assert sum(step[name] for step in steps[:5]) == sum(float(windows[at][column]) for at in range(len(windows)))


def test_a_model_is_saved_whole(together: Path, models: Path) -> None:
    """Whoever shared it, the model that is saved is the same, and transformers loads it."""
    from transformers import AutoModelForCausalLM

    loaded = [
        AutoModelForCausalLM.from_pretrained(together / name / "model", dtype=torch.float64)
        for name in ("llama-ddp", "llama-fsdp")
    ]
    trained = torch.load(together / "llama-ddp" / "checkpoint-00000009.pt", weights_only=True)["model"]
    for name, value in loaded[0].state_dict().items():
        torch.testing.assert_close(value, loaded[1].state_dict()[name], rtol=1e-10, atol=1e-12)
        assert torch.equal(value, trained[name])
    before = AutoModelForCausalLM.from_pretrained(models / "llama", dtype=torch.float64).state_dict()
    assert any(not torch.equal(value, before[name]) for name, value in trained.items())


def test_a_trainer_in_two_processes_is_one(together: Path, shards: Path, models: Path, tmp_path: Path) -> None:
    """In transformers' trainer, too: two processes, or one that accumulates two batches."""
    from transformers import AutoModelForCausalLM

    take_trainer(PackedWindows(shards), models / "llama", tmp_path, accumulate=2)
    logs = [
        [
            entry["loss"]
            for entry in json.loads((folder / "trainer_state.json").read_text())["log_history"]
            if "loss" in entry
        ]
        for folder in (tmp_path, together / "trainer")
    ]
    assert len(logs[0]) == 10
    assert logs[0] == pytest.approx(logs[1], rel=1e-6)
    states = [
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).state_dict()
        for folder in (tmp_path, together / "trainer")
    ]
    for name, value in states[0].items():
        torch.testing.assert_close(value, states[1][name], rtol=1e-6, atol=1e-8)  # norms compute in float32


@pytest.fixture(scope="module")
def killed(shards: Path, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two processes of which one was killed after its fifth step."""
    folder = tmp_path_factory.mktemp("killed")
    assert torchrun(shards, models, folder, "killed") == 1
    assert [step["step"] for step in steps_of(folder / "killed")] == [1, 2, 3, 4, 5]
    assert not (folder / "killed" / "checkpoint-00000006.pt").exists()
    return folder


def test_a_killed_run_goes_on_in_one_process(killed: Path, together: Path, shards: Path, tmp_path: Path) -> None:
    """What two processes began, one ends as if nothing had happened."""
    shutil.copytree(killed / "killed", tmp_path / "run")
    assert_alike(take_alone("", shards, tmp_path, tmp_path / "run", resume=True), together / "ddp")


def test_a_killed_run_goes_on_in_two_processes(killed: Path, together: Path, shards: Path, tmp_path: Path) -> None:
    """The same processes go on, to the bit."""
    shutil.copytree(killed / "killed", tmp_path / "ddp")
    assert torchrun(shards, tmp_path, tmp_path, "ddp+") == 0
    assert steps_of(tmp_path / "ddp") == steps_of(together / "ddp")
    state, expected = state_of(tmp_path / "ddp"), state_of(together / "ddp")
    assert all(torch.equal(state[name], expected[name]) for name in expected)


def test_what_one_process_began_two_end(together: Path, shards: Path, models: Path, tmp_path: Path) -> None:
    """From one process to two, sharded: the checkpoint is whole and by name."""
    run = take_alone("", shards, models, tmp_path / "fsdp")
    for path in run.glob("checkpoint-*.pt"):
        if path.name > "checkpoint-00000004.pt":
            path.unlink()
    assert torchrun(shards, tmp_path, tmp_path, "fsdp+") == 0
    assert_alike(tmp_path / "fsdp", together / "fsdp")


def test_another_number_of_windows_a_step_is_refused(killed: Path, shards: Path, tmp_path: Path) -> None:
    """One process that would take one window a step where two took two is told what to change."""
    shutil.copytree(killed / "killed", tmp_path / "run")
    windows = PackedWindows(shards)
    with pytest.raises(MismatchError, match="windows_per_step 2; 1") as caught:
        train(windows, model_of("", windows, tmp_path), OPTIONS, run=tmp_path / "run", resume=True)
    assert "--accumulate" in caught.value.advice


def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch, shards: Path) -> None:
    """Two processes never share a GPU unawares."""
    windows = PackedWindows(shards)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="process 1 of a machine with 1 GPUs"):
        train(windows, model_of("", windows, shards), replace(OPTIONS, device="cuda"))


def test_a_lost_process_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the others hear when one is gone is no bug of ours."""

    def gone(*_: object) -> None:
        raise RuntimeError("Connection closed by peer [127.0.0.1]:53996.\nmore")

    monkeypatch.setattr(torch.distributed, "all_reduce", gone)
    monkeypatch.setattr(torch.distributed, "barrier", gone)
    processes = Processes(0, 2, torch.device("cpu"))
    for call in (lambda: processes.add([1.0]), processes.wait):
        with pytest.raises(DiskError, match="another process of the run is gone") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_process_lost_in_a_backward_pass(shards: Path, tmp_path: Path, parallel: str) -> None:
    """Where one is killed in the midst of a step, the other says so: exit 74, and no traceback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = ["train", "--shards", str(shards), "--parallel", parallel, "--steps", "3", "--device", "cpu", "--quiet"]
    words += ["--width", "8", "--heads", "2", "--feed-forward", "16", "--layers", "2", "--run", str(tmp_path / "run")]
    both = []
    for rank in ("0", "1"):
        several = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = environment(
            OMP_NUM_THREADS="1", PYTHONPATH=str(SCRIPT.parent.parent), PYTHONWARNINGS="default", **several
        )
        script = [sys.executable, "-c", DYING, *words]
        both.append(subprocess.Popen(script, stderr=subprocess.PIPE, text=True, env=env))
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [74, -signal.SIGKILL], said
    error, hint = (line for line in said[0].splitlines() if line.startswith(("error: ", "hint: ")))
    assert error.startswith("error: torchrun: another process of the run is gone (")
    assert "[/" not in error
    assert "--resume" in hint
    assert "Traceback" not in said[0]
    assert (tmp_path / "run" / "steps.jsonl").read_text() == ""


DYING = """
import os, signal, sys
from torch.nn.modules.module import register_module_full_backward_hook
from dagpack_cli.cli import main

passed = []

def hook(*_):
    passed.append(1)
    if len(passed) == 3:
        os.kill(os.getpid(), signal.SIGKILL)

if os.environ["RANK"] == "1":
    register_module_full_backward_hook(hook)
main(sys.argv[1:])
"""
"""The command, of which the second process is killed in the midst of its first backward pass."""


def test_an_error_of_a_model_is_not_one_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised where several train is theirs only if it comes from speaking to one another."""
    several, alone = Processes(0, 2, torch.device("cpu")), Processes(0, 1, torch.device("cpu"))
    closed = "[/build/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:4. This is odd"
    with pytest.raises(DiskError, match=r"is gone \(Connection closed by peer \[::1\]:4\)"), several.together():
        raise RuntimeError(closed)
    with pytest.raises(DiskError), several.together():
        raise torch.distributed.DistBackendError("NCCL error: remote process exited")
    with pytest.raises(RuntimeError, match="shapes"), several.together():
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="gloo"), alone.together():
        raise RuntimeError(closed)

    def unmet(*_: object) -> None:
        raise torch.distributed.DistNetworkError("The client socket has timed out")

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.distributed, "init_process_group", unmet)
    with pytest.raises(DiskError, match=r"were not met \(The client socket"):
        join("cpu")
