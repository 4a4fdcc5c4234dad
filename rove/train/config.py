"""Settings of `rove rl` and `rove sft`: one struct each, with tables that they share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

import rove.games.exhaustive  # noqa: F401  registers the evaluation kind "exhaustive"
from rove.core.config import check_positive
from rove.core.errors import ConfigError, nearest
from rove.models.load import check_peft
from rove.remote.loading import Isolation, IsolationConfig, RayConfig
from rove.rollouts.evaluation_kinds import EVALUATION_KINDS, EvaluationKind
from rove.train.advantages import check_estimator, check_gamma
from rove.train.alerts import AlertLimits
from rove.train.loggers import check_loggers
from rove.train.losses import PolicyLoss, choose_aggregation, make_loss
from rove.vllm.server import DEFAULT_CONFIG, VLLMConfig

VALIDATION_LOSS = "validation_loss"
ENTROPY = "entropy/all/mean"


class LossConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[loss]` table of `rove rl`."""

    kind: str = "cispo"
    """Policy loss: "cispo", "reinforce", "grpo", "dapo", "dr_grpo", "gspo", or your own as "package.module:function"."""
    max_ratio: float = 5.0
    """Upper bound for the importance ratio in CISPO (> 1)."""
    clip_low: float | None = None
    """Lower clip range (0 to 1). The losses "grpo", "dapo", "dr_grpo", and "gspo" clip the importance ratio below 1 −
    `clip_low`; the default depends on the loss."""
    clip_high: float | None = None
    """Upper clip range (> 0). The losses "grpo", "dapo", "dr_grpo", and "gspo" clip the importance ratio above 1 +
    `clip_high`; the default depends on the loss."""
    aggregation: str | None = None
    """How token losses are combined: "token", "sequence", or "constant"; the default depends on the loss."""
    constant: float | None = None
    """Number of tokens (> 0) by which the loss of each rollout is divided if `aggregation` is "constant"; by default,
    `max_tokens`."""
    kl_penalty: float = 0.0
    """Weight of the KL divergence from the reference model (≥ 0); with 0, there is no reference model."""
    sync_reference_every: int | None = None
    """Optimizer steps between updates of the reference model (≥ 1); by default, the initial model remains the reference."""
    importance_cap: float = 2.0
    """Upper bound (≥ 1) for the importance weights that correct for differences between sampling and training probabilities."""
    entropy_bonus: float = 0.0
    """Weight of the mean token entropy in the objective; 0 adds no bonus."""
    entropy_target: float | None = None
    """Entropy of the previous step, in nats per token (> 0), above which the bonus is turned off; by default, the bonus is always
    on."""

    def bonus_after(self, history: Sequence[Mapping[str, float]]) -> float:
        """Return the weight of the entropy in the next step.

        A bonus that is always on drives the entropy up without bound once advantages are small. With a target, it only prevents
        that the entropy falls further (adaptive entropy control, Skywork-OR1, arXiv 2505.22312).

        Args:
            history: Metrics of the steps so far, oldest first.
        """
        measured = next((row[ENTROPY] for row in reversed(history) if ENTROPY in row), 0.0)
        return self.entropy_bonus if self.entropy_target is None or measured < self.entropy_target else 0.0

    def make(self) -> PolicyLoss:
        """Return the loss function.

        Raises:
            ConfigError: a setting is out of range, or a custom loss cannot be imported.
        """
        return make_loss(self.kind, self.max_ratio, self.clip_low, self.clip_high, self.kl_penalty, self.importance_cap)

    def check(self) -> None:
        """Raise a ConfigError if a setting is out of range."""
        check_positive(self, "constant", "sync_reference_every", "entropy_target")
        if self.entropy_target is not None and not self.entropy_bonus:
            raise ConfigError(
                f"entropy_target is {self.entropy_target}, but entropy_bonus is 0, so nothing holds the entropy"
            )
        if self.sync_reference_every is not None and not self.kl_penalty:
            raise ConfigError(
                f"sync_reference_every is {self.sync_reference_every}, but kl_penalty is 0, so there is no reference to sync"
            )
        choose_aggregation(self.kind, self.aggregation)
        self.make()


class CurriculumConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[curriculum]` table of `rove rl`: in which order training uses the dataset."""

    column: str | None = None
    """Numeric column by which examples are ordered, from low to high, over the course of training; "info.level" means the "level"
    key of `info`."""
    shuffle: bool = False
    """Shuffle the examples in every epoch; by default, they keep the dataset's order."""
    stratify: str | None = None
    """Column to stratify by. Every step contains the values of this column in the same proportions as the dataset. Numeric
    columns are binned by quantile."""
    stratify_bins: int = 4
    """Number of quantile bins (≥ 2) for a numeric column that has more distinct values than bins."""

    def check(self) -> None:
        """Raise a ConfigError if settings contradict each other or are out of range."""
        if self.stratify is not None and self.column is not None:
            raise ConfigError(
                f"curriculum.stratify is '{self.stratify}' and curriculum.column is '{self.column}'; a step cannot have the "
                "dataset's mix and follow the column: leave one of them out"
            )
        if self.stratify_bins < 2:
            raise ConfigError(f"stratify_bins is {self.stratify_bins}; expected 2 or more")


class FilterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[filter]` table of `rove rl`: which examples and groups training skips."""

    hard_threshold: float | None = None
    """Skip examples with a recent mean reward of at most this value; by default, no examples are skipped."""
    easy_threshold: float | None = None
    """Skip examples with a recent mean reward of at least this value; by default, no examples are skipped."""
    difficulty_window: int = 100
    """Number of steps that count as recent (≥ 1); a skipped example is used again after the same number of steps."""
    dynamic_sampling_rounds: int = 0
    """Maximum number of rounds per step (≥ 0) in which zero-advantage groups are replaced with new groups; 0 replaces none."""

    @property
    def skips_examples(self) -> bool:
        """Whether a threshold is set."""
        return self.hard_threshold is not None or self.easy_threshold is not None

    def check(self) -> None:
        """Raise a ConfigError if settings are out of range, or skip every example."""
        low, high = self.hard_threshold, self.easy_threshold
        if low is not None and high is not None and low >= high:
            raise ConfigError(
                f"hard_threshold is {low} and easy_threshold is {high}; expected hard_threshold < easy_threshold, otherwise "
                "every example is skipped"
            )
        if self.difficulty_window < 1:
            raise ConfigError(f"difficulty_window is {self.difficulty_window}; expected 1 step or more")
        if self.dynamic_sampling_rounds < 0:
            raise ConfigError(f"dynamic_sampling_rounds is {self.dynamic_sampling_rounds}; expected 0 (none) or more")


class LoRAConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `[lora]` table of `rove rl` and `rove sft`."""

    rank: int = 0
    """LoRA rank (≥ 0); 0 trains the full model. An adapter needs two to ten times the learning rate of full fine-tuning."""
    alpha: float = 32.0
    """Scale of the adapter (> 0): its output is multiplied by alpha / rank."""
    dropout: float = 0.0
    """Dropout probability for the adapter's inputs in training (at least 0 and less than 1). With dropout, the policy that RL
    trains differs from the policy that generates the rollouts."""
    targets: list[str] = []
    """Names of the linear layers to adapt, such as "q_proj"; by default, all linear layers except the output layer."""

    def check(self) -> None:
        """Raise a ConfigError if a setting is out of range or has no effect, or PEFT is missing."""
        if self.rank < 0:
            raise ConfigError(f"lora.rank is {self.rank}; expected 1 or more, or 0 to train the full model")
        if self.alpha <= 0:
            raise ConfigError(f"lora.alpha is {self.alpha}; expected more than 0")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"lora.dropout is {self.dropout}; expected a probability from 0 to below 1")
        unused = [name for name in ("dropout", "targets") if getattr(self, name)]
        if unused and not self.rank:
            raise ConfigError(
                f"lora.{unused[0]} is {getattr(self, unused[0])}, but lora.rank is 0, so there is no adapter"
            )
        if self.rank:
            check_peft()


class EvaluationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `[[evaluation]]` table: an evaluation that training repeats."""

    env: str
    """Environment to evaluate in. The evaluation uses the environment's evaluation rows or, if there are none, its training
    rows."""
    name: str = ""
    """Name of the evaluation in the metrics (`eval/NAME/…`); by default, the environment's name."""
    env_args: dict[str, Any] = {}
    """Arguments for the environment."""
    kind: str = "rollouts"
    """Kind of evaluation: "rollouts" samples rollouts of the examples; "exhaustive" covers the whole tree of a two-player
    game."""
    goals: dict[str, Any] = {}
    """Goals of an exhaustive evaluation; the metric `missed` is 0 if all goals are reached."""
    num_examples: int = 100
    """Number of evaluation rows to use, starting with the first (≥ 1); -1 uses all."""
    rollouts_per_example: int = 1
    """Number of rollouts per example (≥ 1)."""
    temperature: float = 0.0
    """Sampling temperature (≥ 0); 0 is greedy."""
    max_tokens: int = 512
    """Maximum tokens per response (≥ 1)."""
    every: int = 10
    """Optimizer steps between two evaluations (≥ 1); the last step is always evaluated."""
    isolation: IsolationConfig = IsolationConfig()
    """Settings for running the environment in a worker process (`isolation` table); the run's `[isolation]` table also
    applies."""

    @property
    def label(self) -> str:
        """The name in the metrics."""
        return self.name or re.sub(r"[^A-Za-z0-9_-]", "_", self.env.rsplit("/", 1)[-1].split("@", 1)[0])

    @property
    def evaluation_kind(self) -> EvaluationKind | None:
        """The registered kind; None for rollouts of examples."""
        return EVALUATION_KINDS.get(self.kind)

    def environment_isolation(self, run: Isolation) -> Isolation:
        """Return where the environment runs, given where those of the run do."""
        default = IsolationConfig()
        own = {n: getattr(self.isolation, n) for n in ("start_seconds", "hang_seconds", "python")}
        changed = {name: value for name, value in own.items() if value != getattr(default, name)}
        return msgspec.structs.replace(run, on=run.on or self.isolation.is_on, **changed)

    def check(self, run: Isolation = Isolation()) -> None:  # noqa: B008  frozen
        """Check the settings before any work is done.

        Args:
            run: Where the environments of the run are.

        Raises:
            ConfigError: A setting is out of range.
        """
        here = f"evaluation '{self.label}'"
        if self.kind != "rollouts" and self.evaluation_kind is None:
            raise ConfigError(f"{here}: kind is '{self.kind}'; {nearest(self.kind, ['rollouts', *EVALUATION_KINDS])}")
        if self.evaluation_kind is not None:
            self.evaluation_kind.read_goals(self.goals)
            if self.environment_isolation(run).on:
                raise ConfigError(
                    f"{here}: kind '{self.kind}' cannot run in a worker process: leave out kind or isolation"
                )
        elif self.goals:
            raise ConfigError(f'{here} has goals, which need a kind such as "exhaustive": set kind or leave them out')
        if not re.fullmatch(r"[A-Za-z0-9_-]+", self.label):
            raise ConfigError(
                f"evaluation is named {self.name!r}; expected letters, digits, - and _: it names metrics and a folder"
            )
        try:
            check_positive(self, "rollouts_per_example", "max_tokens", "every")
        except ConfigError as error:
            raise ConfigError(f"{here}: {error}") from None
        if self.num_examples < 1 and self.num_examples != -1:
            raise ConfigError(f"{here}: num_examples is {self.num_examples}; expected 1 or more, or -1 for all")
        if self.temperature < 0:
            raise ConfigError(f"{here}: temperature is {self.temperature}; expected 0 (greedy) or more")


def check_evaluations(evaluations: Sequence[EvaluationConfig], run: Isolation = Isolation()) -> None:  # noqa: B008  frozen
    """Raise a ConfigError if an evaluation is impossible, or two have the same name."""
    names: set[str] = set()
    for evaluation in evaluations:
        evaluation.check(run)
        if evaluation.label in names:
            raise ConfigError(f"two evaluations are named '{evaluation.label}'; give each its own name")
        names.add(evaluation.label)


class Goal(msgspec.Struct, frozen=True):
    """The metric that selects the best weights, and when training stops early."""

    metric: str | None = None
    """None selects the last weights and never stops early."""
    patience: int | None = None
    """Stop after this many evaluations without a new best value or a fall of the validation loss."""
    target: float | None = None
    """Stop when the metric is at least (a loss: at most) this."""

    @property
    def lower_is_better(self) -> bool:
        """Whether lower values of the metric are better, as of a loss or of missed goals."""
        return self.metric is not None and self.metric.endswith(("loss", "missed"))

    def is_as_good(self, value: float, other: float) -> bool:
        """Return whether `value` is as good as `other`."""
        return value <= other if self.lower_is_better else value >= other

    def check(self, evaluations: Sequence[EvaluationConfig], others: Iterable[str] = ()) -> None:
        """Check that the run measures the metric.

        Args:
            evaluations: Evaluations of the run.
            others: Further metrics that the run measures.

        Raises:
            ConfigError: The run does not measure the metric, or a setting is out of range or needs a metric.
        """
        for name in ("patience", "target"):
            if self.metric is None and getattr(self, name) is not None:
                raise ConfigError(
                    f"{name} is {getattr(self, name)}, but keep_best is not set; set it to a metric like eval/NAME/reward/mean"
                )
        check_positive(self, "patience")
        known = [*others, *(f"eval/{evaluation.label}/" for evaluation in evaluations)]
        if self.metric is None or any(
            self.metric == one or (one[-1:] == "/" and self.metric.startswith(one)) for one in known
        ):
            return
        names = [f"{name}reward/mean" if name.endswith("/") else name for name in known]
        raise ConfigError(
            f"keep_best is '{self.metric}', which this run does not measure; {nearest(self.metric, names)}"
        )


class TrainingConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that `rove rl` and `rove sft` share."""

    model: str
    """Initial model: a folder, or a name that `rove model list` prints."""
    trust_remote_code: bool = False
    """Run Python files that come with the model folder."""
    batch_size: int
    learning_rate: float
    warmup_steps: int
    final_lr_fraction: float
    lora: LoRAConfig = LoRAConfig()
    """Settings for training a LoRA adapter instead of the full model (`[lora]` table)."""
    micro_batch_tokens: int = 2048
    """Tokens per forward pass (≥ 1); affects memory and speed, but not the gradient."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass; this at least halves the memory for activations and takes up to a third more
    time."""
    bf16_backward: bool = False
    """Compute the matrix products of the backward pass in bf16 on a CPU; ignored if the CPU has no bf16 instructions."""
    mixed_precision: bool = False
    """Compute in bf16 if several processes train the model, or if one process trains it on an NVIDIA GPU (Ampere or
    newer) or on a CPU with bf16 instructions. Weights, gradient sums, and losses stay in fp32."""
    threads: int | None = None
    """Number of CPU threads (≥ 1). By default, rove uses half of the cores or, for models with 50M parameters or more,
    PyTorch's own default."""
    max_grad_norm: float = 1.0
    """Gradient norm above which the gradient is clipped."""
    max_non_finite_steps: int = 3
    """Stop after this many consecutive steps (≥ 1) with a non-finite loss or gradient; each such step is skipped."""
    weight_decay: float = 0.0
    """Weight decay of AdamW (≥ 0)."""
    env_args: dict[str, Any] = {}
    env_dir: str | None = None
    """Folder that is searched first for environments."""
    run_dir: str | None = None
    """Run folder; by default, a folder in `runs/` that is named after the settings."""
    evaluation: list[EvaluationConfig] = []
    """Evaluations to repeat during training (`[[evaluation]]` tables)."""
    keep_best: str | None = None
    """Metric, such as "eval/NAME/reward/mean", used to select the final weights. rove keeps the weights with the best value of
    this metric, and of equal values the last. By default, the last weights become the final model."""
    patience: int | None = None
    """Stop after this many evaluations (≥ 1) without a new best value of `keep_best`; by default, training does not stop
    early."""
    target: float | None = None
    """Stop when the metric `keep_best` reaches this value; by default, training does not stop early."""
    loggers: list[str] = []
    """Services that also receive the metrics: "tensorboard", "wandb", or "trackio"."""
    alerts: AlertLimits = AlertLimits()
    """Limits for the training alerts (`[alerts]` table)."""
    seed: int = 0
    """Random seed."""

    @property
    def goal(self) -> Goal:
        """The metric that selects the best weights, and when training stops early."""
        return Goal(self.keep_best, self.patience, self.target)

    def _check_shared(self, *positive: str) -> None:
        check_positive(
            self,
            *positive,
            "batch_size",
            "learning_rate",
            "micro_batch_tokens",
            "max_non_finite_steps",
            "threads",
        )
        self.lora.check()
        check_loggers(self.loggers)
        self.alerts.check()


class RLConfig(TrainingConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an RL run.

    Example:
        config = RLConfig(env="tictactoe", model="runs/sft/final", steps=50, loss=LossConfig(kind="grpo"))
    """

    env: str
    """Environment to train in."""
    env_args: dict[str, Any] = {}
    """Arguments for the environment."""
    steps: int = 100
    """Number of optimizer steps (≥ 1), or number of batches if `num_iterations` is greater than 1."""
    batch_size: int = 256
    """Rollouts per step (a multiple of `rollouts_per_example`); with fewer than 256 rollouts, training is noisy."""
    rollouts_per_example: int = 8
    """Number of rollouts in a group (≥ 2)."""
    learning_rate: float = 3e-4
    """Peak learning rate of AdamW (> 0)."""
    warmup_steps: int = 5
    """Number of steps over which the learning rate rises linearly to its peak."""
    final_lr_fraction: float = 0.1
    """Fraction of the peak learning rate that remains at the last step; the decay is linear."""
    lr_backoff: float | None = None
    """Factor (> 0, < 1) for the learning rate after the reward `keep_best` falls; training then continues from the best weights.
    A fall is at least 10% of the best reward so far, and the 95% intervals do not overlap. Default: no change after a fall."""
    loss: LossConfig = LossConfig()
    """Settings for the policy loss (`[loss]` table)."""
    advantage_estimator: str = "mean"
    """Method that computes advantages from rewards: "mean", "std", "batch_std", or "leave_one_out"."""
    gamma: float = 1.0
    """Discount factor for the rewards of later turns (0 to 1)."""
    num_iterations: int = 1
    """Optimizer updates per batch (≥ 1)."""
    temperature: float = 1.0
    """Sampling temperature (> 0)."""
    max_tokens: int = 512
    """Maximum tokens per response (≥ 1)."""
    curriculum: CurriculumConfig = CurriculumConfig()
    """Order of the examples (`[curriculum]` table)."""
    filter: FilterConfig = FilterConfig()
    """Examples and groups to skip (`[filter]` table)."""
    max_off_policy_steps: int = 0
    """Maximum age of the sampling weights, in steps (≥ 0). With 0, rove samples with the newest weights; with 1, it samples
    for the next step while it trains on the current one; with 2 or more, it samples continuously."""
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
    checkpoint_every: int = 10
    """Steps between checkpoints (≥ 1)."""
    keep_checkpoints: int = 2
    """Number of checkpoints to keep (≥ 1); older ones are deleted."""
    log_token_stats: int = 8
    """Number of rollouts per step for which `rove view` can show the log-probability and entropy of each token; 0 stores none."""
    show_every: int = 0
    """Number of steps between two rollouts that are printed (≥ 0); 0 prints none."""

    @property
    def groups(self) -> int:
        """Groups per step."""
        return self.batch_size // self.rollouts_per_example

    @property
    def environment_isolation(self) -> Isolation:
        """Where environments run."""
        return Isolation.of(self.isolation, self.ray)

    @property
    def aggregation(self) -> str:
        """How token losses combine."""
        return choose_aggregation(self.loss.kind, self.loss.aggregation)

    def check(self) -> None:
        """Check the settings before any work is done.

        Raises:
            ConfigError: A setting is out of range, or two contradict each other.
        """
        if self.rollouts_per_example < 2:
            raise ConfigError(f"rollouts_per_example is {self.rollouts_per_example}; a group needs at least 2 rollouts")
        if self.batch_size < 1 or self.batch_size % self.rollouts_per_example:
            raise ConfigError(
                f"batch_size is {self.batch_size}; expected a multiple of rollouts_per_example ({self.rollouts_per_example})"
            )
        if self.truncated not in ("keep", "zero", "mask"):
            raise ConfigError(f"truncated is '{self.truncated}'; expected keep, zero or mask")
        if self.temperature <= 0:
            raise ConfigError(f"temperature is {self.temperature}; RL needs sampling, so expected more than 0")
        self._check_shared("steps", "max_tokens", "checkpoint_every", "keep_checkpoints", "num_iterations")
        for name in ("log_token_stats", "show_every"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; expected 0 (off) or more")
        self.loss.check()
        check_estimator(self.advantage_estimator)
        check_gamma(self.gamma)
        self.curriculum.check()
        self.filter.check()
        self._check_off_policy()
        self.isolation.check()
        self._check_backend()
        check_evaluations(self.evaluation, self.environment_isolation)
        self.goal.check(self.evaluation)
        self._check_backoff()

    def _check_backoff(self) -> None:
        if self.lr_backoff is None:
            return
        given = f"lr_backoff is {self.lr_backoff}"
        if not 0 < self.lr_backoff < 1:
            raise ConfigError(f"{given}; expected more than 0 and less than 1")
        if not (self.keep_best or "").endswith("/reward/mean"):
            raise ConfigError(f"{given}, but keep_best is {self.keep_best!r}; expected eval/NAME/reward/mean")
        if self.max_off_policy_steps > 1:
            raise ConfigError(f"{given} and max_off_policy_steps {self.max_off_policy_steps}; lr_backoff needs 0 or 1")

    def _check_off_policy(self) -> None:
        if self.max_off_policy_steps < 0:
            raise ConfigError(
                f"max_off_policy_steps is {self.max_off_policy_steps}; expected 0 (sample with the newest weights), 1 (sample "
                "while the step before trains) or more (sample continuously)"
            )
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
            fields = DEFAULT_CONFIG.__struct_fields__
            name = next(n for n in fields if getattr(self.vllm, n) != getattr(DEFAULT_CONFIG, n))
            raise ConfigError(f"vllm.{name} is set, but backend is 'embedded': leave it out, or set backend = \"vllm\"")


class SFTConfig(TrainingConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of an SFT run.

    Example:
        config = SFTConfig(data="runs/teacher", model="models/new", min_reward=0.5)
    """

    data: str
    """Run folder that contains the rollouts to train on."""
    min_reward: float | None = None
    """Minimum reward of the rollouts to train on; by default, all scored rollouts are used."""
    max_examples: int = -1
    """Maximum number of rollouts (≥ 1); -1 uses all."""
    epochs: int = 10
    """Maximum number of passes over the data (≥ 1); training stops earlier if the validation loss no longer falls."""
    batch_size: int = 32
    """Conversations per optimizer step (≥ 1)."""
    learning_rate: float = 1e-3
    """Peak learning rate of AdamW (> 0)."""
    warmup_steps: int = 20
    """Number of steps over which the learning rate rises linearly to its peak."""
    final_lr_fraction: float = 0.05
    """Fraction of the peak learning rate that remains at the last step of the last epoch; the decay is linear."""
    validation_fraction: float = 0.05
    """Fraction of the examples to hold out for validation (more than 0 and less than 1); at least one example is held out."""
    validate_every: int = 50
    """Number of optimizer steps between two measurements of the validation loss (≥ 1); a checkpoint is saved at each
    measurement."""
    patience: int = 4
    """Stop after this many measurements (≥ 1) without a new best `keep_best` or a fall of the validation loss by 0.1%."""
    keep_best: str = VALIDATION_LOSS
    """Metric used to select the final weights: `validation_loss`, or a metric such as "eval/NAME/reward/mean". rove keeps the
    weights with the best value of this metric, and of equal values the last."""
    env: str | None = None
    """Environment in which the trained model is evaluated; by default, the environment of the run in `data`."""
    env_args: dict[str, Any] = {}
    """Arguments for the environment, in addition to those that the run in `data` used."""
    final_eval_rollouts: int = 64
    """Number of evaluation rollouts after training (≥ 0) for the trained model and for each scripted policy; 0 skips this
    evaluation."""

    def check(self) -> None:
        """Check the settings before any work is done.

        Raises:
            ConfigError: A setting is out of range.
        """
        self._check_shared("epochs", "validate_every", "patience")
        if not 0 < self.validation_fraction < 1:
            raise ConfigError(
                f"validation_fraction is {self.validation_fraction}; expected more than 0 and less than 1"
            )
        if self.final_eval_rollouts < 0:
            raise ConfigError(
                f"final_eval_rollouts is {self.final_eval_rollouts}; expected a number of rollouts, or 0 to skip the evaluation"
            )
        check_evaluations(self.evaluation)
        self.goal.check(self.evaluation, [VALIDATION_LOSS])
