"""`rove eval`: a model in an environment, summed up."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import click
import msgspec
from rich.console import Console

from rove.cli.clients import API_KEY_VAR, find_endpoint, make_client
from rove.cli.common import (
    SETTINGS,
    Tell,
    console_for,
    environment_words,
    hint,
    json_object,
    print_json,
    progress,
    run_async,
    run_folder,
    short,
    trust_option,
)
from rove.cli.environments import hub_option
from rove.cli.suite import check, print_settings, resolve, run_suite
from rove.cli.tables import counts_line, summary_table
from rove.core.errors import RunError
from rove.core.protocols import Client
from rove.core.records import ErrorInfo, Outcome, RolloutRecord
from rove.envs.environment import Environment
from rove.envs.questions import QuestionsEnv
from rove.remote.loading import Isolation, IsolationConfig, RayConfig, open_environment
from rove.rollouts.evaluate import Options, evaluate, run_identity
from rove.runs.run import Run
from rove.statistics import Price
from rove.statistics.reward_errors import broken_reward
from rove.viewer.format import number


class EvalConfig(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an evaluation: those of `rove.evaluate.Options`, and who plays where."""

    env: str
    """Environment to evaluate in."""
    model: str
    """scripted:NAME, a model folder, an alias of endpoints.toml, or a model's name at `base_url`."""
    trust_remote_code: bool = False
    """Run the Python files that come with a model folder, where it needs any."""
    env_args: dict[str, Any] = msgspec.field(default_factory=dict)
    num_examples: int = 5
    """Examples, from the start of the dataset; -1 = all."""
    rollouts_per_example: int = 3
    max_tokens: int | None = None
    temperature: float | None = None
    base_url: str | None = None
    endpoints: str | None = None
    """File of endpoint names; default: endpoints.toml, else configs/endpoints.toml, where there is one."""
    api_key_var: str = API_KEY_VAR
    """Environment variable that holds the key."""
    timeout: float = 600.0
    """Seconds one request may take."""
    max_retries: int = 4
    """Retries of one request."""
    env_dir: str | None = None
    isolation: IsolationConfig = IsolationConfig()
    """Run the environment in a worker process: the `[isolation]` table."""
    ray: RayConfig = RayConfig()
    """Run the environment on a Ray cluster: the `[ray]` table."""
    run_dir: str | None = None
    save: bool = True
    """Keep the rollouts in a run folder."""
    overwrite: bool = False
    """Throw an earlier run of this folder away."""

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `rove.evaluate`."""
        options = {name: getattr(self, name) for name in Options.__struct_fields__}
        asked = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        given = {name: value for name, value in asked.items() if value is not None}
        return options | {"sampling_args": {**self.sampling_args, **given}}


def start_run(config: EvalConfig, identity: Mapping[str, Any], run: Run, console: Console) -> None:
    """Start the run folder of these settings, new or resumed."""
    run.resume_command = f"rove eval --resume {shlex.quote(str(run.path))}"
    plain = msgspec.to_builtins(config)
    del plain["overwrite"]  # `@ config.toml` of this folder continues the run
    run.start("eval", plain, identity, config.overwrite)
    kept = len(run.kept())
    if kept:
        console.print(f"{run.path} has {kept} rollouts already; only what is missing or failed is run", soft_wrap=True)


class Watch:
    """Shows an evaluation as it goes: how far, the mean reward, and the first failure at once.

    Args:
        tell: of `rove.cli.common.progress`.
        console: where the first failure is told.
        client: whose limit is shown, if it finds its own.
    """

    def __init__(self, tell: Tell, console: Console, client: Client):
        self.tell = tell
        self.console = console
        limiter = getattr(client, "limiter_now", None)
        self.limiter = limiter if limiter is not None and limiter.adaptive else None
        self.count = self.failed = 0
        self.rewards = 0.0

    def __call__(self, record: RolloutRecord | Outcome) -> None:
        """Count one more."""
        self.count += 1
        if record.error is not None and not self.failed:
            said = f"{record.error.type}: {record.error.message}{place_of(record.error)}"
            said = f"first failure, in {record.error.phase}: {said}"
            self.console.print(said, soft_wrap=True, markup=False)
        self.failed += record.error is not None
        self.rewards += record.reward or 0.0
        scored = self.count - self.failed
        words = [f"reward {number(self.rewards / scored) if scored else '–'}"]
        if self.failed:
            words.append(f"[red]{self.failed} failed[/red]")
        if self.limiter is not None:
            words.append(f"{self.limiter.limit} at once")
        self.tell(self.count, "  ".join(words))


def run_eval(config: EvalConfig, console: Console, title: str = "") -> tuple[dict[str, Any], Run | None]:
    """Evaluate, with progress under `title`; an earlier run of the same identity is continued."""
    env = open_environment(config.env, config.env_dir, config.env_args, Isolation.of(config.isolation, config.ray))
    if isinstance(env, QuestionsEnv):
        console.print(f"{config.env}: {env.description}", markup=False, soft_wrap=True)
    config = _with_price(config)
    client = make_client(
        config.model,
        env,
        config.base_url,
        config.api_key_var,
        config.max_concurrent,
        config.timeout,
        config.max_retries,
        config.endpoints,
        config.trust_remote_code,
    )
    identity = run_identity(env, client, config.model, Options(**config.options))
    run = Run(run_folder(config.run_dir, config.env, config.model, identity=identity)) if config.save else None
    with run or nullcontext():
        if run is not None:
            start_run(config, identity, run, console)
        return _evaluate(config, env, client, run, console, title), run


def _evaluate(
    config: EvalConfig, env: Environment, client: Client, run: Run | None, console: Console, title: str
) -> dict[str, Any]:
    """Evaluate with progress; return the summary."""
    examples = env.count_examples(config.num_examples, config.train)
    if examples is not None and config.num_examples > examples:
        console.print(f"[yellow]num_examples is {config.num_examples}; the dataset has {examples}[/yellow]")

    async def go(watch: Watch) -> dict[str, Any]:
        try:
            return await evaluate(env, client, config.model, run=run, on_record=watch, **config.options)
        finally:
            await client.close()

    title = title or f"{config.env} · {short(config.model)}"
    with progress(console, title, (examples or 0) * config.rollouts_per_example) as tell:
        return run_async(go(Watch(tell, console, client)))


def _with_price(config: EvalConfig) -> EvalConfig:
    """The same settings with the price that endpoints.toml tells for the model, unless one is given."""
    endpoint = find_endpoint(config.model, config.endpoints) if config.base_url is None else None
    if config.price is not None or endpoint is None or endpoint.price is None:
        return config
    return msgspec.structs.replace(config, price=Price(**endpoint.price))


def place_of(error: ErrorInfo) -> str:
    """Where in whose file an error was raised, for people who write environments."""
    places = [line.strip() for line in error.traceback.splitlines() if line.strip().startswith("File ")]
    return f" ({places[-1]})" if places else ""


def print_summary(config: EvalConfig, summary: dict[str, Any], run: Run | None, console: Console) -> None:
    """The table, the counts, and what to do next."""
    console.print(summary_table(summary, f"{config.env} · {config.model}"))
    console.print(counts_line(summary), soft_wrap=True)
    for name, error in summary.get("broken_rewards", {}).items():
        console.print(broken_reward(name, error), style="red", markup=False, soft_wrap=True)
    next_steps = []
    if run is not None:
        next_steps.append(
            f"rollouts: {run.path}/rollouts.jsonl; the same command again runs only what is missing or failed"
        )
    words = ["-m", config.model, *(["-b", config.base_url] if config.base_url else [])]
    words += ["-k", config.api_key_var] if config.api_key_var != API_KEY_VAR else []
    next_steps.append(f"play it: rove play {environment_words(config)} {shlex.join(words)}")
    hint(console, *next_steps)


def _of_run(folder: str) -> list[str]:
    """The words that give the settings of an evaluation's run folder again.

    Raises:
        RunError: it is no such folder.
    """
    kind = Run(folder).config()["kind"]
    if kind != "eval":
        raise RunError(f"{folder} is a run of `rove {kind}`, not of `rove eval`; repeat its own command to continue it")
    return ["@", f"{folder}/config.toml", "--run_dir", folder]


@click.command(
    epilog="All settings: " + ", ".join(EvalConfig.__struct_fields__) + ".",
    context_settings=SETTINGS,
    options_metavar="ENV [OPTIONS] [@ FILE] [--KEY VALUE]...",
)
@click.option("-m", "--model", help="scripted:NAME, a model folder, or a model's name at -b.")
@click.option("-n", "--num-examples", type=int, help="Examples; -1 = all.  [default: 5]")
@click.option("-r", "--rollouts-per-example", type=int, help="Rollouts of each example.  [default: 3]")
@click.option("-c", "--max-concurrent", type=int, help="Rollouts at a time.  [default: endpoints find their own]")
@click.option("-t", "--max-tokens", type=int, help="Most tokens in one answer.")
@click.option("-T", "--temperature", type=float, help="Sampling temperature; 0 = greedy.")
@click.option("-a", "--env-args", help="Environment arguments as JSON.")
@click.option(
    "--scorer", help="For a file of questions: exact, numeric, regex, choice, math or judge.  [default: exact]"
)
@click.option("--judge-model", help="For --scorer judge: a name in endpoints.toml, or a model at OPENAI_BASE_URL.")
@click.option("-S", "--sampling-args", help="Further sampling arguments under OpenAI's names, as JSON.")
@click.option("-b", "--base-url", help="An OpenAI-compatible endpoint, like http://localhost:8000/v1.")
@click.option("-e", "--endpoints", help="File of endpoint names.  [default: endpoints.toml, configs/endpoints.toml]")
@click.option("-k", "--api-key-var", help="Environment variable with the key.  [default: OPENAI_API_KEY]")
@trust_option
@click.option("-s", "--save/--no-save", default=None, help="Keep the rollouts in a run folder.  [default: save]")
@click.option(
    "--isolated", is_flag=True, default=None, help="Load ENV in a process of its own, which may crash or hang."
)
@click.option("--isolated-python", help="The python of a virtual environment for it.  [default: one is made]")
@hub_option
@click.option(
    "--ray",
    metavar="ADDRESS",
    is_flag=False,
    flag_value="local",
    help="Play in actors of this Ray cluster: HOST:PORT, auto, or local (also without a word).",
)
@click.option("--run-dir", help="The run folder.  [default: runs/ENV--MODEL--hash]")
@click.option(
    "--max-errors", type=float, help="Stop after more failed rollouts than this: a count, or a share below 1."
)
@click.option("--budget", type=float, help="Start no rollout once the run has cost this much (needs a price).")
@click.option("--resume", metavar="RUN", help="Run what is missing or failed in this run folder, with its settings.")
@click.option("--overwrite", is_flag=True, default=None, help="Throw an earlier run of this folder away.")
@click.option("--dry-run", is_flag=True, help="Print all settings as TOML and run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    as_json: bool,
    env_args: str | None,
    scorer: str | None,
    judge_model: str | None,
    sampling_args: str | None,
    resume: str | None,
    dry_run: bool,
    **named: Any,
) -> None:
    """Evaluate MODEL in ENV and keep every rollout.

    ENV is an environment, or a file of questions and answers: .jsonl, .csv or .parquet.

    Every setting can also be given as @ file.toml or --key value (--env_args.seed 3, --sampling_args.top_p 0.9, --seed 1).
    A file with [[eval]] tables is as many evaluations, each table's [eval.sweep] crossed; flags go for all of them.
    Repeat the command to continue a stopped run.
    """
    console = console_for(as_json)
    if resume is not None:
        ctx.args = [*_of_run(resume), *ctx.args]
    scoring = {
        name: value for name, value in {"scorer": scorer, "judge_model": judge_model}.items() if value is not None
    }
    given = json_object(env_args, "-a")
    named |= {"env_args": {**(given or {}), **scoring} if scoring else given}
    named |= {"sampling_args": json_object(sampling_args, "-S")}
    evaluations, many = resolve(EvalConfig, ctx, named)
    if many or dry_run:
        check(evaluations)
    if dry_run:
        print_settings(evaluations, many, as_json)
        return
    if many:
        ctx.exit(run_suite(evaluations, run_eval, console, as_json))
    config = evaluations[0].config
    summary, run = run_eval(config, console)
    if as_json:
        print_json({**summary, "run": str(run.path) if run else None})
    else:
        print_summary(config, summary, run, console)
    if summary.get("broken_rewards") or (summary["failed"] and not summary["scored"]):
        ctx.exit(1)
