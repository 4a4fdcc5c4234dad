"""`python -m rove`."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.broad
def test_rove_runs_as_a_module():
    for words, status, output in (
        (["--version"], 0, "rove "),
        (["eval", "--no-such", "1"], 2, "unknown setting 'no_such'"),
    ):
        done = subprocess.run([sys.executable, "-m", "rove", *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == status
        assert output in done.stdout + done.stderr
