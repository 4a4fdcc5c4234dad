"""What `rove install --into-current` would replace or hide in this interpreter."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from packages import MODULE

from rove.core.errors import ConfigError
from rove.hub.client.requirements import check_no_conflict


def installed(site: Path, name: str, files: dict[str, bytes]) -> None:
    """Put a distribution into a folder, as pip does."""
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    everything = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()}
    record = "".join(f"{path},,\n" for path in [*everything, f"{info}/RECORD"])
    for path, content in {**everything, f"{info}/RECORD": record.encode()}.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
    importlib.invalidate_caches()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_new_package_and_another_version_pass(site: Path) -> None:
    check_no_conflict("my-sums", "my_sums")
    installed(site, "my-sums", {"my_sums.py": MODULE, "pyproject.toml": b""})
    check_no_conflict("my-sums", "my_sums")


@pytest.mark.parametrize(
    ("name", "files", "words"),
    [
        ("other", {"my_sums.py": MODULE}, "is already installed by other"),
        ("other", {"my_sums/part.py": b""}, "is already installed by other"),
        ("my-sums", {"sums/__init__.py": b""}, "would replace 'my-sums', which is installed and contains sums"),
        ("My_Sums", {"my_sums.py": b"x = 1\n"}, "would replace or hide the module .*, which is not an environment"),
    ],
)
def test_what_would_be_replaced_or_hidden_is_named(site: Path, name: str, files: dict[str, bytes], words: str) -> None:
    installed(site, name, files)
    with pytest.raises(ConfigError, match=f"{words}; install it without --into-current"):
        check_no_conflict("my-sums", "my_sums")


def test_modules_without_a_distribution_are_not_hidden(site: Path) -> None:
    (site / "my_sums.py").write_bytes(b"x = 1\n")
    importlib.invalidate_caches()
    with pytest.raises(ConfigError, match="is not an environment"):
        check_no_conflict("my-sums", "my_sums")
    with pytest.raises(ConfigError, match="is not an environment"):
        check_no_conflict("json", "json")
    assert "my_sums" not in sys.modules
