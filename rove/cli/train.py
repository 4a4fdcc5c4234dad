"""`rove train`: train a model in any environment, with a recipe chosen from what the environment shows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from rove.cli.clients import needs_train_extra
from rove.cli.common import (
    RUNS,
    console_for,
    hint,
    named_environment,
    print_best_step,
    print_json,
    print_warnings,
    run_async,
    working,
)
from rove.cli.options import (
    confirm_foreign,
    device_option,
    env_args_option,
    env_dir_option,
    examples,
    in_range,
    json_object,
    json_option,
)
from rove.cli.pipeline import Pipeline, Recipe, results_table
from rove.core.config import convert, read_toml
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError
from rove.core.findings import Finding, current_row
from rove.core.ranges import NonNegativeInt
from rove.envs.loading import environment_arguments, environment_version, load_environment
from rove.envs.question_files import is_question_file
from rove.models.pretrained import model_path
from rove.runs.provenance import SEAL, seal
from rove.runs.run import Run
from rove.utils.files import atomic_write
from rove.utils.processes import release_memory
from rove.utils.units import human_bytes, human_seconds

if TYPE_CHECKING:
    from rove.doctor.estimate import Estimate
    from rove.models.load import LoadedModel
    from rove.train.diagnosis import Task
    from rove.train.recipe import Examination

RECIPE, REQUEST, EVIDENCE = "recipe.toml", "request.json", "evidence.json"
ESTIMATE, DIAGNOSES = "estimate.json", "diagnoses.json"
"""File names in the folder of all stages."""
EXAMINE = "examine"
"""Stage of the diagnoses before training."""
SAME_FALL_STEPS = 30
"""After the diagnosis of a sudden fall of the reward, a collapse within this many steps is the same fall."""
HELD_OUT = 0.1
"""Fraction of a file's questions that is used for evaluation only."""


def _folder_name(request: Mapping[str, Any], seed: int) -> str:
    """Return the name of the default folder: different for different requests."""
    env, model = request["env"], request["model"]
    is_plain = not request["env_args"] and Path(env).name == env and Path(model or "").name == (model or "")
    parts = ["train", Path(env).stem, *([Path(model).name] if model else []), f"seed{seed}"]
    return "-".join([*parts, *([] if is_plain else [fingerprint(request)])])


def check_request(request: Mapping[str, Any], folder: Path) -> None:
    """Check that a folder's recipe was made for the same environment, with the same code, model and arguments.

    Raises:
        ConfigError: It was made for others.
    """
    path = folder / REQUEST
    before = msgspec.json.decode(path.read_bytes()) if path.exists() else dict(request)
    now = {**request, "version": request_version(request)}
    changed = [name for name in now if name in before and now[name] != before[name]]
    if changed:
        name = changed[0]
        if name == "version" and str(now[name]).startswith(f"{before[name]} "):
            raise ConfigError(
                f"{folder / RECIPE} was made by an older version of rove, which held out questions by their position: questions "
                "that are held out now may be among its training rows. Give another --run-dir, delete the folder, or finish it "
                "with that version"
            )
        if name == "version":
            raise ConfigError(
                f"{request['env']} has changed since {folder / RECIPE} was made; give another --run-dir, "
                "delete the folder, or undo the change"
            )
        raise ConfigError(
            f"{folder / RECIPE} was made with {name} = {before.get(name)!r}, but {name} is {now[name]!r} now; "
            "give another --run-dir, or change the recipe"
        )


def is_outdated(request: Mapping[str, Any], folder: Path) -> bool:
    """Return whether a folder has only an unedited recipe that was made before the environment's code changed."""
    names = {path.name for path in folder.iterdir()}
    if not names <= {RECIPE, SEAL.format(RECIPE), REQUEST, EVIDENCE, ESTIMATE} or REQUEST not in names:
        return False
    before = msgspec.json.decode((folder / REQUEST).read_bytes())
    recipe = fingerprint({"text": (folder / RECIPE).read_text("utf-8")})
    same = {**request, "version": before.get("version"), "recipe": recipe}
    return before == same and before["version"] != request_version(request)


def request_version(request: Mapping[str, Any]) -> str:
    """Return the version of the environment that a recipe is made for."""
    env, env_dir = request["env"], request["env_dir"]
    return environment_version(env, env_dir, with_held_out(env, request["env_args"]))


def with_held_out(env: str, env_args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an environment; a file of questions gets held-out questions."""
    return {"held_out": HELD_OUT, **env_args} if is_question_file(env) else dict(env_args)


def count_examples(
    env: str, env_dir: str | None, env_args: Mapping[str, Any], requested: tuple[int, int]
) -> tuple[int | None, int | None]:
    """Return how many training and evaluation examples an environment has when so many are requested.

    Raises:
        ConfigError: It cannot be loaded with so many.
    """
    try:
        training, held_out = (load_environment(env, env_dir, **env_args, num_examples=count) for count in requested)
        return training.count_examples(train=True), held_out.count_examples()
    except Exception as error:
        raise ConfigError(
            f"{env} fails with num_examples = {requested[0]} and {requested[1]}: {type(error).__name__}: {error}; "
            "accept any number and return as many examples as there are, or give one: -a '{\"num_examples\": N}'"
        ) from error


def examine_environment(
    env: str,
    env_dir: str | None,
    env_args: Mapping[str, Any],
    model: str | None,
    console: Console,
    tokenizer: Mapping[str, Any] = MappingProxyType({}),
    device: str = "auto",
) -> tuple[Examination, LoadedModel | None]:
    """Run the scripted policies of an environment, and a pretrained model in it; return what they show, and the model.

    Args:
        env: The environment.
        env_dir: Folder that is searched first for it.
        env_args: Its arguments.
        model: Folder or name of the pretrained model; None for a new one.
        console: Shows progress.
        tokenizer: Settings of a new model's tokenizer.
        device: Device of the pretrained model.
    """
    with needs_train_extra():
        from rove.models.load import load_for_sampling
        from rove.train.recipe import examine
    loaded = load_environment(env, env_dir, **env_args)
    pretrained: LoadedModel | None = None
    if model is not None:
        with working(console, f"loading {model}"):
            pretrained = load_for_sampling(model_path(model), device=device)._replace(name=model)
    with working(console, f"running the scripted policies{f' and {model}' if model else ''} in {env}"):
        arguments = environment_arguments(env, env_dir)
        return run_async(examine(loaded, arguments, pretrained, tokenizer)), pretrained


def examine_given(pipeline: Pipeline, needs_model: bool) -> tuple[Examination | None, LoadedModel | None]:
    """Examine the environment of a recipe that was not chosen for it; None if there are no policies to compare a model with.

    Args:
        pipeline: The stages.
        needs_model: Whether to load and sample a pretrained model even if the policies suffice.
    """
    recipe, env_args = pipeline.recipe, pipeline.recipe.evaluation.get("env_args", {})
    tokenizer = {name: value for name, value in recipe.model.items() if name in ("vocab_size", "word_share")}
    try:
        policies = len(load_environment(pipeline.env, recipe.env_dir, **env_args).policies)
        if not policies or (pipeline.is_new and policies == 1):
            return None, None
        model = pipeline.model if not pipeline.is_new and (needs_model or policies == 1) else None
        return examine_environment(
            pipeline.env, recipe.env_dir, env_args, model, pipeline.console, tokenizer, pipeline.device
        )
    except ConfigError as error:
        pipeline.console.print(f"rove cannot diagnose the training: {error}", style="yellow", markup=False)
        return None, None


def write_recipe(request: Mapping[str, Any], folder: Path, console: Console, device: str = "auto") -> None:
    """Examine an environment, and a pretrained model in it; write the recipe for them, and what they showed."""
    version = request_version(request)  # of the code that is examined below
    env, env_dir, env_args, model = (request[name] for name in ("env", "env_dir", "env_args", "model"))
    with needs_train_extra():
        from rove.train.recipe import choose, limited, requested_examples
        from rove.train.recipe_file import as_toml
    env_args = with_held_out(env, env_args)
    seen, pretrained = examine_environment(env, env_dir, env_args, model, console, device=device)
    sections = choose(env, env_args, seen.evidence)
    requested = requested_examples(sections)
    if requested is not None and "num_examples" not in env_args:
        with working(console, f"counting the examples of {env}"):
            counts = count_examples(env, env_dir, env_args, requested)
        seen = seen._replace(evidence=limited(seen.evidence, requested, counts))
        sections = choose(env, env_args, seen.evidence)
    if env_dir is not None:
        sections[0].values["env_dir"] = env_dir
    with working(console, "measuring the time of a few passes"):
        values = sections[0].values | {section.name: section.values for section in sections[1:]}
        estimate = estimate_stages(env, convert(Recipe, values), seen, pretrained)
    del pretrained
    release_memory()
    path = folder / RECIPE
    given = f"{env} -m {model}" if model else env
    comment = (
        f"Recipe of `rove train {given}`. Change any line of a copy, then: rove train {env} --recipe COPY --run-dir FOLDER\n"
        f"Estimate on this machine with its present load: {estimate}"
    )
    folder.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)  # if the command is interrupted now, the next one makes the recipe again
    text = as_toml(sections, comment)
    made_for = {**request, "version": version, "recipe": fingerprint({"text": text})}
    atomic_write(folder / REQUEST, msgspec.json.encode(made_for))
    atomic_write(folder / ESTIMATE, msgspec.json.encode(estimate))
    atomic_write(folder / EVIDENCE, msgspec.json.encode(seen.evidence))
    atomic_write(path, text.encode())
    seal(path)


def estimate_stages(env: str, recipe: Recipe, seen: Examination, pretrained: LoadedModel | None) -> Estimate:
    """Return the time and memory that a recipe with one RL stage needs on this machine."""
    from rove.doctor.estimate import Workload, estimate
    from rove.models.from_scratch import new_model
    from rove.train.config import RLConfig, SFTConfig

    stage = {name: value for name, value in recipe.rl[0].items() if name != "name"}
    rl = convert(RLConfig, {"env": env, "model": "", **stage})
    sft = convert(SFTConfig, {"data": "", "model": "", **recipe.sft}) if recipe.data else None
    rollouts = recipe.data.get("num_examples", 0) * recipe.data.get("rollouts_per_example", 1)
    work = Workload(
        rollouts=seen.conversations,
        turns=seen.evidence.turns,
        data_rollouts=rollouts,
        conversations=round(rollouts * (seen.evidence.policies[-1].good_share if seen.evidence.policies else 1.0)),
        untrained_turns=seen.evidence.untrained_turns,
        environment_seconds=seen.evidence.rollout_seconds,
        teacher_seconds=seen.evidence.teacher_seconds,
        setup_seconds=seen.evidence.setup_seconds,
        conditions=len(recipe.conditions),
        table_rollouts=len(recipe.conditions) * recipe.evaluation["num_examples"],
    )
    settings = ("arch", "size", "vocab_size", "word_share")
    model = pretrained or new_model(
        seen.texts, **{name: recipe.model[name] for name in settings if name in recipe.model}
    )
    return run_async(estimate(rl, sft, model, work))


def estimate_given(pipeline: Pipeline) -> Estimate | None:
    """Return the time and memory of a recipe that was not chosen for its environment; None if they cannot be estimated."""
    recipe = pipeline.recipe
    teacher = recipe.data.get("model", "scripted:")
    counts = [recipe.evaluation.get("num_examples", -1), recipe.data.get("num_examples", -1 if recipe.data else 1)]
    if len(recipe.rl) != 1 or min(counts) < 1 or not teacher.startswith("scripted:"):
        return None
    seen, pretrained = examine_given(pipeline, needs_model=True)
    if seen is None:
        return None
    with working(pipeline.console, "measuring the time of a few passes"):
        return estimate_stages(pipeline.env, recipe, seen, pretrained)


def read_estimate(folder: Path) -> Estimate | None:
    """Return the estimate of a folder's recipe; None if there is none, or the recipe was edited."""
    from rove.doctor.estimate import Estimate

    if not (folder / ESTIMATE).exists() or not (folder / REQUEST).exists():
        return None
    made_for = msgspec.json.decode((folder / REQUEST).read_bytes())
    if made_for.get("recipe") != fingerprint({"text": (folder / RECIPE).read_text("utf-8")}):
        return None
    return msgspec.json.decode((folder / ESTIMATE).read_bytes(), type=Estimate)


def print_plan(path: Path, pipeline: Pipeline, estimate: Estimate | None, as_json: bool) -> None:
    """Print a recipe and the table of its stages."""
    pipeline.console.print(path.read_text("utf-8"), markup=False, soft_wrap=True)
    pipeline.console.print(plan_table(pipeline, estimate))
    print_warnings(pipeline.console, pipeline.notes())
    if as_json:
        print_json({"recipe": str(path), "estimate": estimate and msgspec.to_builtins(estimate)})
    hint(pipeline.console, "start with this recipe: the same command without --dry-run")


def plan_table(pipeline: Pipeline, estimate: Estimate | None) -> Table:
    """Return a table of the stages of a recipe, with their maximum time if there is an estimate."""
    recipe = pipeline.recipe
    rows: list[tuple[str, str, float | None]] = []
    if recipe.data:
        data, sft = pipeline.eval_config(pipeline.folder / "data", recipe.data), pipeline.sft_config()
        what = f"rollouts of {data.model} for {_examples(data.num_examples)}, {data.rollouts_per_example} per example"
        rows.append(("data", what, estimate and estimate.data))
        until = "" if sft.target is None else f", until the sampled reward is {sft.target:.3f}"
        steps = f"{estimate.sft_steps:,} steps" if estimate else f"{sft.epochs} epochs"
        what = f"up to {steps} of {sft.batch_size:,} rollouts{until}"
        rows.append(("SFT", what, estimate and estimate.sft_steps * estimate.sft_step))
    for folder, stage in pipeline.stages():
        rl = pipeline.rl_config(folder, stage, pipeline.model)
        what = f"up to {rl.steps:,} steps of {rl.batch_size:,} rollouts, {rl.rollouts_per_example} per example"
        rows.append((stage["name"], what, estimate and estimate.initial + estimate.rl_steps * estimate.rl_step))
    evaluation = pipeline.eval_config(pipeline.folder, {"model": pipeline.model, **recipe.evaluation})
    what = f"{_examples(evaluation.num_examples)} per row and condition"
    rows.append(("results", what, estimate and estimate.table))
    if estimate:
        rows.append(("total", f"{human_bytes(estimate.memory)} of memory", estimate.most))
    table = Table("stage", "what", *(["maximum time"] if estimate else []))
    for name, what, seconds in rows:
        table.add_row(name, what, *([] if seconds is None else [human_seconds(seconds)]))
    return table


def _examples(count: int) -> str:
    return "all examples" if count < 0 else f"{count:,} examples"


class Diagnoser:
    """Looks for reasons why a stage does not improve the model, prints them and stores them.

    Args:
        pipeline: The stages.
        folder: Folder of all stages.
    """

    def __init__(self, pipeline: Pipeline, folder: Path):
        from rove.train.recipe import read_evidence

        self.pipeline = pipeline
        self.folder = folder
        self.console = pipeline.console
        self.task: Task | None = None
        """None without scripted policies to compare the model with."""
        self.found: list[dict[str, Any]] = []
        self._history: tuple[Path, list[dict[str, float]]] | None = None
        path = folder / EVIDENCE
        if not path.exists():
            return
        evidence = read_evidence(path)
        if (folder / DIAGNOSES).exists():  # of training stages: a resumed run may not see the reason again
            before = msgspec.json.decode((folder / DIAGNOSES).read_bytes(), type=list[dict[str, Any]])
            self.found = [current_row(one) for one in before if one["stage"] != EXAMINE]
        self._report(EXAMINE, evidence.diagnoses)
        if evidence.policies:
            self.task = evidence.task

    def after_step(self, stage: Path, metrics: Mapping[str, float], total: int) -> None:
        """Diagnose a training stage that has not ended."""
        from rove.train.diagnosis import during_rl, during_sft, is_stuck

        if self.task is None:
            return
        if self._history is None or self._history[0] != stage:
            self._history = stage, Run(stage).metrics()[:-1]  # `metrics` is its last row
        history = self._history[1]
        history.append(dict(metrics))
        if stage.name != "sft":
            if self.task.has_learned(history):
                self._withdraw(stage.name, "no_progress")
            self._report(stage.name, during_rl(history, self.task, steps=total), int(metrics["step"]), total)
        elif is_stuck(history, total, self.task):
            self._report(stage.name, during_sft(history, self._with_data(self.task)), int(metrics["step"]), total)
        elif self.task.has_learned(history):
            self._withdraw(stage.name)

    def after_stage(self, stage: Path) -> None:
        """Print how a training stage has ended, and diagnose it."""
        from rove.train.diagnosis import after_sft
        from rove.train.teacher_data import measure_token_classes, unseen_answers

        print_best_step(Run(stage), self.console)
        if self.task is None or stage.name != "sft":
            return
        config, recipe = self.pipeline.sft_config(), self.pipeline.recipe
        held_out = self.pipeline.eval_folder(recipe.data["model"], recipe.conditions[0]["name"])
        with working(self.console, "measuring the losses of the teacher's tokens"):
            classes = measure_token_classes(stage / "final", Run(config.data), Run(held_out), config.min_reward)
        history = Run(stage).metrics()
        if self.task.has_learned(history):  # the process may have been killed before it withdrew them
            self._withdraw(stage.name)
        found = after_sft(history, classes, self._with_data(self.task), config.target)
        if any(one.id == "memorized" for one in found):
            unseen = unseen_answers(Run(config.data), Run(held_out), config.min_reward)
            self.task = msgspec.structs.replace(self.task, unseen=unseen)
            found = after_sft(history, classes, self.task, config.target)
        self._report(stage.name, found, len(history), len(history))

    def _with_data(self, task: Task) -> Task:
        """Return the task with what the teacher's rollouts show, which are read only once."""
        from rove.models.load import load_model
        from rove.train.diagnosis import with_teacher_data

        if task.token_entropy is None:
            config = self.pipeline.sft_config()
            renderer = load_model(config.model, "cpu").renderer
            task = self.task = with_teacher_data(task, renderer, Run(config.data), config.min_reward)
        return task

    def _withdraw(self, stage: str, kind: str | None = None) -> None:
        """Remove the diagnoses of a stage that has learned after all; by default those of any kind."""
        wrong = [one for one in self.found if one["stage"] == stage and kind in (None, one["id"])]
        for one in wrong:
            self.found.remove(one)
            text = f"the diagnosis of {stage} ({one['id']}) no longer applies: the reward has risen since"
            self.console.print(text, style="yellow", soft_wrap=True)
        if wrong:
            atomic_write(self.folder / DIAGNOSES, msgspec.json.encode(self.found))

    def print_all(self) -> None:
        """Print the diagnoses of all stages, and which RL stages changed nothing."""
        for one in self.found:
            self._print(one)
        for folder, stage in self.pipeline.stages():
            best = (Run(self.folder / folder).summary() or {}).get("best")
            if best is not None and best["step"] == 0:
                text = f"{stage['name']} changed nothing: no evaluation was better than the one before its first step"
                self.console.print(text, style="yellow", markup=False, soft_wrap=True)

    def _print(self, one: Mapping[str, Any]) -> None:
        text = f"diagnosis of {one['stage']}: {msgspec.convert(one, Finding)}"
        self.console.print(text, style="yellow", markup=False, soft_wrap=True)

    def _report(self, stage: str, diagnoses: list[Finding], step: int = 0, steps: int = 0) -> None:
        """Print and store diagnoses that are new, made after `step` of at most `steps` steps."""
        known = {one["id"] for one in self.found if one["stage"] == stage}
        sudden = [one["step"] for one in self.found if (one["stage"], one["id"]) == (stage, "learning_rate")]
        known |= {"collapse"} if sudden and step - sudden[0] <= SAME_FALL_STEPS else set()
        new = [one for one in diagnoses if one.id not in known]
        for one in new:
            self.found.append({"stage": stage, "step": step, "steps": steps, **msgspec.to_builtins(one)})
            self._print(self.found[-1])
        if new or not (self.folder / DIAGNOSES).exists():
            atomic_write(self.folder / DIAGNOSES, msgspec.json.encode(self.found))


def write_evidence(pipeline: Pipeline, folder: Path) -> None:
    """Examine the environment of a recipe, and write what it shows to the run folder, if it can be examined."""
    seen, _ = examine_given(pipeline, needs_model=False)
    if seen is not None:
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / EVIDENCE, msgspec.json.encode(seen.evidence))


def next_steps(pipeline: Pipeline, path: Path) -> list[str]:
    """Return hints after the results table: curves, is the last stage better than the one before, and more."""
    recipe, rows = pipeline.recipe, pipeline.rows
    env = named_environment(pipeline.env, recipe.env_dir, recipe.evaluation.get("env_args", {}))
    condition = recipe.conditions[0]["name"]
    steps = [f"curves: {pipeline.folder}/*/curves.png"]
    if len(rows) > 1:
        before, after = (pipeline.eval_folder(row["name"], condition) for row in rows[-2:])
        steps.append(f"compare the last two rows on the same examples: rove compare {before} {after}")
    return [
        *steps,
        f"evaluate the model: rove eval {env} -m {rows[-1]['model']}",
        f"change the recipe: edit a copy of {path}, then rove train {pipeline.env} --recipe COPY --run-dir FOLDER",
    ]


@click.command(
    epilog=examples(
        "rove train tictactoe --dry-run      # write and print the recipe",
        "rove train tictactoe",
        "rove train questions.jsonl --scorer numeric",
        "rove train reverse_text -m smollm2-135m",
        "rove train tictactoe --recipe mine.toml --run-dir runs/mine",
    )
)
@click.argument("env")
@click.option(
    "-m", "--model", help="Pretrained model: a folder or a name of `rove model list`.  [default: a new, small model]"
)
@env_args_option
@env_dir_option
@click.option("--scorer", help="For a file of questions: exact, numeric, choice, …, or package.module:function.")
@click.option("--recipe", "file", type=click.Path(exists=True), help="Recipe file to use.  [default: choose one]")
@device_option
@click.option("--seed", type=in_range(NonNegativeInt), default=0, show_default=True, help="Random seed.")
@click.option("--run-dir", type=click.Path(), help="Folder for all stages.  [default: runs/train-ENV-seedN]")
@click.option("--dry-run", is_flag=True, help="Only write and print the recipe, with an estimate of time and memory.")
@json_option
def command(
    env: str,
    model: str | None,
    env_args: str | None,
    env_dir: str | None,
    scorer: str | None,
    file: str | None,
    device: str | None,
    seed: int,
    run_dir: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Train a model in ENV: examine the environment, choose a recipe, then collect data, run SFT and RL, and print results.

    You can stop at any time: repeat the command to continue.
    """
    console = console_for(as_json)
    with needs_train_extra():
        from rove.train.worker_group import join_process_group
    ranks = join_process_group(device or "auto")
    given = {"scorer": scorer} if scorer else {}
    request = {"env": env, "model": model, "env_args": given | (json_object(env_args, "-a") or {}), "env_dir": env_dir}
    folder = Path(run_dir) if run_dir else RUNS / _folder_name(request, seed)
    path = Path(file) if file else folder / RECIPE
    is_new = not path.exists() or (not file and is_outdated(request, folder))
    if is_new:
        write_recipe(request, folder, console, device or "auto")
    elif not file:
        check_request(request, folder)
    elif too_many := [
        k for k, v in {"-m": model, "-a": env_args, "--scorer": scorer, "--env-dir": env_dir}.items() if v
    ]:
        raise ConfigError(
            f"--recipe and {', '.join(too_many)}: the recipe contains these settings; remove the options, or change {file}"
        )
    console.print(f"{'new' if is_new else 'existing'} recipe {path}", markup=False, soft_wrap=True)
    values = read_toml(path)
    confirm_foreign(path, values)
    recipe = convert(Recipe, values)
    if recipe.env not in (None, env):
        raise ConfigError(f"{path} is a recipe for '{recipe.env}', but the environment is '{env}'; give '{recipe.env}'")
    pipeline = Pipeline(env, recipe, folder, seed, console, ranks, recipe.model.get("name"), device=device or "auto")
    pipeline.check()
    if dry_run:
        print_plan(path, pipeline, (None if file else read_estimate(folder)) or estimate_given(pipeline), as_json)
        return
    if not pipeline.ranks.is_first:
        pipeline.follow()
        return
    if not (folder / EVIDENCE).exists():  # the recipe was given, or is from an older version of rove
        write_evidence(pipeline, folder)
    diagnoser = Diagnoser(pipeline, folder)
    pipeline.after_step, pipeline.after_stage = diagnoser.after_step, diagnoser.after_stage
    rows = pipeline.run()
    console.print()
    console.print(results_table(recipe, rows, recipe.evaluation["num_examples"]))
    print_warnings(console, pipeline.notes())
    console.print(pipeline.cost, soft_wrap=True)
    diagnoser.print_all()
    if as_json:
        print_json({"rows": rows, "folder": str(folder), "diagnoses": diagnoser.found})
    hint(console, *next_steps(pipeline, path))
