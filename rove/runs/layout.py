"""Names of the files in a folder of `rove train`, and how to recognize such a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

RECIPE, RESULTS, COMPLETE, DIAGNOSES = "recipe.toml", "results.json", "complete.json", "diagnoses.json"
"""Names of files: settings of all stages, rows of the results table, the mark of a complete run, and diagnoses."""
EVALUATIONS = "eval"
"""Folder of the evaluations in the results table."""
STAGE = re.compile(r"data|sft|rl\d*|full")
"""Names of the run folders of stages."""


def is_train_folder(names: Collection[str]) -> bool:
    """Return whether a folder with entries of these names is that of `rove train` or `rove demo`.

    It has no settings of a single run, but results or, before the first ones, a recipe and stages. Runs named sft and eval
    do not make their common folder such a folder.
    """
    if "config.toml" in names:
        return False
    has_stages = any(STAGE.fullmatch(name) for name in names)
    return RESULTS in names or COMPLETE in names or (has_stages and RECIPE in names)


def runs_hint(folder: Path) -> str:
    """Return the end of an error message: if `folder` is that of `rove train`, a hint that names the run folders inside."""
    if not folder.is_dir() or not is_train_folder(os.listdir(folder)):
        return ""
    evaluations = sorted(folder.glob(f"{EVALUATIONS}/*/config.toml"))
    stages = sorted(file for file in folder.glob("*/config.toml") if STAGE.fullmatch(file.parent.name))
    runs = [str(file.parent) for file in (*evaluations, *stages)]
    return f"; it is a folder of rove train, with the run folders {', '.join(runs)}" if runs else ""
