"""C kernels for CPUs, compiled on first use by the machine's C compiler and cached (docs/decisions/kernels.md).

They are optional: without a compiler, callers fall back to slower PyTorch code.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from rove.utils.files import cache_folder
from rove.utils.systems import rename

logger = logging.getLogger(__name__)

# Not -ffast-math: it assumes that there are no NaNs, by which a diverged model is recognized.
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC"]
COMPILE_TIMEOUT_S = 60.0
"""Timeout of the compiler in seconds; it usually takes half a second."""
MAX_GROUPS = 16
"""Maximum number of query heads per key head; more heads do not fit in the registers."""

POINTER, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
SIGNATURES: Mapping[str, Mapping[str, tuple[list[Any], Any]]] = {
    "decode": {
        "attend": ([POINTER, POINTER, FLOAT, POINTER, FLOAT, *[POINTER] * 7, *[INT] * 3], None),
        "gate": ([POINTER, POINTER, INT, INT], None),
        "add_norm": ([POINTER, POINTER, POINTER, FLOAT, POINTER, INT, INT], None),
    },
    "attention": {
        "forward": ([*[POINTER] * 3, FLOAT, *[POINTER] * 3, *[INT] * 4, *[POINTER] * 2], ctypes.c_int),
        "backward": ([*[POINTER] * 3, FLOAT, *[POINTER] * 3, *[INT] * 4, *[POINTER] * 6], ctypes.c_int),
    },
    "layer": {
        "norm": ([*[POINTER] * 3, FLOAT, *[POINTER] * 2, *[INT] * 3], None),
        "norm_backward": ([*[POINTER] * 2, FLOAT, *[POINTER] * 3, *[INT] * 3], None),
        "gate": ([*[POINTER] * 2, *[INT] * 3], None),
        "gate_backward": ([*[POINTER] * 4, *[INT] * 3], None),
        "rotate": ([*[POINTER] * 2, FLOAT, *[POINTER] * 5, *[INT] * 3], None),
        "rotate_backward": ([*[POINTER] * 2, FLOAT, *[POINTER] * 7, *[INT] * 3], None),
    },
    "softmax": {
        "softmax": ([*[POINTER] * 4, *[INT] * 3], None),
        "softmax_gradient": ([*[POINTER] * 6, *[INT] * 3], None),
        "sample": ([*[POINTER] * 5, *[INT] * 3], None),
    },
}
"""Source → argument types and return type of its functions."""


def vector_floats(size: int) -> int:
    """Return the number of floats per vector for heads of this size on this processor; 0 if no kernels support this size."""
    # 16 without AVX-512 would work, too, but GCC splits such vectors through memory.
    widths = (16, 8) if "avx512f" in _processor() else (8,)
    for width in widths:
        if size % width == 0:
            return width
    return 0


def find_compiler() -> str | None:
    """Return the C compiler of this machine; None, with a warning, if there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        _warn_once("there is no C compiler (cc, gcc, or clang) for the C kernels", "install one")
    return compiler


@lru_cache(maxsize=8)
def _warn_once(problem: str, detail: str) -> None:
    # The figures are those of docs/decisions/kernels.md.
    logger.warning(
        "%s: using PyTorch, whose attention on this CPU is two to three times slower when sampling and two times slower when "
        "training: %s",
        problem,
        detail,
    )


@lru_cache(maxsize=32)
def load_kernels(name: str, groups: int, size: int, bf16: bool = False) -> ctypes.CDLL | None:
    """Return the kernels of a source; None, with a warning, if they cannot be compiled.

    Args:
        bf16: Whether the kernels read and write bf16 instead of fp32.
    """
    vector = vector_floats(size)
    if not vector or not 1 <= groups <= MAX_GROUPS:
        return None
    compiler = find_compiler()
    if compiler is None:
        return None
    source, header = Path(__file__).with_name(f"{name}.c"), Path(__file__).with_name("vectors.h")
    flags = [*FLAGS, f"-DHEADS={groups}", f"-DSIZE={size}", f"-DW={vector}"]
    if bf16:
        flags.append("-DBF16")
    # All that determines the machine code: a changed source, or another machine with the same home folder, compiles again.
    identity = "\n".join([source.read_text("utf-8"), header.read_text("utf-8"), *flags, compiler, _processor()])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    path = cache_folder() / f"{name}-{digest}.so"
    try:
        if not path.exists():
            _compile([compiler, *flags, str(source)], path)
        library = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        _warn_once(f"the C kernels could not be compiled with {compiler}", str(reason))
        return None
    for function_name, (arguments, result) in SIGNATURES[name].items():
        function = getattr(library, function_name)
        function.argtypes, function.restype = arguments, result
    return library


Result = TypeVar("Result")


def run_rows(count: int, function: Callable[[int, int], Result]) -> list[Result]:
    """Call `function(first, last)` for parts of `count` rows, on as many threads as PyTorch would use; return the results."""
    parts = max(1, min(torch.get_num_threads(), count))
    if parts == 1:
        return [function(0, count)]
    edges = [count * i // parts for i in range(parts + 1)]
    return list(kernel_threads().map(function, edges[:-1], edges[1:]))


def kernel_threads() -> ThreadPoolExecutor:
    """Return a pool of as many threads as PyTorch uses, for calls that release the GIL and do not wait for each other."""
    return _threads(torch.get_num_threads(), os.getpid())  # a forked process has none of its parent's threads


@lru_cache(maxsize=1)
def _threads(count: int, process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, "kernels")


def pointers(*tensors: torch.Tensor | None) -> list[int | None]:
    """Return the addresses of tensors, which the caller keeps alive."""
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]


def softmax_kernels(dtype: torch.dtype) -> ctypes.CDLL | None:
    """Return the kernels of `softmax.c` for logits of this type; None if there are none. They do not depend on the heads."""
    if dtype not in (torch.float32, torch.bfloat16):
        return None
    return load_kernels("softmax", 1, 16, dtype == torch.bfloat16)


def _compile(command: list[str], path: Path) -> None:
    """Compile to `path`; other processes may do the same concurrently."""
    # Moved into place when it is complete: another process must not load half of a library.
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        library = Path(folder) / path.name
        subprocess.run(
            [*command, "-o", str(library)],
            check=True,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=COMPILE_TIMEOUT_S,
        )
        rename(library, path)


@lru_cache(maxsize=1)
def _processor() -> str:
    """Return a description of the processor, because machines with different processors may share a home folder."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()} {torch.backends.cpu.get_cpu_capability()}"
