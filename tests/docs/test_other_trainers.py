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


def pins_of_files() -> list[list[tuple[str, str]]]:
    """Return the pinned packages and versions of each file, without files that pin nothing."""
    files = sorted((ROOT / "tests").glob("trainer_*.txt"))
    pins = [PIN.findall(file.read_text(encoding="utf-8")) for file in files]
    return [pins_of_file for pins_of_file in pins if pins_of_file]


def test_the_first_pin_of_every_file_is_in_the_table() -> None:
    cells = [row[2] for row in table_rows()]
    files = pins_of_files()
    assert files
    for pins in files:
        package, version = pins[0]
        tested = f"{TITLES.get(package, package)} {version}"
        assert any(tested in cell for cell in cells), f"no row is tested with {tested}"


def test_every_version_in_the_table_is_pinned() -> None:
    pinned = {version for pins in pins_of_files() for _, version in pins}
    for row in table_rows():
        assert set(re.findall(r"\d+\.\d+\.\d+", row[2])) <= pinned, row[2]


def test_every_version_in_the_table_has_a_date() -> None:
    for row in table_rows():
        assert re.search(r"\d", row[2]) is None or TESTED.search(row[2]), row[2]
