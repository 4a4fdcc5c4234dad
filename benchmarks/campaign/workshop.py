"""Materials of the fault campaign, made once: environments, a tiny model, and uninterrupted runs with their results."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import tomli_w
from trials import Process, Trial, on_file_operation

from rove import Run
from rove.cli.main import main
from rove.core.errors import RunError
from rove.core.records import RolloutRecord

NUMBERS = '''
"""Questions whose answers score more than 0, so that a reward of 0 is an invented one."""

import asyncio
import random

import rove as vf


async def sampled(messages, state, rng):
    """Answer with a random number; one question in twelve is an error."""
    if state["answer"] == "7":
        raise ValueError("this policy cannot answer 7")
    await asyncio.sleep(0.001)
    return f"<answer>{rng.randrange(100)}</answer>"


def right(messages, state, rng):
    return f"<answer>{state['answer']}</answer>"


def repeats(messages, state, rng):
    return f"<answer>{messages[-1]['content'].split()[1]}</answer>"


def closeness(completion, answer, parser):
    text = parser.parse_answer(completion) or ""
    return 1.0 / (1.0 + abs(int(text) - int(answer))) if text.isdigit() else 0.001


def rows(count, seed):
    rng = random.Random(seed)
    return [{"question": f"Say {n} {rng.randrange(100)}", "answer": str(n % 12)} for n in range(count)]


def load_environment(num_examples: int = 12, seed: int = 0):
    parser = vf.XMLParser(["answer"], answer_field="answer")
    policies = {"sampled": sampled, "right": right, "repeats": repeats}
    return vf.SingleTurnEnv(
        dataset=lambda: rows(num_examples, f"{seed}:train"), eval_dataset=lambda: rows(num_examples, f"{seed}:eval"),
        parser=parser, rubric=vf.Rubric([closeness], parser=parser), policies=policies,
    )
'''
EVAL = ("eval", "numbers", "-m", "scripted:sampled", "-n", "12", "-r", "2", "-c", "3", "--run-dir", "run")
ROLLOUTS, FAILING = 24, 2
"""Rollouts of `EVAL`, and those of them that end in an error in every attempt."""
TRAINING = {
    "sft": tuple(
        "sft --data data -m model --env numbers --epochs 3 --batch-size 8 --warmup_steps 1 --validate_every 2 "
        "--threads 1 --run-dir run".split()
    ),
    "rl": tuple(
        "rl numbers -m model --steps 4 --batch-size 8 -r 4 -t 4 --warmup_steps 1 --checkpoint_every 1 --threads 1 "
        "--run-dir run".split()
    ),
}
"""The commands `rove sft` and `rove rl`."""
TRAIN = ("train", "numbers", "--recipe", "small.toml", "--run-dir", "run")
AUDIT = ("audit", "numbers", "-n", "6", "--only", "blind-reply", "--only", "determinism", "-o", "report.json")
WEIGHTS = ("sft/final/model.safetensors", "rl1/final/model.safetensors")
KEPT_CHECKPOINTS = 2


class Workshop:
    """The materials in a folder; each is made when a trial first needs it, and kept for the next session.

    Args:
        folder: Folder of the materials.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.modules_file = folder / "modules"
        self._cache: dict[str, Any] = {}

    def modules(self) -> list[str]:
        """Return the names of the modules that the commands have loaded while the materials were made."""
        return sorted(set(self.modules_file.read_text().split())) if self.modules_file.exists() else []

    def __getitem__(self, name: str) -> Path:
        """Return the folder of a material."""
        return self.folder / name

    def make(self, name: str) -> None:
        """Make a material unless it exists; a material that was interrupted is made again."""
        finished = self.folder / f"{name}.made"
        if finished.exists():
            return
        for needed in MATERIALS[name].needs:
            self.make(needed)
        shutil.rmtree(self[name], ignore_errors=True)
        self[name].mkdir(parents=True)
        MATERIALS[name].make(self, self[name])
        finished.touch()

    def rove(self, folder: Path, *words: str) -> None:
        """Run a command in another process; exit with a message if it fails."""

        def run() -> None:
            on_file_operation(folder / "run", lambda number: (folder / "operations").write_text(str(number)))
            sys.argv = ["rove", *words]
            try:
                main()
            finally:
                with self.modules_file.open("a") as file:
                    file.write("\n".join([*sys.modules, ""]))

        ended = Process(run, folder, folder / ".command").wait()
        if ended is None or ended.status:
            sys.exit(f"rove {' '.join(words)} failed in {folder}: {ended and ended.text[-2000:]}")

    def cached(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return a value that is computed once per process."""
        if name not in self._cache:
            self._cache[name] = compute()
        return self._cache[name]


class Material(NamedTuple):
    """How a material is made."""

    make: Callable[[Workshop, Path], None]
    needs: tuple[str, ...] = ()


def put_environment(folder: Path) -> None:
    """Write the environment `numbers` to a folder in which commands run."""
    (folder / "environments").mkdir(exist_ok=True)
    (folder / "environments" / "numbers.py").write_text(NUMBERS)


def _evaluation(workshop: Workshop, folder: Path) -> None:
    put_environment(folder)
    workshop.rove(folder, *EVAL)


def _inputs(workshop: Workshop, folder: Path) -> None:
    put_environment(folder)
    workshop.rove(folder, "model", "new", "--env", "numbers", "-o", "model")
    _shrink(folder / "model")
    words = "eval numbers -m scripted:right -n 24 -r 1 --train --run-dir data".split()
    workshop.rove(folder, *words, "-a", '{"num_examples": 24}')


def _shrink(model: Path) -> None:
    """Give a model one narrow layer, because a fault needs no model that learns."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(model)
    for name, value in {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }.items():
        setattr(config, name, value)
    config.layer_types = None
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(model)


def _training(name: str) -> Material:
    def make(workshop: Workshop, folder: Path) -> None:
        shutil.copytree(workshop["inputs"], folder, dirs_exist_ok=True)
        workshop.rove(folder, *TRAINING[name])

    return Material(make, ("inputs",))


def _train(workshop: Workshop, folder: Path) -> None:
    shutil.copytree(workshop["inputs"] / "environments", folder / "environments")
    workshop.rove(folder, "train", "numbers", "--dry-run", "--run-dir", ".")
    values = tomllib.loads((folder / "recipe.toml").read_text())
    values["data"] |= {"num_examples": 24, "env_args": {"num_examples": 24}}
    values["sft"] |= {"epochs": 1, "batch_size": 8, "validate_every": 2}
    values["sft"]["evaluation"][0] |= {"every": 2, "num_examples": 4, "max_tokens": 4}
    for stage in values["rl"]:
        stage |= {"steps": 2, "batch_size": 8, "rollouts_per_example": 4, "max_tokens": 4}
        stage["evaluation"][0] |= {"num_examples": 4, "max_tokens": 4}
    values["evaluation"] |= {"num_examples": 4, "max_tokens": 4}
    (folder / "small.toml").write_text(tomli_w.dumps(values))
    workshop.rove(folder, *TRAIN)


def _audit(workshop: Workshop, folder: Path) -> None:
    put_environment(folder)
    workshop.rove(folder, *AUDIT, "--fail-on", "high")


MATERIALS = {
    "eval": Material(_evaluation),
    "inputs": Material(_inputs),
    "sft": _training("sft"),
    "rl": _training("rl"),
    "train": Material(_train, ("inputs",)),
    "audit": Material(_audit),
}


# What must not change


def outcomes(run: Path) -> list[tuple[tuple[int | None, str, int], Any]]:
    """Return key and content of each rollout of a run, without measured times, in the order of the file."""
    return [((r.step, r.example_key, r.rollout_index), _content(r)) for r in Run(run).rollouts()]


def _content(record: RolloutRecord) -> Any:
    tokens = [step.tokens and (step.tokens.completion_ids, step.tokens.logprobs) for step in record.steps]
    error = record.error and record.error.type
    return record.scores, record.completion, record.stop_condition, record.seed, error, tokens


def finished_lines(run: Path) -> list[bytes]:
    """Return the complete lines of rollouts.jsonl that were scored."""
    file = run / "rollouts.jsonl"
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    return [line for line in lines if b'"scores":null' not in line]


def check_no_invented_reward(trial: Trial, run: Path) -> None:
    """Check that each rollout has either an error or a reward above 0, in a run whose file may end in half a line."""
    try:
        records = list(Run(run).rollouts())
    except RunError as error:
        trial.violation(f"the rollouts cannot be read: {error}")
        return
    for record in records:
        key = f"{record.example_key}/{record.rollout_index}"
        trial.require((record.scores is None) != (record.error is None), f"{key} has not either scores or an error")
        trial.require(record.reward is None or record.reward > 0, f"{key} failed or is scored wrongly, with reward 0")


def check_evaluation(trial: Trial, run: Path, earlier: Sequence[bytes] = ()) -> None:
    """Check a complete evaluation: no rollout is lost, repeated or changed.

    Args:
        trial: Records the violations.
        run: The run folder of the command `EVAL`.
        earlier: The lines of finished rollouts that existed when the fault happened; they must be the same now.
    """
    check_no_invented_reward(trial, run)
    if trial.result.violations:
        return
    expected = trial.workshop.cached("eval", lambda: dict(outcomes(trial.workshop["eval"] / "run")))
    scored: dict[Any, Any] = {}
    failed = set()
    for key, content in outcomes(run):
        if content[0] is None:
            failed.add(key)
            continue
        trial.require(key not in scored, f"rollout {key} was repeated")
        scored[key] = content
    for key, content in expected.items():
        if content[0] is None:
            trial.require(key in failed and key not in scored, f"rollout {key} has to fail, and did not")
        else:
            trial.require(key in scored, f"rollout {key} was lost")
            trial.require(scored.get(key, content) == content, f"rollout {key} has another result")
    trial.require(scored.keys() | failed <= expected.keys(), "there are rollouts that nobody asked for")
    check_kept(trial, run, earlier)
    summary = Run(run).summary()
    trial.require(summary is not None and summary["scored"] == ROLLOUTS - FAILING, "the summary is missing or wrong")


def check_kept(trial: Trial, run: Path, earlier: Sequence[bytes]) -> None:
    """Check that the lines of finished rollouts are still there, each once."""
    lines = finished_lines(run)
    for line in earlier:
        trial.require(lines.count(line) == 1, f"a finished rollout was lost or repeated: {line[:120]!r}")


def training_results(folder: Path) -> dict[str, Any]:
    """Return weights and metrics (without times), which must be equal after a resumed training."""
    metrics = [{k: v for k, v in row.items() if not k.startswith("time/")} for row in Run(folder).metrics()]
    weights = hashlib.sha256((folder / "final" / "model.safetensors").read_bytes()).hexdigest()
    return {"weights": weights, "metrics": metrics}


def check_training(trial: Trial, name: str, run: Path, damaged: str = "") -> None:
    """Check that a training run has ended with the results of an uninterrupted one, bit for bit.

    Args:
        trial: Records the violations.
        name: The command.
        run: The run folder.
        damaged: Name of a damaged file. Training does not read rollouts; whoever reads a damaged one gets an error.
    """
    expected = trial.workshop.cached(name, lambda: training_results(trial.workshop[name] / "run"))
    try:
        results = training_results(run)
    except (RunError, OSError) as error:
        trial.violation(f"the results cannot be read: {error}")
        return
    for part, value in expected.items():
        trial.require(results[part] == value, f"{part} differ from those of an uninterrupted run")
    expected_rollouts = trial.workshop.cached(f"{name} rollouts", lambda: _rollouts(trial.workshop[name] / "run"))
    try:
        trial.require(_rollouts(run) == expected_rollouts, "rollouts differ from those of an uninterrupted run")
    except RunError as error:
        trial.require(damaged == "rollouts.jsonl" and damaged in str(error), f"the rollouts cannot be read: {error}")


def _rollouts(run: Path) -> list[str]:
    return sorted(map(repr, outcomes(run)))


def train_results(folder: Path) -> dict[str, Any]:
    """Return the rewards of the results table of `rove train`, and digests of the final weights."""
    rows = json.loads((folder / "results.json").read_bytes())
    rewards = {row["name"]: {name: part["reward"] for name, part in row["conditions"].items()} for row in rows}
    existing = [name for name in WEIGHTS if (folder / name).exists()]
    return {"rewards": rewards} | {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in existing}


def audit_results(file: Path) -> Any:
    """Return the report of an audit without times."""
    report = msgspec.json.decode(file.read_bytes())
    return [report.get(name) for name in ("env", "findings", "checks", "skipped")]


def tree(folder: Path) -> dict[str, bytes]:
    """Return the content of every file of a folder."""
    return {
        os.fspath(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
    }
