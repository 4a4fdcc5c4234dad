"""Several evaluations in one file: `[[eval]]` tables and sweeps."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rove.core.checks import is_text
from rove.core.config import dotted, merge, nested
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError
from rove.core.plain import JsonMapping, JsonObject, is_list, is_mapping
from rove.remote.isolation import Isolation
from rove.remote.loading import temporary_environment
from rove.rollouts.evaluate import Options, run_identity
from rove.stages.evaluation import EvalConfig, check_client

TABLES = ("eval", "ablation")
"""The two equivalent names of the array of tables in a file. Each table is one evaluation, or several if it has a `sweep`."""


class Evaluation(NamedTuple):
    """One evaluation to run."""

    source: str
    """The place in a file that defines the evaluation; "" for the command line."""
    config: EvalConfig
    defaults: str
    """Description of the defaults that the environment sets; "" if it sets none."""


@contextmanager
def error_source(source: str, separator: str = ": ") -> Generator[None]:
    """Return a context manager that prefixes config errors with their position in a file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{source}{separator}{error}" if source else str(error)) from error


def as_words(values: JsonMapping) -> list[str]:
    """Return settings as command-line words, so that files and flags are merged by one rule."""
    texts = {field.name for field in msgspec.structs.fields(EvalConfig) if is_text(field.type)}
    words: list[str] = []
    for key, value in values.items():
        is_plain = key in texts and isinstance(value, str)
        text = value if is_plain else msgspec.json.encode(value).decode()
        words.append(f"--{key}={text}")
    return words


def expand(content: JsonMapping) -> Iterator[tuple[str, str, JsonObject]]:
    """Yield every evaluation of a file: (table, sweep point, settings).

    Settings and a `sweep` at the top of the file apply to every table that does not override them; a file without tables counts
    as a single table. A sweep is a table of lists under plain or dotted names; it expands to all combinations of the listed
    values, with the last name varying fastest.

    Raises:
        ConfigError: A value is not a table or list where one is expected.
    """
    shared = {key: value for key, value in content.items() if key not in (*TABLES, "sweep")}
    shared_axes = _axes("[sweep]", content.get("sweep", {}))
    for name in TABLES:
        tables = content.get(name, [])
        if not is_list(tables) or not all(is_mapping(table) for table in tables):
            raise ConfigError(f"'{name}' is {tables!r}; expected tables: [[{name}]]")
        for position, table in enumerate(tables, start=1):
            yield from _points(f"[[{name}]] {position}", shared, shared_axes, table)
    if not any(content.get(name) for name in TABLES):
        yield from _points("[sweep]", shared, shared_axes, {})


def _points(
    source: str, shared: JsonMapping, shared_axes: Mapping[str, list[Any]], table: JsonMapping
) -> Iterator[tuple[str, str, JsonObject]]:
    settings = {key: value for key, value in table.items() if key != "sweep"}
    names = dotted(settings)
    axes = {name: values for name, values in shared_axes.items() if name not in names}
    axes |= _axes(f"{source}, sweep", table.get("sweep", {}))
    for point in itertools.product(*axes.values()):
        values = merge(merge({}, shared), settings)
        description: list[str] = []
        for name, value in zip(axes, point, strict=True):
            merge(values, nested(name, value))
            description.append(f"{name} = {value!r}")
        yield source, ", ".join(description), values


def _axes(source: str, sweep: Any) -> dict[str, list[Any]]:
    """Return the values of each swept setting, by dotted name."""
    if not is_mapping(sweep):
        raise ConfigError(f"{source} is {sweep!r}; expected a table of lists")
    axes = dotted(sweep)
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{source}: '{name}' is {values!r}; expected a list of the values to try")
    return axes


def check(evaluations: Sequence[Evaluation]) -> None:
    """Load every environment, and check that no two evaluations use the same run folder.

    Raises:
        ConfigError: An environment cannot be loaded, there is no such model, or two evaluations share a run folder.
    """
    folders: dict[Any, Evaluation] = {}
    for evaluation in evaluations:
        config = evaluation.config
        isolation = Isolation.of(config.isolation, config.ray)
        with (
            error_source(evaluation.source),
            temporary_environment(config.env, config.env_dir, config.env_args, isolation) as env,
        ):
            # All evaluations are checked before the first one runs, because a suite may run for hours.
            check_client(config, env)
            identity = fingerprint(run_identity(env, None, config.model, Options(**config.options)))
        # Without a run folder, there is nothing to share.
        if not config.save:
            continue
        named = Path(config.run_dir).resolve() if config.run_dir is not None else None
        template = msgspec.json.encode([config.chat_template, config.template_args], order="sorted")
        key = named or (config.env, config.model, config.base_url, template, identity)
        first = folders.setdefault(key, evaluation)
        if first is not evaluation:
            folder = f"the run folder {config.run_dir}" if named else "one run folder"
            differ = ", ".join(varied([first, evaluation])[1]) or "nothing"
            raise ConfigError(
                f"{first.source} and {evaluation.source} would share {folder} (what differs: {differ}); "
                "omit one, or give each its own run_dir"
            )


def varied(evaluations: Sequence[Evaluation]) -> list[JsonObject]:
    """Return, for each evaluation, the settings that are not the same in all evaluations, by dotted name."""
    settings = [dotted(msgspec.to_builtins(evaluation.config)) for evaluation in evaluations]
    first = settings[0]
    names = dict.fromkeys(itertools.chain.from_iterable(settings))
    differing = [name for name in names if any(values.get(name) != first.get(name) for values in settings)]
    return [{name: values.get(name) for name in differing} for values in settings]
