"""The notebook for a first run: it is stored without outputs, and its cells run in a Jupyter kernel."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT

import rove

NOTEBOOK = ROOT / "notebooks/first_run.ipynb"
CELL_TIMEOUT_S = 600


def text_of(cell: Any) -> str:
    """Return all that a cell printed and showed."""
    parts = []
    for output in cell["outputs"]:
        parts.append(output.get("text", ""))
        parts.append(output.get("data", {}).get("text/plain", ""))
    return "".join(parts)


def test_the_notebook_is_stored_without_outputs_and_names_functions_that_exist() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    names = set(re.findall(r"\brove\.(\w+)", "".join("".join(cell["source"]) for cell in cells)))
    assert {"evaluate_model", "SingleTurnEnv", "sft", "rl"} <= names <= set(rove.__all__)


@pytest.mark.slow
def test_every_cell_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel: make test-notebook")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    kernels = tmp_path / "jupyter/kernels/python3"
    kernels.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernels / "kernel.json").write_text(
        json.dumps({"argv": command, "display_name": "Python 3", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    work = tmp_path / "work"
    work.mkdir()
    client = nbclient.NotebookClient(notebook, timeout=CELL_TIMEOUT_S, resources={"metadata": {"path": str(work)}})
    client.execute()

    outputs = [text_of(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert "50 of 50 rollouts scored" in outputs[1]
    assert outputs[2].strip() == "1.0"
    assert "sft 6/6" in outputs[4]
    pictures = [output for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert any("image/png" in output["data"] for output in pictures)
    assert -0.1 <= float(outputs[-1].split()[-1]) <= 1.2  # an invalid move costs 0.1
    assert (work / "runs/rl/final/model.safetensors").exists()
