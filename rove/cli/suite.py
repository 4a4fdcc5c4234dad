"""Settings of `rove eval`: one evaluation, or the many of a file with `[[eval]]` tables.

Layers, later ones win: the environment's `pyproject.toml`, the top of the file, an `[[eval]]` table, a point of its `sweep`,
the command line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import tomli_w
from rich.console import Console
from rich.table import Table

from rove import compat
from rove.cli.clients import API_KEY_VAR, find_endpoint, is_folder, make_client
from rove.cli.common import hint, print_json, short
from rove.cli.options import confirm_foreign, settings
from rove.core.checks import is_text
from rove.core.config import RUN_CONFIG, merge, read_toml
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError, Error, nearest, traceback_text
from rove.core.ranges import CountOrAll, Device, NonNegativeFloat, NonNegativeInt, PositiveInt, Seconds
from rove.envs.environment import Environment
from rove.envs.loading import environment_defaults
from rove.models.pretrained import model_path
from rove.remote.loading import Isolation, IsolationConfig, RayConfig, temporary_environment
from rove.rollouts.evaluate import Options, run_identity
from rove.runs.run import Run
from rove.statistics.format import caveats, interval, number
from rove.statistics.summary import broken_reward
from rove.statistics.tables import folded
from rove.utils.console import styled
from rove.utils.processes import release_memory
from rove.utils.terminal_text import inert, inert_toml

TABLES = ("eval", "ablation")
"""Arrays of tables in a file; each table is one evaluation, or several if it has a `sweep`. Both names mean the same."""
ENVIRONMENT_DEFAULTS = frozenset({*Options.__struct_fields__, "max_tokens", "temperature"})
"""Settings for which an environment may define defaults: how to evaluate, but not the model, keys or files."""


class EvalConfig(Options, frozen=True, kw_only=True):
    """Settings of `rove eval`: those of `rove.rollouts.evaluate.Options`, the model, the environment and the run folder."""

    env: str
    """Environment, or a file of questions and answers (.jsonl, .ndjson, .csv or .parquet)."""
    model: str
    """scripted:NAME, a model folder, a name in endpoints.toml, or a model's name at `base_url`."""
    trust_remote_code: bool = False
    """Run Python files that the model folder contains."""
    device: Device = "auto"
    """Device that the model computes on: "auto" (CUDA if available, else the CPU), "cpu", "cuda", "cuda:N", or "mps"."""
    env_args: dict[str, Any] = msgspec.field(default_factory=dict)
    """Arguments of the environment."""
    num_examples: CountOrAll = 5
    """Number of examples from the start of the dataset."""
    rollouts_per_example: PositiveInt = 3
    """Rollouts of each example."""
    max_tokens: PositiveInt | None = None
    """Maximum tokens per response; by default the endpoint decides."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature; 0 is greedy; by default the endpoint decides."""
    base_url: str | None = None
    """URL of an OpenAI-compatible endpoint."""
    endpoints: str | None = None
    """File of named endpoints; by default endpoints.toml, else configs/endpoints.toml."""
    api_key_var: str = API_KEY_VAR
    """Environment variable that holds the API key."""
    timeout: Seconds = 600.0
    """Timeout of one request, in seconds."""
    max_retries: NonNegativeInt = 4
    """Maximum retries of one request."""
    env_dir: str | None = None
    """Folder in which the environment is looked up first."""
    isolation: IsolationConfig = IsolationConfig()
    """Run the environment in a worker process: the `[isolation]` table."""
    ray: RayConfig = RayConfig()
    """Run the environment on a Ray cluster: the `[ray]` table."""
    run_dir: str | None = None
    """The run folder; by default runs/ENV--MODEL--hash."""
    save: bool = True
    """Save the rollouts in a run folder."""
    overwrite: bool = False
    """Discard an earlier run in this folder."""

    @property
    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of `rove.evaluate`."""
        options = {name: getattr(self, name) for name in Options.__struct_fields__}
        sampling = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        given = {name: value for name, value in sampling.items() if value is not None}
        return options | {"sampling_args": {**self.sampling_args, **given}}


class Evaluation(NamedTuple):
    """One evaluation to run."""

    source: str
    """Where in a file it is defined; "" for the command line."""
    config: EvalConfig
    defaults: str
    """The defaults that the environment sets, as text for people; "" if none."""


def resolve(ctx: click.Context, named: Mapping[str, Any]) -> tuple[list[Evaluation], bool]:
    """Return the evaluations that a command line specifies, and whether they come from a file of several.

    Args:
        named: Values of named flags.

    Raises:
        ConfigError: A file or a setting is wrong.
    """
    paths, flags = _split_files(ctx.args)
    files = [(path, read_toml(path)) for path in paths]
    complete = any(content.keys() >= RUN_CONFIG for _, content in files)
    suites = [i for i, (_, content) in enumerate(files) if {*TABLES, "sweep"} & content.keys()]
    if not suites:
        return [_resolved(ctx, ctx.args, named, "", complete)], False
    if len(suites) > 1:
        given = " and ".join(files[i][0] for i in suites)
        raise ConfigError(f"{given} both contain several evaluations; give one such file at a time")
    path, content = files[suites[0]]
    confirm_foreign(Path(path), content)
    before, after = (
        [word for path in part for word in ("@", path)] for part in (paths[: suites[0]], paths[suites[0] + 1 :])
    )
    found: dict[bytes, Evaluation] = {}
    with _error_source(path, ", "):
        points = list(expand(content))
    for table, point, values in points:
        source = f"{path}, {table}" + (f" ({point})" if point else "")
        words = [*before, *as_words(values), *after, *flags]
        with _error_source(source):
            one = _resolved(ctx, words, named, source, complete)
        # A flag may override what a sweep varies; its points are then the same evaluation.
        found.setdefault(table.encode() + msgspec.json.encode(one.config, order="sorted"), one)
    return list(found.values()), True


@contextmanager
def _error_source(source: str, separator: str = ": ") -> Iterator[None]:
    """Prefix config errors with the place in a file."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{source}{separator}{error}" if source else str(error)) from error


def _split_files(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files named after "@", and the other words."""
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
    ctx: click.Context,
    words: Sequence[str],
    named: Mapping[str, Any],
    source: str,
    complete: bool,
) -> Evaluation:
    """Return the evaluation for these words; `complete` if they are the settings of a run, defaults included."""
    ctx.args = list(words)
    config = settings(EvalConfig, ctx, bare="env", **named)
    where, table = ("", {}) if complete else _defaults(config)
    if not table:
        return Evaluation(source, config, "")
    for key in table:
        if key not in ENVIRONMENT_DEFAULTS:
            raise ConfigError(f"{where}: unknown setting '{key}'; {nearest(key, ENVIRONMENT_DEFAULTS)}")
    ctx.args = [*as_words(table), *words]
    with _error_source(where):
        whole = settings(EvalConfig, ctx, bare="env", **named)
    used = [key for key in table if getattr(whole, key) != getattr(config, key)]
    return Evaluation(source, whole, f"{where}: {', '.join(used)}" if used else "")


def _defaults(config: EvalConfig) -> tuple[str, dict[str, Any]]:
    """Return an environment's defaults and their location: `[tool.rove.eval]`, else the table for verifiers."""
    file, table = environment_defaults(config.env, config.env_dir)
    if table:
        return f"{file}, [tool.rove.eval]", table
    file, table = environment_defaults(config.env, config.env_dir, compat.NAME)
    return f"{file}, [tool.{compat.NAME}.eval]", {key: table[key] for key in compat.EVAL_DEFAULTS if key in table}


def as_words(values: Mapping[str, Any]) -> list[str]:
    """Return settings as command-line words, so that files and flags are merged by one rule."""
    texts = {field.name for field in msgspec.structs.fields(EvalConfig) if is_text(field.type)}
    return [
        f"--{key}={value if key in texts and isinstance(value, str) else msgspec.json.encode(value).decode()}"
        for key, value in values.items()
    ]


def expand(content: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield every evaluation of a file: (table, sweep point, settings).

    Settings and a `sweep` at the top of the file apply to every table that does not override them; a file without tables is one
    table. A sweep is a table of lists under plain or dotted names; it expands to their cross product, the last name varying
    fastest.

    Raises:
        ConfigError: A value is not a table or list where one is expected.
    """
    shared = {key: value for key, value in content.items() if key not in (*TABLES, "sweep")}
    shared_axes = _axes("[sweep]", content.get("sweep", {}))
    for name in TABLES:
        tables = content.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(table, Mapping) for table in tables):
            raise ConfigError(f"'{name}' is {tables!r}; expected tables: [[{name}]]")
        for position, table in enumerate(tables, start=1):
            yield from _points(f"[[{name}]] {position}", shared, shared_axes, table)
    if not any(content.get(name) for name in TABLES):
        yield from _points("[sweep]", shared, shared_axes, {})


def _points(
    source: str, shared: Mapping[str, Any], shared_axes: Mapping[str, list[Any]], table: Mapping[str, Any]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    own = {key: value for key, value in table.items() if key != "sweep"}
    own_names = _flat(own)
    axes = {name: values for name, values in shared_axes.items() if name not in own_names}
    axes |= _axes(f"{source}, sweep", table.get("sweep", {}))
    for point in itertools.product(*axes.values()):
        values = merge(merge({}, shared), own)
        for name, value in zip(axes, point):
            *above, last = name.split(".")
            nested: dict[str, Any] = {last: value}
            for key in reversed(above):
                nested = {key: nested}
            merge(values, nested)
        yield source, ", ".join(f"{name} = {value!r}" for name, value in zip(axes, point)), values


def _axes(source: str, sweep: Any) -> dict[str, list[Any]]:
    """Return the values of each swept setting, by dotted name."""
    if not isinstance(sweep, Mapping):
        raise ConfigError(f"{source} is {sweep!r}; expected a table of lists")
    axes = _flat(sweep)
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{source}: '{name}' is {values!r}; expected a list of the values to try")
    return axes


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings under dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def check(evaluations: Sequence[Evaluation]) -> None:
    """Load every environment, and check that no two evaluations use the same run folder.

    Raises:
        ConfigError: An environment cannot be loaded, there is no such model, or two evaluations share a run folder.
    """
    folders: dict[Any, Evaluation] = {}
    for one in evaluations:
        config = one.config
        isolation = Isolation.of(config.isolation, config.ray)
        with (
            _error_source(one.source),
            temporary_environment(config.env, config.env_dir, config.env_args, isolation) as env,
        ):
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
                f"{other.source} and {one.source} would share {folder} (what differs: {differ}); "
                "omit one, or give each its own run_dir"
            )


def check_client(config: EvalConfig, env: Environment) -> None:
    """Check that the model exists and a client could be made, without loading weights or sending a request.

    Raises:
        ConfigError: There is no such scripted policy, model folder, endpoint or key, or a cost limit has no price.
    """
    endpoint = find_endpoint(config.model, config.endpoints) if config.base_url is None else None
    price = config.price or (endpoint and endpoint.price)
    if price is None and (config.budget is not None or config.limits.max_cost is not None):
        raise ConfigError("budget and max_cost need a price: --price.input and --price.output, per million tokens")
    if endpoint is None and config.base_url is None and is_folder(config.model):
        if not Path(model_path(config.model)).expanduser().is_dir():
            raise ConfigError(f"model folder {config.model} does not exist")
        return
    key_var, device = config.api_key_var, config.device
    make_client(config.model, env, config.base_url, key_var, endpoints=config.endpoints, device=device)


def varied(evaluations: Sequence[Evaluation]) -> list[dict[str, Any]]:
    """Return, for each evaluation, the settings that are not the same in all of them, by dotted name."""
    flat = [_flat(msgspec.to_builtins(one.config)) for one in evaluations]
    names = dict.fromkeys(name for values in flat for name in values)
    differing = [name for name in names if any(values.get(name) != flat[0].get(name) for values in flat)]
    return [{name: values.get(name) for name in differing} for values in flat]


def print_settings(evaluations: Sequence[Evaluation], many: bool, as_json: bool) -> None:
    """Print all settings as an equivalent TOML file; several evaluations as `[[eval]]` tables."""
    plain = [_without_none(msgspec.to_builtins(one.config)) for one in evaluations]
    if as_json:
        print_json(plain if many else plain[0])
        return
    for position, (one, values) in enumerate(zip(evaluations, plain)):
        comments = [f"# {line}\n" for line in (one.source, f"from {one.defaults}" if one.defaults else "") if line]
        text = tomli_w.dumps({"eval": [values]} if many else values)
        click.echo("\n" * (position > 0) + inert("".join(comments)) + inert_toml(text), nl=False)


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


Runner = Callable[["EvalConfig", Console, str], tuple[dict[str, Any], Run | None]]
"""`rove.cli.eval.run_eval`: (settings, console, title) → (summary, run folder)."""


def run_suite(evaluations: Sequence[Evaluation], run: Runner, console: Console, as_json: bool) -> int:
    """Run evaluations one after another, also after failures; print a summary and return the exit status."""
    rows: list[dict[str, Any]] = []
    for position, (one, differing) in enumerate(zip(evaluations, varied(evaluations)), start=1):
        config = one.config
        for name in ("env", "model", "run_dir"):
            differing.pop(name, None)
        row = {"env": config.env, "model": config.model, "settings": differing}
        title = " · ".join([f"{position}/{len(evaluations)} {config.env}", short(config.model), *_pairs(differing)])
        try:
            summary, folder = run(config, console, title)
            rows.append({**row, **summary, "run": str(folder.path) if folder else None})
        except Exception as error:
            message = str(error) if isinstance(error, Error) else traceback_text(error)
            console.print(f"{one.source}: {message}", style="red", soft_wrap=True)
            rows.append({**row, "place": one.source, "error": f"{type(error).__name__}: {error}", "run": None})
        release_memory()
    if as_json:
        print_json(rows)
    else:
        _print_rows(rows, console)
    return int(any(not _is_sound(row) for row in rows))


def _is_sound(row: Mapping[str, Any]) -> bool:
    """Whether an evaluation finished with a meaningful mean reward."""
    if "error" in row or row.get("broken_rewards"):
        return False
    return bool(row["scored"] or not row["failed"])


def _print_rows(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    console.print(suite_table(rows))
    stopped = [row for row in rows if "error" in row]
    if stopped:
        console.print(f"{len(stopped)} of {len(rows)} evaluations did not finish:", style="red")
    for row in stopped:
        console.print(f"  {row['place']}: {row['error'].splitlines()[0]}", soft_wrap=True)
    for row in rows:
        for name, error in row.get("broken_rewards", {}).items():
            message = f"{row['env']} · {short(row['model'])}: {broken_reward(name, error)}"
            console.print(message, style="red", markup=False, soft_wrap=True)
    is_complete = not stopped and not any(row.get("failed") or row.get("not_run") for row in rows)
    steps = [] if is_complete else ["repeat the command to run what is missing or failed"]
    for a, b in itertools.combinations((row for row in rows if row["run"]), 2):
        if a["env"] == b["env"]:
            steps.append(f"compare two of them: rove compare {a['run']} {b['run']}")
            break
    hint(console, *steps)


LABEL_WIDTH = 16
"""Columns for a name in the table of several evaluations."""


def suite_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with one row per evaluation: model, environment, varied settings, and results."""
    noted = caveats(row["reward"] for row in rows if "error" not in row)
    table = Table(width=100, pad_edge=False, caption=noted or None, caption_justify="left")
    for name in ("environment", "model", "settings"):
        table.add_column(name, overflow="fold")
    passes = any(row.get("pass@k") for row in rows)
    for name in ("n", "reward, 95%", *["pass@1"] * passes, "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        labels = (
            folded(row["env"], LABEL_WIDTH),
            folded(short(row["model"]), LABEL_WIDTH),
            "\n".join(folded(pair, LABEL_WIDTH) for pair in _pairs(row["settings"])),
        )
        if "error" in row:
            table.add_row(*labels, *["–"] * (2 + passes), styled(("stopped", "red")))
            continue
        reward = f"{number(row['reward']['mean'])} {interval(row['reward'], 2)}"
        chance = [number(row["pass@k"].get("1", {}).get("mean"))] if passes else []
        table.add_row(*labels, str(row["scored"]), reward, *chance, str(row["failed"]))
    return table


def _pairs(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in settings.items() if value is not None]
