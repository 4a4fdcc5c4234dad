from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from commands import Rove, in_process_rove

from rove.core.settings_docs import documented_fields, settings_of
from rove.stages.evaluation import EvalConfig
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
KINDS = {"eval": EvalConfig, "rl": RLConfig, "sft": SFTConfig}


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("command", KINDS)
def test_help_all_lists_every_setting_with_its_meaning_and_default(rove: Rove, command: str):
    done = rove(command, "--help-all")
    assert done.status == 0
    rows = [line for line in done.out.splitlines()[2:] if not line.startswith(" ")]
    assert [row.split("  (")[0] for row in rows] == [setting.name for setting in settings_of(KINDS[command])]
    assert all(setting.meaning for setting in settings_of(KINDS[command]))
    assert f"rove {command} --help-all lists every setting" in rove(command, "-h").out


def test_nested_tables_are_listed_under_dotted_names():
    settings = {setting.name: setting for setting in settings_of(RLConfig)}
    assert settings["env"].default == "required"
    assert (settings["lora.rank"].type, settings["lora.rank"].default) == ("integer, 0 or more", "0")


def test_the_docstring_below_a_field_is_its_meaning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "some_settings.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert documented_fields("some_settings", "Some") == {"a": "One thing.", "b": ""}


def test_documented_fields_lists_every_field():
    for kind in (RLConfig, SFTConfig):
        assert [*documented_fields(kind.__module__, kind.__name__)] == [f.name for f in msgspec.structs.fields(kind)]
