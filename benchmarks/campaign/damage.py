"""Torn and flipped files: of runs that were stopped or are complete, of their inputs, and of `rove train`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from run_faults import SUBJECTS, Subject
from trials import Trial, fault
from workshop import TRAINING, check_training, finished_lines

from rove import Run
from rove.core.errors import RunError
from rove.runs.train_folder import TrainFolder

IGNORED = (".lock",)
"""Files without content."""
STRIDE = 7919
"""Prime number: consecutive trials damage files far from each other, and all of them in the end."""
PAGE_BYTES = 4096


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that have content."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.is_symlink()]
    return [file for file in files if file.name not in IGNORED and file.stat().st_size]


def boundaries(file: Path) -> list[int]:
    """Return the lengths to which a file is cut: nothing, all but a byte, around each end of a line, and at each page."""
    content = file.read_bytes()
    size = len(content)
    lengths = {0, 1, size // 2, size - 1, *range(0, size, PAGE_BYTES)}
    is_text = file.suffix in (".jsonl", ".json", ".toml", ".seal", ".csv", ".py")
    position = content.find(b"\n") if is_text else -1
    while position >= 0:
        lengths |= {position, position + 1, position + 2}
        position = content.find(b"\n", position + 1)
    return sorted(length for length in lengths if length < size)


def tear(trial: Trial, folder: Path) -> Path:
    """Cut the next file of a folder at its next boundary and return the file."""
    cut_points = trial.workshop.cached(
        f"boundaries of {trial.result.command} {_state(trial)}",
        lambda: [(file.relative_to(folder), length) for file in files_of(folder) for length in boundaries(file)],
    )
    name, length = cut_points[trial.ordinal // 2 * STRIDE % len(cut_points)]
    os.truncate(folder / name, length)
    trial.injected(f"{name} cut to {length} bytes")
    return folder / name


def flip(trial: Trial, folder: Path) -> Path:
    """Flip a random bit of the next file of a folder and return the file."""
    files = files_of(folder)
    file = files[trial.ordinal // 2 % len(files)]
    content = bytearray(file.read_bytes())
    position, bit = trial.rng.randrange(len(content)), trial.rng.randrange(8)
    content[position] ^= 1 << bit
    file.write_bytes(content)
    trial.injected(f"bit {bit} of byte {position} of {file.relative_to(folder)}")
    return file


def _state(trial: Trial) -> str:
    """Return the state of the run of this trial; the states alternate."""
    return ("stopped", "complete")[trial.ordinal % 2]


def set_up(trial: Trial, subject: Subject) -> Path:
    """Put the inputs and a run into the trial's folder: a complete one, or one that was stopped before its end."""
    subject.set_up(trial)
    source = trial.workshop[subject.complete] / "run"
    run = trial.copy(source)
    if _state(trial) == "stopped":
        stop(run, subject.name)
    return run


def stop(run: Path, name: str) -> None:
    """Turn a complete run into one that was killed: the last results are missing."""
    for relative in ("summary.json", "curves.png", "final", "complete.json", "results.json"):
        path = run / relative
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    if name == "eval":
        file = run / "rollouts.jsonl"
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(lines[:-6]))
    if name == "train":
        stop(run / "rl1", "rl")
        shutil.rmtree(run / "eval", ignore_errors=True)


def check_named(trial: Trial, subject: Subject, run: Path, file: Path) -> None:
    """Repeat the command: it must name the damaged file, or end with the results of an uninterrupted run."""
    check_reading(trial, run, file)
    ended = trial.run(subject.words)
    trial.require("Traceback" not in ended.err, f"a traceback: {ended.err[-1200:]}")
    if ended.status:
        plain_text = ended.text.replace("\\", "")
        trial.require(file.name in plain_text, f"the error does not name {file.name}: {ended.text[-600:]}")
    elif subject.name in TRAINING:
        check_training(trial, subject.name, run, file.name)
    else:
        subject.check(trial, run, [])


def check_reading(trial: Trial, run: Path, file: Path) -> None:
    """Read the run as the viewer and `rove compare` do: each part is read, or an error names the damaged file."""
    for read in _readers(run, file):
        try:
            read()
        except RunError as error:
            trial.require(file.name in str(error), f"the error does not name {file.name}: {error}")


def _readers(run: Path, file: Path) -> list[Callable[[], object]]:
    """Return the functions that read the folder of a damaged file: of a run, of a stage of `rove train`, or of all stages."""
    folder = next(parent for parent in file.parents if parent == run or (parent / "config.toml").exists())
    if folder == run and (run / "recipe.toml").exists():
        stages = TrainFolder(folder)
        return [stages.rows, stages.completion, stages.diagnoses, stages.stages]
    single = Run(folder)
    return [
        *(single.summary, single.config, single.metrics, single.alerts, single.versions),
        lambda: list(single.rollouts()),
        lambda: list(single.outcomes()),
    ]


def _register(kind: str, damage: Callable[[Trial, Path], Path], weights: dict[str, int]) -> None:
    for name, weight in weights.items():
        subject = SUBJECTS[name]

        def inject(trial: Trial, subject: Subject = subject) -> None:
            run = set_up(trial, subject)
            check_named(trial, subject, run, damage(trial, run))

        fault(kind, name, weight, (subject.inputs, subject.complete))(inject)


_register("torn file", tear, {"eval": 500, "sft": 60, "rl": 80, "train": 25})
_register("flipped bit", flip, {"eval": 420, "sft": 60, "rl": 80, "train": 25})


# Inputs that come from elsewhere: data of another run, a file of questions, the module of an environment

QUESTIONS = "".join(f'{{"question": "Say {n}", "answer": "{n}"}}\n' for n in range(12))
TABLE_ROWS = "question,answer\n" + "".join(f'"Say {n}",{n}\n' for n in range(12))
IMPORTED = ("questions.jsonl", "questions.csv", "numbers.py")


def _import_words(name: str) -> tuple[str, ...]:
    environment = name.removesuffix(".py")
    model = ("-m", "scripted:right") if name.endswith(".py") else ("-m", "x", "-b", "http://127.0.0.1:9/v1")
    return ("eval", environment, *model, "-n", "12", "-r", "1", "--max_retries", "0", "--run-dir", "run", "--json")


def _set_up_import(trial: Trial) -> Path:
    name = IMPORTED[trial.ordinal % len(IMPORTED)]
    contents = {"questions.jsonl": QUESTIONS, "questions.csv": TABLE_ROWS}
    file = trial.folder / name
    if name in contents:
        file.write_text(contents[name])
    else:
        shutil.copytree(trial.workshop["eval"] / "environments", trial.folder / "environments")
        file = trial.folder / "environments" / name
    return file


@fault("torn file", "import", 150, ("eval",))
def tear_input(trial: Trial) -> None:
    """Cut a file of questions or a module between two runs; the second run names it, and mixes nothing into the first."""
    _damage_input(trial, lambda file: os.truncate(file, trial.rng.choice(boundaries(file))))


@fault("flipped bit", "import", 150, ("eval",))
def flip_input(trial: Trial) -> None:
    """Flip a bit of a file of questions or of a module between two runs; see `tear_input`."""

    def damage(file: Path) -> None:
        content = bytearray(file.read_bytes())
        content[trial.rng.randrange(len(content))] ^= 1 << trial.rng.randrange(8)
        file.write_bytes(content)

    _damage_input(trial, damage)


def _damage_input(trial: Trial, damage: Callable[[Path], object]) -> None:
    file = _set_up_import(trial)
    words = _import_words(file.name)
    trial.run(words)
    run = trial.folder / "run"
    finished_before, lines = finished_lines(run), (run / "rollouts.jsonl").read_bytes()
    damage(file)
    trial.injected(f"{file.name}, {file.stat().st_size} bytes")
    ended = trial.run(words)
    trial.require(
        "Traceback (most recent" not in ended.err or file.name in ended.err, f"a traceback: {ended.err[-900:]}"
    )
    lines_after = (run / "rollouts.jsonl").read_bytes()
    if ended.status:
        reasons = (file.name, file.stem, "holds a different run")
        trial.require(any(reason in ended.text for reason in reasons), f"no reason: {ended.text[-600:]}")
    trial.require(lines_after.startswith(lines), "lines of a run have changed after its input was damaged")
    same = finished_lines(run)
    trial.require(len(same) == len(finished_before) or ended.status == 0, "a run with a damaged input has new rollouts")
