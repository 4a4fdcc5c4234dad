"""`rove eval`: a model in an environment, summed up."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from rich.console import Console

from rove.cli.answerers import environment_identity, make_client, model_identity
from rove.cli.common import (
    SETTINGS,
    console_for,
    hint,
    json_object,
    print_json,
    progress,
    run_async,
    run_folder,
    settings,
    short,
)
from rove.envs.loading import load_environment
from rove.errors import ConfigError
from rove.evaluate import evaluate
from rove.records import ErrorInfo, RolloutRecord
from rove.runs import Run
from rove.viewer.tables import counts_line, number, summary_table


class EvalConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an evaluation."""

    env: str
    """Environment to evaluate in."""
    model: str
    """scripted:NAME, a model folder, or a model's name at `base_url`."""
    env_args: dict[str, Any] = {}
    num_examples: int = 5
    """Examples, from the start of the dataset; -1 = all."""
    rollouts_per_example: int = 3
    max_concurrent: int | None = None
    """Rollouts at a time; 32 for endpoints."""
    max_tokens: int | None = None
    temperature: float | None = None
    sampling: dict[str, Any] = {}
    """Further sampling arguments under OpenAI's names."""
    base_url: str | None = None
    api_key_var: str = "OPENAI_API_KEY"
    """Environment variable that holds the key."""
    seed: int = 0
    timeout: float = 600.0
    """Seconds one request may take."""
    max_retries: int = 4
    """Retries of one request."""
    train: bool = False
    """Use the training examples instead of the evaluation examples."""
    env_dir: str | None = None
    run_dir: str | None = None
    save: bool = True
    """Keep the rollouts in a run folder."""
    fresh: bool = False
    """Throw an earlier run of this folder away."""
    fail_fast: bool = False

    def check(self) -> None:
        """Refuse impossible settings before any work is done.

        Raises:
            ConfigError: a setting is out of range.
        """
        if self.num_examples < 1 and self.num_examples != -1:
            raise ConfigError(f"num_examples is {self.num_examples}; expected 1 or more, or -1 for all")
        for name in ("rollouts_per_example", "max_concurrent"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; expected 1 or more")


def identity(config: EvalConfig) -> dict[str, Any]:
    """What must be the same for a run to be continued; how many examples may grow."""
    names = ("env_args", "max_tokens", "temperature", "sampling", "base_url", "seed", "train")
    who = {"model": model_identity(config.model), "env": environment_identity(config.env, config.env_dir)}
    return {name: getattr(config, name) for name in names} | who


def start_run(config: EvalConfig, console: Console) -> Run:
    """The run folder of these settings, new or continued."""
    same = identity(config)
    run = Run(run_folder(config.run_dir, config.env, config.model, identity=same))
    plain = msgspec.to_builtins(config)
    del plain["fresh"]  # `@ config.toml` of this folder continues the run
    run.start("eval", plain, same, config.fresh)
    kept = len(run.finished())
    if kept:
        console.print(f"{run.path} has {kept} rollouts already; only what is missing or failed is run", soft_wrap=True)
    return run


def run_eval(config: EvalConfig, console: Console, title: str = "") -> tuple[dict[str, Any], Run | None]:
    """Evaluate, with progress under `title`; an earlier run of the same identity is continued."""
    config.check()
    env = load_environment(config.env, config.env_dir, **config.env_args)
    client = make_client(
        config.model,
        env,
        config.base_url,
        config.api_key_var,
        config.max_concurrent,
        config.timeout,
        config.max_retries,
    )
    run = start_run(config, console) if config.save else None
    examples = env.get_dataset(config.num_examples) if config.train else env.get_eval_dataset(config.num_examples)
    count = rewards = failed = 0

    def on_record(record: RolloutRecord) -> None:
        nonlocal count, rewards, failed
        count += 1
        if record.error is not None and not failed:
            place = place_of(record.error)
            said = f"first failure, in {record.error.phase}: {record.error.type}: {record.error.message}{place}"
            console.print(said, soft_wrap=True, markup=False)
        failed += record.error is not None
        rewards += record.reward or 0.0
        scored = count - failed
        tell(
            count,
            f"reward {number(rewards / scored) if scored else '–'}"
            + (f"  [red]{failed} failed[/red]" if failed else ""),
        )

    async def go() -> dict[str, Any]:
        try:
            return await evaluate(
                env,
                client,
                config.model,
                num_examples=config.num_examples,
                rollouts_per_example=config.rollouts_per_example,
                sampling_args={**config.sampling, "max_tokens": config.max_tokens, "temperature": config.temperature},
                max_concurrent=config.max_concurrent,
                seed=config.seed,
                train=config.train,
                fail_fast=config.fail_fast,
                run=run,
                on_record=on_record,
            )
        finally:
            await client.close()

    try:
        title = title or f"{config.env} · {short(config.model)}"
        with progress(console, title, len(examples) * config.rollouts_per_example) as tell:
            return run_async(go()), run
    finally:
        if run is not None:
            run.close()


def place_of(error: ErrorInfo) -> str:
    """Where in whose file an error was raised, for people who write environments."""
    places = [line.strip() for line in error.traceback.splitlines() if line.strip().startswith("File ")]
    return f" ({places[-1]})" if places else ""


def print_summary(config: EvalConfig, summary: dict[str, Any], run: Run | None, console: Console) -> None:
    """The table, the counts, and what to do next."""
    console.print(summary_table(summary, f"{config.env} · {config.model}"))
    console.print(counts_line(summary), soft_wrap=True)
    next_steps = []
    if run is not None:
        next_steps.append(
            f"rollouts: {run.path}/rollouts.jsonl; the same command again runs only what is missing or failed"
        )
    where = "".join(
        f" {flag} {value}" for flag, value in (("--env-dir", config.env_dir), ("-b", config.base_url)) if value
    )
    next_steps.append(f"play it: rove play {config.env} -m {config.model}{where}")
    hint(console, *next_steps)


@click.command(
    epilog="All settings: " + ", ".join(EvalConfig.__struct_fields__) + ".",
    context_settings=SETTINGS,
    options_metavar="ENV [OPTIONS] [@ FILE] [--KEY VALUE]...",
)
@click.option("-m", "--model", help="scripted:NAME, a model folder, or a model's name at -b.")
@click.option("-n", "--num-examples", type=int, help="Examples; -1 = all.  [default: 5]")
@click.option("-r", "--rollouts-per-example", type=int, help="Rollouts of each example.  [default: 3]")
@click.option("-c", "--max-concurrent", type=int, help="Rollouts at a time.  [default: 32 for endpoints]")
@click.option("-t", "--max-tokens", type=int, help="Most tokens in one answer.")
@click.option("-T", "--temperature", type=float, help="Sampling temperature; 0 = greedy.")
@click.option("-a", "--env-args", help="Environment arguments as JSON.")
@click.option("-b", "--base-url", help="An OpenAI-compatible endpoint, like http://localhost:8000/v1.")
@click.option("-k", "--api-key-var", help="Environment variable with the key.  [default: OPENAI_API_KEY]")
@click.option("-s", "--save/--no-save", default=None, help="Keep the rollouts in a run folder.  [default: save]")
@click.option("--run-dir", help="The run folder.  [default: runs/ENV--MODEL--hash]")
@click.option("--fresh", is_flag=True, default=None, help="Throw an earlier run of this folder away.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool, env_args: str | None, **named: Any) -> None:
    """Evaluate MODEL in ENV and keep every rollout.

    Every setting can also be given as @ file.toml or --key value (--env_args.seed 3, --sampling.top_p 0.9, --seed 1).
    Repeat the command to continue a stopped run.
    """
    console = console_for(as_json)
    config = settings(EvalConfig, ctx, bare="env", env_args=json_object(env_args, "-a"), **named)
    summary, run = run_eval(config, console)
    if as_json:
        print_json({**summary, "run": str(run.path) if run else None})
    else:
        print_summary(config, summary, run, console)
    if summary["failed"] and not summary["scored"]:
        ctx.exit(1)
