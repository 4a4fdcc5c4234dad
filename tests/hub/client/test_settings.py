"""Which hub is meant, and which token it is shown."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rove.core.errors import ConfigError
from rove.hub.client.settings import hub_of, keep, needed_hub, normal, token_for


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ROVE_HUB", raising=False)
    monkeypatch.delenv("ROVE_HUB_TOKEN", raising=False)


def test_a_flag_wins_over_a_variable_over_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_of() is None
    with pytest.raises(ConfigError, match="--hub URL_OR_FOLDER, set ROVE_HUB, or run `rove hub login"):
        needed_hub()
    keep("https://kept/", None)
    assert hub_of() == "https://kept"
    monkeypatch.setenv("ROVE_HUB", "https://variable//")
    assert hub_of() == "https://variable"
    assert needed_hub(str(tmp_path / "a" / ".." / "flag")) == str(tmp_path / "flag")
    assert normal(f"file://{tmp_path}") == str(tmp_path)


def test_tokens_are_kept_for_their_hub_alone_where_nobody_else_reads_them(tmp_path: Path) -> None:
    file = keep("https://one", "rove_1")
    keep("https://two/", "rove_2")
    assert (token_for("https://one/"), token_for("https://two"), token_for("https://three")) == (
        "rove_1",
        "rove_2",
        None,
    )
    assert hub_of() == "https://two"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert [child.name for child in file.parent.iterdir()] == ["hub.toml"]


def test_the_variables_token_goes_to_the_variables_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    keep("https://kept", "rove_kept")
    monkeypatch.setenv("ROVE_HUB_TOKEN", "rove_variable")
    assert token_for("https://any") is None and token_for("https://any", "https://any/") == "rove_variable"
    assert token_for("https://kept") == "rove_variable"
    monkeypatch.setenv("ROVE_HUB", "https://mine")
    assert (token_for("https://mine/"), token_for("https://other"), token_for("https://kept")) == (
        "rove_variable",
        None,
        "rove_kept",
    )
