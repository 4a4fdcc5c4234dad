from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes import alone, difference, several
from ranks_program import Job


@pytest.mark.broad
def test_two_processes_are_one_and_one_goes_on_from_what_two_have_saved(tmp_path: Path):
    steps = {"out": str(tmp_path / "whole"), "steps": (0, 20)}
    whole = alone(Job(**steps))
    two = several(2, Job(**steps | {"out": str(tmp_path / "two")}, save=str(tmp_path / "saved")))
    assert difference(two["gradient"], whole["gradient"]) <= 1e-5
    assert difference(two["weights"], whole["weights"]) <= 1e-5
    assert two["measured"] == pytest.approx(whole["measured"], rel=1e-3)
    assert two["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    rest = alone(Job(str(tmp_path / "rest"), steps=(20, 22), restore=str(tmp_path / "saved")))
    longer = alone(Job(str(tmp_path / "longer"), steps=(0, 22)))
    assert difference(rest["weights"], longer["weights"]) <= 1e-5


@pytest.mark.slow
def test_mixed_precision_is_near(tmp_path: Path):
    whole = alone(Job(str(tmp_path / "whole")))
    mixed = several(2, Job(str(tmp_path / "mixed"), config={"mixed_precision": True}))
    assert 1e-6 < difference(mixed["gradient"], whole["gradient"]) < 0.05
    assert all(tensor.dtype == torch.float32 for tensor in mixed["weights"].values())
