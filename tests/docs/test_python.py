"""The Python of "Stage by stage" runs as a notebook, and its commands give the same weights."""

from __future__ import annotations

import ast
import asyncio
import hashlib
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, blocks

PAGE = (ROOT / "docs/first_hour/6_stages.md").read_text(encoding="utf-8")
TIMEOUT_S = 600


async def run_cells(cells: list[str]) -> dict[str, Any]:
    """Run the cells of a notebook in one namespace, with an event loop that runs all the time, as a notebook has."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells:
        code = compile(cell, "6_stages.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        waiting = eval(code, names)  # a coroutine if the cell has an await
        if inspect.isawaitable(waiting):
            await waiting
    return names


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.slow
def test_the_notebook_runs_and_its_commands_give_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook, shell = tmp_path / "notebook", tmp_path / "shell"
    notebook.mkdir()
    shell.mkdir()
    monkeypatch.chdir(notebook)
    [recipe] = [content for language, _, content in blocks(PAGE) if language == "toml"]
    Path("small.toml").write_text(recipe)
    cells = [content for language, _, content in blocks(PAGE) if language == "python"]
    names = asyncio.run(run_cells(cells))
    shown_out = capsys.readouterr().out
    assert "sft 6/6" in shown_out and "rl tictactoe 2/2" in shown_out and "step 2 · example" in shown_out
    assert names["rl"].model == Path("runs/rl/final")
    assert len(names["rl"].metrics) == 2 and names["sft"].best.metric == "validation_loss"
    assert names["rl"].plot().axes and names["sft"].table.row_count > 2
    assert "data:image/png;base64," in names["rl"]._repr_html_()
    assert [row.name for row in names["result"].rows][-2:] == ["+ RL", "+ RL at T = 1"]
    assert names["result"].table.row_count == 5 and list(names["result"].runs) == ["sft", "rl1"]

    commands = "".join(content for language, _, content in blocks(PAGE) if language == "bash")
    for command in commands.splitlines():
        words = [sys.executable, "-m", *command.split()]
        done = subprocess.run(words, cwd=shell, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    for run in ("models/mine", "runs/sft/final", "runs/rl/final"):
        assert weights(notebook / run) == weights(shell / run), run
