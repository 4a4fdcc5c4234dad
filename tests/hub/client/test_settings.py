"""Resolving the hub's address and its token."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from rove.core.errors import ConfigError
from rove.hub.client.settings import normalize_address, require_hub, resolve_hub, save_hub, token_for


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ROVE_HUB", raising=False)
    monkeypatch.delenv("ROVE_HUB_TOKEN", raising=False)


def test_the_flag_overrides_the_variable_which_overrides_the_saved_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve_hub() is None
    with pytest.raises(ConfigError, match="--hub URL_OR_FOLDER, set ROVE_HUB, or run `rove hub login"):
        require_hub()
    save_hub("https://kept/", None)
    assert resolve_hub() == "https://kept"
    monkeypatch.setenv("ROVE_HUB", "https://variable//")
    assert resolve_hub() == "https://variable"
    assert require_hub(str(tmp_path / "a" / ".." / "flag")) == str(tmp_path / "flag")
    assert normalize_address(f"file://{tmp_path}") == str(tmp_path)


def test_tokens_are_saved_per_hub_in_a_private_file(tmp_path: Path) -> None:
    file = save_hub("https://one", "rove_1")
    save_hub("https://two/", "rove_2")
    assert (token_for("https://one/"), token_for("https://two"), token_for("https://three")) == (
        "rove_1",
        "rove_2",
        None,
    )
    assert resolve_hub() == "https://two"
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert [child.name for child in file.parent.iterdir()] == ["hub.toml"]


def test_the_token_variable_applies_to_the_hub_of_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    save_hub("https://kept", "rove_kept")
    monkeypatch.setenv("ROVE_HUB_TOKEN", "rove_variable")
    assert token_for("https://any") is None and token_for("https://any", "https://any/") == "rove_variable"
    assert token_for("https://kept") == "rove_variable"
    monkeypatch.setenv("ROVE_HUB", "https://mine")
    assert (token_for("https://mine/"), token_for("https://other"), token_for("https://kept")) == (
        "rove_variable",
        None,
        "rove_kept",
    )
