"""Several processes train what one would have trained. Also of `learner` and `sharding`."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks_program import Job, ragged, run

from rove.errors import Error
from rove.train.batch import micro_batches, trained_tokens
from rove.train.ranks import ALONE, Ranks, Team

HERE = Path(__file__).parent
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def start(size: int, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in so many processes; a port of their own, so that tests may run side by side."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent}", "OMP_NUM_THREADS": "1", **environment}
    asked = [*TORCHRUN, "--nproc-per-node", str(size), "--master-port", str(port), *command]
    return subprocess.run(asked, capture_output=True, text=True, timeout=570, env=env, check=False)


def several(size: int, job: Job) -> dict[str, Any]:
    file = Path(f"{job.out}.json")
    file.write_bytes(msgspec.json.encode(job))
    if job.save is not None:
        Path(job.save).mkdir()
    done = start(size, str(HERE / "ranks_program.py"), str(file))
    assert done.returncode == 0, done.stderr
    return torch.load(job.out)


def alone(job: Job) -> dict[str, Any]:
    if job.save is not None:
        Path(job.save).mkdir()
    run(job)
    return torch.load(job.out)


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Relative L2 norm."""
    assert a.keys() == b.keys()
    one, other = (torch.cat([tensors[name].flatten() for name in a]) for tensors in (a, b))
    return ((one - other).norm() / other.norm()).item()


def test_two_processes_are_one_and_one_goes_on_from_what_two_have_saved(tmp_path: Path):
    steps = {"out": str(tmp_path / "whole"), "steps": (0, 20)}
    whole = alone(Job(**steps))
    two = several(2, Job(**steps | {"out": str(tmp_path / "two")}, save=str(tmp_path / "saved")))
    assert difference(two["gradient"], whole["gradient"]) <= 1e-5
    assert difference(two["weights"], whole["weights"]) <= 1e-5
    assert two["measured"] == pytest.approx(whole["measured"], rel=1e-3)
    assert two["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    rest = alone(Job(str(tmp_path / "rest"), steps=(20, 22), restore=str(tmp_path / "saved")))
    longer = alone(Job(str(tmp_path / "longer"), steps=(0, 22)))
    assert difference(rest["weights"], longer["weights"]) <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["llama", "qwen3", "lfm2"])
@pytest.mark.parametrize("config", [{}, {"lora_rank": 4}, {"activation_checkpointing": True}], ids=str)
def test_whoever_saved_it_any_number_goes_on(tmp_path: Path, arch: str, config: dict[str, Any]):
    def job(name: str, **fields: Any) -> Job:
        return Job(str(tmp_path / name), arch=arch, config=config, **fields)

    whole = alone(job("whole"))["weights"]
    alone(job("one", steps=(0, 3), save=str(tmp_path / "of one")))
    several(2, job("two", steps=(0, 3), save=str(tmp_path / "of two")))
    for size, saved in ((4, "of two"), (1, "of two"), (2, "of one"), (2, "of two")):
        rest = job(f"{size} {saved}", steps=(3, 6), restore=str(tmp_path / saved))
        done = (alone if size == 1 else lambda given, size=size: several(size, given))(rest)
        assert difference(done["weights"], whole) <= 1e-5


@pytest.mark.slow
def test_mixed_precision_is_near(tmp_path: Path):
    whole = alone(Job(str(tmp_path / "whole")))
    mixed = several(2, Job(str(tmp_path / "mixed"), config={"mixed_precision": True}))
    assert 1e-6 < difference(mixed["gradient"], whole["gradient"]) < 0.05
    assert all(tensor.dtype == torch.float32 for tensor in mixed["weights"].values())


@given(st.integers(1, 40), st.integers(2, 6), st.integers(5, 300), st.booleans())
def test_every_sample_is_trained_once_and_all_have_as_many_batches(count: int, size: int, most: int, pack: bool):
    samples = ragged(count, seed=count)
    shares = [micro_batches(samples, most, pack=pack, ranks=Ranks(rank, size)) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    trained = [sum(len(batch.targets) for batch in share) for share in shares]
    assert sum(trained) == trained_tokens(samples)
    targets = sorted(int(target) for share in shares for batch in share for target in batch.targets)
    assert targets == sorted(one for s in samples for one, said in zip(s.ids, s.mask, strict=True) if said)
    longest = max(len(sample.ids) for sample in samples)
    sizes = [batch.ids.numel() for share in shares for batch in share]
    assert max(sizes) <= max(most, longest)


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_all_have_about_as_much_to_do(size: int, pack: bool):
    samples = ragged(256)
    shares = [micro_batches(samples, 400, pack=pack, ranks=Ranks(rank, size)) for rank in range(size)]
    tokens = [sum(batch.ids.numel() for batch in share) for share in shares]
    assert max(tokens) <= 1.1 * sum(tokens) / size


class Counter:
    def add(self, one: int, other: int) -> int:
        return one + other

    def fail(self) -> None:
        raise Error("no")


def test_a_team_of_one_just_does_it():
    team = Team(ALONE, Counter())
    assert team.do("add", 1, 2) == 3
    with pytest.raises(Error, match="no"):
        team.do("fail")
    team.close()
    assert ALONE.agree() is True and ALONE.agree(False) is False
    assert ALONE.total({"a": 1.0}) == {"a": 1.0}


@pytest.mark.slow
def test_the_commands_train_with_two_processes_and_go_on_when_repeated(tmp_path: Path):
    """SFT and RL as users start them; a run of two is finished by one, and a finished one is left alone by two."""
    cli = ("-m", "rove.cli.main")

    def rove(size: int, *words: str) -> str:
        if size == 1:
            env = {**os.environ, "PYTHONPATH": str(HERE.parent)}
            done = subprocess.run(
                [sys.executable, *cli, *words], capture_output=True, text=True, cwd=tmp_path, env=env, check=False
            )
        else:
            done = start(size, *cli, *words)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    model, data, sft, rl = (str(tmp_path / name) for name in ("model", "data", "sft", "rl"))
    rove(1, "model", "new", "--env", "tictactoe", "--output", model)
    rove(1, "eval", "tictactoe", "-m", "scripted:teacher", "-n", "60", "-r", "1", "--train", "--run-dir", data)
    tune = ["sft", "--data", data, "-m", model, "--epochs", "2", "--batch-size", "16", "--run-dir", sft, "--json"]
    told = json.loads(rove(2, *tune))
    assert told["steps"] == 6 and (Path(sft) / "final" / "config.json").exists()
    assert (Path(sft) / "checkpoints" / "6" / "shards").is_dir()
    assert "is complete" in rove(2, *tune[:-1])
    learn = ["rl", "tictactoe", "-m", f"{sft}/final", "--batch-size", "16", "--steps", "2", "--checkpoint-every", "1"]
    learn += ["--max-tokens", "40", "--kl-penalty", "0.01", "--run-dir", rl, "--json"]
    told = json.loads(rove(2, *learn))
    assert told["last"]["step"] == 2 and told["last"]["logprob_diff/max"] < 1e-3
    (Path(rl) / "summary.json").unlink()  # as if it had been stopped right before the end
    assert json.loads(rove(1, *learn))["last"] == told["last"]
