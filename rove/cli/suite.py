"""What `rove eval` is to run: the settings of one evaluation, or of the many that a file of `[[eval]]` tables stands for.

Layers, the later ones winning: the environment's own `pyproject.toml`, the top of the file, an `[[eval]]` table, a point of
its `sweep`, the command line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec
import tomli_w
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rove import compat
from rove.cli.clients import find_endpoint, is_folder, make_client
from rove.cli.common import hint, print_json, settings, short
from rove.core.config import RUN_CONFIG, merge, read_toml
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError, Error, nearest, traceback_text
from rove.envs.environment import Environment
from rove.envs.loading import environment_defaults
from rove.remote.loading import Isolation, looking_at
from rove.rollouts.evaluate import Options, run_identity
from rove.runs.run import Run
from rove.statistics.reward_errors import broken_reward
from rove.viewer.format import caveats, interval, number

if TYPE_CHECKING:
    from rove.cli.eval import EvalConfig

TABLES = ("eval", "ablation")
"""Arrays of tables of which each is an evaluation, or several when it has a `sweep`; both names mean the same."""
OF_ENVIRONMENT = frozenset({*Options.__struct_fields__, "max_tokens", "temperature"})
"""What an environment may have a default for: how it is evaluated, not who is asked, with which key, and what is kept."""


class Evaluation(NamedTuple):
    """One evaluation to run."""

    place: str
    """Where in a file it is written; "" when the command line is all there is."""
    config: EvalConfig
    defaults: str
    """What of it the environment has said, for people; "" when nothing."""


def resolve(kind: type[EvalConfig], ctx: click.Context, named: Mapping[str, Any]) -> tuple[list[Evaluation], bool]:
    """The evaluations that a command line means, and whether they are of a file of many.

    Args:
        kind: the settings of one.
        named: values of named flags.

    Raises:
        ConfigError: a file or a setting is wrong; where, and what is near.
    """
    paths, flags = _files_apart(ctx.args)
    files = [(path, read_toml(path)) for path in paths]
    complete = any(content.keys() >= RUN_CONFIG for _, content in files)
    suites = [i for i, (_, content) in enumerate(files) if {*TABLES, "sweep"} & content.keys()]
    if not suites:
        return [_resolved(kind, ctx, ctx.args, named, "", complete)], False
    if len(suites) > 1:
        given = " and ".join(files[i][0] for i in suites)
        raise ConfigError(f"{given} both have many evaluations; give one such file at a time")
    path, content = files[suites[0]]
    before, after = (
        [word for path in part for word in ("@", path)] for part in (paths[: suites[0]], paths[suites[0] + 1 :])
    )
    found: dict[bytes, Evaluation] = {}
    with _at(path, ", "):
        points = list(expand(content))
    for table, point, values in points:
        place = f"{path}, {table}" + (f" ({point})" if point else "")
        words = [*before, *as_words(kind, values), *after, *flags]
        with _at(place):
            one = _resolved(kind, ctx, words, named, place, complete)
        # Where a flag settles what a sweep would vary, its points are one and the same evaluation.
        found.setdefault(table.encode() + msgspec.json.encode(one.config, order="sorted"), one)
    return list(found.values()), True


@contextmanager
def _at(place: str, between: str = ": ") -> Iterator[None]:
    """Say of a wrong setting where it stands."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{place}{between}{error}" if place else str(error)) from error


def _files_apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The files that a command line names after "@", and its other words."""
    files, others = [], []
    rest = iter(words)
    for word in rest:
        if word.startswith("@"):
            file = word[1:] or next(rest, None)
            if file is None:
                raise ConfigError("expected a file after @")
            files.append(file)
        else:
            others.append(word)
    return files, others


def _resolved(
    kind: type[EvalConfig],
    ctx: click.Context,
    words: Sequence[str],
    named: Mapping[str, Any],
    place: str,
    complete: bool,
) -> Evaluation:
    """The evaluation that these words mean; `complete` when they are the settings of a run, defaults included."""
    ctx.args = list(words)
    config = settings(kind, ctx, bare="env", **named)
    where, table = ("", {}) if complete else _defaults(config)
    if not table:
        return Evaluation(place, config, "")
    for key in table:
        if key not in OF_ENVIRONMENT:
            raise ConfigError(f"{where}: unknown setting '{key}'; {nearest(key, OF_ENVIRONMENT)}")
    ctx.args = [*as_words(kind, table), *words]
    with _at(where):
        whole = settings(kind, ctx, bare="env", **named)
    used = [key for key in table if getattr(whole, key) != getattr(config, key)]
    return Evaluation(place, whole, f"{where}: {', '.join(used)}" if used else "")


def _defaults(config: EvalConfig) -> tuple[str, dict[str, Any]]:
    """What an environment's package asks for, and where it does: in a table for rove, else in one for verifiers."""
    file, table = environment_defaults(config.env, config.env_dir)
    if table:
        return f"{file}, [tool.rove.eval]", table
    file, table = environment_defaults(config.env, config.env_dir, compat.NAME)
    return f"{file}, [tool.{compat.NAME}.eval]", {key: table[key] for key in compat.EVAL_DEFAULTS if key in table}


def as_words(kind: type[Any], values: Mapping[str, Any]) -> list[str]:
    """Settings as the words of a command line that give them: files and flags are merged by one rule then."""
    texts = {field.name for field in msgspec.structs.fields(kind) if field.type in (str, str | None)}
    return [
        f"--{key}={value if key in texts and isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for key, value in values.items()
    ]


def expand(content: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every evaluation of a file: one per table, or one per point of the table's `sweep`. Which table, which point, settings.

    What stands at the top of the file, a `sweep` too, goes for every table that does not say otherwise. A file without
    tables is one table. A sweep is a table of lists, under plain or dotted names, which are crossed; the last one varies
    quickest.

    Raises:
        ConfigError: something else stands where a table or a list is expected.
    """
    shared = {key: value for key, value in content.items() if key not in (*TABLES, "sweep")}
    shared_axes = _axes("[sweep]", content.get("sweep", {}))
    for name in TABLES:
        tables = content.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
            raise ConfigError(f"'{name}' is {tables!r}; expected tables that begin with [[{name}]]")
        for position, table in enumerate(tables, start=1):
            yield from _points(f"[[{name}]] {position}", shared, shared_axes, table)
    if not any(content.get(name) for name in TABLES):
        yield from _points("[sweep]", shared, shared_axes, {})


def _points(
    place: str, shared: Mapping[str, Any], shared_axes: Mapping[str, list[Any]], table: Mapping[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    own = {key: value for key, value in table.items() if key != "sweep"}
    said = _flat(own)
    axes = {name: values for name, values in shared_axes.items() if name not in said}
    axes |= _axes(f"{place}, sweep", table.get("sweep", {}))
    for point in itertools.product(*axes.values()):
        values = merge(merge({}, shared), own)
        for name, value in zip(axes, point):
            *above, last = name.split(".")
            nested: dict[str, Any] = {last: value}
            for key in reversed(above):
                nested = {key: nested}
            merge(values, nested)
        yield place, ", ".join(f"{name} = {value!r}" for name, value in zip(axes, point)), values


def _axes(place: str, sweep: Any) -> dict[str, list[Any]]:
    """What a sweep varies, by dotted name."""
    if not isinstance(sweep, Mapping):
        raise ConfigError(f"{place} is {sweep!r}; expected a table of lists")
    axes = _flat(sweep)
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{place}: '{name}' is {values!r}; expected a list of the values to try")
    return axes


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted name."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def check(evaluations: Sequence[Evaluation]) -> None:
    """Load every environment, and see that no two evaluations would be kept in one folder.

    Raises:
        ConfigError: an environment cannot be loaded, has no such scripted policy, or two evaluations are one to their folder.
    """
    folders: dict[Any, Evaluation] = {}
    for one in evaluations:
        config = one.config
        isolation = Isolation.of(config.isolation, config.ray)
        with _at(one.place), looking_at(config.env, config.env_dir, config.env_args, isolation) as env:
            check_client(config, env)
            identity = fingerprint(run_identity(env, None, config.model, Options(**config.options)))
        if not config.save:
            continue
        named = Path(config.run_dir).resolve() if config.run_dir is not None else None
        other = folders.setdefault(named or (config.env, config.model, config.base_url, identity), one)
        if other is not one:
            folder = f"the run folder {config.run_dir}" if named else "one run folder"
            differ = ", ".join(varied([other, one])[1]) or "nothing"
            raise ConfigError(
                f"{other.place} and {one.place} would share {folder} (what differs: {differ}); "
                "leave one out, or give each a run_dir of its own"
            )


def check_client(config: EvalConfig, env: Environment) -> None:
    """See that there is somebody to answer, without loading weights or sending a request.

    Raises:
        ConfigError: no such player, model folder, endpoint or key, or a limit in money without a price.
    """
    endpoint = find_endpoint(config.model, config.endpoints) if config.base_url is None else None
    price = config.price or (endpoint and endpoint.price)
    if price is None and (config.budget is not None or config.limits.max_cost is not None):
        raise ConfigError("a budget or a max_cost needs a price: input and output, per million tokens")
    if endpoint is None and config.base_url is None and is_folder(config.model):
        if not Path(config.model).expanduser().is_dir():
            raise ConfigError(f"model folder {config.model} does not exist")
        return
    make_client(config.model, env, config.base_url, config.api_key_var, endpoints=config.endpoints)


def varied(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Of each evaluation those settings that not all have in common, by dotted name."""
    flat = [_flat(msgspec.to_builtins(one.config)) for one in evaluations]
    names = dict.fromkeys(name for values in flat for name in values)
    differing = [name for name in names if any(values.get(name) != flat[0].get(name) for values in flat)]
    return [{name: values.get(name) for name in differing} for values in flat]


def print_settings(evaluations: Sequence[Evaluation], many: bool, as_json: bool) -> None:
    """The settings, whole, as a TOML file that means the same; those of many as `[[eval]]` tables."""
    plain = [_without_none(msgspec.to_builtins(one.config)) for one in evaluations]
    if as_json:
        print_json(plain if many else plain[0])
        return
    for position, (one, values) in enumerate(zip(evaluations, plain)):
        comments = [f"# {line}\n" for line in (one.place, f"from {one.defaults}" if one.defaults else "") if line]
        text = tomli_w.dumps({"eval": [values]} if many else values)
        click.echo("\n" * (position > 0) + "".join(comments) + text, nl=False)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


Runner = Callable[["EvalConfig", Console, str], tuple[dict[str, Any], Run | None]]
"""`rove.cli.eval.run_eval`: (settings, console, title) → (summary, run folder)."""


def run_suite(evaluations: Sequence[Evaluation], run: Runner, console: Console, as_json: bool) -> int:
    """Run one evaluation after another, whatever becomes of those before it, and sum them up; the exit status."""
    rows: list[dict[str, Any]] = []
    for position, (one, differing) in enumerate(zip(evaluations, varied(evaluations)), start=1):
        config = one.config
        for name in ("env", "model", "run_dir"):
            differing.pop(name, None)
        row = {"env": config.env, "model": config.model, "settings": differing}
        title = " · ".join([f"{position}/{len(evaluations)} {config.env}", short(config.model), *_said(differing)])
        try:
            summary, folder = run(config, console, title)
            rows.append({**row, **summary, "run": str(folder.path) if folder else None})
        except Exception as error:
            said = str(error) if isinstance(error, Error) else traceback_text(error)
            console.print(f"[red]{escape(one.place)}: {escape(said)}[/red]", soft_wrap=True)
            rows.append({**row, "place": one.place, "error": f"{type(error).__name__}: {error}", "run": None})
    if as_json:
        print_json(rows)
    else:
        _print_rows(rows, console)
    return int(any(not _is_sound(row) for row in rows))


def _is_sound(row: Mapping[str, Any]) -> bool:
    """Whether an evaluation ran, and its mean reward says something."""
    if "error" in row or row.get("broken_rewards"):
        return False
    return bool(row["scored"] or not row["failed"])


def _print_rows(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    console.print(suite_table(rows))
    stopped = [row for row in rows if "error" in row]
    if stopped:
        console.print(f"[red]{len(stopped)} of {len(rows)} evaluations were not finished:[/red]")
    for row in stopped:
        console.print(f"  {escape(row['place'])}: {escape(row['error'].splitlines()[0])}", soft_wrap=True)
    for row in rows:
        for name, error in row.get("broken_rewards", {}).items():
            said = f"{row['env']} · {short(row['model'])}: {broken_reward(name, error)}"
            console.print(said, style="red", markup=False, soft_wrap=True)
    steps = ["the same command again runs only what is missing or failed"]
    for a, b in itertools.combinations((row for row in rows if row["run"]), 2):
        if a["env"] == b["env"]:
            steps.append(escape(f"is one better than another? rove compare {a['run']} {b['run']}"))
            break
    hint(console, *steps)


def suite_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """One row per evaluation: who, where, what varies, how many rollouts were scored, and how well."""
    noted = caveats(row["reward"] for row in rows if "error" not in row)
    table = Table(width=100, pad_edge=False, caption=escape(noted) or None, caption_justify="left")
    for name in ("environment", "model", "settings"):
        table.add_column(name, overflow="fold")
    passes = any(row.get("pass@k") for row in rows)
    for name in ("n", "reward, 95 %", *["pass@1"] * passes, "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        who = (escape(row["env"]), escape(short(row["model"])), escape("\n".join(_said(row["settings"]))))
        if "error" in row:
            table.add_row(*who, *["–"] * (2 + passes), "[red]stopped[/red]")
            continue
        reward = f"{number(row['reward']['mean'])} {escape(interval(row['reward'], 2))}"
        chance = [number(row["pass@k"].get("1", {}).get("mean"))] if passes else []
        table.add_row(*who, str(row["scored"]), reward, *chance, str(row["failed"]))
    return table


def _said(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items() if value is not None]
