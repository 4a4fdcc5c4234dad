"""Start a new model again with layers that can recall, if SFT stops improving before it has learned the task."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec

from rove.runs.provenance import seal
from rove.runs.train_folder import DIAGNOSES, FIRST_START, RECALL_LINE, RECIPE, RESULTS, TrainFolder
from rove.stages.pipeline import BASE
from rove.stages.recipe import Recipe
from rove.stages.request import REQUEST, recipe_digest
from rove.utils.files import atomic_write
from rove.utils.systems import rename

STOPPED = "stopped.json"
"""File in which a run says why it ended early, and with which command it continues."""
ARCH_LINE = re.compile(r'^arch = "llama"$', re.MULTILINE)
RECALL_LINES = (
    '# The first start, with arch = "llama" and random weights, stopped improving too early (folder first_start).\n'
    f'arch = "lfm2"\n{RECALL_LINE}'
)
"""What replaces this line in the recipe of the second start."""


class PlateauError(Exception):
    """SFT stopped improving before it had learned the task, and another start may help."""


def may_start_again(recipe: Recipe, file: Path) -> bool:
    """Return whether a recipe is as rove has chosen it, with a new model of the default kind.

    Args:
        recipe: The recipe.
        file: Its file.
    """
    model, request = recipe.new_model, recipe.folder / REQUEST
    if model is None or (model.arch, model.size, model.init) != ("llama", "tiny", "random"):
        return False
    if file != recipe.folder / RECIPE or not request.exists():
        return False
    text, recorded = file.read_text("utf-8"), msgspec.json.decode(request.read_bytes())
    # A time limit is for one start.
    has_limit = recorded.get("minutes") is not None
    return not has_limit and recorded.get("recipe") == recipe_digest(text) and len(ARCH_LINE.findall(text)) == 1


def start_again(recipe: Recipe) -> Recipe:
    """Put the first start aside, and return the recipe with layers that can recall, which is also written to the folder.

    The recipe is written last: if the process dies before, the next one repeats the first start.
    """
    folder = recipe.folder
    first_start = folder / FIRST_START
    shutil.rmtree(first_start, ignore_errors=True)
    first_start.mkdir()
    base = [TrainFolder(folder).evaluation_folder(BASE, condition.name) for condition in recipe.conditions]
    for part in (folder / "sft", Path(recipe.model), *base):
        if part.exists():
            rename(part, first_start / part.name)
    # What the first start says of itself names folders that the second one uses now.
    for outdated in (folder / DIAGNOSES, folder / RESULTS, first_start / "sft" / STOPPED):
        outdated.unlink(missing_ok=True)
    file = folder / RECIPE
    atomic_write(file, ARCH_LINE.sub(RECALL_LINES, file.read_text("utf-8")).encode())
    seal(file)
    assert recipe.new_model is not None
    return msgspec.structs.replace(
        recipe, new_model=msgspec.structs.replace(recipe.new_model, arch="lfm2", init="recall")
    )
