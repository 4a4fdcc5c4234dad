"""Ctrl-C and kill -9 of real processes: repeating the command resumes, and nothing is lost or repeated."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from commands import rollout_lines, start_rove, write_environment
from toy_envs import without_times

from rove.core.records import RolloutRecord
from rove.runs.run import Run
from tests.cli.test_train import PARITY, write_small_recipe

pytestmark = pytest.mark.slow

TIMEOUT_S = 120
"""A process that runs longer than this is considered to hang."""

SLOW = '''
import asyncio, time
from pathlib import Path
import rove as vf

async def slow(messages, state, rng):
    """Takes its time."""
    await asyncio.sleep(0.01 + 0.02 * rng.random())
    return str(rng.random())

async def waits(messages, state, rng):
    """Answers in an hour; "waiting" is there as soon as everybody waits."""
    asyncio.get_running_loop().call_later(0.1, Path("waiting").touch)
    await asyncio.sleep(3600)

def blocks(messages, state, rng):
    """Answers in an hour and lets nothing else happen until then."""
    Path("waiting").touch()
    time.sleep(3600)

def value(completion):
    return float(completion[-1].content)

class Slow(vf.SingleTurnEnv):
    async def setup_state(self, state, **kwargs):
        Path("opened").open("a").write("x")

    @vf.cleanup(priority=1)
    def close(self, state):
        Path("closed").open("a").write("x")

    @vf.cleanup
    async def lock_up(self, state):
        await asyncio.sleep(0.1)
        Path("locked").open("a").write("x")

def load_environment(num_examples: int = 30, seed: int = 0):
    rows = [{"question": f"q{i}", "answer": ""} for i in range(num_examples)]
    players = {"slow": slow, "waits": waits, "blocks": blocks}
    return Slow(dataset=rows, rubric=vf.Rubric([value], [1.0]), policies=players)
'''
EVAL = ("eval", "slow", "-m", "scripted:slow", "-n", "30", "-r", "2", "-c", "3", "--run-dir", "run")


def run_to_end(folder: Path, *words: str) -> str:
    process = start_rove(folder, *words)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return out


def stop(process: subprocess.Popen[str], kind: signal.Signals, moment: Callable[[], bool]) -> None:
    """Send the signal as soon as the condition `moment` holds, and check how the process ends."""
    try:
        while not moment() and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(kind)
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    if kind == signal.SIGINT:
        assert process.returncode == 130, err
        assert err.splitlines()[-1] == "stopped; repeat the command to continue"
        assert "Traceback" not in err
    else:
        assert process.returncode == -kind, err


def count_lines(file: Path) -> int:
    """Return the number of complete lines in a file."""
    return file.read_bytes().count(b"\n") if file.exists() else 0


def rollout_counts(run: Path) -> Counter[tuple[int | None, str, int]]:
    return Counter((record.step, record.example_key, record.rollout_index) for record in Run(run).rollouts())


def rollouts_without_times(run: Path) -> list[RolloutRecord]:
    """Return the rollouts in a fixed order, without measured times."""
    records = sorted(Run(run).rollouts(), key=lambda r: (r.step or 0, r.example_id, r.rollout_index))
    return [without_times(record) for record in records]


# Evaluation


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_an_evaluation_loses_and_repeats_nothing(tmp_path: Path, kind: signal.Signals):
    write_environment(tmp_path / "environments", "slow", SLOW)
    run, rollouts_file = tmp_path / "run", tmp_path / "run" / "rollouts.jsonl"
    earlier_lines: list[bytes] = []
    for moment in (0, 1, 7, 30, 50):  # later ones may come too late on a busy machine
        process = start_rove(tmp_path, *EVAL)
        stop(
            process,
            kind,
            lambda at_least=moment: (run / "versions.json").exists() and count_lines(rollouts_file) >= at_least,
        )
        if rollouts_file.exists():
            current_lines = [line for line in rollout_lines(run) if line.endswith(b"\n")]
            assert current_lines[: len(earlier_lines)] == earlier_lines
            earlier_lines = current_lines
        assert not (run / "summary.json").exists() or len(earlier_lines) == 60
    assert "60 of 60 rollouts scored" in run_to_end(tmp_path, *EVAL)
    lines_after = rollout_lines(run)
    assert lines_after[: len(earlier_lines)] == earlier_lines
    assert len(lines_after) == 60
    assert set(rollout_counts(run).values()) == {1}
    run_to_end(tmp_path, *EVAL)
    assert rollout_lines(run) == lines_after
    run_to_end(tmp_path, *EVAL[:-1], "whole")
    assert rollouts_without_times(run) == rollouts_without_times(tmp_path / "whole")


@pytest.mark.parametrize("player", ["waits", "blocks"])
def test_ctrl_c_ends_long_rollouts_and_runs_their_cleanup(tmp_path: Path, player: str):
    write_environment(tmp_path / "environments", "slow", SLOW)
    process = start_rove(tmp_path, "eval", "slow", "-m", f"scripted:{player}", "-n", "4", "-r", "1")
    stop(process, signal.SIGINT, (tmp_path / "waiting").exists)
    expected = {"waits": "xxxx", "blocks": "x"}[player]
    assert (tmp_path / "opened").read_text() == expected
    assert (tmp_path / "closed").read_text() == expected
    if player == "waits":  # after a blocking call there is no time for the asynchronous cleanup
        assert (tmp_path / "locked").read_text() == expected


def test_ctrl_c_ends_a_game_that_waits_for_a_move(tmp_path: Path):
    process = start_rove(tmp_path, "play", "tictactoe", "--seed", "1")
    assert process.stdout is not None
    printed = ""
    while not printed.endswith("you> "):
        printed += process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert (process.returncode, err.strip()) == (130, "stopped; play the same game again: --seed 1")


# Training


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a model, games of the teacher, and an uninterrupted SFT and RL run."""
    folder = tmp_path_factory.mktemp("made")
    run_to_end(folder, "model", "new", "--env", "tictactoe", "--games", "20", "-o", "model")
    run_to_end(folder, "eval", "tictactoe", "-m", "scripted:teacher", "-n", "80", "-r", "1", "--run-dir", "games")
    for name, words in TRAINING.items():
        run_to_end(folder, *words, "--run-dir", name)
    return folder


TRAINING = {
    name: text.split()
    for name, text in {
        "sft": "sft --data games -m model --epochs 8 --patience 99 --batch-size 8 --validate_every 4 --threads 1",
        "rl": "rl tictactoe -m model --steps 8 --batch-size 32 -r 8 -t 12 --checkpoint_every 2 --threads 1",
    }.items()
}


@pytest.mark.parametrize(
    "stops",
    [
        [(signal.SIGKILL, 1), (signal.SIGINT, 5)],
        [(signal.SIGINT, 2), (signal.SIGKILL, 7)],
    ],
    ids=["kill 1, Ctrl-C 5", "Ctrl-C 2, kill 7"],
)
@pytest.mark.parametrize("name", TRAINING)
def test_resumed_training_ends_with_bitwise_equal_weights(
    finished_runs: Path, name: str, stops: list[tuple[signal.Signals, int]]
):
    run = finished_runs / "-".join([name, *(kind.name for kind, _ in stops)])
    words = [*TRAINING[name], "--run-dir", run.name]
    metrics = run / "metrics.jsonl"
    for kind, step in stops:
        stop(start_rove(finished_runs, *words), kind, lambda at_least=step: count_lines(metrics) >= at_least)
        assert not (run / "final").exists()
    run_to_end(finished_runs, *words)
    weights = [folder / "final" / "model.safetensors" for folder in (run, finished_runs / name)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert metrics_without_times(run) == metrics_without_times(finished_runs / name)
    assert rollouts_without_times(run) == rollouts_without_times(finished_runs / name)
    assert set(rollout_counts(run).values()) == ({1} if name == "rl" else set())
    assert "is complete" in run_to_end(finished_runs, *words)


def demo_without_latencies(printed: str) -> object:
    """Return the JSON of the demo without latencies."""
    reported = json.loads(printed)
    for row in reported["rows"]:
        for summary in row["conditions"].values():
            summary.pop("latency", None)
    return reported


def test_the_demo_resumes_in_the_stage_in_which_it_was_killed(tmp_path: Path):
    words = ("demo", "tictactoe", "--smoke", "--json", "--run-dir", "demo")
    uninterrupted, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (uninterrupted, killed):
        folder.mkdir()
    moments = {
        "data/rollouts.jsonl": signal.SIGINT,
        "sft/metrics.jsonl": signal.SIGKILL,
        "rl1/rollouts.jsonl": signal.SIGKILL,
        "rl2/metrics.jsonl": signal.SIGINT,
    }
    for file, kind in moments.items():
        stop(start_rove(killed, *words), kind, lambda log_file=killed / "demo" / file: count_lines(log_file) >= 1)
    assert demo_without_latencies(run_to_end(killed, *words)) == demo_without_latencies(
        run_to_end(uninterrupted, *words)
    )
    weights = [folder / "demo" / "rl2" / "final" / "model.safetensors" for folder in (killed, uninterrupted)]
    assert weights[0].read_bytes() == weights[1].read_bytes()


def metrics_without_times(run: Path) -> list[dict[str, object]]:
    """Return the metrics without measured times."""
    lines = (run / "metrics.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line, type=dict) for line in lines]
    return [{name: value for name, value in row.items() if not name.startswith("time/")} for row in rows]


def test_rove_train_resumes_in_the_stage_in_which_it_was_killed(tmp_path: Path):
    uninterrupted, killed = tmp_path / "whole", tmp_path / "killed"
    words = ("train", "parity", "--json", "--run-dir", "run", "--recipe", "small.toml")
    for folder in (uninterrupted, killed):
        write_environment(folder / "environments", "parity", PARITY)
        run_to_end(folder, "train", "parity", "--dry-run", "--run-dir", ".")
        write_small_recipe(folder / "recipe.toml")
    moments = {
        "data/rollouts.jsonl": signal.SIGKILL,
        "sft/metrics.jsonl": signal.SIGKILL,
        "rl1/metrics.jsonl": signal.SIGKILL,
        "eval/RL-sampled/rollouts.jsonl": signal.SIGINT,
    }
    for file, kind in moments.items():
        stop(start_rove(killed, *words), kind, lambda log_file=killed / "run" / file: count_lines(log_file) >= 1)
    assert demo_without_latencies(run_to_end(killed, *words)) == demo_without_latencies(
        run_to_end(uninterrupted, *words)
    )
    weights = [folder / "run" / "rl1" / "final" / "model.safetensors" for folder in (killed, uninterrupted)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
