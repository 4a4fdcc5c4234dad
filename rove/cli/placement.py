"""After SFT: what the model reaches in the environment of its data, beside the scripted policies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from rove.cli.clients import embedded
from rove.cli.common import ProgressDisplay, progress, run_async
from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError, Error
from rove.envs.environment import Environment
from rove.envs.questions import is_question_file
from rove.remote.loading import Isolation, looking_at
from rove.rubrics import JudgeRubric, RubricGroup
from rove.runs.run import Run
from rove.viewer.format import interval

if TYPE_CHECKING:
    from rove.core.protocols import Client
    from rove.train.config import SFTConfig
    from rove.train.placement import PolicyResult


def _isolated(settings: Mapping[str, Any]) -> bool:
    """Whether the data of a run was made by an isolated environment."""
    table = settings.get("isolation")
    return isinstance(table, Mapping) and table.get("enabled") is True


class Place(NamedTuple):
    """The environment that a model is measured in."""

    env: str
    env_args: dict[str, Any]
    env_dir: str | None
    isolation: Isolation


def place_of(config: SFTConfig, data: Run) -> Place:
    """Return the environment of the settings, else that of the data.

    The folder of data may come from others: its environment is loaded by name alone, without its `env_dir` and interpreter.

    Raises:
        ConfigError: the data does not name one, or one that may have to be downloaded.
    """
    if config.env is not None:
        return Place(config.env, config.env_args, config.env_dir, Isolation())
    told = data.config().get("config", {})
    env, env_args = told.get("env"), told.get("env_args", {})
    if not isinstance(env, str) or not env or not isinstance(env_args, dict):
        raise ConfigError(f"{data.path} does not name its environment; give --env ENV")
    if "/" in env and not is_question_file(env):
        raise ConfigError(
            f"the environment of {data.path} is '{env}', which is loaded only if you name it: --env {env}"
        )
    return Place(env, {**env_args, **config.env_args}, config.env_dir, Isolation(on=_isolated(told)))


def place_model(config: SFTConfig, final: Path, data: Run, run: Run, console: Console) -> None:
    """Measure the trained model and the scripted policies; print a table, and keep it in the run's summary.

    What goes wrong is one line, and no error: the model is trained.
    """
    if not config.final_eval_rollouts:
        return
    try:
        place = place_of(config, data)
        rows = _measure_all(config, place, final, data, console)
    except (Error, OSError) as error:
        advice = f"evaluate it: rove eval ENV -m {shlex.quote(str(final))}; --final-eval-rollouts 0 skips this"
        console.print(f"not evaluated: {error}\n{advice}", markup=False, soft_wrap=True)
        return
    from rove.train.placement import learned_only_format, placement_text

    model, policies = rows[0], rows[1:]
    text = placement_text(model, policies)
    found = {
        "env": place.env,
        "env_args": place.env_args,
        "text": text,
        "learned_only_format": learned_only_format(model, policies),
        "rows": msgspec.to_builtins(rows),
    }
    run.finish({**(run.summary() or {}), "placement": found})
    console.print(placement_table(rows, f"{place.env}: after SFT, {model.scored} rollouts, greedy"))
    console.print(text, style="yellow" if found["learned_only_format"] else None, markup=False, soft_wrap=True)


def _measure_all(config: SFTConfig, place: Place, final: Path, data: Run, console: Console) -> list[PolicyResult]:
    """Return the rows: the model's first, then one per scripted policy."""
    from rove.engine.client import EngineClient
    from rove.train.placement import turn_limit

    with looking_at(place.env, place.env_dir, place.env_args, place.isolation) as env:
        if config.env is None:
            _refuse_judges(env, place)
        players = sorted(env.policies)
    with progress(console, f"{place.env} after SFT", 1 + len(players)) as tell:
        client = embedded(str(final))
        assert isinstance(client, EngineClient)
        limit = turn_limit(client.renderer, data.finished())
        rows = [_measure(config, place, client, "the trained model", limit, tell)]
        for name in players:
            tell(len(rows), f"reward {rows[-1].reward:.3f}")
            rows.append(_measure(config, place, None, name, limit, tell))
        tell(len(rows), f"reward {rows[0].reward:.3f}")
    return rows


def _measure(
    config: SFTConfig, place: Place, client: Client | None, name: str, max_tokens: int, tell: ProgressDisplay
) -> PolicyResult:
    """Measure a client, or the scripted policy of that name, in an environment that is loaded for it."""
    from rove.train.placement import measure_policy

    with looking_at(place.env, place.env_dir, place.env_args, place.isolation) as env:
        one = client or ScriptedClient(env.policies[name], name)
        shown = name if client else f"scripted:{name}"
        rollouts = config.final_eval_rollouts
        limits: dict[str, Any] = {"max_tokens": max_tokens, "seed": config.seed, "on_progress": tell.step}
        return run_async(measure_policy(env, one, shown, rollouts, **limits))


def _refuse_judges(env: Environment, place: Place) -> None:
    """Refuse an environment that asks judges, which may cost money."""
    rubrics = env.rubric.rubrics if isinstance(env.rubric, RubricGroup) else [env.rubric]
    if any(isinstance(rubric, JudgeRubric) for rubric in rubrics):
        raise ConfigError(f"'{place.env}' asks a judge model, which may cost money; --env {place.env} evaluates in it")


def placement_table(rows: list[PolicyResult], title: str) -> Table:
    """Return the table, the best reward first; the first of `rows` is the model's."""
    table = Table(title=title)
    table.add_column("")
    for column in ("reward", "95 % interval", "format", " + ".join(rows[0].task_names) or "task"):
        table.add_column(column, justify="right")
    for row in sorted(rows, key=lambda row: -row.reward):
        shown = "–" if row.format is None else f"{row.format:.3f}"
        cells = (f"{row.reward:.3f}", interval({"low": row.low, "high": row.high}), shown, f"{row.task:.3f}")
        table.add_row(row.name, *cells, style="bold" if row is rows[0] else None)
    return table
