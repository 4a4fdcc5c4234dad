"""Fuzz all targets with Atheris, one after the other: `make fuzz`.

    python -m tests.fuzz.fuzz --minutes 120            all targets; the time is divided equally
    python -m tests.fuzz.fuzz --minutes 5 chat_request verdict

build/fuzz/TARGET keeps the new inputs (`corpus`) and one input per kind of failure (`crashes`, with its traceback): the
exception's type and the last line of rove, the smallest input found. A repeated command continues an interrupted one, and
after a complete one starts again from the inputs that it kept. The exit status is 1 if a target failed.

Each target runs in a fork of a process that has imported and instrumented rove, which takes longer than many a run.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
PROGRESS = BUILD / "progress.json"
HANG_S = 60
"""Wall time after which libFuzzer ends the process; `check` limits the CPU time of an input more strictly."""
RSS_LIMIT_MIB = 4096
MIN_SECONDS = 5
"""A shorter remaining time is not worth a start."""


def keep_failure(folder: Path, data: bytes, error: BaseException) -> None:
    """Keep an input that breaks the property, unless a smaller one of the same kind is there."""
    from tests.fuzz.target import failure_name

    file = folder / failure_name(error)
    if file.exists() and file.stat().st_size <= len(data):
        return
    file.write_bytes(data)
    report = "".join(traceback.format_exception(error))[-4000:]
    file.with_name(f"{file.name}.txt").write_text(report, encoding="utf-8", errors="replace")


def fuzz(name: str, seconds: int) -> None:
    """Fuzz a target in this process, which libFuzzer ends."""
    import atheris  # here, so that the tests read this module without it

    from tests.fuzz.corpora import kept_inputs
    from tests.fuzz.mutate import mutated
    from tests.fuzz.target import MAX_INPUT_BYTES, check
    from tests.fuzz.targets import TARGETS

    target = TARGETS[name]
    corpus, saved_inputs, crashes = (BUILD / name / part for part in ("corpus", "kept", "crashes"))
    shutil.rmtree(saved_inputs, ignore_errors=True)
    for folder in (corpus, saved_inputs, crashes):
        folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(kept_inputs(name)):
        (saved_inputs / f"{number:03}").write_bytes(data)

    def run(data: bytes) -> None:
        try:
            check(target, data)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # also SystemExit, and panics of Rust libraries
            keep_failure(crashes, data, error)

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        changed = mutated(data, target.words, max_size, random.Random(seed))
        return atheris.Mutate(data, len(data))[:max_size] if changed is None else changed

    arguments = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-timeout={HANG_S}",
        f"-rss_limit_mb={RSS_LIMIT_MIB}",
        f"-artifact_prefix={crashes}/",
        "-print_final_stats=1",
        "-reload=0",
    ]
    atheris.Setup([sys.argv[0], *arguments, str(corpus), str(saved_inputs)], run, custom_mutator=mutate)
    atheris.Fuzz()


def run_forked(name: str, seconds: int) -> dict[str, int]:
    """Fuzz a target in a fork, and return its figures."""
    folder = BUILD / name
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    process = os.fork()
    if process == 0:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            fuzz(name, seconds)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)
    _, status = os.waitpid(process, 0)
    return figures_of(log.read_text(encoding="utf-8", errors="replace")) | {"ended": int(status != 0)}


def figures_of(log: str) -> dict[str, int]:
    """Return the executions, and the lines and branches that the kept and the new inputs cover, from libFuzzer's log."""
    start = re.search(r"INITED cov: (\d+)", log)
    covered = re.findall(r"cov: (\d+)", log)
    executed = re.findall(r"^#(\d+)", log, re.MULTILINE)
    initial_coverage = int(start[1]) if start else 0
    return {
        "executions": int(executed[-1]) if executed else 0,
        "before": initial_coverage,
        "covered": int((covered or [0])[-1]),
    }


def failures_of(name: str) -> list[str]:
    """Return the kinds of failures of a target; an input at which libFuzzer ended the process is one."""
    files = sorted((BUILD / name / "crashes").glob("*"))
    return [file.name for file in files if file.suffix != ".txt"]


def campaign(names: list[str], minutes: float) -> None:
    """Fuzz targets until each has had its share of the time; continue an interrupted campaign."""
    share = 60 * minutes / len(names)
    settings = {"names": names, "minutes": minutes}
    progress: dict[str, Any] = json.loads(PROGRESS.read_text()) if PROGRESS.exists() else {}
    if progress.get("settings") != settings or len(progress["done"]) == len(names):
        progress = {"settings": settings, "done": {}}
    for name in names:
        if name in progress["done"]:
            continue
        total = {"executions": 0, "before": 0, "covered": 0, "ended": 0}
        until = time.monotonic() + share
        # Again after a hang, which ends the process.
        while (seconds := int(until - time.monotonic())) >= MIN_SECONDS or total["executions"] == 0:
            figures = run_forked(name, max(seconds, 1))
            total["executions"] += figures["executions"]
            total["before"] = total["before"] or figures["before"]
            total["covered"] = max(total["covered"], figures["covered"])
            total["ended"] += figures["ended"]
            if figures["executions"] == 0:
                break
        progress["done"][name] = total
        PROGRESS.write_text(json.dumps(progress))
        print(row(name, total), flush=True)
    print(f"\n{table(names, progress['done'])}")


def row(name: str, total: dict[str, int]) -> str:
    """Return a row of the table."""
    new = total["covered"] - total["before"]
    return f"| {name} | {total['executions']:,} | {total['covered']:,} | {new:,} | {len(failures_of(name))} |"


def table(names: list[str], done: dict[str, dict[str, int]]) -> str:
    """Return the table of a campaign."""
    head = ["| target | executions | coverage | new coverage | crashes |", "|---|--:|--:|--:|--:|"]
    executions = sum(total["executions"] for total in done.values())
    new = sum(total["covered"] - total["before"] for total in done.values())
    failures = [f"{name}/crashes/{failure}" for name in names for failure in failures_of(name)]
    lines = [row(name, done[name]) for name in names]
    all_row = f"| all | {executions:,} | | {new:,} | {len(failures)} |"
    paths = [f"build/fuzz/{failure}" for failure in failures]
    return "\n".join([*head, *lines, all_row, *(["", "Inputs that failed:", *paths] if paths else [])])


def main() -> int:
    """Run a campaign; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="Time of all targets together (default: 60).")
    parser.add_argument("targets", nargs="*", help="Names of targets (default: all).")
    arguments = parser.parse_args()
    import atheris

    atheris.enabled_hooks.add("str")
    with atheris.instrument_imports(include=["rove"]):
        from tests.fuzz.targets import TARGETS
    unknown = set(arguments.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; expected some of {', '.join(TARGETS)}")
    BUILD.mkdir(parents=True, exist_ok=True)
    names = arguments.targets or list(TARGETS)
    campaign(names, arguments.minutes)
    return int(any(failures_of(name) for name in names))


if __name__ == "__main__":
    sys.exit(main())
