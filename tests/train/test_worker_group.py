"""Distribution of work over several processes; tests of the results are in `test_learner.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import start_torchrun
from ranks_program import ragged_sequences

from rove.core.errors import ConfigError, Error
from rove.train.batch import count_trained_tokens, micro_batches
from rove.train.worker_group import SINGLE_PROCESS, Ranks, WorkerGroup, join_process_group

ROOT = Path(__file__).resolve().parents[2]


@given(st.integers(1, 40), st.integers(2, 6), st.integers(5, 300), st.booleans())
def test_every_sequence_is_trained_once_and_all_ranks_have_as_many_batches(
    count: int, size: int, most: int, pack: bool
):
    sequences = ragged_sequences(count, seed=count)
    shares = [micro_batches(sequences, most, pack=pack, ranks=Ranks(rank, size)) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    trained = [sum(len(batch.targets) for batch in share) for share in shares]
    assert sum(trained) == count_trained_tokens(sequences)
    targets = sorted(int(target) for share in shares for batch in share for target in batch.targets)
    assert targets == sorted(
        token for s in sequences for token, is_trained in zip(s.ids, s.mask, strict=True) if is_trained
    )
    longest = max(len(sequence.ids) for sequence in sequences)
    sizes = [batch.ids.numel() for share in shares for batch in share]
    assert max(sizes) <= max(most, longest)


@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_all_ranks_get_about_the_same_number_of_tokens(size: int, pack: bool):
    sequences = ragged_sequences(256)
    shares = [micro_batches(sequences, 400, pack=pack, ranks=Ranks(rank, size)) for rank in range(size)]
    tokens = [sum(batch.ids.numel() for batch in share) for share in shares]
    assert max(tokens) <= 1.1 * sum(tokens) / size


class Counter:
    def add(self, first: int, second: int) -> int:
        return first + second

    def fail(self) -> None:
        raise Error("no")


def test_a_worker_group_with_one_process_calls_the_method():
    group = WorkerGroup(SINGLE_PROCESS, Counter())
    assert group.call_all(Counter.add, 1, 2) == 3
    with pytest.raises(Error, match="no"):
        group.call_all(Counter.fail)
    group.close()
    assert SINGLE_PROCESS.broadcast_continue() is True and SINGLE_PROCESS.broadcast_continue(False) is False
    assert SINGLE_PROCESS.total({"a": 1.0}) == {"a": 1.0}


def test_more_processes_than_gpus_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "2")
    with pytest.raises(
        ConfigError, match="2 processes on a machine with 1 GPU.*--nproc-per-node 1, or train on the CPU"
    ):
        join_process_group()


@pytest.mark.slow
def test_the_commands_train_with_two_processes_and_resume_when_repeated(tmp_path: Path):
    """Run the SFT and RL commands; one process finishes a run of two, and two processes do not change a finished run."""
    cli = ("-m", "rove.cli.main")

    def rove(size: int, *words: str) -> str:
        if size == 1:
            env = {**os.environ, "PYTHONPATH": str(ROOT)}
            process = subprocess.run(
                [sys.executable, *cli, *words], capture_output=True, text=True, cwd=tmp_path, env=env, check=False
            )
        else:
            process = start_torchrun(size, *cli, *words)
        assert process.returncode == 0, process.stderr + process.stdout
        return process.stdout

    model, data, sft, rl = (str(tmp_path / name) for name in ("model", "data", "sft", "rl"))
    rove(1, "model", "new", "--env", "tictactoe", "--output", model)
    rove(1, "eval", "tictactoe", "-m", "scripted:teacher", "-n", "60", "-r", "1", "--train", "--run-dir", data)
    sft_command = [
        "sft",
        "--data",
        data,
        "-m",
        model,
        "--epochs",
        "2",
        "--batch-size",
        "16",
        "--run-dir",
        sft,
        "--json",
    ]
    report = json.loads(rove(2, *sft_command))
    assert report["steps"] == 6 and (Path(sft) / "final" / "config.json").exists()
    assert (Path(sft) / "checkpoints" / "6" / "shards").is_dir()
    assert "is complete" in rove(2, *sft_command[:-1])
    rl_command = [
        "rl",
        "tictactoe",
        "-m",
        f"{sft}/final",
        "--batch-size",
        "16",
        "--steps",
        "2",
        "--checkpoint-every",
        "1",
    ]
    rl_command += ["--max-tokens", "40", "--loss.kl-penalty", "0.01", "--run-dir", rl, "--json"]
    report = json.loads(rove(2, *rl_command))
    assert report["last"]["step"] == 2 and report["last"]["logprob_diff/max"] < 1e-3
    (Path(rl) / "summary.json").unlink()  # as if the run had been stopped just before its end
    assert json.loads(rove(1, *rl_command))["last"] == report["last"]
