"""The commands of docs/models.md, with the real model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.test_docs import blocks, commands, run

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_every_command_of_the_page_about_models_runs(folder: Path, tmp_path: Path):
    found = [command for block in blocks("docs/models.md", "bash") for command in commands(block)]
    assert len(found) >= 4
    for command in found:
        run(command, tmp_path)
