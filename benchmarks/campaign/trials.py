"""Trials of the fault campaign: one process per trial, the processes that it starts, and the faults that it injects.

The campaign loads rove once and forks a process for every trial, so that a fault costs milliseconds instead of an import. A trial
forks again for every rove command that it runs. Faults are applied in these processes and end with them.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import os
import random
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec

from rove.cli.main import main

if TYPE_CHECKING:
    from workshop import Workshop

COMMAND_TIMEOUT_S = 300.0
"""A command that runs longer than this is considered to hang."""
TRIAL_TIMEOUT_S = 900.0
"""The same for a whole trial."""
ORPHAN_TIMEOUT_S = 20.0
"""Seconds after a command's end until which the processes that it started have to end."""
POLL_S = 0.003
API_KEY = "sk-campaign-5c1f0a7be2d94476"
"""The API key of all commands, which no file may contain."""
API_KEY_VARIABLE = "OPENAI_API_KEY"
MAX_SCANNED_BYTES = 1 << 20
"""Larger files are weights, which are not searched for the key."""

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_CHILD_SUBREAPER, _CLONE_NEWNS = 36, 0x20000
_MS_RDONLY, _MS_REMOUNT, _MS_REC, _MS_PRIVATE = 1, 32, 16384, 1 << 18


class Fault(NamedTuple):
    """A kind of fault in a command."""

    kind: str
    command: str
    weight: int
    """Relative number of trials."""
    inject: Callable[[Trial], None]
    """Injects one fault, lets rove recover, and checks the invariants."""
    needs: tuple[str, ...] = ()
    """Names of the materials of the workshop."""
    missing: str = ""
    """Why this machine cannot inject it; "" if it can."""


FAULTS: list[Fault] = []


def fault(
    kind: str, command: str, weight: int, needs: Sequence[str] = (), missing: str = ""
) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Return a decorator that registers a kind of fault; see `Fault`."""

    def register(inject: Callable[[Trial], None]) -> Callable[[Trial], None]:
        FAULTS.append(Fault(kind, command, weight, inject, tuple(needs), missing))
        return inject

    return register


class Result(msgspec.Struct, kw_only=True):
    """One line of the report."""

    number: int
    kind: str
    command: str
    faults: int = 0
    """Injected faults; 0 if the command ended before the moment of the fault."""
    details: list[str] = []
    """What was injected, and where."""
    violations: list[str] = []
    cpu_seconds: float = 0.0
    commit: str = ""
    """Commit of the code that ran the trial; it ends with "-dirty" if the checkout had changes."""


class Ended(NamedTuple):
    """A command that has ended."""

    status: int
    """The exit status; negative: the number of the signal."""
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that it has printed, in one line."""
        return " ".join((self.out + "\n" + self.err).split())


class Process:
    """A forked process that runs a function."""

    def __init__(self, run: Callable[[], object], folder: Path, log: Path):
        self.out, self.err = log.with_suffix(".out"), log.with_suffix(".err")
        self.status: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(run, folder)

    def _run(self, run: Callable[[], object], folder: Path) -> NoReturn:
        status = 99
        try:
            os.setsid()  # its own process group, so that a signal to the group does not reach the trial
            os.chdir(folder)
            for number, file in ((1, self.out), (2, self.err)):
                os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            try:
                run()
                status = 0
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            atexit._run_exitfuncs()  # os._exit does not call them
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status & 0xFF)

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return whether the process was still running."""
        if self.poll() is not None:
            return False
        os.kill(self.pid, number)
        return True

    def wait(self, timeout: float = COMMAND_TIMEOUT_S) -> Ended | None:
        """Wait until the process ends; None after the timeout."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                return None
            time.sleep(POLL_S)
        assert self.status is not None
        return Ended(self.status, _text(self.out), _text(self.err))


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


class Trial:
    """One trial: a folder, a source of random numbers, and the result.

    Args:
        result: Filled by the trial.
        folder: Empty folder.
        rng: Source of all random choices.
        ordinal: Position among the trials of the same fault, for faults that are enumerated.
        workshop: The materials.
    """

    def __init__(self, result: Result, folder: Path, rng: random.Random, ordinal: int, workshop: Workshop):
        self.result, self.folder, self.rng = result, folder, rng
        self.ordinal, self.workshop = ordinal, workshop
        self._started = 0

    def injected(self, detail: str) -> None:
        """Count a fault that was injected."""
        self.result.faults += 1
        self.result.details.append(detail)

    def violation(self, text: str) -> None:
        """Record that an invariant does not hold."""
        self.result.violations.append(text[:1500])

    def require(self, holds: bool, text: str) -> None:
        """Record a violation unless `holds`."""
        if not holds:
            self.violation(text)

    def copy(self, source: Path, name: str = "run") -> Path:
        """Copy a folder into the trial's folder."""
        return shutil.copytree(source, self.folder / name)

    def start(self, words: Sequence[str], prepare: Callable[[], object] | None = None) -> Process:
        """Start `rove WORDS…` in the trial's folder.

        Args:
            words: The words after `rove`.
            prepare: Called in the new process before rove starts, for a fault.
        """

        def run() -> None:
            if prepare is not None:
                prepare()
            sys.argv = ["rove", *words]
            main()

        self._started += 1
        return Process(run, self.folder, self.folder / f"command{self._started}")

    def run(self, words: Sequence[str], prepare: Callable[[], object] | None = None) -> Ended:
        """Run `rove WORDS…` to its end; a command that hangs is a violation."""
        return self.finish(self.start(words, prepare), words)

    def finish(self, process: Process, words: Sequence[str]) -> Ended:
        """Wait for a command; a command that hangs is a violation."""
        ended = process.wait()
        if ended is None:
            self.violation(f"rove {' '.join(words)} still ran after {COMMAND_TIMEOUT_S:.0f} s")
            process.send(signal.SIGKILL)
            ended = process.wait()
            assert ended is not None
        return ended

    def recover(self, words: Sequence[str]) -> bool:
        """Repeat a command without a fault; return whether it succeeded, and record a violation if not."""
        ended = self.run(words)
        self.require(ended.status == 0, f"the repeated command failed ({ended.status}): {ended.text[-900:]}")
        return ended.status == 0

    def check_orphans(self) -> None:
        """Record a violation for each process that outlives the command that started it, and kill it."""
        end = time.monotonic() + ORPHAN_TIMEOUT_S
        while _living_children():
            if time.monotonic() > end:
                break
            time.sleep(POLL_S)
        for pid in _living_children():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                self.violation(f"orphan process: {command[:300]}")
                os.kill(pid, signal.SIGKILL)

    def check_secrets(self) -> None:
        """Record a violation for each file that contains the API key."""
        for file in self.folder.rglob("*"):
            is_searched = file.is_file() and not file.is_symlink() and file.stat().st_size < MAX_SCANNED_BYTES
            if is_searched and API_KEY.encode() in file.read_bytes():
                self.violation(f"the API key is in {file.relative_to(self.folder)}")


def _living_children() -> list[int]:
    """Return the children of this process, which adopts orphans, that have not ended; collect those that have."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def run_trial(fault: Fault, number: int, seed: str, ordinal: int, folder: Path, workshop: Workshop) -> Result:
    """Run a trial in a process of its own and return its result. The folder is kept if an invariant does not hold."""
    result = Result(number=number, kind=fault.kind, command=fault.command)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    answer = folder.with_suffix(".answer")
    answer.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        _run_in_child(Trial(result, folder, random.Random(seed), ordinal, workshop), fault, answer)
    end = time.monotonic() + TRIAL_TIMEOUT_S
    while not (waited := os.wait4(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    if answer.exists():
        result = msgspec.json.decode(answer.read_bytes(), type=Result)
        answer.unlink()
    else:
        result.violations.append(f"the trial itself ended with {os.waitstatus_to_exitcode(waited[1])}")
    result.cpu_seconds = round(waited[2].ru_utime + waited[2].ru_stime, 3)
    for orphan in _living_children():  # of a trial that was killed
        os.kill(orphan, signal.SIGKILL)
    if not result.violations:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _run_in_child(trial: Trial, fault: Fault, answer: Path) -> NoReturn:
    try:
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        os.environ[API_KEY_VARIABLE] = API_KEY
        os.chdir(trial.folder)
        try:
            fault.inject(trial)
        except Exception:
            trial.violation(f"the trial raised {traceback.format_exc()[-1200:]}")
        trial.check_orphans()
        trial.check_secrets()
        answer.write_bytes(msgspec.json.encode(trial.result))
    finally:
        os._exit(0)


# Faults in a process, applied by `prepare`

FILE_EVENTS = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree", "os.link")


def on_file_operation(folder: Path, act: Callable[[int], object]) -> None:
    """Call `act` with the number of each operation on a file in `folder`, just before it happens, until the process ends."""
    count = 0
    inside = str(folder)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        if event in FILE_EVENTS and args and inside in _path_of(args[0]):
            count += 1
            act(count)

    sys.addaudithook(hook)


def _path_of(value: object) -> str:
    if isinstance(value, bytes):
        return os.fsdecode(value)
    return os.path.abspath(value) if isinstance(value, (str, os.PathLike)) else ""


def die() -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def limit_files(count: int) -> None:
    """Let this process open this many files more than it has open."""
    free = (number for number in itertools.count() if not os.path.exists(f"/proc/self/fd/{number}"))
    # The limit is on the numbers of files, and the open ones may leave gaps.
    end = next(itertools.islice(free, count, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (end, end))


def limit_memory(more_bytes: int) -> None:
    """Let this process allocate this much more memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    total = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (total, total))


def jump_clock(seconds: float, after_calls: int) -> None:
    """Set the wall clock of this process forward (or back) after a number of readings; the monotonic clock goes on."""
    readings = 0
    true_time, true_time_ns = time.time, time.time_ns

    def offset() -> float:
        nonlocal readings
        readings += 1
        return seconds if readings > after_calls else 0.0

    time.time = lambda: true_time() + offset()
    time.time_ns = lambda: true_time_ns() + int(offset() * 1e9)


# Faults of a disk: a small file system that only this trial sees


def can_mount() -> bool:
    """Return whether this process may mount file systems in a namespace of its own."""
    pid = os.fork()
    if pid == 0:
        os._exit(int(_libc.unshare(_CLONE_NEWNS) != 0))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


class Disk:
    """A file system in memory, mounted on a folder, which only this process and its children see."""

    def __init__(self, folder: Path, size_bytes: int):
        self.folder = folder
        folder.mkdir()
        _call("unshare", _libc.unshare(_CLONE_NEWNS))
        _call("mount", _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))
        _call("mount", _libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=%d" % size_bytes))

    def resize(self, size_bytes: int) -> None:
        """Set the size of the disk."""
        self._remount(0, b"size=%d" % size_bytes)

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """Make the disk read-only inside a `with` statement."""
        self._remount(_MS_RDONLY, None)
        try:
            yield
        finally:
            self._remount(0, None)

    def used_bytes(self) -> int:
        """Return the bytes in use."""
        status = os.statvfs(self.folder)
        return (status.f_blocks - status.f_bfree) * status.f_frsize

    def _remount(self, flags: int, options: bytes | None) -> None:
        _call("mount", _libc.mount(b"tmpfs", os.fsencode(self.folder), b"tmpfs", _MS_REMOUNT | flags, options))


def _call(name: str, status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
