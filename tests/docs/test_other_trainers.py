"""The versions in the table of docs/guides/other_trainers.md are those that `make test-trainers` installs."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TITLES = {"trl": "TRL", "openenv": "OpenEnv"}
"""Package → its name in the table, if it is another one."""
PIN = re.compile(r"^([\w-]+)(?:\[[\w,-]+\])?==([\w.]+)$", re.MULTILINE)
TESTED = re.compile(
    r"\d+\.\d+.*, (January|February|March|April|May|June|July|August|September|October|November|December) 20\d\d"
)


def table_rows() -> list[list[str]]:
    """Return the cells of the table's rows."""
    page = (ROOT / "docs" / "guides" / "other_trainers.md").read_text(encoding="utf-8")
    table = page[page.index("| trainer | how |") :].split("\n\n")[0]
    return [line.strip("|").split(" | ") for line in table.splitlines()[2:]]


def test_every_pinned_version_is_in_the_table() -> None:
    cells = [row[2] for row in table_rows()]
    files = sorted((ROOT / "tests").glob("trainer_*.txt"))
    assert files
    for file in files:
        pins = PIN.findall(file.read_text(encoding="utf-8"))
        assert pins, file.name
        for package, version in pins:
            tested = f"{TITLES.get(package, package)} {version}"
            assert any(tested in cell for cell in cells), f"{file.name}: no row is tested with {tested}"


def test_every_version_in_the_table_has_a_date() -> None:
    for row in table_rows():
        assert re.search(r"\d", row[2]) is None or TESTED.search(row[2]), row[2]
