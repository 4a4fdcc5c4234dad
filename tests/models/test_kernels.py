from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiers import first_quick

from rove.models import kernels

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


@pytest.fixture(autouse=True)
def clear_caches() -> Iterator[None]:
    kernels.load_kernels.cache_clear()
    kernels._warn_once.cache_clear()
    yield
    kernels.load_kernels.cache_clear()
    kernels._warn_once.cache_clear()


@pytest.mark.parametrize("trouble", ["no compiler", "it fails", "no folder"])
def test_pytorch_is_used_with_a_message_if_kernels_cannot_be_compiled(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    if trouble == "no compiler":
        monkeypatch.setattr(kernels.shutil, "which", lambda name: None)
    elif trouble == "it fails":
        monkeypatch.setattr(kernels, "FLAGS", ["-no-such-flag"])
    else:
        folder.write_text("a file")
    assert kernels.load_kernels("decode", 2, 16) is None
    assert kernels.load_kernels("decode", 1, 16) is None
    [warning] = caplog.records  # one line, however many kernels are missing
    assert warning.levelname == "WARNING"
    assert (
        "using PyTorch, whose attention on this CPU is two to three times slower when sampling" in warning.getMessage()
    )


@pytest.mark.broad
@needs_compiler
@pytest.mark.parametrize("name", first_quick(kernels.SIGNATURES, broad=0))
def test_kernels_are_compiled_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernels.load_kernels(name, 2, 16) is not None
    (library,) = (tmp_path / "rove").iterdir()
    st_mtime_ns_before = library.stat().st_mtime_ns
    kernels.load_kernels.cache_clear()
    assert kernels.load_kernels(name, 2, 16) is not None
    assert kernels.load_kernels(name, 1, 16) is not None
    assert len(list((tmp_path / "rove").iterdir())) == 2
    assert library.stat().st_mtime_ns == st_mtime_ns_before


def test_unsupported_shapes_have_no_kernels():
    assert kernels.load_kernels("decode", 2, 12) is None
    assert kernels.load_kernels("decode", 17, 16) is None
