"""Compile the C kernels for aarch64, run them in qemu, and compare their results with those of this machine's processor.

    apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user
    python benchmarks/kernels_aarch64.py

Each source is compiled with rove's own flags and with vectors of 8 floats, the width that `vector_floats` chooses on ARM, in fp32
and bf16. A driver (kernels_driver.c) calls every function with the same inputs and prints the results. The comparison shows that
the code is right on ARM, not how fast it is: qemu emulates the instructions.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from rove.models.kernels import FLAGS, SIGNATURES  # noqa: E402

DRIVER = Path(__file__).with_name("kernels_driver.c")
KERNELS = ROOT / "rove/models/kernels"
CROSS_COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
SYSROOT = Path("/usr/aarch64-linux-gnu")
SHAPES = ((1, 32), (2, 16), (4, 64))
"""Query heads per key head, and values per head."""
TOLERANCE = {False: 2e-5, True: 1e-2}
"""Largest accepted difference relative to 1 + the value, for fp32 and bf16: the processors add in other orders."""


def program(compiler: str, arch: str, source: str, shape: tuple[int, int], bf16: bool, folder: Path) -> Path:
    """Compile the driver with a source; return the program."""
    flags = [flag for flag in FLAGS if flag not in ("-march=native", "-shared", "-fPIC")]
    defines = [
        f"-DHEADS={shape[0]}",
        f"-DSIZE={shape[1]}",
        "-DW=8",
        f"-D{source.upper()}",
        *(["-DBF16"] if bf16 else []),
    ]
    out = folder / f"{source}-{arch}-{shape[0]}-{shape[1]}-{bf16}"
    command = [
        compiler,
        f"-march={arch}",
        "-Wno-psabi",
        *flags,
        *defines,
        f"-I{KERNELS}",
        str(DRIVER),
        "-o",
        str(out),
        "-lm",
    ]
    subprocess.run(command, check=True)
    return out


def results(command: list[str]) -> dict[str, list[float]]:
    """Run a driver; return the name of each result → its values."""
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    values: dict[str, list[float]] = {}
    for line in lines:
        name, *numbers = line.split()
        values[name] = [float(number) for number in numbers]
    return values


def largest_difference(expected: list[float], measured: list[float]) -> float:
    """Return the largest difference relative to 1 + the expected value; infinite if a value is not a number."""
    differences = [abs(a - b) / (1 + abs(a)) for a, b in zip(expected, measured, strict=True)]
    return max(difference if difference == difference else float("inf") for difference in differences)


def main() -> int:
    """Compare all sources; return 1 if a result differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    missing = [name for name in (CROSS_COMPILER, EMULATOR, "cc") if shutil.which(name) is None]
    if missing:
        print(f"missing programs: {', '.join(missing)}; see --help")
        return 2
    status = 0
    with tempfile.TemporaryDirectory() as folder:
        for source in SIGNATURES:
            for bf16 in (False, True) if source != "attention" else (False,):
                worst, count = 0.0, 0
                for shape in SHAPES:
                    native = results([str(program("cc", "native", source, shape, bf16, Path(folder)))])
                    arm = program(CROSS_COMPILER, "armv8-a", source, shape, bf16, Path(folder))
                    emulated = results([EMULATOR, "-L", str(SYSROOT), str(arm)])
                    assert native.keys() == emulated.keys()
                    assert native
                    count += sum(map(len, native.values()))
                    worst = max(worst, *(largest_difference(native[name], emulated[name]) for name in native))
                is_equal = worst <= TOLERANCE[bf16]
                status |= not is_equal
                print(
                    f"{source:<10} {'bf16' if bf16 else 'fp32'} {len(SHAPES)} shapes {count:>7} values, largest difference "
                    f"{worst:.1e}{'' if is_equal else '  DIFFERS'}",
                    flush=True,
                )
    return status


if __name__ == "__main__":
    sys.exit(main())
