"""The fault campaign: thousands of seeded faults in every command, and the promises that must hold after each of them.

    make campaign                                              # all kinds, 5,000 faults
    python benchmarks/campaign/campaign.py --kinds "torn file,kill -9" --commands eval,rl --faults 100 --seed 1

The campaign writes one JSON line per trial to FOLDER/report.jsonl while it runs, and at the end a table by kind and command to
FOLDER/table.md. An interrupted campaign continues with the same command. After each fault, it checks that

- no finished rollout is lost or repeated, and a failed rollout has no reward;
- a resumed training run ends with the weights, metrics and rollouts of an uninterrupted one, bit for bit;
- no process is left over, and no file contains the API key;
- a damaged file is named in an error, or has no effect on the results;
- a hub serves a complete package or none.

The exit status is 1 if an invariant was violated; the folder of that trial is kept in FOLDER/trials.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests" / "support"))

# ruff: noqa: E402  the folder of the tests' helpers comes first
from trials import FAULTS, Fault, Result, run_trial
from workshop import Workshop

from rove.runs.files import RunFiles
from rove.utils.files import truncate_torn_line

FAULT_MODULES = ("run_faults", "damage", "endpoint_faults", "service_faults", "hub_faults")
"""Modules that register their faults in `FAULTS`."""
REPORT, TABLE = "report.jsonl", "table.md"
MAX_TRIALS_PER_FAULT = 2
"""A campaign gives up after this many trials per fault that it has to inject: in some trials, the command ends too early."""


class Settings(msgspec.Struct, frozen=True):
    """First line of a report: what must not change when a campaign continues."""

    seed: int
    kinds: list[str]
    commands: list[str]


def next_fault(faults: Sequence[Fault], counts: Counter[tuple[str, str]]) -> Fault:
    """Return the fault whose share of the trials so far is the furthest below its weight."""
    return min(faults, key=lambda fault: (counts[fault.kind, fault.command] + 1) / fault.weight)


def read_report(file: Path, settings: Settings) -> list[Result]:
    """Return the trials of a report; start a new one if there is none.

    Exits with a message if the report is one of other settings.
    """
    truncate_torn_line(file)
    lines = list(RunFiles(file.parent).lines_of(file.name))
    if not lines:
        file.write_bytes(msgspec.json.encode(settings) + b"\n")
        return []
    recorded = msgspec.json.decode(lines[0], type=Settings)
    if recorded != settings:
        sys.exit(f"{file} is of a campaign with {recorded}, not {settings}; pass another --folder")
    return [msgspec.json.decode(line, type=Result) for line in lines[1:]]


def choose(kinds: Sequence[str], commands: Sequence[str]) -> list[Fault]:
    """Return the faults of these kinds and commands ([] = all); exit with a message if there is no such kind or command."""
    known_kinds, known_commands = {fault.kind for fault in FAULTS}, {fault.command for fault in FAULTS}
    for unknown in [*(set(kinds) - known_kinds), *(set(commands) - known_commands)]:
        sys.exit(f"unknown: {unknown!r}; kinds: {', '.join(sorted(known_kinds))}; commands: {sorted(known_commands)}")
    return [
        fault for fault in FAULTS if (not kinds or fault.kind in kinds) and (not commands or fault.command in commands)
    ]


def prepare(faults: Sequence[Fault], folder: Path) -> Workshop:
    """Make the materials of these faults, and load in this process all modules that the commands use."""
    for variable, name in (("HOME", "home"), ("XDG_DATA_HOME", "data"), ("XDG_CONFIG_HOME", "config")):
        (folder / name).mkdir(exist_ok=True)
        os.environ[variable] = str(folder / name)
    os.environ |= {"ROVE_HUB": "", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    workshop = Workshop(folder / "workshop")
    for name in sorted({name for fault in faults for name in fault.needs}):
        workshop.make(name)
    for name in workshop.modules():
        with_errors_ignored(name)
    gc.freeze()  # so that the collector of a forked process does not copy every page
    return workshop


def with_errors_ignored(module: str) -> None:
    """Import a module that another process had loaded; some cannot be imported again by name."""
    try:
        importlib.import_module(module)
    except Exception:
        return


def table(results: Sequence[Result], skipped: Sequence[Fault]) -> str:
    """Return the report as a Markdown table by kind and command."""
    lines = [
        f"{sum(r.faults for r in results):,} faults in {len(results):,} trials, "
        f"{sum(len(r.violations) for r in results)} violations, "
        f"{sum(r.cpu_seconds for r in results) / 60:.1f} CPU-minutes; commit "
        f"{', '.join(sorted({r.commit for r in results}))}",
        "",
        "| kind | command | faults | survived | violations | trials without a fault | CPU-s |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, command in sorted({(r.kind, r.command) for r in results}):
        group = [r for r in results if (r.kind, r.command) == (kind, command)]
        num_faults = sum(r.faults for r in group)
        survived = sum(r.faults for r in group if not r.violations)
        violations = sum(len(r.violations) for r in group)
        missed = sum(r.faults == 0 for r in group)
        seconds = sum(r.cpu_seconds for r in group)
        lines.append(f"| {kind} | {command} | {num_faults} | {survived} | {violations} | {missed} | {seconds:.0f} |")
    lines += [f"\nSkipped: {fault.kind} ({fault.command}), because {fault.missing}." for fault in skipped]
    return "\n".join(lines) + "\n"


def commit_of(folder: Path) -> str:
    """Return the commit of a checkout, with "-dirty" if it has changes; "unknown" outside of a checkout."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> None:
    """Run or continue a campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="", help="Kinds of faults, separated by commas. Default: all.")
    parser.add_argument("--commands", default="", help="Commands, separated by commas. Default: all.")
    parser.add_argument("--faults", type=int, default=5000, help="Number of faults to inject. Default: 5000.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=Path("runs/campaign"), help="Default: runs/campaign.")
    args = parser.parse_args()
    for module in FAULT_MODULES:
        importlib.import_module(module)
    settings = Settings(args.seed, *(sorted(filter(None, text.split(","))) for text in (args.kinds, args.commands)))
    chosen = choose(settings.kinds, settings.commands)
    faults, skipped = [f for f in chosen if not f.missing], [f for f in chosen if f.missing]
    folder = args.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / REPORT
    results = read_report(report, settings)
    commit = commit_of(HERE)  # now, because the checkout may change while the campaign runs
    workshop = prepare(faults, folder)
    counts = Counter((result.kind, result.command) for result in results)
    total = sum(result.faults for result in results)
    with report.open("ab") as file:
        while faults and total < args.faults and len(results) < MAX_TRIALS_PER_FAULT * args.faults:
            fault, number = next_fault(faults, counts), len(results)
            ordinal = counts[fault.kind, fault.command]
            seed = f"{args.seed}:{fault.kind}:{fault.command}:{ordinal}"
            result = run_trial(fault, number, seed, ordinal, folder / "trials" / str(number), workshop)
            result.commit = commit
            file.write(msgspec.json.encode(result) + b"\n")
            file.flush()
            results.append(result)
            counts[fault.kind, fault.command] += 1
            total += result.faults
            for violation in result.violations:
                print(f"trial {number}, {fault.kind}, {fault.command}: {violation}", flush=True)
            if len(results) % 100 == 0:
                print(f"{total:,} faults in {len(results):,} trials", flush=True)
    text = table(results, skipped)
    (folder / TABLE).write_text(text)
    print(text)
    sys.exit(any(result.violations for result in results))


if __name__ == "__main__":
    main()
