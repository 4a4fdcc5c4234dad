"""Faults of processes, disks, clocks and limits in the commands that write a run folder, and in audits."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from trials import (
    POLL_S,
    Disk,
    Ended,
    Process,
    Trial,
    can_mount,
    die,
    fault,
    jump_clock,
    limit_files,
    limit_memory,
    on_file_operation,
)
from workshop import (
    AUDIT,
    EVAL,
    TRAIN,
    TRAINING,
    audit_results,
    check_evaluation,
    check_kept,
    check_no_invented_reward,
    check_training,
    finished_lines,
    train_results,
)

from rove import Run
from rove.core.errors import RunError

YEAR_S = 365 * 86400.0
NO_MOUNT = "" if can_mount() else "this process may not mount file systems"


class Subject(NamedTuple):
    """A command that writes the folder `run`, and how its results are checked."""

    name: str
    words: tuple[str, ...]
    inputs: str
    """Material that the command needs."""
    complete: str
    """Material with the uninterrupted run."""
    check: Callable[[Trial, Path, Sequence[bytes]], None]

    def set_up(self, trial: Trial) -> Path:
        """Put the inputs into the trial's folder and return the path of the run folder."""
        source = trial.workshop[self.inputs]
        for path in source.iterdir():
            if path.name not in ("run", "runs") and not path.name.startswith("."):
                os.symlink(path, trial.folder / path.name)
        return trial.folder / "run"

    def operation(self, trial: Trial) -> int:
        """Return the number of a random operation on the files of the run folder."""
        count = int((trial.workshop[self.complete] / "operations").read_text())
        return trial.rng.randint(1, count)

    def recover(self, trial: Trial, run: Path) -> None:
        """Repeat the command without a fault and check the results; the rollouts that exist now must remain."""
        check_no_invented_reward(trial, run)
        earlier = finished_lines(run)
        if trial.recover(self.words):
            self.check(trial, run, earlier)


def _check_eval(trial: Trial, run: Path, earlier: Sequence[bytes]) -> None:
    check_evaluation(trial, run, earlier)


def _check_stage(name: str) -> Callable[[Trial, Path, Sequence[bytes]], None]:
    return lambda trial, run, earlier: check_training(trial, name, run)


def _check_train(trial: Trial, run: Path, earlier: Sequence[bytes]) -> None:
    expected = trial.workshop.cached("train", lambda: train_results(trial.workshop["train"] / "run"))
    trial.require(train_results(run) == expected, "the results table or the weights differ from the uninterrupted ones")
    check_kept(trial, run / "data", earlier)


SUBJECTS = {
    "eval": Subject("eval", EVAL, "eval", "eval", _check_eval),
    **{name: Subject(name, TRAINING[name], "inputs", name, _check_stage(name)) for name in TRAINING},
    "train": Subject("train", TRAIN, "train", "train", _check_train),
}


def each_subject(
    kind: str, weights: dict[str, int], missing: str = ""
) -> Callable[[Callable[[Trial, Subject, Path], None]], None]:
    """Return a decorator that registers a fault for several commands; `weights` are by command."""

    def register(inject: Callable[[Trial, Subject, Path], None]) -> None:
        for name, weight in weights.items():
            subject = SUBJECTS[name]

            def run(trial: Trial, subject: Subject = subject) -> None:
                inject(trial, subject, subject.set_up(trial))

            fault(kind, name, weight, (subject.inputs, subject.complete), missing)(run)

    return register


def die_at(run: Path, operation: int) -> Callable[[], None]:
    """Return a function that lets this process die before an operation on a file of the run folder."""

    def act(number: int) -> None:
        if number == operation:
            die()

    return lambda: on_file_operation(run, act)


def die_in_line(number: int, share: float) -> Callable[[], None]:
    """Return a function that lets this process die within a line that it appends to a file of the run folder.

    Args:
        number: Number of the line, from 1.
        share: Share of the line that is written.
    """

    def prepare() -> None:
        lines = 0
        append = Run._append

        def append_part(run: Run, name: str, line: bytes) -> None:
            nonlocal lines
            lines += 1
            if lines == number:
                with (run.path / name).open("ab") as file:
                    file.write((line + b"\n")[: int(share * len(line))])
                die()
            append(run, name, line)

        Run._append = append_part

    return prepare


@each_subject("kill -9", {"eval": 420, "sft": 60, "rl": 70, "train": 12})
def kill(trial: Trial, subject: Subject, run: Path) -> None:
    """Kill the command before a file operation or within a line, once or twice, then repeat it."""
    for _ in range(trial.rng.choice((1, 1, 2))):
        if trial.rng.random() < 0.3 and subject.name != "train":
            number, share = trial.rng.randint(1, 24 if subject.name == "eval" else 6), trial.rng.random()
            prepare, detail = die_in_line(number, share), f"after {share:.0%} of line {number}"
        else:
            operation = subject.operation(trial)
            prepare, detail = die_at(run, operation), f"before file operation {operation}"
        earlier = finished_lines(run)
        ended = trial.run(subject.words, prepare)
        if ended.status != -signal.SIGKILL:
            trial.require(ended.status == 0, f"the command failed ({ended.status}): {ended.text[-600:]}")
            break
        trial.injected(detail)
        if subject.name == "eval":
            check_kept(trial, run, earlier)
    subject.recover(trial, run)


@each_subject("SIGSTOP and SIGCONT", {"eval": 90, "sft": 15, "rl": 20})
def stop(trial: Trial, subject: Subject, run: Path) -> None:
    """Stop the command for a moment; it must end as if nothing had happened."""
    process = start_stopped(trial, subject, run)
    if process is not None:
        trial.injected("stopped and continued")
        time.sleep(trial.rng.uniform(0.0, 0.2))
        process.send(signal.SIGCONT)
        ended = trial.finish(process, subject.words)
        trial.require(ended.status == 0, f"the continued command failed ({ended.status}): {ended.text[-600:]}")
    subject.recover(trial, run)


def start_stopped(trial: Trial, subject: Subject, run: Path) -> Process | None:
    """Start the command, which stops itself before a file operation; None if it ends before that."""
    operation = subject.operation(trial)

    def act(number: int) -> None:
        if number == operation:
            os.kill(os.getpid(), signal.SIGSTOP)

    process = trial.start(subject.words, lambda: on_file_operation(run, act))
    while process.poll() is None:
        status = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        if status[0] == "T":
            return process
        time.sleep(POLL_S)
    return None


@each_subject("two writers", {"eval": 150, "sft": 15, "rl": 20})
def two_writers(trial: Trial, subject: Subject, run: Path) -> None:
    """Start the command twice: while the first one is stopped somewhere, or at the same time."""
    first = start_stopped(trial, subject, run) if trial.rng.random() < 0.7 else trial.start(subject.words)
    if first is not None:
        trial.injected("a second process with the same run folder")
        second = trial.run(subject.words)
        first.send(signal.SIGCONT)
        ended = trial.finish(first, subject.words)
        trial.require(0 in (ended.status, second.status), f"both failed: {ended.text[-500:]} {second.text[-500:]}")
        for each in (ended, second):
            is_refused = "another process is writing" in each.text
            trial.require(each.status == 0 or is_refused, f"a writer failed without the reason: {each.text[-500:]}")
    subject.recover(trial, run)


@each_subject("disk full", {"eval": 260, "sft": 30, "rl": 30}, NO_MOUNT)
def disk_full(trial: Trial, subject: Subject, run: Path) -> None:
    """Give the run folder a disk that is too small, then a larger one."""
    complete = trial.workshop[subject.complete] / "run"
    used = sum(-(-file.stat().st_size // 4096) * 4096 for file in complete.rglob("*") if file.is_file())
    disk = Disk(run, max(1, trial.rng.randint(1, used // 4096)) * 4096)
    ended = trial.run(subject.words)
    if ended.status:
        trial.injected(f"{disk.used_bytes()} bytes on the disk; {complete.name} needs {used}")
        check_message(trial, ended, "No space left", "Make room on the disk")
    disk.resize(1 << 28)
    subject.recover(trial, run)


def check_message(trial: Trial, ended: Ended, *reasons: str) -> None:
    """Check that a command that failed says why, without a traceback."""
    trial.require("Traceback" not in ended.err, f"a traceback: {ended.err[-1200:]}")
    names_reason = any(reason in ended.text for reason in reasons)
    trial.require(names_reason, f"the error does not contain {' or '.join(reasons)}: {ended.text[-600:]}")


@each_subject("read-only folder", {"eval": 200, "sft": 12, "rl": 15}, NO_MOUNT)
def read_only(trial: Trial, subject: Subject, run: Path) -> None:
    """Make the run folder read-only: empty, or after a kill; then writable again."""
    disk = Disk(run, 1 << 28)
    if trial.rng.random() < 0.8:
        trial.run(subject.words, die_at(run, subject.operation(trial)))
    files_before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with disk.read_only():
        ended = trial.run(subject.words)
    trial.injected(f"{len(files_before)} files")
    if ended.status:
        check_message(trial, ended, "Read-only file system")
    files_after = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    trial.require(files_before == files_after, "a read-only folder has changed")
    subject.recover(trial, run)


@each_subject("slow disk", {"eval": 80, "rl": 10})
def slow_disk(trial: Trial, subject: Subject, run: Path) -> None:
    """Delay every file operation, write lines in two parts, and read the run meanwhile."""
    delay = trial.rng.uniform(0.001, 0.01)

    def prepare() -> None:
        append = Run._append

        def append_slowly(run: Run, name: str, line: bytes) -> None:
            if name in run._files:
                run._files[name].write(line[: len(line) // 2])
                run._files[name].flush()
                time.sleep(delay)
                line = line[len(line) // 2 :]
            append(run, name, line)

        Run._append = append_slowly
        on_file_operation(run, lambda number: time.sleep(delay))

    process = trial.start(subject.words, prepare)
    trial.injected(f"{delay * 1000:.1f} ms per operation")
    while process.poll() is None:
        check_no_invented_reward(trial, run)
        time.sleep(0.02)
    ended = trial.finish(process, subject.words)
    trial.require(ended.status == 0, f"the slow command failed ({ended.status}): {ended.text[-600:]}")
    subject.check(trial, run, [])


@each_subject("clock jump", {"eval": 150, "sft": 12, "rl": 15})
def clock_jump(trial: Trial, subject: Subject, run: Path) -> None:
    """Set the clock while the command runs, and move the times of the files of a run that was killed."""
    seconds = trial.rng.choice((-1, 1)) * trial.rng.choice((1.0, 3600.0, 86400.0, YEAR_S))
    if trial.rng.random() < 0.5:
        trial.run(subject.words, die_at(run, subject.operation(trial)))
    for file in [run, *run.rglob("*")] if run.exists() else []:
        moment = time.time() + trial.rng.choice((-1, 1)) * trial.rng.choice((60.0, YEAR_S))
        with contextlib.suppress(OSError):
            os.utime(file, (moment, moment))
    calls = trial.rng.randrange(20)
    earlier = finished_lines(run)
    ended = trial.run(subject.words, lambda: jump_clock(seconds, calls))
    trial.injected(f"{seconds:+.0f} s after {calls} readings")
    trial.require(ended.status == 0, f"the command failed ({ended.status}): {ended.text[-600:]}")
    subject.check(trial, run, earlier)


@each_subject("few file descriptors", {"eval": 150, "sft": 15, "rl": 15})
def few_files(trial: Trial, subject: Subject, run: Path) -> None:
    """Allow only a few more open files."""
    extra_files = trial.rng.randint(0, 20)
    ended = trial.run(subject.words, lambda: limit_files(extra_files))
    if ended.status or "Too many open files" in ended.text:
        trial.injected(f"{extra_files} more files")
    if ended.status:
        trial.require("open files" in ended.text, f"the error does not mention open files: {ended.text[-600:]}")
    subject.recover(trial, run)


THREAD_TIMEOUT_S = 60.0
FAILED_THREAD = "Exception ignored in thread started by"
"""What CPython prints about a thread that could not begin."""


@each_subject("memory limit", {"eval": 120, "sft": 25, "rl": 30})
def few_memory(trial: Trial, subject: Subject, run: Path) -> None:
    """Allow only a little more memory."""
    extra_bytes = trial.rng.randint(0, 3_000 if subject.name == "eval" else 150_000) << 10
    process = trial.start(subject.words, lambda: limit_memory(extra_bytes))
    ended = process.wait(THREAD_TIMEOUT_S)
    if ended is None and FAILED_THREAD in process.err.read_text(errors="replace"):
        # CPython's `Thread.start` waits forever for a thread that had no memory to begin; a user ends such a command.
        process.send(signal.SIGKILL)
    ended = trial.finish(process, subject.words)
    if ended.status or "emory" in ended.text:
        trial.injected(f"{extra_bytes >> 10} KiB more")
    subject.recover(trial, run)


# Processes of environments


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and their processes."""
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                pids += [int(child), *descendants(int(child))]
    return pids


@fault("death of an environment worker", "eval", 60, ("eval",))
def kill_worker(trial: Trial) -> None:
    """Kill a worker process of an isolated environment: at its start, or while rollouts run."""
    run = SUBJECTS["eval"].set_up(trial)
    words = (*EVAL, "--isolated")
    process = trial.start(words)
    if kill_descendant(trial, process, run, trial.rng.randrange(20)):
        trial.injected("killed a worker process")
    ended = trial.finish(process, words)
    if ended.status:
        trial.require("worker" in ended.text or "ended" in ended.text, f"no reason: {ended.text[-600:]}")
    check_no_invented_reward(trial, run)
    earlier = finished_lines(run)
    if trial.recover(words):
        check_evaluation(trial, run, earlier)


def kill_descendant(trial: Trial, process: Process, run: Path, lines: int) -> bool:
    """Kill a random process that a command has started, once the run has this many rollouts; return whether it was killed."""
    while process.poll() is None:
        pids = descendants(process.pid)
        if pids and len(finished_lines(run)) >= lines:
            with contextlib.suppress(ProcessLookupError):
                os.kill(trial.rng.choice(pids), signal.SIGKILL)
                return True
        time.sleep(POLL_S)
    return False


@fault("kill -9", "audit", 25, ("audit",))
def kill_audit(trial: Trial) -> None:
    """Kill an audit at a random moment; its report is complete or absent, and the next audit finds the same."""
    SUBJECTS["eval"].set_up(trial)
    process = trial.start(AUDIT)
    end = time.monotonic() + trial.rng.uniform(0.0, 4.0)
    while process.poll() is None and time.monotonic() < end:
        time.sleep(POLL_S)
    if process.send(signal.SIGKILL):
        trial.injected("at a random moment")
    trial.finish(process, AUDIT)
    check_audit(trial, repeat=True)


@fault("death of an environment worker", "audit", 25, ("audit",))
def kill_audit_worker(trial: Trial) -> None:
    """Kill the process in which an audit runs the environment; the audit says so, or finds the same."""
    SUBJECTS["eval"].set_up(trial)
    process = trial.start(AUDIT)
    end = time.monotonic() + trial.rng.uniform(0.0, 4.0)
    while process.poll() is None and time.monotonic() < end:
        time.sleep(POLL_S)
    pids = descendants(process.pid)
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(trial.rng.choice(pids), signal.SIGKILL)
            trial.injected("killed the environment's process")
    ended = trial.finish(process, AUDIT)
    report = trial.folder / "report.json"
    expected = audit_results(trial.workshop["audit"] / "report.json")
    if not report.exists() or audit_results(report) != expected:
        trial.require(ended.status != 0, f"an audit without its results has exit status 0: {ended.text[-600:]}")
    check_audit(trial, repeat=True)


def check_audit(trial: Trial, repeat: bool) -> None:
    """Check that the report of an audit is absent or complete; with `repeat`, also that the next audit finds the same."""
    report = trial.folder / "report.json"
    if report.exists():
        try:
            audit_results(report)
        except ValueError as error:
            trial.violation(f"half a report: {error}")
    if repeat:
        ended = trial.run((*AUDIT, "--fail-on", "high"))
        trial.require(ended.status == 0, f"the repeated audit failed: {ended.text[-600:]}")
        expected = audit_results(trial.workshop["audit"] / "report.json")
        trial.require(audit_results(report) == expected, "the repeated audit found something else")


__all__ = ["SUBJECTS", "RunError", "Subject", "check_message", "descendants", "die_at", "each_subject"]
