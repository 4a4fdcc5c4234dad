"""Control groups: one per session, for the memory and the number of all its processes together.

Both versions of them are known. Without the right to make groups there are still the limits of single processes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from rove.sandbox.backend import SandboxLimits

OVERHEAD_BYTES = 64 << 20
"""On top of `memory_bytes` and `disk_bytes`: the supervisor, and what the kernel keeps for a session."""
OVERHEAD_PROCESSES = 8


class Groups:
    """Makes the groups of one backend, and removes them.

    Args:
        root: where control groups are mounted.
        own: file that tells which groups this process is in.
        without: controllers to do without.
    """

    def __init__(
        self,
        root: Path = Path("/sys/fs/cgroup"),
        own: Path = Path("/proc/self/cgroup"),
        without: Collection[str] = (),
    ):
        self.missing: dict[str, str] = {}
        self._parents: dict[str, tuple[Path, dict[str, str]]] = {}
        self._made: set[Path] = set()
        for controller in ("memory", "pids"):
            try:
                if controller in without:
                    raise OSError("turned off")
                self._parents[controller] = _parent(controller, root, own)
                _sweep(self._parents[controller][0])
            except OSError as error:
                self.missing[controller] = str(error)

    def enter(self, slot: int, limits: SandboxLimits) -> list[int]:
        """Files to write 0 to, for who wants to join the groups of a slot; the caller closes them.

        Raises:
            OSError: the kernel refuses a limit.
        """
        memory = limits.memory_bytes + limits.disk_bytes + OVERHEAD_BYTES
        values = {"memory": str(memory), "swap": "0", "pids": str(limits.processes + OVERHEAD_PROCESSES)}
        folders = {parent / f"rove-{os.getpid()}-{id(self):x}-{slot}" for parent, _ in self._parents.values()}
        for folder in folders - self._made:
            folder.mkdir()
            self._made.add(folder)
        for parent, files in self._parents.values():
            folder = parent / f"rove-{os.getpid()}-{id(self):x}-{slot}"
            for kind, name in files.items():
                with contextlib.suppress(FileNotFoundError):  # kernels without accounting of swap
                    (folder / name).write_text(values[kind])
        return [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in sorted(folders)]

    def close(self) -> bool:
        """Remove the groups. Whether all are gone: those that still have processes stay."""
        for folder in list(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()
                self._made.discard(folder)
        return not self._made


def _parent(controller: str, root: Path, own: Path) -> tuple[Path, dict[str, str]]:
    """Where groups with a controller can be made, and which file has which limit."""
    lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    for _, names, path in lines:
        if controller in names.split(","):
            files = {"memory": {"memory": "memory.limit_in_bytes"}, "pids": {"pids": "pids.max"}}[controller]
            return _tried(root / controller / path.lstrip("/"), files)
    for number, _, path in lines:
        mounted = root / "unified" if (root / "unified").is_dir() else root
        if number == "0":
            files = {"memory": {"memory": "memory.max", "swap": "memory.swap.max"}, "pids": {"pids": "pids.max"}}
            return _tried(mounted / path.lstrip("/"), files[controller])
    raise OSError(f"no control group has the controller {controller}")


def _tried(parent: Path, files: dict[str, str]) -> tuple[Path, dict[str, str]]:
    probe = parent / f"rove-{os.getpid()}-probe"
    with contextlib.suppress(FileExistsError):
        probe.mkdir()
    try:
        if not (probe / next(iter(files.values()))).exists():
            raise OSError(f"{parent} gives its children no {next(iter(files.values()))}")
    finally:
        probe.rmdir()
    return parent, files


def _sweep(parent: Path) -> None:
    """Remove what processes that were killed left behind."""
    for folder in parent.glob("rove-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
