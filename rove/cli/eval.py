"""`rove eval` and `rove rescore`: evaluate a model in an environment, and score a run again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from rove.cli.common import console_for, hint, print_json
from rove.cli.environments import hub_option
from rove.cli.options import (
    SETTINGS,
    api_key_var_option,
    base_url_option,
    confirm_foreign,
    device_option,
    endpoints_option,
    env_args_option,
    env_dir_option,
    examples,
    help_all_option,
    isolated_option,
    isolated_python_option,
    json_object,
    json_option,
    judge_model_option,
    max_tokens_option,
    overwrite_option,
    ray_option,
    scorer_option,
    setting_range,
    template_options,
    trust_option,
)
from rove.cli.suite import print_settings, resolve, run_suite, steps_to_complete
from rove.clients.scripted import ScriptedClient
from rove.core.config import merge
from rove.core.errors import ConfigError, RunError
from rove.core.plain import Arguments, JsonObject
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.rollouts.rescore import DEFAULT_MAX_CONCURRENT, rescore, rescored_identity, settings_of
from rove.runs.run import Run
from rove.stages.clients import API_KEY_VAR, SCRIPTED
from rove.stages.evaluation import EvalConfig, EvalProgress, run_eval
from rove.stages.naming import environment_args, run_folder, short
from rove.stages.reporter import ConsoleReporter
from rove.stages.suite import check
from rove.stages.tables import counts_line
from rove.statistics.result import summary_table
from rove.statistics.summary import broken_reward
from rove.utils.event_loop import run_async


def print_summary(config: EvalConfig, summary: JsonObject, run: Run | None, console: Console) -> None:
    """Print the table, the counts, and hints."""
    console.print(summary_table(summary, f"{config.env} · {config.model}"))
    unit = "words" if config.model.startswith(SCRIPTED) else "tokens"  # a scripted policy has no tokenizer
    console.print(counts_line(summary, unit), soft_wrap=True)
    for name, error in summary.get("broken_rewards", {}).items():
        console.print(broken_reward(name, error), style="red", soft_wrap=True)
    next_steps = []
    if run is not None:
        next_steps.append(f"look at the rollouts: rove view {run.path}")
        next_steps += steps_to_complete([summary])
    words = ["-m", config.model, *(["-b", config.base_url] if config.base_url else [])]
    words += ["-k", config.api_key_var] if config.api_key_var != API_KEY_VAR else []
    next_steps.append(
        f"watch a rollout; in a game for two, play against the model: rove play {environment_args(config)} {shlex.join(words)}"
    )
    hint(console, *next_steps)


def _resume_words(folder: str) -> list[str]:
    """Return the command-line words for the settings of an evaluation's run folder."""
    kind = Run(folder).config()["kind"]
    if kind != "eval":
        raise RunError(f"{folder} is a run of `rove {kind}`, not of `rove eval`; repeat its own command to continue it")
    return ["@", f"{folder}/config.toml", "--run_dir", folder]


def _check_resumes(config: EvalConfig, folder: str) -> None:
    """Refuse settings with which the run in a folder would be deleted, or not be continued."""
    # After parsing: a setting may also come from --KEY VALUE or from a file.
    conflicts = {"--overwrite": config.overwrite, "--run-dir": config.run_dir != folder, "--no-save": not config.save}
    for option, is_set in conflicts.items():
        if is_set:
            raise ConfigError(
                f"--resume and {option} exclude each other: --resume continues the run in {folder}; remove one of them"
            )


@click.command(
    epilog=examples(
        "rove eval tictactoe -m scripted:teacher",
        "rove eval reverse_text -m gpt-5-mini -n 20 -r 4      # needs OPENAI_API_KEY",
        "rove eval questions.csv -m MODEL -b http://localhost:8000/v1 --scorer numeric",
        "rove eval tictactoe -m scripted:teacher --train -n 1000 -r 1   # data for rove sft",
        "rove eval @ evaluations.toml                         # a file with [[eval]] tables",
        note="rove eval --help-all lists every setting.",
    ),
    context_settings=SETTINGS,
    options_metavar="ENV [OPTIONS] [@ FILE] [--KEY VALUE]...",
)
@click.option(
    "-m", "--model", help="Model: scripted:NAME, a folder, a name in endpoints.toml, or a model's name at -b."
)
@click.option(
    "-n",
    "--num-examples",
    type=setting_range(EvalConfig, "num_examples"),
    help="Number of examples; -1 = all.  [default: 5]",
)
@click.option(
    "-r",
    "--rollouts-per-example",
    type=setting_range(EvalConfig, "rollouts_per_example"),
    help="Rollouts of each example.  [default: 3]",
)
@click.option(
    "-c",
    "--max-concurrent",
    type=setting_range(EvalConfig, "max_concurrent"),
    help="Maximum concurrent rollouts.  [default: adapts to the endpoint]",
)
@max_tokens_option
@click.option(
    "-T",
    "--temperature",
    type=setting_range(EvalConfig, "temperature"),
    help="Sampling temperature; 0 is greedy.  [default: the endpoint's]",
)
@env_args_option
@env_dir_option
@scorer_option
@judge_model_option
@click.option("-S", "--sampling-args", help="Additional sampling parameters with OpenAI's names, as a JSON object.")
@base_url_option
@endpoints_option
@api_key_var_option
@trust_option
@device_option
@template_options
@click.option("-s", "--save/--no-save", default=None, help="Save the rollouts in a run folder.  [default: save]")
@isolated_option
@isolated_python_option
@hub_option
@ray_option
@click.option("--run-dir", help="The run folder.  [default: runs/ENV--MODEL--hash]")
@click.option(
    "--max-errors",
    type=setting_range(EvalConfig, "max_errors"),
    help="Stop after this many failed rollouts: a count, or a fraction below 1.",
)
@click.option(
    "--budget",
    type=setting_range(EvalConfig, "budget"),
    help="Start no further rollouts once this much is spent (needs a price).  [default: no limit]",
)
@click.option("--resume", metavar="RUN", help="Continue the run in this folder with its settings.")
@overwrite_option
@click.option("--dry-run", is_flag=True, help="Print all settings as TOML without running the evaluation.")
@json_option
@help_all_option(lambda: EvalConfig)
@click.pass_context
def eval_command(
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
    """Evaluate MODEL in ENV and save every rollout.

    ENV is an environment, or a file of questions and answers: .jsonl, .ndjson, .csv or .parquet.

    Give any setting as --KEY VALUE (--env_args.seed 3, --sampling_args.top_p 0.9) or in a TOML file: @ FILE. Each [[eval]] table
    of a file is an evaluation; with [eval.sweep], it is one evaluation for each combination of the listed values. Flags apply to
    all of them.
    Repeat the command to continue a stopped run.
    """
    console = console_for(as_json)
    if resume is not None:
        ctx.args = [*_resume_words(resume), *ctx.args]
    scoring = {
        name: value for name, value in {"scorer": scorer, "judge_model": judge_model}.items() if value is not None
    }
    command_args = json_object(env_args, "-a")
    named |= {"env_args": {**(command_args or {}), **scoring} if scoring else command_args}
    named |= {"sampling_args": json_object(sampling_args, "-S")}
    evaluations, is_suite = resolve(ctx, named)
    if resume is not None:
        for evaluation in evaluations:
            _check_resumes(evaluation.config, resume)
    if is_suite or dry_run:
        check(evaluations)  # a mistake in the last evaluation must not show after hours
    if dry_run:
        print_settings(evaluations, is_suite, as_json)
        return
    if is_suite:
        ctx.exit(run_suite(evaluations, run_eval, console, as_json))
    config = evaluations[0].config
    result, run = run_eval(config, ConsoleReporter(console))
    summary = result.to_dict()
    if as_json:
        print_json({**summary, "run": str(run.path) if run else None})
    else:
        print_summary(config, summary, run, console)
    if summary.get("broken_rewards") or (summary["failed"] and not summary["scored"]):
        ctx.exit(1)


def environment_of(source: Run, env_args: Arguments | None, env_dir: str | None) -> Environment:
    """Load the environment of a run as it is now.

    Args:
        env_dir: Folder of the environment; by default, the one that the run used.
    """
    config = settings_of(source)
    if not config.get("env"):
        raise ConfigError(f"{source.path} does not name its environment; call rove.rescore from Python instead")
    used = {name: config[name] for name in ("env", "env_dir", "env_args") if config.get(name) is not None}
    confirm_foreign(source.path / "config.toml", used, overridden=["env_dir"] if env_dir else [])
    args = merge(dict(config.get("env_args", {})), env_args or {})
    return load_environment(config["env"], env_dir or config.get("env_dir"), **args)


def print_rescored(summary: JsonObject, env: Environment, source: Run, into: Path, console: Console) -> None:
    """Print the table, the counts, the numbers of left-out rollouts, and hints."""
    counts = summary["rescored"]
    console.print(summary_table(summary, f"{env.env_id} · {source.path}, rescored"))
    console.print(counts_line(summary), soft_wrap=True)
    if counts["failed"]:
        console.print(f"left out: {counts['failed']} failed rollouts; `rove eval` runs them again")
    if counts["gone"]:
        text = f"left out: {counts['gone']} rollouts whose examples the dataset no longer has"
        console.print(text, style="yellow")
    hint(console, f"compare the two: rove compare {source.path} {into}")


@click.command(
    epilog=examples(
        "rove rescore runs/tictactoe--gpt-5-mini--1a2b3c",
        "rove rescore runs/mine --into runs/mine-strict -a '{\"strict\": true}'",
    )
)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-a", "--env-args", help="Environment arguments as a JSON object; they override the arguments of RUN.")
@click.option("--into", "--run-dir", "into", help="New run folder.  [default: runs/ENV--MODEL--rescored--hash]")
@click.option("--env-dir", help="Folder of the environment.  [default: the folder that RUN used]")
@click.option(
    "-c",
    "--max-concurrent",
    type=setting_range(EvalConfig, "max_concurrent"),
    default=DEFAULT_MAX_CONCURRENT,
    show_default=True,
    help="Maximum concurrent rollouts.",
)
@click.option(
    "--max-scoring",
    type=setting_range(EvalConfig, "max_scoring"),
    help="Maximum rollouts scored concurrently.  [default: no limit]",
)
@overwrite_option
@json_option
@click.pass_context
def rescore_command(
    ctx: click.Context,
    run: Path,
    env_args: str | None,
    into: str | None,
    env_dir: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Score the rollouts of RUN again with the environment's current rubric, without querying the model.

    Each rollout is replayed with its recorded responses, so that the rubric sees the complete state. If the environment now
    sends the model different messages, the rollout fails instead of being scored. Repeat the command to continue a stopped run.
    """
    console = console_for(as_json)
    source = Run(run)
    env = environment_of(source, json_object(env_args, "-a"), env_dir)
    model = settings_of(source).get("model", "")
    folder = run_folder(into, env.env_id, model, "rescored", identity=rescored_identity(env, source))
    reporter = ConsoleReporter(console)
    title = f"{env.env_id} · {short(model)}, rescored"
    with source, reporter.progress(title, len(source.scored_lines())) as progress:
        # No model is queried: the client stands for one without an adaptive limit, which progress would show.
        watch = EvalProgress(progress, reporter, ScriptedClient(lambda *_: ""))
        summary = run_async(rescore(env, source, into=folder, on_record=watch, **options)).to_dict()
    if as_json:
        print_json({**summary, "run": str(folder)})
    else:
        print_rescored(summary, env, source, folder, console)
    if not summary["scored"]:
        ctx.exit(1)
