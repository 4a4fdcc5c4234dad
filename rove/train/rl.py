"""Reinforcement learning: sample groups of rollouts, turn rewards into advantages, take one step, repeat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from rove.core.config import check_positive
from rove.core.digest import derive_seed
from rove.core.errors import ConfigError
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.models.load import LoadedModel
from rove.remote.loading import Isolation
from rove.runs.run import Run
from rove.train.advantages import check_estimator, check_gamma
from rove.train.alerts import AlertLimits
from rove.train.backends import check_sampler
from rove.train.callbacks import OnAlert, Watcher
from rove.train.checkpoint import restore_weights
from rove.train.curriculum import Ordering, check_difficulty
from rove.train.evaluation import (
    EvaluationConfig,
    Goal,
    HeldOutEvaluations,
    check_evaluations,
    keep_best,
    outcome,
    stop_reason,
)
from rove.train.learner import Learner, Objective, resume
from rove.train.loggers import check_loggers
from rove.train.lora import add_lora, check_lora
from rove.train.losses import PolicyLoss, choose_aggregation, make_loss
from rove.train.pipeline import Pipeline
from rove.train.progress import OnProgress, ignore
from rove.train.worker_group import SINGLE_PROCESS, Ranks, Team
from rove.vllm.server import VLLMConfig


class RLConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an RL run."""

    env: str
    """Environment to train in."""
    model: str
    """Model folder to start from."""
    trust_remote_code: bool = False
    """Run the Python files that come with a model folder, where it needs any."""
    env_args: dict[str, Any] = {}
    """Arguments of the environment."""
    steps: int = 100
    """Optimizer steps."""
    batch_size: int = 256
    """Rollouts per optimizer step; below 256 training is noisy."""
    rollouts_per_example: int = 8
    """Siblings in a group; `batch_size` must be a multiple."""
    learning_rate: float = 3e-4
    """Its peak; AdamW's. `rove doctor` tells which ones have worked for a model of this size."""
    warmup_steps: int = 5
    """Steps over which the learning rate rises to its peak."""
    final_lr_fraction: float = 0.1
    """The learning rate falls linearly to this share of its peak."""
    loss: str = "cispo"
    """cispo, reinforce, grpo, dapo, dr_grpo, gspo, or package.module:function of your own."""
    max_ratio: float = 5.0
    """CISPO: absolute ceiling of the ratio to the sampler."""
    clip_low: float | None = None
    """GRPO and its kin: the ratio is clipped below 1 − this; the loss's own bound when not given."""
    clip_high: float | None = None
    """GRPO and its kin: and above 1 + this."""
    loss_aggregation: str | None = None
    """What tokens weigh: "token", "sequence" or "constant"; as the loss's paper has it when not given."""
    loss_constant: float | None = None
    """"constant": trained tokens per rollout to divide by; `max_tokens` when not given."""
    advantage_estimator: str = "mean"
    """"mean", "std", "batch_std" or "leave_one_out"."""
    gamma: float = 1.0
    """Discount of later turns' rewards, where the environment rewards turns: 1 counts them in full, 0 not at all."""
    kl_penalty: float = 0.0
    """Weight of the KL divergence to the reference: the model training started from, or `sync_reference_every`."""
    sync_reference_every: int | None = None
    """Steps after which the reference becomes the model as it is then; when not given it stays the model at the start."""
    num_iterations: int = 1
    """Optimizer steps on the same rollouts; with more than one, ratios are to the weights before the first."""
    importance_cap: float = 2.0
    """Ceiling of the weights that correct for what the sampler drew with other probabilities: of the first weights over the
    sampler's where there are several updates, and in the KL penalty."""
    entropy_bonus: float = 0.0
    """Weight of the mean entropy of the trained tokens, added to the objective."""
    temperature: float = 1.0
    """Of sampling, more than 0."""
    max_tokens: int = 512
    """Most tokens in one model turn."""
    shuffle: bool = False
    """Play every epoch in an order of its own instead of the dataset's."""
    stratify: str | None = None
    """Column whose values (quantiles, where it has many numbers) every step has in the same shares as the dataset."""
    stratify_bins: int = 4
    """Quantiles of a column with more different numbers than this."""
    curriculum: str | None = None
    """Column of numbers that ascends over training; "info.level" is what `info` has under "level"."""
    hard_threshold: float | None = None
    """Skip examples whose recent mean reward in this run is at most this: they are too hard to teach anything."""
    easy_threshold: float | None = None
    """Skip examples whose recent mean reward in this run is at least this: they are too easy."""
    difficulty_window: int = 100
    """Steps that are recent; after so many a skipped example is tried again."""
    dynamic_sampling_rounds: int = 0
    """At most so many times in a step, play further groups in place of those without spread."""
    max_off_policy_steps: int = 0
    """0 = play with the newest weights. 1 = play a step while the step before is trained, with weights one version old. More =
    play all the time, train whoever is done first, and take new weights while rollouts go on; no token is ever more versions
    old."""
    truncated: str = "keep"
    """Truncated rollouts: "keep" their score, "zero" it, or "mask" (leave them out)."""
    lora_rank: int = 0
    """Of the matrices of a LoRA adapter that is trained instead of the model's own weights; 0 = none, train the model. It takes
    two to ten times the learning rate."""
    lora_alpha: float = 32.0
    """What the adapter adds is multiplied by this over `lora_rank`."""
    lora_dropout: float = 0.0
    """Share of the adapter's inputs that are left out while it is trained; what is trained is then not quite what has played."""
    lora_targets: list[str] = []
    """Last names of the linear layers that get one, like "q_proj"; all but the head when none is given."""
    micro_batch_tokens: int = 8192
    """Tokens computed in one forward pass (what samples have in common counts once); changes memory and speed, never the
    gradient."""
    activation_checkpointing: bool = False
    """Compute layers again in the backward pass instead of keeping their activations: half the memory of a step or less, the
    same gradient, up to a third more time."""
    bf16_backward: bool = False
    """Matrix products of the backward pass in bf16 on a CPU; everything else stays fp32.

    Ignored where the CPU has no bf16 products; where it has, a step takes a fifth to a third less time.
    """
    bf16_sampling: bool = False
    """Play, and measure, with a copy of the weights in bf16; what it draws otherwise, the loss's ratio corrects.

    Saves time where the CPU has bf16 products, and the more, the larger the model; elsewhere it is slow."""
    mixed_precision: bool = False
    """Compute in bf16 where several processes train the model together; weights, sums of gradients and losses stay fp32."""
    backend: str = "embedded"
    """What plays, and measures: "embedded", rove's own engine, or "vllm", servers of vLLM."""
    vllm: VLLMConfig = VLLMConfig()
    """These servers: the `[vllm]` table."""
    threads: int | None = None
    """CPU threads; half the cores when not given."""
    max_grad_norm: float = 1.0
    """Longer gradients are cut to this."""
    max_non_finite_steps: int = 3
    """A step whose loss or gradient is not finite is skipped; so many in a row stop training."""
    weight_decay: float = 0.0
    """AdamW's."""
    env_dir: str | None = None
    """Where environments are looked for first."""
    isolated: bool = False
    """Load the environment, and those of evaluations, in worker processes, which may crash or hang."""
    isolated_python: str | None = None
    """Interpreter of the environment's own virtual environment, instead of the one that `isolated` makes."""
    isolated_start_seconds: float = 60.0
    """For loading an isolated environment."""
    isolated_hang_seconds: float = 120.0
    """An isolated environment that does not look up for so long is killed."""
    ray: str | None = None
    """Play the environment, and those of evaluations, in actors of the Ray cluster at this address; "auto" is the one that this
    machine is in, "local" one that is started here."""
    ray_actors: int | None = None
    """How many actors; one for each free CPU of the cluster when not given."""
    ray_rollouts: int = 128
    """Rollouts of one actor at a time."""
    run_dir: str | None = None
    """The run folder of `rove rl`; runs/ and a name made of the settings when not given."""
    checkpoint_every: int = 10
    """Steps between checkpoints."""
    keep_checkpoints: int = 2
    """How many of the newest are kept."""
    evaluation: list[EvaluationConfig] = []
    """What is measured on held-out examples while training: `[[evaluation]]` tables."""
    keep_best: str | None = None
    """Metric like "eval/NAME/reward/mean"; the weights of its best measurement are kept in checkpoints/best, and are the final
    ones."""
    patience: int | None = None
    """Stop after so many measurements of `keep_best` without a new best."""
    target: float | None = None
    """Stop when `keep_best` is as good as this."""
    loggers: list[str] = []
    """Where metrics go beside metrics.jsonl: "tensorboard", "wandb", "trackio"."""
    alerts: AlertLimits = AlertLimits()
    """From where on something is alerting: the `[alerts]` table."""
    log_token_stats: int = 8
    """Rollouts of each step, chosen by chance, of which the trainer's log-probability and entropy are kept token by token, in
    tokens/ of the run folder, for `rove view`; 0 = none."""
    show_every: int = 0
    """Steps between two rollouts that are shown; 0 = none."""
    seed: int = 0
    """Of everything random; the same seed gives the same run."""

    @property
    def goal(self) -> Goal:
        """Which weights are the best, and when they are good enough."""
        return Goal(self.keep_best, self.patience, self.target)

    @property
    def isolation(self) -> Isolation:
        """Where environments are."""
        return Isolation.of(self)

    @property
    def groups(self) -> int:
        """Groups of a step."""
        return self.batch_size // self.rollouts_per_example

    @property
    def ordering(self) -> Ordering:
        """In which order examples are played."""
        return Ordering(self.shuffle, self.stratify, self.stratify_bins, self.curriculum)

    def check(self) -> None:
        """Refuse impossible settings before any work is done.

        Raises:
            ConfigError: a setting is out of range.
        """
        if self.rollouts_per_example < 2:
            raise ConfigError(f"rollouts_per_example is {self.rollouts_per_example}; a group needs at least 2 siblings")
        if self.batch_size < 1 or self.batch_size % self.rollouts_per_example:
            raise ConfigError(
                f"batch_size is {self.batch_size}; expected a multiple of rollouts_per_example ({self.rollouts_per_example})"
            )
        if self.truncated not in ("keep", "zero", "mask"):
            raise ConfigError(f"truncated is '{self.truncated}'; expected keep, zero or mask")
        if self.temperature <= 0:
            raise ConfigError(f"temperature is {self.temperature}; RL samples, so it must be more than 0")
        check_positive(
            self,
            "steps",
            "learning_rate",
            "max_tokens",
            "micro_batch_tokens",
            "checkpoint_every",
            "keep_checkpoints",
            "max_non_finite_steps",
            "threads",
            "loss_constant",
            "num_iterations",
            "sync_reference_every",
        )
        if self.sync_reference_every is not None and not self.kl_penalty:
            raise ConfigError(
                f"sync_reference_every is {self.sync_reference_every}, but kl_penalty is 0, so there is no reference to sync"
            )
        check_estimator(self.advantage_estimator)
        check_gamma(self.gamma)
        choose_aggregation(self.loss, self.loss_aggregation)
        self.make_loss()
        check_lora(self)
        self.ordering.check()
        check_difficulty(self.hard_threshold, self.easy_threshold, self.difficulty_window)
        if self.dynamic_sampling_rounds < 0:
            raise ConfigError(
                f"dynamic_sampling_rounds is {self.dynamic_sampling_rounds}; expected 0 (never) or more rounds"
            )
        self._check_ahead()
        if self.log_token_stats < 0:
            raise ConfigError(
                f"log_token_stats is {self.log_token_stats}; expected a number of rollouts, or 0 to keep none"
            )
        if self.show_every < 0:
            raise ConfigError(f"show_every is {self.show_every}; expected a number of steps, or 0 to show no rollouts")
        check_loggers(self.loggers)
        self.alerts.check()
        check_positive(self, "isolated_start_seconds", "isolated_hang_seconds")
        check_sampler(self)
        check_evaluations(self.evaluation, self.isolation)
        self.goal.check(self.evaluation, [])

    def _check_ahead(self) -> None:
        if self.max_off_policy_steps < 0:
            raise ConfigError(
                f"max_off_policy_steps is {self.max_off_policy_steps}; expected 0 (play with the newest weights), 1 (play "
                "while the step before is trained) or more (play all the time)"
            )
        if self.max_off_policy_steps > 1 and self.loss == "reinforce":
            raise ConfigError(
                f"max_off_policy_steps is {self.max_off_policy_steps} and loss is reinforce, which has no ratio to the older "
                "weights that sampled: take cispo, or max_off_policy_steps = 0"
            )

    @property
    def objective(self) -> Objective:
        """What these settings train for."""
        reference = "first" if self.sync_reference_every is None else "moving"
        return Objective(
            self.make_loss(),
            self.entropy_bonus,
            self.num_iterations,
            self.log_token_stats,
            reference if self.kl_penalty else None,
        )

    def make_loss(self) -> PolicyLoss:
        """The loss these settings ask for."""
        return make_loss(self.loss, self.max_ratio, self.clip_low, self.clip_high, self.kl_penalty, self.importance_cap)


OnStep = Callable[[int, Mapping[str, float]], None]
OnSample = Callable[[int, RolloutRecord], None]


async def train_rl(
    config: RLConfig,
    env: Environment,
    loaded: LoadedModel,
    run: Run,
    on_step: OnStep | None = None,
    *,
    on_alert: OnAlert | None = None,
    on_sample: OnSample | None = None,
    on_progress: OnProgress = ignore,
    ranks: Ranks = SINGLE_PROCESS,
) -> Path:
    """Train `loaded` in `env`, resuming at the run's last checkpoint; save the last weights, or the best by `keep_best`.

    Args:
        config, env: settings, and the environment they name.
        loaded: the model to train, in place.
        run: a started run folder.
        on_step: called after every step with its number and metrics.
        on_alert: called with every alert when it starts.
        on_sample: called every `show_every` steps with the step and one of its rollouts, chosen by chance.
        on_progress: called with the progress within every step: rollouts and micro-batches.
        ranks: the processes that train it; this is the first of them, the others `follow`.

    Returns:
        the folder of the final model, or adapter.
    """
    config.check()
    loaded = add_lora(config, loaded)
    team = Team(ranks, Learner(config, config.objective, loaded, ranks, on_progress))
    pipeline = Pipeline(config, env, loaded, team, run, on_progress)
    options = (config.env_dir, config.seed, config.isolation, on_progress)
    held_out = HeldOutEvaluations(config.evaluation, pipeline.client, run, *options)
    step = resume(team, run)
    history, goal = run.metrics(), config.goal
    stopped = stop_reason(history, goal)
    watcher = Watcher(run, config.alerts, config.loggers, config, step, on_alert)
    try:
        pipeline.start(step, history)
        while step < config.steps and stopped is None:
            played, metrics = await pipeline.step(step, history)
            step += 1
            row = {"step": step, **metrics}
            row |= await held_out.after_step(row, history, step == config.steps, goal)
            history.append(row)
            if goal.metric in row:
                keep_best(run, loaded, history, goal)
                stopped = stop_reason(history, goal)
            run.append_metrics(row)
            watcher.step(history)
            if on_sample is not None and config.show_every and step % config.show_every == 0:
                on_sample(step, played.records[derive_seed(config.seed, "show", step) % len(played.records)])
            if on_step is not None:
                on_step(step, row)
            if step % config.checkpoint_every == 0 and step < config.steps:
                _checkpoint(config, step, team, run, pipeline.state())
        _checkpoint(config, step, team, run, pipeline.state())
        return _final(run, loaded, history, goal)
    finally:
        await pipeline.close()
        team.close()
        watcher.close()
        await env.tear_down()


def follow_rl(config: RLConfig, loaded: LoadedModel, ranks: Ranks) -> None:
    """Be one of the other processes of an RL run, until its first one has ended it.

    Args:
        config: settings, those of the first.
        loaded: the model that it starts from.
        ranks: the processes.
    """
    Team(ranks, Learner(config, config.objective, add_lora(config, loaded), ranks)).follow()


def _final(run: Run, loaded: LoadedModel, history: Sequence[Mapping[str, float]], goal: Goal) -> Path:
    """Keep the last weights, or the best, as the run's result."""
    if goal.metric is not None:
        restore_weights(run.path / "checkpoints" / "best", loaded)
    final = run.save_final(loaded.save)
    run.finish({"steps": history[-1]["step"], "last": history[-1], **outcome(history, goal)})
    return final


def _checkpoint(config: RLConfig, step: int, team: Team, run: Run, state: Mapping[str, Any]) -> None:
    run.save_checkpoint(str(step), partial(team.do, "save"), run.progress(step, state))
    run.prune_checkpoints(config.keep_checkpoints)
