"""Compare the peak memory that `rove doctor` estimates for RL of SmolLM2-135M on this machine with the measured peak.

    python benchmarks/doctor_memory.py [--model smollm2-135m] [--batch-size 64] [--max-tokens 40]

Each row runs two steps of `rove rl short_sentences` with different settings, in a separate process.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

BF16 = ["--mixed-precision", "true", "--bf16-sampling", "true"]
VARIANTS = {
    "full": [],
    "full, recomputed activations": ["--activation-checkpointing", "true"],
    "full, mixed precision and bf16 sampling": BF16,
    "LoRA": ["--lora.rank", "8"],
    "LoRA, recomputed activations": ["--lora.rank", "8", "--activation-checkpointing", "true"],
    "LoRA, mixed precision and bf16 sampling": ["--lora.rank", "8", *BF16],
}


def estimated_gb(arguments: Sequence[str]) -> float:
    """Return the peak memory in GB that `rove doctor` estimates for these arguments of `rove rl`."""
    command = [sys.executable, "-m", "rove", "doctor", *arguments, "--groups", "2", "--json"]
    findings = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["findings"]
    text = next(finding["text"] for finding in findings if finding["id"] == "memory")
    number, unit = re.findall(r"about ([\d.]+) (GB|MB)", text)[0]
    return float(number) / (1 if unit == "GB" else 1000)


def measured_gb(arguments: Sequence[str]) -> float:
    """Run `rove rl` with these arguments and return its peak memory in GB."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rove", "rl", *arguments, "--run-dir", str(Path(folder) / "run"), "--yes"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"{' '.join(command)} failed:\n{errors[-3000:]}")
        return usage.ru_maxrss * 1024 / 1e9


def main() -> None:
    """Print a row per variant: estimate, measured peak and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=40)
    args = parser.parse_args()
    sizes = ["--batch-size", str(args.batch_size), "--rollouts-per-example", "8", "-t", str(args.max_tokens)]
    common = ["short_sentences", "-m", args.model, "--steps", "2", "--learning-rate", "1e-5", *sizes]
    print(f"{'settings':42}{'rove doctor':>14}{'measured':>12}{'ratio':>8}")
    for name, options in VARIANTS.items():
        estimate, peak = estimated_gb([*common, *options]), measured_gb([*common, *options])
        print(f"{name:42}{estimate:11.1f} GB{peak:9.2f} GB{estimate / peak:8.2f}", flush=True)


if __name__ == "__main__":
    main()
