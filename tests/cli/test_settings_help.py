from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from commands import Rove, in_this_process

from rove.cli.settings_help import all_settings, documented_fields
from rove.train.config import RLConfig, SFTConfig

SOURCE = '''
import nothing_there

class Some:
    a: int = 1
    """One
    thing.

    And more."""
    b: str
    c = 2
    """Not a field."""
'''
KINDS = {"rl": RLConfig, "sft": SFTConfig}


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_this_process(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("command", KINDS)
def test_help_names_every_setting(rove: Rove, command: str):
    done = rove(command, "-h")
    assert done.status == 0
    listed = "".join(done.out.partition("All settings: ")[2].split()).rstrip(".").split(",")
    assert listed == list(KINDS[command].__struct_fields__)


def test_what_stands_below_a_field_is_its_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "some_settings.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert documented_fields("some_settings", "Some") == {"a": "One thing.", "b": ""}
    assert all_settings("some_settings", "Some") == "All settings: a, b."


def test_help_needs_no_torch():
    code = "import sys, rove.cli.rl, rove.cli.sft; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_struct_is_read_whole():
    for kind in KINDS.values():
        assert [*documented_fields(kind.__module__, kind.__name__)] == [f.name for f in msgspec.structs.fields(kind)]
