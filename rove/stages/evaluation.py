"""Evaluate a model in an environment with progress, and save every rollout in a run folder."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path

import msgspec

from rove.core.errors import ConfigError
from rove.core.plain import Arguments, JsonMapping, JsonObject, is_mapping
from rove.core.protocols import Client
from rove.core.ranges import CountOrAll, Device, NonNegativeFloat, NonNegativeInt, PositiveInt, Seconds
from rove.core.records import PROMPT_TOO_LONG, Outcome, RolloutRecord
from rove.envs.environment import Environment
from rove.envs.loading import environment_arguments
from rove.envs.questions import QuestionsEnv
from rove.models.pretrained import model_path
from rove.remote.isolation import Isolation, IsolationConfig, RayConfig
from rove.remote.loading import open_environment
from rove.rollouts.evaluate import Options, evaluate, run_identity
from rove.runs.run import Run
from rove.stages.arguments import name_and_environment, settings_from
from rove.stages.clients import API_KEY_VAR, find_endpoint, is_folder, make_client
from rove.stages.naming import run_folder, short
from rove.stages.reporter import ConsoleReporter, Reporter, TaskProgress
from rove.stages.trained_questions import trained_note
from rove.statistics import EvaluationResult, Price
from rove.statistics.format import number
from rove.utils.console import styled
from rove.utils.event_loop import outside_event_loop, run_async


class EvalConfig(Options, frozen=True, kw_only=True):
    """Settings of `rove eval`: the fields of `rove.rollouts.evaluate.Options`, the model, the environment and the run folder."""

    env: str
    """Environment, or a file of questions and answers (.jsonl, .ndjson, .csv or .parquet)."""
    model: str
    """Model: scripted:NAME, a model folder, a name in endpoints.toml, or a model's name at `base_url`."""
    trust_remote_code: bool = False
    """Run Python files that the model folder contains."""
    device: Device = "auto"
    """Device that the model computes on: "auto" (CUDA if available, else the CPU), "cpu", "cuda", "cuda:N", or "mps"."""
    chat_template: str | None = None
    """Chat template that replaces the model folder's own: "chatml", or the path of a Jinja file."""
    template_args: Arguments = {}
    """Variables of a model folder's chat template in every conversation, such as {"enable_thinking": false}."""
    env_args: Arguments = {}
    """Arguments of the environment."""
    num_examples: CountOrAll = 5
    """Number of examples from the start of the dataset."""
    rollouts_per_example: PositiveInt = 3
    """Number of rollouts per example."""
    max_tokens: PositiveInt | None = None
    """Maximum tokens per response; by default, the endpoint decides."""
    temperature: NonNegativeFloat | None = None
    """Sampling temperature; 0 is greedy. By default, the endpoint decides."""
    base_url: str | None = None
    """URL of an OpenAI-compatible endpoint."""
    endpoints: str | None = None
    """File of named endpoints; by default, endpoints.toml, else configs/endpoints.toml."""
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
    """Run folder; by default, runs/ENV--MODEL--hash."""
    save: bool = True
    """Save the rollouts in a run folder."""
    overwrite: bool = False
    """Discard an earlier run in the run folder."""

    @property
    def options(self) -> JsonObject:
        """Return the keyword arguments of `rove.evaluate`."""
        options = {name: getattr(self, name) for name in Options.__struct_fields__}
        sampling = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        settings = {name: value for name, value in sampling.items() if value is not None}
        return options | {"sampling_args": {**self.sampling_args, **settings}}


def check_client(config: EvalConfig, env: Environment) -> None:
    """Check that the model exists and a client could be made, without loading weights or sending a request.

    Raises:
        ConfigError: There is no such scripted policy, model folder, endpoint or key, or a cost limit has no price.
    """
    _with_price(config).check_price()
    endpoint = find_endpoint(config.model, config.endpoints) if config.base_url is None else None
    if endpoint is None and config.base_url is None and is_folder(config.model):
        if not Path(model_path(config.model)).expanduser().is_dir():
            raise ConfigError(f"model folder {config.model} does not exist")
        return
    # A client opens no connection and loads no weights until its first request; a folder would load them here.
    _client_of(config, env)


def _client_of(config: EvalConfig, env: Environment, reporter: Reporter | None = None) -> Client:
    return make_client(
        config.model,
        env,
        config.base_url,
        config.api_key_var,
        config.max_concurrent,
        config.timeout,
        config.max_retries,
        config.endpoints,
        config.trust_remote_code,
        config.device,
        reporter,
        config.chat_template,
        config.template_args,
    )


def start_run(config: EvalConfig, identity: JsonMapping, run: Run, reporter: Reporter) -> None:
    """Start or resume the run folder of these settings."""
    run.resume_command = f"rove eval --resume {shlex.quote(str(run.path))}"
    plain = msgspec.to_builtins(config)
    del plain["overwrite"]  # `@ config.toml` of this folder continues the run
    run.start("eval", plain, identity, config.overwrite)
    finished = len(run.scored_lines())
    if finished:
        reporter.note(f"{run.path} already has {finished} rollouts; only missing and failed ones are run")


class EvalProgress:
    """Shows the progress of an evaluation: count, mean reward, and the first failure in full.

    Args:
        progress: The progress of the task.
        reporter: Shows the first failure.
        client: The client of the model; if its concurrency limit is adaptive, the limit is shown.
    """

    def __init__(self, progress: TaskProgress, reporter: Reporter, client: Client):
        self.progress = progress
        self.reporter = reporter
        limiter = getattr(client, "limiter_now", None)  # only clients over HTTP have one
        self.limiter = limiter if limiter is not None and limiter.adaptive else None
        self.count = self.failed = 0
        self.rewards = 0.0

    def __call__(self, record: RolloutRecord | Outcome) -> None:
        """Count a finished rollout."""
        self.count += 1
        if record.error is not None:
            self.failed += 1
            if self.failed == 1:
                message = f"{record.error.type}: {record.error.message}{record.error.source_line}"
                self.reporter.note(f"first failure, in {record.error.phase}: {message}", important=True)
        self.rewards += record.reward or 0.0
        scored = self.count - self.failed
        mean = number(self.rewards / scored) if scored else "–"
        status = styled(f"mean reward {mean}")
        if self.failed:
            status.append(f"  {self.failed} failed", "red")
        if self.limiter is not None:
            status.append(f"  {self.limiter.limit} concurrent")
        self.progress(self.count, status)


def evaluate_model(
    model: str | Path | None = None,
    env: str | Environment | None = None,
    config: EvalConfig | None = None,
    *,
    scorer: str | None = None,
    judge_model: str | None = None,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    **settings: object,
) -> EvaluationResult:
    """Evaluate a model in an environment with progress, and save every rollout in a run folder, like the command `rove eval`.

    A run that was stopped continues, and finished rollouts are not repeated. `rove.evaluate` is the function for code that
    already has a client and an event loop.

    Example:
        >>> result = rove.evaluate_model("scripted:teacher", "tictactoe", num_examples=100, rollouts_per_example=1)
        >>> print(result)

    Args:
        model: "scripted:NAME", a model folder, a name in endpoints.toml, or a model's name at `base_url`. May be in `config`.
        env: Name of an environment, a file of questions, or an environment. May be in `config`.
        config: All settings. Default: the defaults of `rove eval`.
        scorer: Scorer for a file of questions: "exact", "numeric", …; the same as the scorer in `env_args`.
        judge_model: Model for the scorer "judge"; the same as in `env_args`.
        overwrite: Whether to discard an earlier run in the folder.
        reporter: Shows progress. Default: the console or the notebook.
        settings: Single settings, such as `num_examples=100`; they override the settings in `config`.

    Raises:
        ConfigError: A setting is unknown, out of range, or contradicts another; or there is no such model or environment.
        RunError: The run folder cannot be used.
    """
    if model is not None and not isinstance(model, (str, Path)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"model is a {type(model).__name__}; expected its name, such as 'scripted:teacher' or a folder. "
            "For a client of your own, call rove.evaluate(env, client)"
        )
    name, loaded = (None, None) if env is None else name_and_environment(env)
    scoring = {name: value for name, value in (("scorer", scorer), ("judge_model", judge_model)) if value is not None}
    if scoring and loaded is not None:
        raise ConfigError(
            f"{' and '.join(scoring)} cannot change a loaded environment; give them to rove.load_environment(FILE, scorer=…)"
        )
    env_args = scoring if loaded is None else loaded.env_args
    model_name = None if model is None else str(model)
    # False is no setting of the caller, and would override `config`.
    named = {"model": model_name, "env": name, "env_args": env_args, "overwrite": overwrite or None}
    env_args_setting = settings.get("env_args")
    if scoring and is_mapping(env_args_setting):
        settings = {**settings, "env_args": {**env_args_setting, **scoring}}
    used = settings_from(EvalConfig, config, {**named, **settings})
    result, _ = outside_event_loop(lambda: run_eval(used, reporter or ConsoleReporter(), env=loaded))
    return result


def run_eval(
    config: EvalConfig, reporter: Reporter, title: str = "", env: Environment | None = None
) -> tuple[EvaluationResult, Run | None]:
    """Evaluate with progress under `title`; an earlier run with the same settings is continued.

    Args:
        env: The environment, if it is loaded already. Default: the environment that the settings name.
    """
    if env is None:
        env = open_environment(config.env, config.env_dir, config.env_args, Isolation.of(config.isolation, config.ray))
    # A title means one of several evaluations in the same environment, such as the rows of a table.
    if isinstance(env, QuestionsEnv) and not title:
        reporter.note(f"{config.env}: {env.description}")
        count = Options(**config.options).last_example
        note = None if config.train else trained_note(config.model, config.env, config.env_args, env, count)
        if note is not None:
            reporter.warning(note)
    config = _with_price(config)
    client = _client_of(config, env, reporter)
    identity = run_identity(env, client, config.model, Options(**config.options))
    run = Run(run_folder(config.run_dir, config.env, config.model, identity=identity)) if config.save else None
    # Without a run folder, nothing is locked and nothing is saved.
    with run or nullcontext():
        if run is not None:
            start_run(config, identity, run, reporter)
        return _evaluate(config, env, client, run, reporter, title), run


def _evaluate(
    config: EvalConfig, env: Environment, client: Client, run: Run | None, reporter: Reporter, title: str
) -> EvaluationResult:
    """Run the evaluation."""
    available = Options(**config.options).count_examples(env)
    if available is not None and config.num_examples > available:
        text = f"num_examples is {config.num_examples}; the dataset has {available}"
        # An isolated or remote environment must not be imported here, and an environment of a notebook has no module.
        is_here = bool(env.source) and not (config.isolation.is_on or config.ray.address)
        is_given = "num_examples" in config.env_args
        arguments = environment_arguments(config.env, config.env_dir) if is_here and not is_given else {}
        default = arguments.get("num_examples")
        if isinstance(default, int) and 0 <= default < config.num_examples:  # by convention, -1 stands for all
            enlarged_args = msgspec.json.encode({**config.env_args, "num_examples": config.num_examples}).decode()
            text += f"; the environment may make more with -a {shlex.quote(enlarged_args)}"
        reporter.note(text, important=True)

    async def run_all(watch: EvalProgress) -> EvaluationResult:
        try:
            return await evaluate(env, client, config.model, run=run, on_record=watch, **config.options)
        finally:
            await client.close()

    title = title or f"{config.env} · {short(config.model)}"
    try:
        with reporter.progress(title, (available or 0) * config.rollouts_per_example) as progress:
            result = run_async(run_all(EvalProgress(progress, reporter, client)))
    except KeyboardInterrupt:
        text = "nothing was saved (save is off)"
        if run is not None:
            text = f"the finished rollouts are in {run.path}, and the same call or command continues with the others"
        reporter.note(f"interrupted; {text}", important=True)
        raise
    # They count as they were scored: without the longest examples, a model with a short context would look better than it is.
    num_overlong = result.stops.get(PROMPT_TOO_LONG, 0)
    if num_overlong:
        reporter.warning(
            f"{num_overlong:,} of {result.rollouts:,} rollouts ended because the prompt did not fit the model's context; they "
            "are scored with the responses until then. Shorten the prompts, or use a model with a longer context"
        )
    return result


def _with_price(config: EvalConfig) -> EvalConfig:
    """Return the settings with the price from endpoints.toml, unless they have a price."""
    endpoint = find_endpoint(config.model, config.endpoints) if config.base_url is None else None
    if config.price is not None or endpoint is None or endpoint.price is None:
        return config
    return msgspec.structs.replace(config, price=Price(**endpoint.price))
