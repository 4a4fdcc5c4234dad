"""All fuzz targets, by name."""

from __future__ import annotations

from tests.fuzz import targets_file, targets_model, targets_text, targets_wire
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {}
for target in [
    *targets_wire.TARGETS,
    *targets_text.TARGETS,
    *targets_file.TARGETS,
    *targets_model.TARGETS,
]:
    assert target.name not in TARGETS, target.name
    TARGETS[target.name] = target
