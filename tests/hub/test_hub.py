"""Properties of the hub as a whole: consistent limits, lazy imports."""

from __future__ import annotations

import os
import subprocess
import sys

from rove.hub.package import limits


def test_limits_are_consistent():
    assert limits.MAX_FILE_BYTES <= limits.MAX_UNPACKED_BYTES
    assert limits.MAX_ARCHIVE_BYTES <= limits.MAX_UNPACKED_BYTES
    assert limits.RATIO_FREE_BYTES < limits.MAX_UNPACKED_BYTES
    assert limits.MAX_MANIFEST_BYTES > limits.MAX_ITEMS * limits.MAX_LINE_CHARS
    assert limits.MAX_METADATA_BYTES < limits.MAX_FILE_BYTES


def test_importing_rove_and_its_command_line_imports_no_hub_module():
    code = "import sys, rove, rove.cli.main; print([m for m in sys.modules if m.startswith(('rove.hub', 'packaging'))])"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "[]"
