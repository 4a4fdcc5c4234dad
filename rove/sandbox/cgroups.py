"""Control groups, one per session: each limits the memory and the number of all processes of its session together.

Versions 1 and 2 are supported. Without permission to create groups, which most containers lack, only the limits of
single processes apply (docs/decisions/sandbox.md).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from rove.sandbox.backend import SandboxLimits

OVERHEAD_BYTES = 64 << 20
"""Additional memory beyond `memory_bytes` and `disk_bytes`, for the supervisor and the kernel's bookkeeping."""
OVERHEAD_PROCESSES = 8


class Groups:
    """Creates and removes the control groups of one backend."""

    def __init__(
        self,
        root: Path = Path("/sys/fs/cgroup"),
        own_groups: Path = Path("/proc/self/cgroup"),
        without: Collection[str] = (),
    ):
        self.missing: dict[str, str] = {}
        self._parents: dict[str, tuple[Path, dict[str, str]]] = {}
        self._created: set[Path] = set()
        for controller in ("memory", "pids"):
            try:
                if controller in without:
                    raise OSError("turned off")
                self._parents[controller] = _parent(controller, root, own_groups)
                _remove_stale(self._parents[controller][0])
            except OSError as error:
                self.missing[controller] = str(error)

    def enter(self, slot: int, limits: SandboxLimits) -> list[int]:
        """Return open files of a slot's groups, to be closed by the caller: a process that writes 0 to a file moves into the
        group.
        """
        memory = limits.memory_bytes + limits.disk_bytes + OVERHEAD_BYTES  # the session's folder is in memory, too
        max_processes = limits.processes + OVERHEAD_PROCESSES
        values = {"memory": str(memory), "swap": "0", "pids": str(max_processes)}
        # The process id comes first: `_remove_stale` finds groups of killed processes by it.
        name = f"rove-{os.getpid()}-{id(self):x}-{slot}"
        # With version 2 the controllers share a folder. It stays for the slot's next session.
        folders = {parent / name for parent, _ in self._parents.values()}
        for folder in folders - self._created:
            folder.mkdir()
            self._created.add(folder)
        for parent, files in self._parents.values():
            for kind, file in files.items():
                with contextlib.suppress(FileNotFoundError):  # kernels without swap accounting
                    (parent / name / file).write_text(values[kind])
        return [os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for folder in sorted(folders)]

    def close(self) -> bool:
        """Remove the groups that have no processes; return whether all groups are gone."""
        for folder in list(self._created):
            with contextlib.suppress(OSError):
                folder.rmdir()
                self._created.discard(folder)
        return not self._created


VERSION_1_FILES = {"memory": {"memory": "memory.limit_in_bytes"}, "pids": {"pids": "pids.max"}}
VERSION_2_FILES = {"memory": {"memory": "memory.max", "swap": "memory.swap.max"}, "pids": {"pids": "pids.max"}}
"""Controller → limit → the file that sets it."""


def _parent(controller: str, root: Path, own_groups: Path) -> tuple[Path, dict[str, str]]:
    """Return the folder in which groups with a controller can be created, and the file of each limit."""
    lines = [line.split(":", 2) for line in own_groups.read_text().splitlines()]
    # A machine may mount both versions; the controllers that version 1 has are then missing in version 2.
    for _, names, path in lines:
        if controller in names.split(","):
            parent, files = root / controller / path.lstrip("/"), VERSION_1_FILES[controller]
            _probe(parent, files)
            return parent, files
    for hierarchy, _, path in lines:
        mounted = root / "unified" if (root / "unified").is_dir() else root
        if hierarchy == "0":
            parent, files = mounted / path.lstrip("/"), VERSION_2_FILES[controller]
            _probe(parent, files)
            return parent, files
    raise OSError(f"no control group has the controller {controller}")


def _probe(parent: Path, files: dict[str, str]) -> None:
    """Check that a group can be created in `parent` and has the first of the files; raise an OSError if not.

    The permissions and the files of the parent do not show this.
    """
    first_file = next(iter(files.values()))
    probe = parent / f"rove-{os.getpid()}-probe"
    with contextlib.suppress(FileExistsError):
        probe.mkdir()
    try:
        if not (probe / first_file).exists():
            raise OSError(f"{parent} gives its children no {first_file}")
    finally:
        probe.rmdir()


def _remove_stale(parent: Path) -> None:
    """Remove the groups that rove processes left behind when they were killed."""
    for folder in parent.glob("rove-*"):
        _, pid, *_ = folder.name.split("-")
        if not Path("/proc", pid).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()
