"""The decoder's kernels for CPUs (native.c): compiled on first use by the machine's C compiler, kept for the next time.

They are optional: without a compiler, PyTorch does the same, slower.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import torch

from rove.engine.batch import Decoded
from rove.engine.ops import Heads

logger = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast", "-shared", "-fPIC"]
SECONDS = 60.0
"""Most time for the compiler, which takes half a second."""
WORTH_SPLITTING = 1 << 14
"""Positions attended to by one thread; fewer are not worth waking another."""

_POINTER, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_ARGUMENTS = {
    "attend": [_POINTER, _POINTER, _FLOAT, _POINTER, _FLOAT, *[_POINTER] * 7, *[_INT] * 3],
    "gate": [_POINTER, _POINTER, _INT, _INT],
    "add_norm": [_POINTER, _POINTER, _POINTER, _FLOAT, _POINTER, _INT, _INT],
}


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    base = os.environ.get("XDG_CACHE_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".cache") / "rove"


@lru_cache(maxsize=16)
def compiled(groups: int, size: int, vector: int, bf16: bool) -> ctypes.CDLL | None:
    """The kernels for a shape of heads; None, and a line in the log, where they cannot be had."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        logger.info("no C compiler here, so the engine decodes with PyTorch alone, which is slower")
        return None
    flags = [*FLAGS, f"-DHEADS={groups}", f"-DSIZE={size}", f"-DW={vector}", *(["-DBF16"] if bf16 else [])]
    named = "\n".join([SOURCE.read_text(), *flags, compiler, _processor()])
    path = cache_folder() / f"native-{hashlib.sha256(named.encode()).hexdigest()[:16]}.so"
    try:
        if not path.exists():
            _compile([compiler, *flags, str(SOURCE)], path)
        library = ctypes.CDLL(str(path))
    except (OSError, subprocess.SubprocessError) as error:
        told = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        logger.info(
            "the engine decodes with PyTorch alone, which is slower; its kernels could not be compiled: %s", told
        )
        return None
    for name, arguments in _ARGUMENTS.items():
        getattr(library, name).argtypes, getattr(library, name).restype = arguments, None
    return library


def _compile(command: list[str], path: Path) -> None:
    """Compile to `path`, which others may be doing too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        subprocess.run([*command, "-o", str(made)], check=True, capture_output=True, text=True, timeout=SECONDS)
        made.replace(path)


def _processor() -> str:
    """What the code is compiled for: homes may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        return f"{platform.machine()} {platform.processor()} {torch.backends.cpu.get_cpu_capability()}"


class NativeOps:
    """`Ops` on a CPU, in fp32 or bf16, with SiLU.

    Args:
        library: of `compiled`, for these heads.
        heads: of attention.
        eps: of the norms.
        vector: floats per vector, as compiled.
    """

    anywhere: bool = True
    norm_dtype: torch.dtype | None = torch.float32

    def __init__(self, library: ctypes.CDLL, heads: Heads, eps: float, vector: int):
        self.library, self.heads, self.eps, self.block = library, heads, eps, vector
        self._pool: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, heads: Heads, eps: float, activation: str, widths: list[int], like: torch.Tensor) -> NativeOps | None:
        """For a model of these heads, these widths of rows, and weights like that one; None where there are no kernels."""
        vector = 16 if heads.size % 16 == 0 else 8
        fits = all(width % vector == 0 for width in [heads.size, *widths]) and heads.queries <= 16 * heads.keys
        if like.device.type != "cpu" or like.dtype not in (torch.float32, torch.bfloat16) or activation != "silu":
            return None
        library = (
            compiled(heads.queries // heads.keys, heads.size, vector, like.dtype == torch.bfloat16) if fits else None
        )
        return None if library is None else cls(library, heads, eps, vector)

    def add_norm(self, x: torch.Tensor, more: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor:  # noqa: D102
        out = torch.empty_like(x)
        added = None if more is None else more.data_ptr()
        self.library.add_norm(x.data_ptr(), added, weight.data_ptr(), self.eps, out.data_ptr(), *x.shape)
        return out

    def gate(self, both: torch.Tensor) -> torch.Tensor:  # noqa: D102
        out = both.new_empty(len(both), both.shape[1] // 2)
        self.library.gate(both.data_ptr(), out.data_ptr(), *out.shape)
        return out

    def attend(  # noqa: D102
        self,
        layer: int,
        qkv: torch.Tensor,
        norm: torch.Tensor | None,
        angles: torch.Tensor,
        part: Decoded,
        out: torch.Tensor,
    ) -> None:
        pool, heads = part.pool, self.heads
        of_norm = None if norm is None else norm.data_ptr()
        keys, values = pool.keys[layer].data_ptr(), pool.values[layer].data_ptr()

        def some(first: int, count: int) -> None:
            self.library.attend(
                qkv[first].data_ptr(),
                of_norm,
                heads.eps,
                angles.data_ptr(),
                heads.size**-0.5,
                keys,
                values,
                *(column[first:].data_ptr() for column in (part.rows, part.positions, part.sources, part.shared)),
                out[first].data_ptr(),
                count,
                heads.keys,
                pool.capacity,
            )

        self._split(some, len(part.rows), len(part.rows) * part.longest)

    def _split(self, do: Callable[[int, int], None], rows: int, work: int) -> None:
        """`do(first, count)` for all rows, in as many threads as are allowed and worth while."""
        parts = min(torch.get_num_threads(), work // WORTH_SPLITTING + 1, rows)
        if parts == 1:
            return do(0, rows)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(torch.get_num_threads(), "rove-decode")
        edges = [rows * i // parts for i in range(parts + 1)]
        for done in [self._pool.submit(do, a, b - a) for a, b in pairwise(edges)]:
            done.result()
