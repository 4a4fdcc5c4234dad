"""Settings of `rove rl` and `rove sft`: one struct each, with tables that they share."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from rove.core.checks import Settings
from rove.core.config import convert
from rove.core.errors import ConfigError, nearest
from rove.core.plain import Arguments, JsonObject
from rove.core.ranges import (
    CountOrAll,
    Device,
    FiniteFloat,
    FloatAbove1,
    FloatFrom1,
    Fraction,
    FractionBelow1,
    InnerFraction,
    IntFrom2,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveFraction,
    PositiveInt,
)
from rove.models.load import check_peft
from rove.remote.isolation import Isolation, IsolationConfig, RayConfig
from rove.rollouts.exhaustive import Goals
from rove.train.advantages import check_estimator
from rove.train.alerts import AlertLimits
from rove.train.loggers import check_loggers
from rove.train.losses import PRESETS, PolicyLoss, choose_aggregation, make_loss
from rove.vllm.server import DEFAULT_CONFIG, VLLMConfig

VALIDATION_LOSS = "validation_loss"
ENTROPY = "entropy/all/mean"


class LossConfig(Settings, frozen=True, kw_only=True):
    """The `[loss]` table of `rove rl`."""

    kind: str = "cispo"
    """Policy loss: "cispo", "reinforce", "grpo", "dapo", "dr_grpo", "gspo", or your own as "package.module:function"."""
    max_ratio: FloatAbove1 = 5.0
    """Upper bound for the importance ratio of the loss "cispo"."""
    clip_low: PositiveFraction | None = None
    """Lower clip range. The losses "grpo", "dapo", "dr_grpo", and "gspo" clip the importance ratio below 1 −
    `clip_low`; the default depends on the loss."""
    clip_high: PositiveFloat | None = None
    """Upper clip range. The losses "grpo", "dapo", "dr_grpo", and "gspo" clip the importance ratio above 1 +
    `clip_high`; the default depends on the loss."""
    aggregation: str | None = None
    """How token losses are combined: "token", "sequence", or "constant"; the default depends on the loss."""
    constant: PositiveFloat | None = None
    """Number of tokens by which the loss of each rollout is divided if `aggregation` is "constant"; by default,
    `max_tokens`."""
    kl_penalty: NonNegativeFloat = 0.0
    """Weight of the KL divergence from the reference model; with 0, there is no reference model."""
    sync_reference_every: PositiveInt | None = None
    """Optimizer steps between updates of the reference model; by default, the initial model remains the reference."""
    importance_cap: FloatFrom1 = 2.0
    """Upper bound for the importance weights that correct for differences between sampling and training probabilities."""
    entropy_bonus: NonNegativeFloat = 0.0
    """Weight of the mean token entropy in the objective; 0 adds no bonus."""
    entropy_target: PositiveFloat | None = None
    """Entropy of the previous step, in nats per token, above which the bonus is turned off; by default, the bonus is always
    on."""

    def bonus_after(self, history: Sequence[Mapping[str, float]]) -> float:
        """Return the weight of the entropy in the next step.

        A bonus that is always on drives the entropy up without bound once advantages are small. With a target, it only keeps
        the entropy from falling further (adaptive entropy control, Skywork-OR1, arXiv 2505.22312).

        Args:
            history: Metrics of the steps so far, oldest first.
        """
        if self.entropy_target is None:
            return self.entropy_bonus
        last = next((row[ENTROPY] for row in reversed(history) if ENTROPY in row), 0.0)
        return self.entropy_bonus if last < self.entropy_target else 0.0

    def make(self) -> PolicyLoss:
        """Return the loss function.

        Raises:
            ConfigError: There is no such loss, or a custom loss cannot be imported.
        """
        return make_loss(self.kind, self.max_ratio, self.clip_low, self.clip_high, self.kl_penalty, self.importance_cap)

    def check(self) -> None:
        """Raise a ConfigError if a setting has no effect, or a custom loss cannot be used."""
        self._check_bounds()
        if self.entropy_target is not None and not self.entropy_bonus:
            raise ConfigError(
                f"entropy_target is {self.entropy_target}, but entropy_bonus is 0, so nothing holds the entropy"
            )
        if self.sync_reference_every is not None and not self.kl_penalty:
            raise ConfigError(
                f"sync_reference_every is {self.sync_reference_every}, but kl_penalty is 0, so there is no reference to sync"
            )
        aggregation = choose_aggregation(self.kind, self.aggregation)
        if self.constant is not None and aggregation != "constant":
            raise ConfigError(
                f"loss.constant is {self.constant}, but the losses of tokens are combined by '{aggregation}', which uses no "
                'constant: leave it out, or set loss.aggregation = "constant"'
            )
        self.make()

    def _check_bounds(self) -> None:
        """Refuse bounds of the ratio that the loss does not use."""
        used: Collection[str] = PRESETS[self.kind].bounds if self.kind in PRESETS else ()
        for name in ("max_ratio", "clip_low", "clip_high"):
            value = getattr(self, name)
            if name in used or value == getattr(DEFAULT_LOSS, name):
                continue
            losses = ", ".join(loss for loss, preset in PRESETS.items() if name in preset.bounds)
            raise ConfigError(
                f"loss.{name} is {value}, but the loss '{self.kind}' does not use it: leave it out, or choose another loss "
                f"({losses})"
            )


DEFAULT_LOSS = LossConfig()


class CurriculumConfig(Settings, frozen=True, kw_only=True):
    """The `[curriculum]` table of `rove rl`: the order in which training uses the dataset."""

    column: str | None = None
    """Numeric column by which examples are ordered, from low to high, over the course of training; "info.level" means the "level"
    key of `info`."""
    shuffle: bool = False
    """Shuffle the examples in every epoch; by default, they keep the dataset's order."""
    stratify: str | None = None
    """Column to stratify by. Every step contains the values of this column in the same proportions as the dataset. Numeric
    columns are binned by quantile."""
    stratify_bins: IntFrom2 = 4
    """Number of quantile bins for a numeric column that has more distinct values than bins."""

    def check(self) -> None:
        """Raise a ConfigError if settings contradict each other or have no effect."""
        if self.stratify is not None and self.column is not None:
            raise ConfigError(
                f"curriculum.stratify is '{self.stratify}' and curriculum.column is '{self.column}'; a step cannot have the "
                "dataset's mix and follow the column: leave one of them out"
            )
        if self.stratify is None and self.stratify_bins != CurriculumConfig().stratify_bins:
            raise ConfigError(
                f"curriculum.stratify_bins is {self.stratify_bins}, but curriculum.stratify is not set, so nothing is binned"
            )


class FilterConfig(Settings, frozen=True, kw_only=True):
    """The `[filter]` table of `rove rl`: the examples and groups that training skips."""

    hard_threshold: FiniteFloat | None = None
    """Skip examples with a recent mean reward of at most this value; by default, no examples are skipped."""
    easy_threshold: FiniteFloat | None = None
    """Skip examples with a recent mean reward of at least this value; by default, no examples are skipped."""
    difficulty_window: PositiveInt = 100
    """Number of steps that count as recent; a skipped example is used again after the same number of steps."""
    dynamic_sampling_rounds: NonNegativeInt = 0
    """Maximum number of rounds per step in which zero-advantage groups are replaced with new groups; 0 replaces none."""

    @property
    def skips_examples(self) -> bool:
        """Whether a threshold is set."""
        return self.hard_threshold is not None or self.easy_threshold is not None

    def check(self) -> None:
        """Raise a ConfigError if settings skip every example or have no effect."""
        low, high = self.hard_threshold, self.easy_threshold
        if low is not None and high is not None and low >= high:
            raise ConfigError(
                f"hard_threshold is {low} and easy_threshold is {high}; expected hard_threshold < easy_threshold, otherwise "
                "every example is skipped"
            )
        if not self.skips_examples and self.difficulty_window != FilterConfig().difficulty_window:
            raise ConfigError(
                f"filter.difficulty_window is {self.difficulty_window}, but neither hard_threshold nor easy_threshold is set, so "
                "no examples are skipped"
            )


class LoRAConfig(Settings, frozen=True, kw_only=True):
    """The `[lora]` table of `rove rl` and `rove sft`."""

    rank: NonNegativeInt = 0
    """LoRA rank; 0 trains the full model. An adapter needs two to ten times the learning rate of full fine-tuning."""
    alpha: PositiveFloat = 32.0
    """Scale of the adapter: its output is multiplied by alpha / rank."""
    dropout: FractionBelow1 = 0.0
    """Dropout probability for the adapter's inputs in training. With dropout, the policy that RL
    trains differs from the policy that generates the rollouts."""
    targets: list[str] = []
    """Names of the linear layers to adapt, such as "q_proj"; by default, all linear layers except the output layer and layers
    that PEFT cannot adapt, such as routers and some layers of Mamba."""

    def check(self) -> None:
        """Raise a ConfigError if a setting has no effect, or PEFT is missing."""
        default = LoRAConfig()
        unused = [name for name in ("alpha", "dropout", "targets") if getattr(self, name) != getattr(default, name)]
        if unused and not self.rank:
            raise ConfigError(
                f"lora.{unused[0]} is {getattr(self, unused[0])}, but lora.rank is 0, so there is no adapter"
            )
        # Before sampling starts, because PEFT is imported only when the adapter is added.
        if self.rank:
            check_peft()


EVALUATION_KINDS = ("rollouts", "exhaustive")
"""Values of `kind` in an `[[evaluation]]` table."""


class EvaluationConfig(Settings, frozen=True, kw_only=True):
    """One `[[evaluation]]` table: an evaluation that training repeats."""

    env: str
    """Environment to evaluate in. The evaluation uses the environment's evaluation rows or, if there are none, its training
    rows."""
    name: str = ""
    """Name of the evaluation in the metrics (`eval/NAME/…`); by default, the environment's name."""
    env_args: Arguments = {}
    """Arguments for the environment."""
    kind: str = "rollouts"
    """Kind of evaluation: "rollouts" samples rollouts of the examples; "exhaustive" covers the whole tree of a two-player
    game."""
    goals: JsonObject = {}
    """Goals of an exhaustive evaluation; the metric `missed` is 0 if all goals are reached."""
    num_examples: CountOrAll = 100
    """Number of evaluation rows to use, starting with the first."""
    rollouts_per_example: PositiveInt = 1
    """Number of rollouts per example."""
    temperature: NonNegativeFloat = 0.0
    """Sampling temperature; 0 is greedy."""
    max_tokens: PositiveInt = 512
    """Maximum tokens per response."""
    every: PositiveInt = 10
    """Optimizer steps between two evaluations; the last step is always evaluated."""
    isolation: IsolationConfig = IsolationConfig()
    """Settings for running the environment in a worker process (`isolation` table); the run's `[isolation]` table also
    applies."""

    @property
    def label(self) -> str:
        """The name in the metrics."""
        return self.name or re.sub(r"[^A-Za-z0-9_-]", "_", self.env.rsplit("/", 1)[-1].split("@", 1)[0])

    @property
    def is_exhaustive(self) -> bool:
        """Whether the model plays every possible game, instead of rollouts of examples."""
        return self.kind == "exhaustive"

    def environment_isolation(self, run: Isolation) -> Isolation:
        """Return where the evaluation's environment runs, given where the run's environments run."""
        default = IsolationConfig()
        values = {name: getattr(self.isolation, name) for name in ("start_seconds", "hang_seconds", "python")}
        changed = {name: value for name, value in values.items() if value != getattr(default, name)}
        return msgspec.structs.replace(run, on=run.on or self.isolation.is_on, **changed)

    def check(self, run: Isolation = Isolation()) -> None:  # noqa: B008  frozen
        """Check the settings before any work is done.

        Args:
            run: Where the run's environments run.

        Raises:
            ConfigError: Settings contradict each other.
        """
        subject = f"evaluation '{self.label}'"
        if self.kind not in EVALUATION_KINDS:
            raise ConfigError(f"{subject}: kind is '{self.kind}'; {nearest(self.kind, EVALUATION_KINDS)}")
        if self.is_exhaustive:
            convert(Goals, self.goals)
            # The evaluation steps through the game tree, so it needs the environment's objects in this process.
            if self.environment_isolation(run).on:
                raise ConfigError(
                    f"{subject}: kind '{self.kind}' cannot run in a worker process: leave out kind or isolation"
                )
        elif self.goals:
            raise ConfigError(
                f'{subject} has goals, which need a kind such as "exhaustive": set kind or leave them out'
            )
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.label):
            raise ConfigError(
                f"evaluation is named {self.name!r}; expected letters, digits, - and _: it names metrics and a folder"
            )


def check_evaluations(evaluations: Sequence[EvaluationConfig], run: Isolation = Isolation()) -> None:  # noqa: B008  frozen
    """Raise a ConfigError if an evaluation is impossible, or two evaluations have the same name."""
    names: set[str] = set()
    for evaluation in evaluations:
        evaluation.check(run)
        folder = os.path.normcase(evaluation.label)  # Windows' file system ignores case
        if folder in names:
            raise ConfigError(f"two evaluations are named '{evaluation.label}'; give each its own name")
        names.add(folder)


EQUAL_BEST = ("last", "shortest")


class Goal(msgspec.Struct, frozen=True):
    """The metric that selects the best weights, and when training stops early."""

    metric: str | None = None
    """None selects the last weights and never stops early."""
    patience: int | None = None
    """Stop after this many evaluations in which neither the metric had a new best value nor the validation loss fell; None
    never stops."""
    target: float | None = None
    """Stop when the metric is at least this value (for a loss: at most)."""
    equal_best: str = "last"
    """Which of several measurements with the best value is selected; see `RLConfig.equal_best`."""
    max_minutes: float | None = None
    """Stop after the step at which all steps together have taken this many minutes; None never stops."""

    @property
    def length_metric(self) -> str | None:
        """The mean length of the responses in the evaluation that measures the metric; None for a loss."""
        if self.metric is None or not self.metric.startswith("eval/"):
            return None
        return "/".join([*self.metric.split("/")[:2], "length/mean"])

    @property
    def lower_is_better(self) -> bool:
        """Whether lower values of the metric are better, as for a loss or missed goals."""
        return self.metric is not None and self.metric.endswith(("loss", "missed"))

    def is_as_good(self, value: float, reference: float) -> bool:
        """Return whether `value` is as good as `reference`."""
        return value <= reference if self.lower_is_better else value >= reference

    def check(self, evaluations: Sequence[EvaluationConfig], further_metrics: Sequence[str] = ()) -> None:
        """Check that the run measures the metric.

        Args:
            evaluations: Evaluations of the run.
            further_metrics: Further metrics that the run measures.

        Raises:
            ConfigError: The run does not measure the metric, or a setting needs a metric.
        """
        for name in ("patience", "target"):
            if self.metric is None and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, but keep_best is not set; set it to a metric like eval/NAME/reward/mean"
                )
        if self.metric is None:
            return
        prefixes = [f"eval/{evaluation.label}/" for evaluation in evaluations]
        if self.metric in further_metrics or self.metric.startswith(tuple(prefixes)):
            return
        names = [*further_metrics, *(f"{prefix}reward/mean" for prefix in prefixes)]
        raise ConfigError(
            f"keep_best is '{self.metric}', which this run does not measure; {nearest(self.metric, names)}"
        )


class TrainingConfig(Settings, frozen=True, kw_only=True):
    """Settings that `rove rl` and `rove sft` share."""

    model: str
    """Initial model: a folder, or a name that `rove model list` prints."""
    trust_remote_code: bool = False
    """Run Python files that come with the model folder."""
    device: Device = "auto"
    """Device that the model computes on: "auto" (CUDA if available, else the CPU), "cpu", "cuda", "cuda:N", or "mps". Under
    torchrun, each process uses the CUDA device of its local rank."""
    chat_template: str | None = None
    """Chat template in place of the model's own: "chatml", or the path of a Jinja file. It is saved with the trained model."""
    template_args: Arguments = {}
    """Variables of the chat template in every conversation, such as {"enable_thinking": false}. They are saved with the trained
    model, and later commands use them."""
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    warmup_steps: NonNegativeInt
    final_lr_fraction: Fraction
    lora: LoRAConfig = LoRAConfig()
    """Settings for training a LoRA adapter instead of the full model (`[lora]` table)."""
    micro_batch_tokens: PositiveInt = 2048
    """Tokens per forward pass; affects memory and speed, but not the gradient."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass; this at least halves the memory for activations and takes up to a third more
    time."""
    bf16_backward: bool = False
    """Compute the matrix products of the backward pass in bf16 on a CPU; ignored if the CPU has no bf16 instructions."""
    mixed_precision: bool = False
    """Compute in bf16 if several processes train the model, or if one process trains it on an NVIDIA GPU (Ampere or
    newer) or on a CPU with bf16 instructions. Weights, gradient sums, and losses stay in fp32."""
    threads: PositiveInt | None = None
    """Number of CPU threads. By default, rove uses at most half of the cores or, for models with 50M parameters or
    more, PyTorch's own default."""
    max_grad_norm: PositiveFloat = 1.0
    """Gradient norm above which the gradient is clipped."""
    max_non_finite_steps: PositiveInt = 3
    """Stop after this many consecutive steps with a non-finite loss or gradient; each such step is skipped."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of AdamW."""
    env_args: Arguments = {}
    env_dir: str | None = None
    """Folder that is searched first for environments."""
    run_dir: str | None = None
    """Run folder; by default, a folder in `runs/` that is named after the settings."""
    evaluation: list[EvaluationConfig] = []
    """Evaluations to repeat during training (`[[evaluation]]` tables)."""
    keep_best: str | None = None
    """Metric, such as "eval/NAME/reward/mean", used to select the final weights. rove keeps the weights with the best value of
    this metric. If values are equal, it keeps the latest of these weights, or what `equal_best` of RL selects. By default, the
    last weights become the final model."""
    patience: PositiveInt | None = None
    """Stop after this many evaluations without a new best value of `keep_best`; by default, training does not stop
    early. RL with this setting also stops after 5 such evaluations if the rewards were equal in 95% of the groups of the last 50
    steps."""
    target: FiniteFloat | None = None
    """Stop when the metric `keep_best` reaches this value; by default, training does not stop early."""
    max_minutes: PositiveFloat | None = None
    """Stop after the step at which the steps of the run, with their evaluations, have taken this many minutes in total. The
    time during which the run was interrupted does not count. By default, there is no limit."""
    loggers: list[str] = []
    """Services that also receive the metrics: "tensorboard", "wandb", or "trackio"."""
    alerts: AlertLimits = AlertLimits()
    """Limits for the training alerts (`[alerts]` table)."""
    seed: NonNegativeInt = 0
    """Random seed."""

    @property
    def goal(self) -> Goal:
        """The metric that selects the best weights, and when training stops early."""
        return Goal(self.keep_best, self.patience, self.target, max_minutes=self.max_minutes)

    def _check_shared(self) -> None:
        self.lora.check()
        check_loggers(self.loggers)


class RLConfig(TrainingConfig, frozen=True, kw_only=True):
    """Settings of an RL run.

    Example:
        config = RLConfig(env="tictactoe", model="runs/sft/final", steps=50, loss=LossConfig(kind="grpo"))
    """

    env: str
    """Environment to train in."""
    env_args: Arguments = {}
    """Arguments for the environment."""
    steps: PositiveInt = 100
    """Number of optimizer steps, or number of batches if `num_iterations` is greater than 1."""
    batch_size: PositiveInt = 256
    """Rollouts per step (a multiple of `rollouts_per_example`); with fewer than 256 rollouts, training is noisy."""
    rollouts_per_example: IntFrom2 = 8
    """Number of rollouts per example, which form a group."""
    learning_rate: PositiveFloat = 3e-4
    """Peak learning rate of AdamW."""
    warmup_steps: NonNegativeInt = 5
    """Number of steps over which the learning rate rises linearly to its peak."""
    final_lr_fraction: Fraction = 0.1
    """Fraction of the peak learning rate that remains at the last step; the decay is linear."""
    equal_best: str = "last"
    """Which weights to keep if several evaluations have the best value of `keep_best`: "last" keeps the last of them, "shortest"
    the last of those with responses that are at most 5% longer than the shortest."""
    lr_backoff: InnerFraction | None = None
    """Factor for the learning rate after the reward `keep_best` falls; training then continues from the best weights.
    The reward has fallen if it is at least 10% below the best reward so far and the 95% intervals do not overlap. By default,
    the learning rate does not change."""
    loss: LossConfig = LossConfig()
    """Settings for the policy loss (`[loss]` table)."""
    advantage_estimator: str = "mean"
    """Method that computes advantages from rewards: "mean", "std", "batch_std", or "leave_one_out"."""
    gamma: Fraction = 1.0
    """Discount factor for the rewards of later turns."""
    num_iterations: PositiveInt = 1
    """Optimizer updates per batch."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
    max_tokens: PositiveInt = 512
    """Maximum tokens per response."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Order of the examples (`[curriculum]` table)."""
    filter: FilterConfig = FilterConfig()
    """Examples and groups to skip (`[filter]` table)."""
    max_off_policy_steps: NonNegativeInt = 0
    """Maximum age of the sampling weights, in steps. With 0, rove samples with the newest weights; with 1, it samples
    for the next step while it trains on the current step; with 2 or more, it samples continuously."""
    truncated: str = "keep"
    """Treatment of truncated rollouts: "keep" keeps their reward, "zero" sets it to 0, and "mask" excludes the rollouts from
    training."""
    bf16_sampling: bool = False
    """Sample and evaluate with a bf16 copy of the weights; the importance ratio corrects for the mismatch. This setting is
    ignored if the CPU has no bf16 instructions."""
    backend: str = "embedded"
    """Sampling backend: "embedded" (rove's engine) or "vllm"."""
    vllm: VLLMConfig = VLLMConfig()
    """Settings for the vLLM servers (`[vllm]` table)."""
    isolation: IsolationConfig = IsolationConfig()
    """Settings for running environments in worker processes (`[isolation]` table)."""
    ray: RayConfig = RayConfig()
    """Settings for running environments on a Ray cluster (`[ray]` table)."""
    checkpoint_every: PositiveInt = 10
    """Steps between checkpoints. A step with a new best value of `keep_best` also saves one."""
    keep_checkpoints: PositiveInt = 2
    """Number of checkpoints to keep; older ones are deleted."""
    log_token_stats: NonNegativeInt = 8
    """Number of rollouts per step for which `rove view` can show the log-probability and entropy of each token; 0 stores none."""
    show_every: NonNegativeInt = 0
    """Number of steps between two rollouts that are printed; 0 prints none."""

    @property
    def goal(self) -> Goal:
        """The metric that selects the best weights, and when training stops early."""
        return Goal(self.keep_best, self.patience, self.target, self.equal_best, self.max_minutes)

    @property
    def groups(self) -> int:
        """Number of groups per step."""
        return self.batch_size // self.rollouts_per_example

    @property
    def environment_isolation(self) -> Isolation:
        """Where the run's environments run."""
        return Isolation.of(self.isolation, self.ray)

    @property
    def aggregation(self) -> str:
        """How token losses are combined; see `rove.train.losses.token_weights`."""
        return choose_aggregation(self.loss.kind, self.loss.aggregation)

    @property
    def aggregation_constant(self) -> float:
        """Divisor of the aggregation "constant"."""
        return self.loss.constant or self.max_tokens

    def check(self) -> None:
        """Check the settings before any work is done.

        Raises:
            ConfigError: Settings contradict each other, or a setting has no effect.
        """
        if self.batch_size % self.rollouts_per_example:
            raise ConfigError(
                f"batch_size is {self.batch_size}; expected a multiple of rollouts_per_example ({self.rollouts_per_example})"
            )
        if self.truncated not in ("keep", "zero", "mask"):
            raise ConfigError(f"truncated is '{self.truncated}'; expected keep, zero or mask")
        if self.equal_best not in EQUAL_BEST:
            raise ConfigError(f"equal_best is '{self.equal_best}'; {nearest(self.equal_best, EQUAL_BEST)}")
        if self.equal_best != "last" and self.keep_best is None:
            raise ConfigError(
                f"equal_best is '{self.equal_best}', but keep_best is not set, so the last weights are kept; set keep_best to a "
                "metric like eval/NAME/reward/mean"
            )
        self._check_shared()
        self.loss.check()
        check_estimator(self.advantage_estimator)
        self.curriculum.check()
        self.filter.check()
        self._check_off_policy()
        self._check_backend()
        check_evaluations(self.evaluation, self.environment_isolation)
        self.goal.check(self.evaluation)
        self._check_backoff()

    def _check_backoff(self) -> None:
        if self.lr_backoff is None:
            return
        setting, steps = f"lr_backoff is {self.lr_backoff}", self.max_off_policy_steps
        if self.keep_best is None or not self.keep_best.endswith("/reward/mean"):
            raise ConfigError(f"{setting}, but keep_best is {self.keep_best!r}; expected eval/NAME/reward/mean")
        if steps > 1:
            raise ConfigError(f"{setting} and max_off_policy_steps {steps}; lr_backoff needs 0 or 1")

    def _check_off_policy(self) -> None:
        if self.max_off_policy_steps > 1 and self.loss.kind == "reinforce":
            raise ConfigError(
                f"max_off_policy_steps is {self.max_off_policy_steps} and loss is reinforce, which has no ratio to the older "
                "weights that sampled: use cispo, or max_off_policy_steps = 0"
            )

    def _check_backend(self) -> None:
        if self.backend not in ("embedded", "vllm"):
            raise ConfigError(f"backend is '{self.backend}'; expected embedded or vllm")
        if self.backend == "vllm":
            if self.bf16_sampling:
                raise ConfigError(
                    'bf16_sampling needs backend "embedded"; with vLLM set vllm.args = ["--dtype", "bfloat16"] and raise '
                    "vllm.tolerance"
                )
            self.vllm.check()
        elif self.vllm != DEFAULT_CONFIG:
            names = DEFAULT_CONFIG.__struct_fields__
            name = next(name for name in names if getattr(self.vllm, name) != getattr(DEFAULT_CONFIG, name))
            raise ConfigError(f"vllm.{name} is set, but backend is 'embedded': leave it out, or set backend = \"vllm\"")


LOSS_ON = ("all", "last", "completion")


class SFTConfig(TrainingConfig, frozen=True, kw_only=True):
    """Settings of an SFT run.

    Example:
        config = SFTConfig(data="runs/teacher", model="models/new", min_reward=0.5)
    """

    data: str
    """Data to train on: a run folder with rollouts, or a file of messages (.jsonl, .ndjson, .json, or .parquet)."""
    min_reward: FiniteFloat | None = None
    """Minimum reward of the rollouts to train on (in a file: of the column `reward`); by default, all scored rollouts are used.
    """
    max_examples: CountOrAll = -1
    """Maximum number of rollouts, or rows of a file, to train on."""
    loss_on: str = "all"
    """Assistant messages to train on: "all", "last" (of each conversation), or "completion" (not the messages of the prompt)."""
    max_length: PositiveInt | None = None
    """Maximum tokens per sequence; the model's context is the default and the upper limit."""
    overlong: str = "truncate"
    """Conversations beyond `max_length`: "truncate" cuts sequences at the end, "drop" leaves the conversations out."""
    epochs: PositiveInt = 10
    """Maximum number of passes over the data; training stops earlier if the validation loss no longer falls."""
    batch_size: PositiveInt = 32
    """Conversations per optimizer step. Each epoch has a new order, and leaves out the last conversations if they do not fill a
    step."""
    learning_rate: PositiveFloat = 1e-3
    """Peak learning rate of AdamW."""
    warmup_steps: NonNegativeInt = 20
    """Number of steps over which the learning rate rises linearly to its peak."""
    final_lr_fraction: Fraction = 0.05
    """Fraction of the peak learning rate that remains at the last step of the last epoch; the decay is linear."""
    validation_fraction: InnerFraction = 0.05
    """Fraction of the examples to hold out for validation; at least one example is held out."""
    validate_every: PositiveInt = 50
    """Number of optimizer steps between two measurements of the validation loss; each measurement saves a checkpoint."""
    patience: PositiveInt = 4
    """Stop after this many measurements in which neither `keep_best` had a new best value nor the validation loss fell by 0.1%.
    """
    keep_best: str = VALIDATION_LOSS
    """Metric used to select the final weights: `validation_loss`, or a metric such as "eval/NAME/reward/mean". rove keeps the
    weights with the best value of this metric or, if values are equal, the latest of these weights."""
    env: str | None = None
    """Environment in which the trained model is evaluated; by default, the environment of the run in `data`."""
    env_args: Arguments = {}
    """Arguments for the environment, in addition to those that the run in `data` used."""
    final_eval_rollouts: NonNegativeInt = 64
    """Number of evaluation rollouts after training for the trained model and for each scripted policy; 0 runs no evaluation."""

    def check(self) -> None:
        """Check the settings before any work is done.

        Raises:
            ConfigError: Settings contradict each other, or a setting has no effect.
        """
        self._check_shared()
        if self.overlong not in ("truncate", "drop"):
            raise ConfigError(f"overlong is '{self.overlong}'; expected truncate or drop")
        if self.loss_on not in LOSS_ON:
            raise ConfigError(f"loss_on is '{self.loss_on}'; {nearest(self.loss_on, LOSS_ON)}")
        check_evaluations(self.evaluation)
        self.goal.check(self.evaluation, [VALIDATION_LOSS])
