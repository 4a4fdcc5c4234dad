"""Choose the settings of `rove train` from facts about an environment: its policies, lengths and rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from rove.core.errors import ConfigError
from rove.core.plain import JsonMapping, JsonObject
from rove.stages.examination import GROUP_SIZE, POLICY_EXAMPLES, Evidence, ModelEvidence
from rove.stages.recipe import Section
from rove.train.alerts import AlertLimits
from rove.train.held_out import SELECTION_ROLLOUTS, TABLE_SEED, HeldOut, split_held_out

LR_BACKOFF = 0.3
"""Factor for RL's learning rate after a fall of the held-out reward."""
FINAL_RATE = 0.03
"""Fraction of RL's learning rate that remains at the last step. Gradients of few groups are noisy; with 0.3, the last rewards
were lower (benchmarks/LOG.md, 2026-11-30)."""
RL_PATIENCE = 15
"""RL ends after this many evaluations without a new best reward."""
MAX_DATA_ROLLOUTS, DATA_TOKENS = 40_000, 4_000_000
"""Maximum number of the teacher's rollouts, and maximum number of their tokens."""
MODEL_TEACHER_ROLLOUTS = 1000
"""The same for a teacher that is a model, whose rollouts may cost money."""
LONG_ROLLOUT, MIN_BATCH_SHARE = 256, 0.25
"""The batches of SFT are smaller for rollouts with more tokens, down to a quarter: the number of tokens is limited, and a model
learns more from many small steps than from few large ones."""
MAX_EPOCHS, MAX_SFT_STEPS = 100, 5000
"""Limits of SFT on small datasets."""
SFT_WARMUP = 20
"""Steps of SFT's warm-up, the default of `rove sft`."""
SFT_PATIENCE = 60
"""SFT ends after this many evaluations without a new best reward or validation loss; new models may stay on a plateau for a
long time."""
SFT_GOAL = 0.9
"""SFT ends when the sampled reward has risen by this share of the difference between the weakest and the best policy. RL does the
rest, but RL does not make up for short SFT: with a share of 0.6, the reward in reasoning_mix and frozen_lake ended 0.1
lower (benchmarks/reports/recipe_study.md)."""
MIN_SPREAD = 0.5
"""A pretrained model needs no SFT if at least this share of its groups has different rewards. Without a policy to imitate, it
begins with RL if any group has."""
RL_TOKENS = 10_000_000
"""Maximum number of tokens in RL."""
MIN_RL_STEPS = 60
"""The recipe allows this many steps of RL even if they take more tokens."""
RL_STEP_TOKENS = 32_768
"""Maximum tokens of an RL step when groups are added beyond the minimum: with more examples, the gradient is less noisy."""
ENTROPY_TARGET = 0.15
"""Entropy in nats per token above which the entropy bonus is off. Without this limit, the bonus made policies with small
advantages random."""
ROLLOUT_KL_PENALTY = 0.08
"""Maximum sum of the weights of the KL divergence over the tokens of a rollout. A rollout has one reward, and its divergence is
a sum over its tokens: with a fixed weight per token, the penalty of a long rollout would outweigh its reward."""


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that depend on the number of trained parameters."""

    sft_batch: int
    sft_rate: float
    sft_tokens: int
    """Maximum tokens of SFT."""
    rl_groups: int
    """Minimum number of groups in an RL step."""
    rl_rate: float
    rl_steps: int
    """Maximum number of RL steps."""
    entropy_bonus: float
    validate_every: int
    table_rollouts: int
    """Number of held-out rollouts per row of the results table."""
    lora: JsonObject = {}
    max_rl_groups: int = 32
    """Maximum number of groups in an RL step, if rollouts are short."""
    temperature: float = 1.0
    """Sampling temperature of RL: above 1, good models make enough errors to learn from (benchmarks/reports/recipe_study.md)."""
    max_kl_penalty: float = 0.0
    """Maximum weight of the KL divergence from the model before RL; see docs/decisions/unrewarded_tokens.md."""

    def loss(self, sampled_tokens: float, unit: float = 1.0) -> JsonObject:
        """Return the table `loss` of RL.

        Args:
            sampled_tokens: Mean number of sampled tokens of a rollout.
            unit: Order of magnitude of the rewards: the weights are relative to them.
        """
        if self.max_kl_penalty == 0:
            return {"entropy_bonus": self.entropy_bonus * unit, "entropy_target": ENTROPY_TARGET}
        weight = min(self.max_kl_penalty, ROLLOUT_KL_PENALTY / max(1.0, sampled_tokens))
        return {"kl_penalty": float(f"{weight * unit:.2g}")}  # not round(): long rollouts would have no penalty


NEW = Scale(
    sft_batch=128,
    sft_rate=1e-3,
    sft_tokens=24_000_000,
    rl_groups=32,
    max_rl_groups=128,
    rl_rate=3e-4,
    rl_steps=400,
    entropy_bonus=0.0,
    max_kl_penalty=0.01,
    temperature=1.15,
    validate_every=25,
    table_rollouts=1000,
)
"""Settings for new models of half a million parameters; SFT takes at most about ten minutes of one CPU core. Most tasks end SFT
after a quarter of its tokens; `water_tank` and `coin_cups` (benchmarks/learning/strangers) still improved at half of them."""
SMALL = Scale(
    sft_batch=64,
    sft_rate=5e-4,
    sft_tokens=4_000_000,
    rl_groups=32,
    rl_rate=1e-4,
    rl_steps=200,
    entropy_bonus=0.01,
    validate_every=25,
    table_rollouts=1000,
)
"""Settings for pretrained models with fewer than 50 M parameters."""
LARGE = Scale(
    sft_batch=32,
    sft_rate=3e-3,
    sft_tokens=300_000,
    rl_groups=32,
    rl_rate=3e-4,
    rl_steps=60,
    entropy_bonus=0.005,
    validate_every=15,
    table_rollouts=400,
    lora={"rank": 32, "alpha": 64.0},
)
"""Settings for larger models: in reverse_text, an adapter took half the time of full training and reached the same reward."""
LARGE_PARAMETERS = 50_000_000
"""A model with at least this many parameters is large."""


def scale_of(model: ModelEvidence | None) -> Scale:
    """Return the settings for a pretrained model of this size, or for a new model."""
    if model is None:
        return NEW
    return SMALL if model.parameters < LARGE_PARAMETERS else LARGE


def requested_examples(sections: Sequence[Section]) -> tuple[int, int] | None:
    """Return the numbers of training and evaluation examples that a recipe requests; None if the environment chooses them."""
    values = {section.name: section.values for section in sections}
    training = (values.get("data") or values["rl"][0])["env_args"].get("num_examples")
    evaluation = values["evaluation"]
    return (training, evaluation["env_args"]["num_examples"]) if training else None


def limited(evidence: Evidence, requested: Sequence[int], counts: Sequence[int | None]) -> Evidence:
    """Return the evidence, with limits if the environment has fewer training or evaluation examples than the recipe requests.

    `requested` and `counts` are numbers of training and evaluation examples; a count is None if examples are generated
    on demand.
    """
    limits: list[int | None] = []
    for number, count in zip(requested, counts, strict=True):
        has_fewer = count is not None and count < number
        limits.append(count if has_fewer else None)
    return msgspec.structs.replace(evidence, limit=limits[0], held_out_limit=limits[1])


def choose(env: str, env_args: JsonMapping, evidence: Evidence) -> list[Section]:
    """Return the settings of all stages.

    Args:
        env: Name of the environment.
        env_args: The user's arguments of the environment, for every stage.
        evidence: Facts about the environment.

    Raises:
        ConfigError: The pretrained model cannot do the task at all, and there is no policy to learn from; or a new model has only
            one policy to learn from.
    """
    model = evidence.model
    scale = scale_of(model)
    needs_sft = _needs_sft(evidence)
    if needs_sft:
        _check_policies(evidence)
        if evidence.is_raw_text:
            raise ConfigError(
                "the environment has message_type 'completion', and SFT on a policy's rollouts trains chat messages; use "
                "message_type 'chat', or a pretrained model that begins with RL (rove rl)"
            )
    # A response may be twice as long as those of the policies, but not many times as long: each token costs time.
    limit = evidence.response_tokens if evidence.policies or model is None else model.response_tokens
    max_tokens = min(2 * limit, limit + 256) + 16
    held_out = _held_out(env_args, evidence, scale)
    if not held_out.table:
        raise ConfigError(
            "the environment has no held-out examples: its eval_dataset is empty; add rows, or leave eval_dataset out"
        )
    # The rows of both are numbered alike only if the arguments are the same.
    count = scale.table_rollouts if _has_seed(evidence) else SELECTION_ROLLOUTS + scale.table_rollouts
    table_args = _with_examples(env_args, evidence, count)
    selection_args = table_args
    if held_out.has_other_seed:
        selection_args = {**_with_examples(env_args, evidence, SELECTION_ROLLOUTS), "seed": evidence.seed + 1}
    references = [policy.model for policy in evidence.policies]
    sampled = {
        "env": env,
        "name": "sampled",
        "env_args": selection_args,
        "num_examples": _examples(held_out.selection, evidence),
        "rollouts_per_example": evidence.members,
        "temperature": 1.0,
        "max_tokens": max_tokens,
    }
    return [
        Section("", {"env": env, "references": references}, evidence.split),
        _model_section(model, _with_examples(env_args, evidence, POLICY_EXAMPLES)),
        *(_sft_sections(env_args, evidence, scale, sampled) if needs_sft else []),
        _rl_section(env_args, evidence, scale, sampled),
        Section(
            "evaluation",
            {
                "num_examples": _examples(held_out.table, evidence),
                **({"skip_examples": held_out.skipped} if held_out.skipped else {}),
                "rollouts_per_example": evidence.members,
                "max_tokens": max_tokens,
                "seed": TABLE_SEED,
                "env_args": table_args,
            },
            "Held-out examples for each row of the table. `max_tokens` limits one response.\n"
            + _selection_text(evidence, held_out),
        ),
        Section(
            "conditions",
            [{"name": "sampled", "temperature": 1.0}, {"name": "greedy", "temperature": 0.0}],
            "RL maximizes the reward at T = 1.",
        ),
        Section(
            "columns",
            [
                _column("reward at T = 1", "sampled", "reward"),
                _column("greedy", "greedy", "reward"),
                *(_column(f"{name} at T = 1", "sampled", name) for name in evidence.functions[:2]),
            ],
        ),
    ]


def _needs_sft(evidence: Evidence) -> bool:
    """Return whether a policy is imitated before RL, which learns only from groups whose rewards differ."""
    model = evidence.model
    if model is None or evidence.teacher_name:
        return True
    if not evidence.policies:
        return model.spread_share == 0
    return model.spread_share < MIN_SPREAD


def _examples(rollouts: int, evidence: Evidence) -> int:
    """Return the number of examples that about this many rollouts need."""
    return math.ceil(rollouts / evidence.members)


def _limit(evidence: Evidence) -> str:
    if not evidence.limit:
        return ""
    return f"\nThe environment has {evidence.limit:,} training examples, fewer than requested."


def _held_out(env_args: JsonMapping, evidence: Evidence, scale: Scale) -> HeldOut:
    """Return which held-out examples select the weights, and which examples the results table uses."""
    available = evidence.held_out_limit if _makes_examples(env_args, evidence) else evidence.held_out
    return split_held_out(available, scale.table_rollouts, _has_seed(evidence))


def _has_seed(evidence: Evidence) -> bool:
    """Return whether the environment has an argument `seed` that generates other examples."""
    return "seed" in evidence.arguments and not evidence.seed_repeats


def _selection_text(evidence: Evidence, held_out: HeldOut) -> str:
    """Return a text about the examples that select the weights, and how many of them the results table repeats."""
    text = held_out.explanation
    if evidence.seed_repeats:
        text = f"Another seed would repeat some of the table's examples, so all held-out examples have the same seed.\n{text}"
    # Where both use all examples, the explanation says so.
    if evidence.shared and (held_out.has_other_seed or held_out.skipped):
        text += (
            f"\nBut the environment repeats questions: {evidence.shared:,} of the table's {held_out.table:,} examples have the "
            "question and the answer of an example that chooses the weights."
        )
    return text


def _check_policies(evidence: Evidence) -> None:
    """Check that there are policies for SFT; see `choose`."""
    policies, model = evidence.policies, evidence.model
    start_name, start = evidence.start if policies else ("", 0.0)
    if evidence.teacher_name and evidence.teacher.reward <= start:
        raise ConfigError(
            f"the teacher {evidence.teacher_name} earns {evidence.teacher.reward:.3f}, and {start_name} {start:.3f}; expected a "
            "teacher that is better than where SFT starts: choose another one, or leave it out"
        )
    if model is not None and not policies:
        raise ConfigError(
            f"no_spread: in {1 - model.spread_share:.0%} of the groups all rewards of the model are equal, and "
            "the environment has no scripted policies for SFT; add one, make the first examples easier, or name a model "
            "to imitate (--teacher MODEL)"
        )
    if model is None and len(policies) == 1:
        # The other policies may have failed in every rollout: the error is the cause, not the number of policies.
        errors = [diagnosis for diagnosis in evidence.diagnoses if diagnosis.id == "reward_error"]
        if errors:
            raise ConfigError(str(errors[0]))
        raise ConfigError(
            f"the environment has one scripted policy, '{policies[0].name}'; expected a good one and a weak one. Add a "
            "policy that guesses to `policies`: its reward shows how much a guess earns. Or start from a pretrained model (-m)"
        )


def _column(title: str, condition: str, value: str) -> JsonObject:
    return {"title": title, "condition": condition, "values": [value], "interval": True}


def _model_section(model: ModelEvidence | None, env_args: JsonMapping) -> Section:
    if model is None:
        values = {"arch": "llama", "size": "tiny", "env_args": dict(env_args)}
        return Section(
            "model",
            values,
            "A new model (about 0.5M parameters) with a tokenizer for the environment. If SFT stays at the level of a guess, "
            "`rove train` starts again with layers that can find and copy parts of the prompt.",
        )
    amount = "enough for RL without SFT" if model.spread_share >= MIN_SPREAD else "few for RL without SFT"
    reason = (
        f"Its reward is {model.reward:.3f} at T = 1; {model.spread_share:.0%} of {model.groups} groups have different rewards, "
        f"{amount}."
    )
    return Section("model", {"name": model.name}, reason)


def for_one_start(sections: Sequence[Section], evidence: Evidence) -> list[Section]:
    """Return a recipe for a time limit, which leaves no time for two starts of a new model.

    With tools, the model begins with the layers of a second start, because replies often copy: names and numbers of the prompt
    into calls, and results into the answer (docs/decisions/recall_layers.md).
    """
    if evidence.model is not None:
        return list(sections)
    if evidence.has_tools:
        changes = {"arch": "lfm2", "init": "recall"}
        reason = (
            "A new model (about 0.7M parameters) with a tokenizer for the environment. Its layers can find and copy parts of the "
            "prompt."
        )
    else:
        changes, reason = {}, "A new model (about 0.5M parameters) with a tokenizer for the environment."
    return [
        Section("model", {**section.values, **changes}, reason) if section.name == "model" else section
        for section in sections
    ]


def _sft_sections(env_args: JsonMapping, evidence: Evidence, scale: Scale, sampled: JsonMapping) -> list[Section]:
    """Return the settings of the teacher's rollouts and of SFT."""
    best = evidence.teacher
    title = "teacher" if evidence.teacher_name else "best policy"
    start_name, start = evidence.start
    goal = start + SFT_GOAL * (best.reward - start)
    available = training_examples(env_args, evidence) or MAX_DATA_ROLLOUTS
    good_share = best.good_share
    # Only the good share of the rollouts is trained on, so more are collected.
    tokens = min(DATA_TOKENS, scale.sft_tokens / good_share)
    rollouts = min(MAX_DATA_ROLLOUTS, tokens / evidence.rollout_tokens)
    if best.is_model:
        rollouts = min(rollouts, MODEL_TEACHER_ROLLOUTS)
    # Repeated rollouts of a deterministic policy would be equal.
    repetitions = int(rollouts) // available if best.varies else 1
    per_example = max(evidence.members, repetitions)
    requested = max(1, int(rollouts) // evidence.members)
    examples = min(available, requested)
    share = min(1.0, max(MIN_BATCH_SHARE, LONG_ROLLOUT / max(1.0, evidence.rollout_tokens)))
    batch = round(share * scale.sft_batch)
    trained_rollouts = good_share * examples * per_example
    steps_per_epoch = max(1, round(trained_rollouts / batch))
    epochs = round(scale.sft_tokens / (trained_rollouts * evidence.rollout_tokens))
    epochs = max(1, min(epochs, MAX_EPOCHS, MAX_SFT_STEPS // steps_per_epoch))
    every, warmup = scale.validate_every, warmup_of(steps_per_epoch * epochs)
    return [
        Section(
            "data",
            {
                "model": best.model,
                "num_examples": examples,
                "rollouts_per_example": per_example,
                "train": True,
                "env_args": _with_examples(env_args, evidence, requested),
            },
            f"The {title}: reward {best.reward:.3f}; {start_name} has {start:.3f}. A rollout has about "
            f"{evidence.rollout_tokens:.0f} tokens.{_limit(evidence)}",
        ),
        Section(
            "sft",
            {
                "min_reward": best.good_reward,
                "batch_size": batch,
                "learning_rate": scale.sft_rate,
                **({"warmup_steps": warmup} if warmup < SFT_WARMUP else {}),
                "epochs": epochs,
                "validate_every": every,
                "keep_best": "eval/sampled/reward/mean",
                "target": float(f"{goal:.6g}"),  # not round(): the target of small rewards would be 0
                "patience": SFT_PATIENCE,
                "mixed_precision": True,
                **({"lora": scale.lora} if scale.lora else {}),
                "evaluation": [{**sampled, "every": every}],
            },
            f"Ends when the sampled reward reaches {goal:.3f}, {SFT_GOAL:.0%} of the way from {start_name} to the "
            f"{title}.\n"
            f"`min_reward` selects {good_share:.0%} of the rollouts for training.",
        ),
    ]


def warmup_of(steps: int) -> int:
    """Return the warm-up of SFT: a tenth of few steps, so that the learning rate reaches its peak."""
    return min(SFT_WARMUP, max(1, steps // 10))


def _rl_size(env_args: JsonMapping, evidence: Evidence, scale: Scale) -> tuple[int, int]:
    """Return the number of groups in an RL step, and the maximum number of steps."""
    rollout_tokens = max(1.0, evidence.rollout_tokens)
    groups = int(RL_STEP_TOKENS / (GROUP_SIZE * rollout_tokens))
    groups = min(groups, training_examples(env_args, evidence) or groups)
    groups = max(scale.rl_groups, min(scale.max_rl_groups, groups))
    steps = int(RL_TOKENS / (groups * GROUP_SIZE * rollout_tokens))
    return groups, min(scale.rl_steps, max(MIN_RL_STEPS, steps))


def _rl_section(env_args: JsonMapping, evidence: Evidence, scale: Scale, sampled: JsonMapping) -> Section:
    groups, steps = _rl_size(env_args, evidence, scale)
    # The default limit of this alert is for rewards of magnitude 1.
    gain = AlertLimits().held_out_gain * evidence.reward_unit
    values = {
        "name": "RL",
        "steps": steps,
        "batch_size": groups * GROUP_SIZE,
        "rollouts_per_example": GROUP_SIZE,
        "learning_rate": scale.rl_rate,
        "final_lr_fraction": FINAL_RATE,
        "lr_backoff": LR_BACKOFF,
        "loss": scale.loss(evidence.sampled_tokens, evidence.reward_unit),
        **({"alerts": {"held_out_gain": gain}} if evidence.reward_unit != 1 else {}),
        "temperature": scale.temperature,
        "max_tokens": sampled["max_tokens"],
        "keep_best": "eval/sampled/reward/mean",
        "equal_best": "shortest",
        "patience": RL_PATIENCE,
        "mixed_precision": True,
        "bf16_sampling": True,
        "env_args": _with_examples(env_args, evidence, steps * groups),
        # Rows may be sorted: by difficulty, by class, or by the environments of a group.
        **({"curriculum": {"shuffle": True}} if evidence.examples is not None else {}),
        **({"lora": scale.lora} if scale.lora else {}),
        "evaluation": [{**sampled, "every": 10}],
    }
    reason = "Ends earlier when the sampled reward on held-out examples has not risen for some evaluations."
    if training_examples(env_args, evidence) is None:
        reason += " `num_examples` gives every step new examples."
    return Section("rl", [values], reason + _limit(evidence))


def _with_examples(env_args: JsonMapping, evidence: Evidence, count: int) -> JsonObject:
    """Return the arguments; add the number of examples if the environment has this argument and the user did not set it."""
    if "num_examples" not in evidence.arguments:
        return dict(env_args)
    return {"num_examples": count, **env_args}


def training_examples(env_args: JsonMapping, evidence: Evidence) -> int | None:
    """Return the number of training examples; None if the environment has as many as the recipe requests."""
    return evidence.limit if _makes_examples(env_args, evidence) else evidence.examples


def _makes_examples(env_args: JsonMapping, evidence: Evidence) -> bool:
    """Return whether the recipe may choose the number of examples."""
    return "num_examples" in evidence.arguments and "num_examples" not in env_args
