"""Prepare `rove train`: examine the environment, choose a recipe and estimate its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import msgspec

from rove.core.config import convert
from rove.core.errors import ConfigError
from rove.core.plain import JsonMapping, JsonObject
from rove.doctor.estimate import Estimate
from rove.envs.environment import Environment
from rove.envs.group import EnvGroup
from rove.envs.loading import environment_arguments, load_environment
from rove.models.load import LoadedModel, load_for_sampling
from rove.models.pretrained import model_path
from rove.runs.provenance import seal
from rove.runs.train_folder import RECIPE, locked
from rove.stages.choice import choose, for_one_start, limited, requested_examples, training_examples
from rove.stages.clients import SCRIPTED, is_folder, make_client
from rove.stages.examination import (
    MAX_COUNTED,
    MAX_COUNTED_HELD_OUT,
    Evidence,
    Examination,
    Teacher,
    count_up_to,
    examine,
)
from rove.stages.plan import estimate_stages
from rove.stages.recipe import Recipe, RecipeFile, Section, as_toml
from rove.stages.reporter import Reporter
from rove.stages.request import ESTIMATE, EVIDENCE, REQUEST, TrainRequest, recipe_digest, with_held_out
from rove.stages.time_limit import fit_to_time
from rove.train.held_out import count_shared, keys_of
from rove.utils.event_loop import run_async
from rove.utils.files import atomic_write
from rove.utils.processes import release_memory

MIN_TRAINING_EXAMPLES = 30
"""With fewer different training examples, a model memorizes them."""


def count_examples(
    env: str, env_dir: str | None, env_args: JsonMapping, requested: tuple[int, int]
) -> tuple[int | None, int | None]:
    """Return the numbers of training and evaluation examples that an environment has if `requested` are requested.

    Raises:
        ConfigError: The environment cannot be loaded with this many examples.
    """
    try:
        training, held_out = (load_environment(env, env_dir, **env_args, num_examples=count) for count in requested)
        return count_up_to(training, MAX_COUNTED, train=True), count_up_to(held_out, MAX_COUNTED_HELD_OUT)
    except Exception as error:
        raise ConfigError(
            f"{env} fails with num_examples = {requested[0]} and {requested[1]}: {type(error).__name__}: {error}; "
            "accept any number and return as many examples as there are, or give one: -a '{\"num_examples\": N}'"
        ) from error


def examine_environment(
    request: TrainRequest,
    reporter: Reporter,
    tokenizer: JsonMapping = MappingProxyType({}),
    device: str = "auto",
) -> tuple[Examination, LoadedModel | None]:
    """Run an environment's scripted policies and a pretrained model; return the evidence and the model.

    Args:
        request: The environment and the pretrained model, if any.
        reporter: Shows progress.
        tokenizer: Settings of a new model's tokenizer.
        device: Device of the pretrained model.
    """
    env, model = request.env, request.model
    loaded = load_environment(env, request.env_dir, **request.env_args)
    pretrained: LoadedModel | None = None
    if model is not None:
        with reporter.working(f"loading {model}"):
            path, settings = model_path(model), request.template_settings
            pretrained = load_for_sampling(path, device=device, **settings)._replace(name=model)
    teacher = _teacher(request.teacher, loaded, device)
    models = "".join(f" and {name}" for name in (request.teacher, model) if name)
    with reporter.working(f"running the scripted policies{models} in {env}"):
        arguments, seed = chosen_arguments(environment_arguments(env, request.env_dir), request.env_args)
        examination = run_async(examine(loaded, arguments, pretrained, tokenizer, teacher))
        evidence = msgspec.structs.replace(examination.evidence, seed=seed)
        return examination._replace(evidence=evidence), pretrained


def chosen_arguments(defaults: Mapping[str, object], env_args: JsonMapping) -> tuple[frozenset[str], int]:
    """Return the names of the arguments that a recipe may set, and the value of `seed` for the training examples.

    A `seed` that is neither a number nor unset is left out, because no other seed follows from it.

    Args:
        defaults: The arguments of `load_environment` and their defaults.
        env_args: The user's arguments.
    """
    seed = env_args.get("seed", defaults.get("seed"))
    if isinstance(seed, int) and not isinstance(seed, bool):
        return frozenset(defaults), seed
    if seed is None and "seed" not in env_args:
        return frozenset(defaults), 0
    return frozenset(defaults.keys() - {"seed"}), 0


def _teacher(name: str | None, env: Environment, device: str) -> Teacher | str | None:
    """Return the teacher that a request names: a model, or the name of a scripted policy."""
    if name is None:
        return None
    is_local = is_folder(name)
    client = make_client(name, env, device=device if is_local else "auto")
    return name.removeprefix(SCRIPTED) if name.startswith(SCRIPTED) else Teacher(name, client)


def examine_recipe(
    recipe: Recipe, reporter: Reporter, needs_model: bool
) -> tuple[Examination | None, LoadedModel | None]:
    """Examine the environment of a recipe that rove did not choose for it. Return None if it has no policies to compare a model
    with.

    Args:
        recipe: The recipe.
        reporter: Shows progress.
        needs_model: Whether to load and sample a pretrained model even if the policies suffice.
    """
    new = recipe.new_model
    tokenizer: JsonObject = {}
    if new is not None:
        tokenizer = {"vocab_size": new.vocab_size, "word_share": new.word_share}
    try:
        policies = len(load_environment(recipe.env, recipe.env_dir, **recipe.env_args).policies)
        if not policies or (new is not None and policies == 1):
            return None, None
        model = recipe.model if new is None and (needs_model or policies == 1) else None
        request = TrainRequest(recipe.env, model, recipe.env_args, recipe.env_dir, **recipe.template_settings)
        return examine_environment(request, reporter, tokenizer, recipe.device)
    except ConfigError as error:
        reporter.note(f"rove cannot diagnose the training: {error}", important=True)
        return None, None


def choose_examples(request: TrainRequest, evidence: Evidence) -> tuple[list[Section], Evidence]:
    """Return the settings of all stages, and the evidence, completed with facts that are known only after examples are generated.

    An argument `seed` may generate other examples, reshuffle a fixed pool, or draw again from a small space. So the examples of
    both seeds are compared. If examples repeat, a single seed is used for all purposes, provided that this at least halves the
    repetitions.
    """
    sections, evidence = _counted(request, evidence)
    evidence = _with_shared(request, evidence, sections)
    if evidence.shared and "seed" in evidence.arguments:
        same_sections, same_seed = _counted(request, msgspec.structs.replace(evidence, seed_repeats=True))
        same_seed = _with_shared(request, same_seed, same_sections)
        if 2 * same_seed.shared <= evidence.shared:
            evidence = same_seed
    return choose(request.env, request.env_args, evidence), evidence


def _counted(request: TrainRequest, evidence: Evidence) -> tuple[list[Section], Evidence]:
    """Return the settings of all stages, and the evidence with the number of examples that the environment has for them."""
    sections = choose(request.env, request.env_args, evidence)
    requested = requested_examples(sections)
    # How many examples there are is known only when the environment is loaded with the number that the recipe requests.
    if requested is None or "num_examples" in request.env_args:
        return sections, evidence
    counts = count_examples(request.env, request.env_dir, request.env_args, requested)
    evidence = limited(evidence, requested, counts)
    return choose(request.env, request.env_args, evidence), evidence


def _with_shared(request: TrainRequest, evidence: Evidence, sections: Sequence[Section]) -> Evidence:
    """Return the evidence with the number of the table's examples that also select the weights."""
    values = {section.name: section.values for section in sections}
    table = values["evaluation"]
    [selection] = values["rl"][0]["evaluation"]
    skipped = table.get("skip_examples", 0)
    reported = keys_of(request.env, request.env_dir, table["env_args"], table["num_examples"], skipped)
    selected = keys_of(request.env, request.env_dir, selection["env_args"], selection["num_examples"])
    return msgspec.structs.replace(evidence, shared=count_shared(selected, reported))


def members_left_out(request: TrainRequest, sections: Sequence[Section]) -> list[str]:
    """Return the members of an `EnvGroup` that the results table leaves out: a group's examples come member after member."""
    [table] = [section.values for section in sections if section.name == "evaluation"]
    env = load_environment(request.env, request.env_dir, **table["env_args"])
    if not isinstance(env, EnvGroup):
        return []
    skipped = table.get("skip_examples", 0)
    rows = islice(env.examples(skipped + table["num_examples"]), skipped, None)
    members = {row["env_id"].split("/")[0] for row in rows}
    return [name for name in env.env_names if name not in members]


def write_recipe(request: TrainRequest, folder: Path, reporter: Reporter, device: str = "auto") -> None:
    """Examine an environment, and a pretrained model in it; write a recipe for them, and the collected evidence."""
    version = request.version  # of the code that is examined below
    env, model = request.env, request.model
    env_args = with_held_out(env, request.env_args)
    examined = msgspec.structs.replace(request, env_args=env_args)
    examination, pretrained = examine_environment(examined, reporter, device=device)
    with reporter.working(f"counting the examples of {env}"):
        sections, evidence = choose_examples(examined, examination.evidence)
    examination = examination._replace(evidence=evidence)
    available = training_examples(env_args, evidence)
    if available is not None and available < MIN_TRAINING_EXAMPLES:
        reporter.warning(
            f"{env} has {available} example{'' if available == 1 else 's'} for training, which a model memorizes; add different "
            "ones, 1,000 if possible"
        )
    if request.minutes is not None:
        sections = for_one_start(sections, evidence)
    if request.env_dir is not None:
        sections[0].values["env_dir"] = request.env_dir
    for section in sections:
        if section.name == "model":
            section.values.update(request.template_settings)
    with reporter.working("measuring the time of a few passes"):
        values = sections[0].values | {section.name: section.values for section in sections[1:]}
        recipe = convert(RecipeFile, values).complete(env, folder)
        estimate = estimate_stages(recipe, examination, pretrained)
    if request.minutes is not None:
        sections, estimate = fit_to_time(sections, estimate, request.minutes)
    left_out = members_left_out(examined, sections)
    if left_out:
        reporter.warning(
            f"the results table has no example of {', '.join(left_out)}, because the examples of {env} come member after member; "
            "train in these members one by one, or give the earlier members fewer examples"
        )
    # The model of the first stage is loaded again; two copies may not fit into memory.
    del pretrained
    release_memory()
    path = folder / RECIPE
    words = f"{env} -m {model}" if model else env
    if request.teacher is not None:
        words += f" --teacher {request.teacher}"
    if request.minutes is not None:
        words += f" --minutes {request.minutes:g}"
    comment = (
        f"Recipe of `rove train {words}`. Change any line of a copy, then: rove train {env} --recipe COPY --run-dir FOLDER\n"
        f"Estimate on this machine with its present load: {estimate}"
    )
    text = as_toml(sections, comment)
    made_for = {**request.values, "version": version, "recipe": recipe_digest(text)}
    with locked(folder, attempts=50):
        path.unlink(missing_ok=True)  # if the command is interrupted now, the next one makes the recipe again
        atomic_write(folder / REQUEST, msgspec.json.encode(made_for))
        atomic_write(folder / ESTIMATE, msgspec.json.encode(estimate))
        atomic_write(folder / EVIDENCE, msgspec.json.encode(examination.evidence))
        # The recipe last: a folder with a recipe has all other files too.
        atomic_write(path, text.encode())
        seal(path)


def estimate_recipe(recipe: Recipe, reporter: Reporter) -> Estimate | None:
    """Return the time and memory of a recipe that rove did not choose for its environment; None if they cannot be estimated."""
    counts = [recipe.evaluation.num_examples]
    if recipe.data is not None:
        if not recipe.data.model.startswith(SCRIPTED):
            return None
        counts.append(recipe.data.num_examples)
    if len(recipe.rl) != 1 or min(counts) < 1:
        return None
    examination, pretrained = examine_recipe(recipe, reporter, needs_model=True)
    if examination is None:
        return None
    with reporter.working("measuring the time of a few passes"):
        return estimate_stages(recipe, examination, pretrained)


def write_evidence(recipe: Recipe, reporter: Reporter) -> None:
    """Examine the environment of a recipe, if possible, and write the evidence to the run folder."""
    examination, _ = examine_recipe(recipe, reporter, needs_model=False)
    if examination is not None:
        recipe.folder.mkdir(parents=True, exist_ok=True)
        atomic_write(recipe.folder / EVIDENCE, msgspec.json.encode(examination.evidence))
