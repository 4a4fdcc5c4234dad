"""Choose the settings of `rove train` from what an environment shows: its policies, lengths and rewards."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError
from rove.core.findings import Finding, current_row
from rove.core.records import RolloutRecord
from rove.engine.client import EngineClient
from rove.envs.environment import Environment
from rove.models.from_scratch import train_tokenizer
from rove.models.load import LoadedModel
from rove.rendering.renderer import Renderer, Tokenizer
from rove.rollouts.evaluate import conversation_texts, generate
from rove.train.diagnosis import Task, before_training
from rove.train.held_out import SELECTION_ROLLOUTS, TABLE_SEED, HeldOut, split_held_out
from rove.train.policy_comparison import longest_response
from rove.train.predictability import hidden_share
from rove.train.recipe_file import Section

T = TypeVar("T")

MODEL = "the model"
"""Stands for the pretrained model where a policy's name is expected."""

POLICY_EXAMPLES = 150
"""Examples that each scripted policy is examined on, with two rollouts each."""
UNTRAINED_EXAMPLES = 8
"""Examples on which a policy that does not know the format is run."""
MODEL_GROUPS = 16
"""Groups that a pretrained model is examined on."""
MODEL_TOKENS = 256
"""Maximum tokens per response of a pretrained model in an environment without scripted policies."""
LR_BACKOFF = 0.3
"""Factor of the learning rate of RL after a fall of the held-out reward."""
RL_PATIENCE = 15
"""Evaluations without a new best after which RL ends."""
MAX_DATA_ROLLOUTS, DATA_TOKENS = 40_000, 4_000_000
"""Maximum number of the teacher's rollouts, and of their tokens."""
MAX_EPOCHS, MAX_SFT_STEPS = 100, 5000
"""Limits of SFT on small datasets."""
SFT_PATIENCE = 60
"""Evaluations without a new best reward or validation loss after which SFT ends; new models may stay on a plateau for long."""
SFT_GOAL = 0.9
"""SFT ends when the sampled reward has gone this share of the way from the weakest policy to the best one. RL does the rest, but
it does not make up for short SFT: with 0.6, reasoning_mix and frozen_lake ended 0.1 lower (docs/recipe_study.md)."""
MIN_SPREAD = 0.5
"""Share of groups with different rewards from which a pretrained model needs no SFT."""
GROUP_SIZE = 8
"""Rollouts in a group."""
RL_TOKENS = 10_000_000
"""Maximum number of tokens in RL."""
MIN_RL_STEPS = 60
"""The recipe allows this many steps of RL even if they take more tokens."""
RL_STEP_TOKENS = 32_768
"""Tokens of an RL step up to which there are more groups than the minimum: with more examples, the gradient is less noisy."""
ENTROPY_TARGET = 0.15
"""Nats per token above which the entropy bonus is off: without a limit, it drove policies with small advantages to chance."""


class Scale(msgspec.Struct, frozen=True):
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
    """Held-out rollouts per row of the results table."""
    lora: dict[str, Any] = {}
    max_rl_groups: int = 32
    """Maximum number of groups in an RL step, if rollouts are short."""
    temperature: float = 1.0
    """Sampling temperature of RL: above 1, good models make enough errors to learn from (docs/recipe_study.md)."""


NEW = Scale(128, 1e-3, 12_000_000, 32, 3e-4, 400, 0.01, 25, 1000, max_rl_groups=128, temperature=1.15)
"""New models of half a million parameters; SFT takes at most some five minutes of one CPU core."""
SMALL = Scale(64, 5e-4, 4_000_000, 32, 1e-4, 200, 0.01, 25, 1000)
"""Pretrained models below 50 M parameters."""
LARGE = Scale(32, 3e-3, 300_000, 32, 3e-4, 60, 0.005, 15, 400, {"rank": 32, "alpha": 64.0})
"""Larger models: in reverse_text, an adapter took half the time of full training and reached the same reward."""
LARGE_PARAMETERS = 50_000_000
"""Number of parameters from which a model is large."""


class PolicyEvidence(msgspec.Struct, frozen=True):
    """Rollouts of a scripted policy."""

    name: str
    reward: float
    """Mean reward."""
    highest: float
    """Highest reward of one rollout."""
    lowest: float
    """Lowest reward of one rollout."""
    spread: float
    """Standard deviation of the reward."""
    varies: bool
    """Whether two rollouts of an example may differ."""
    good_reward: float
    """Minimum reward of the rollouts that SFT trains on: the larger one of mean and median."""
    good_share: float
    """Share of the rollouts with at least this reward."""


class ModelEvidence(msgspec.Struct, frozen=True):
    """Rollouts of a pretrained model at T = 1, in groups."""

    name: str
    parameters: int
    reward: float
    """Mean reward."""
    lowest: float
    """Lowest reward of one rollout."""
    spread_share: float
    """Share of the groups whose rewards differ."""
    response_tokens: int
    """Tokens of the longest response."""

    @property
    def scale(self) -> Scale:
        """Settings for its size."""
        return SMALL if self.parameters < LARGE_PARAMETERS else LARGE


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment shows before any training."""

    policies: list[PolicyEvidence] = []
    """Scripted policies, from the weakest to the best."""
    model: ModelEvidence | None = None
    """The pretrained model, if training starts from one."""
    examples: int | None
    """Rows of the training dataset; None if they are generated on demand."""
    held_out: int | None = None
    """Rows of the evaluation dataset; None if they are generated on demand."""
    limit: int | None = None
    """Rows of the training dataset if the environment has fewer than the recipe requests."""
    held_out_limit: int | None = None
    """The same for the evaluation dataset."""
    arguments: frozenset[str]
    """Names of the arguments of `load_environment`."""
    functions: list[str]
    """Names of the reward functions with a weight."""
    rollout_tokens: float = 0.0
    """Mean tokens of a whole rollout of the best policy, or of the model without policies."""
    sampled_tokens: float = 0.0
    """Mean tokens of its responses in a rollout."""
    turns: float = 1.0
    """Mean number of its responses in a rollout."""
    untrained_turns: int = 1
    """Maximum number of responses in a rollout of a model that has not learned the format."""
    rollout_seconds: float = 0.0
    """Seconds per rollout of the fastest scripted policy: those of the environment and the rubric."""
    teacher_seconds: float = 0.0
    """Seconds per rollout of the best policy."""
    setup_seconds: float = 0.0
    """Seconds of a first evaluation of one rollout, most of which load data and start processes."""
    response_tokens: int = MODEL_TOKENS
    """Tokens of the scripted policies' longest response."""
    hidden: float | None = None
    """How much the best policy uses what the conversation does not show; see `hidden_share`."""
    diagnoses: list[Finding] = []
    """What may prevent learning."""
    split: str = ""
    """How the environment splits its rows into training and held-out ones, if it says so."""

    @property
    def task(self) -> Task:
        """What the diagnoses of training need."""
        best = self.policies[-1]
        highest = max(one.highest for one in self.policies)
        name, start = self.start
        if self.model is not None and name == MODEL:  # no weak policy shows what a guess earns
            lowest = min(best.lowest, self.model.lowest)
            return Task(
                start_name=name, weakest=start, best=best.reward, highest=highest, lowest=lowest, hidden=self.hidden
            )
        return Task(weakest=start, best=best.reward, highest=highest, hidden=self.hidden)

    @property
    def start(self) -> tuple[str, float]:
        """Where SFT starts: name and reward of the weakest policy, or of the pretrained model if there is only one policy."""
        weakest, best = self.policies[0], self.policies[-1]
        if self.model is not None and weakest is best:
            return MODEL, min(self.model.reward, best.reward)
        return weakest.name, weakest.reward


def read_evidence(file: Path) -> Evidence:
    """Read the evidence in the folder of a `rove train`."""
    values = msgspec.json.decode(file.read_bytes())
    values["diagnoses"] = [current_row(row) for row in values["diagnoses"]]
    return msgspec.convert(values, Evidence)


class Examination(NamedTuple):
    """The evidence, and rollouts that it comes from."""

    evidence: Evidence
    texts: list[str]
    """Rollouts of all scripted policies."""
    conversations: list[tuple[list[int], list[bool]]]
    """Tokens of the best policy's rollouts, or of the model's, and which of them are sampled."""


async def examine(
    env: Environment,
    arguments: frozenset[str],
    loaded: LoadedModel | None = None,
    tokenizer: Mapping[str, Any] = MappingProxyType({}),
) -> Examination:
    """Run the scripted policies of an environment, and a pretrained model; return what they show.

    Args:
        env: The environment.
        arguments: Names of the arguments of its `load_environment`.
        loaded: The pretrained model; None if training starts from a new one.
        tokenizer: Settings of a new model's tokenizer; see `train_tokenizer`.

    Raises:
        ConfigError: There is neither a policy nor a model to learn from, or the rollouts show that nothing can be learned.
    """
    if not env.policies and loaded is None:
        raise ConfigError(
            "the environment has no scripted policies to learn from; start from a pretrained model (rove train NAME -m MODEL), "
            "or collect rollouts of a teacher (rove eval NAME -m TEACHER --train) and train a new model on them (rove sft)"
        )
    records, seconds, setup = await _run_policies(env)
    scored = {name: some for name in records if (some := [one for one in records[name] if one.scores is not None])}
    policies = sorted((_policy_evidence(name, some) for name, some in scored.items()), key=lambda one: one.reward)
    best = scored[policies[-1].name] if policies else []
    hidden = hidden_share(best)
    errors = _first_errors(records)
    diagnoses = before_training(
        {name: [one.reward or 0.0 for one in some] for name, some in scored.items()}, errors, hidden
    )
    fatal = next((one for one in diagnoses if one.id == "no_spread" or not scored), None)
    if fatal is not None:
        raise ConfigError(str(fatal))
    texts = [text for some in scored.values() for text in conversation_texts(some)]
    renderer = Renderer(cast("Tokenizer", train_tokenizer(texts, **tokenizer) if loaded is None else loaded.tokenizer))
    model: ModelEvidence | None = None
    limit = longest_response(renderer, [one for some in scored.values() for one in some]) if scored else MODEL_TOKENS
    if loaded is not None:
        model, tried = await _try_model(env, loaded, min(MODEL_TOKENS, 2 * limit + 16))
        best = best or tried
    assert best[0].scores is not None
    conversations = [renderer.training_branches([*r.prompt, *r.completion], r.tools) for r in best]
    evidence = Evidence(
        policies=policies,
        model=model,
        examples=env.count_examples(train=True),
        held_out=env.count_examples(),
        arguments=arguments,
        functions=[name for name, weight in best[0].scores.weights.items() if weight],
        rollout_tokens=statistics.fmean(sum(len(ids) for ids, _ in branches) for branches in conversations),
        sampled_tokens=statistics.fmean(sum(sum(mask) for _, mask in branches) for branches in conversations),
        turns=statistics.fmean(max(1, len(record.steps)) for record in best),
        untrained_turns=await _untrained_turns(env),
        rollout_seconds=min((seconds[name] for name in scored), default=0.0),
        teacher_seconds=seconds[policies[-1].name] if policies else 0.0,
        setup_seconds=setup,
        response_tokens=limit,
        hidden=hidden,
        diagnoses=diagnoses,
        split=env.split_description,
    )
    return Examination(evidence, texts, [branch for branches in conversations for branch in branches])


async def _run_policies(env: Environment) -> tuple[dict[str, list[RolloutRecord]], dict[str, float], float]:
    """Return rollouts of each scripted policy, its seconds per rollout, and the seconds of a first evaluation."""
    records: dict[str, list[RolloutRecord]] = {}
    seconds: dict[str, float] = {}
    setup = 0.0
    for name, policy in env.policies.items():
        client = ScriptedClient(policy, name)
        single: dict[str, Any] = {"num_examples": 1, "rollouts_per_example": 1, "train": True}
        _, cold = await _timed(generate(env, client, **single))
        setup = setup or cold
        _, one = await _timed(generate(env, client, **single))  # without what is loaded only once
        options: dict[str, Any] = {"num_examples": POLICY_EXAMPLES, "rollouts_per_example": 2, "train": True}
        records[name], every = await _timed(generate(env, client, **options))
        seconds[name] = max(every - one, every / 20) / max(1, len(records[name]))
    return records, seconds, setup


async def _untrained_turns(env: Environment) -> int:
    """Return the maximum number of responses in a rollout of a policy that does not know the format."""
    client = ScriptedClient(lambda messages, state, rng: "?", "untrained")
    records = await generate(env, client, num_examples=UNTRAINED_EXAMPLES, rollouts_per_example=1, train=True)
    return max([1, *(len(record.steps) for record in records)])


async def _timed(work: Awaitable[T]) -> tuple[T, float]:
    """Return a result and the seconds that it took."""
    started = time.perf_counter()
    result = await work
    return result, time.perf_counter() - started


def _first_errors(records: Mapping[str, Sequence[RolloutRecord]]) -> dict[str, str]:
    """Return the first error of each policy with failed rollouts."""
    errors = {name: next((one.error for one in some if one.error is not None), None) for name, some in records.items()}
    return {
        name: f"{error.phase}: {error.type}: {error.message}" for name, error in errors.items() if error is not None
    }


def _policy_evidence(name: str, records: Sequence[RolloutRecord]) -> PolicyEvidence:
    rewards = [record.scores.reward for record in records if record.scores is not None]
    mean, highest = statistics.fmean(rewards), max(rewards)
    good = min(max(statistics.median(rewards), mean), highest)  # a mean of equal rewards may be above them by rounding
    return PolicyEvidence(
        name=name,
        reward=mean,
        highest=highest,
        lowest=min(rewards),
        good_reward=good,
        good_share=statistics.fmean(reward >= good for reward in rewards),
        spread=statistics.pstdev(rewards),
        varies=len({(r.example_id, msgspec.json.encode(r.completion)) for r in records})
        > len({record.example_id for record in records}),
    )


async def _try_model(
    env: Environment, loaded: LoadedModel, max_tokens: int
) -> tuple[ModelEvidence, list[RolloutRecord]]:
    """Sample groups of a pretrained model; return what they show, and the scored rollouts.

    Raises:
        ConfigError: Every rollout failed.
    """
    client = EngineClient.from_model(loaded)
    records = await generate(
        env,
        client,
        num_examples=MODEL_GROUPS,
        rollouts_per_example=GROUP_SIZE,
        sampling_args={"temperature": 1.0, "max_tokens": max_tokens},
        train=True,
    )
    await client.close()
    scored = [record for record in records if record.scores is not None]
    if not scored:
        error = next(iter(_first_errors({"the model": records}).values()))
        raise ConfigError(f"reward_error: every rollout of the model fails; the first: {error}; fix the environment")
    groups: dict[int, set[float]] = {}
    for record in scored:
        groups.setdefault(record.example_id, set()).add(record.reward or 0.0)
    evidence = ModelEvidence(
        name=loaded.name,
        parameters=sum(weight.numel() for weight in loaded.model.parameters()),
        reward=statistics.fmean(record.reward or 0.0 for record in scored),
        lowest=min(record.reward or 0.0 for record in scored),
        spread_share=sum(len(rewards) > 1 for rewards in groups.values()) / len(groups),
        response_tokens=max(len(s.tokens.completion_ids) for r in scored for s in r.steps if s.tokens is not None),
    )
    return evidence, scored


def requested_examples(sections: Sequence[Section]) -> tuple[int, int] | None:
    """Return how many training and evaluation examples a recipe requests; None if it leaves the number to the environment."""
    values = {section.name: section.values for section in sections}
    training = (values.get("data") or values["rl"][0])["env_args"].get("num_examples")
    evaluation = values["evaluation"]
    return (training, evaluation["env_args"]["num_examples"]) if training else None


def limited(evidence: Evidence, requested: Sequence[int], counts: Sequence[int | None]) -> Evidence:
    """Return the evidence with the limits of an environment that has fewer training or evaluation examples than requested.

    `requested` and `counts` are its training and evaluation examples; a count is None if they are generated on demand.
    """
    limits = [count if count is not None and count < wanted else None for wanted, count in zip(requested, counts)]
    return msgspec.structs.replace(evidence, limit=limits[0], held_out_limit=limits[1])


def choose(env: str, env_args: Mapping[str, Any], evidence: Evidence) -> list[Section]:
    """Return the settings of all stages.

    Args:
        env: Name of the environment.
        env_args: The user's arguments of the environment, for every stage.
        evidence: What the environment shows.

    Raises:
        ConfigError: The pretrained model cannot do the task at all, and there is no policy to learn from; or a new model has only
            one policy to learn from.
    """
    model = evidence.model
    scale = NEW if model is None else model.scale
    needs_sft = model is None or model.spread_share < MIN_SPREAD
    if needs_sft:
        _check_policies(evidence)
    limit = evidence.response_tokens if evidence.policies or model is None else model.response_tokens
    max_tokens = min(2 * limit, limit + 256) + 16
    held_out = _held_out(env_args, evidence, scale)
    # The rows of both are numbered alike only if the arguments are the same.
    count = scale.table_rollouts if "seed" in evidence.arguments else SELECTION_ROLLOUTS + scale.table_rollouts
    table_args = _with_examples(env_args, evidence, count)
    selection_args = table_args
    if held_out.has_other_seed:
        other_seed = env_args.get("seed", 0) + 1
        selection_args = {**_with_examples(env_args, evidence, SELECTION_ROLLOUTS), "seed": other_seed}
    sampled = {
        "env": env,
        "name": "sampled",
        "env_args": selection_args,
        "num_examples": held_out.selection,
        "temperature": 1.0,
        "max_tokens": max_tokens,
    }
    return [
        Section("", {"env": env, "references": [f"scripted:{one.name}" for one in evidence.policies]}, evidence.split),
        _model_section(model, _with_examples(env_args, evidence, POLICY_EXAMPLES)),
        *(_sft_sections(env_args, evidence, scale, sampled) if needs_sft else []),
        _rl_section(env_args, evidence, scale, sampled),
        Section(
            "evaluation",
            {
                "num_examples": held_out.table,
                **({"skip_examples": held_out.skipped} if held_out.skipped else {}),
                "rollouts_per_example": 1,
                "max_tokens": max_tokens,
                "seed": TABLE_SEED,
                "env_args": table_args,
            },
            f"Held-out examples for each row of the table. `max_tokens` limits one response.\n{held_out.explanation}",
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


def _limit(evidence: Evidence) -> str:
    return (
        f"\nThe environment has {evidence.limit:,} training examples, fewer than requested." if evidence.limit else ""
    )


def _held_out(env_args: Mapping[str, Any], evidence: Evidence, scale: Scale) -> HeldOut:
    """Return which held-out examples choose the weights, and which ones the table reports."""
    available = evidence.held_out_limit if _makes_examples(env_args, evidence) else evidence.held_out
    return split_held_out(available, scale.table_rollouts, "seed" in evidence.arguments)


def _check_policies(evidence: Evidence) -> None:
    """Check that there are policies for SFT; see `choose`."""
    policies, model = evidence.policies, evidence.model
    if model is not None and not policies:
        raise ConfigError(
            f"no_spread: in {1 - model.spread_share:.0%} of the groups all rewards of the model are equal, and "
            "the environment has no scripted policies for SFT; add one, make the first examples easier, or collect rollouts "
            "of a teacher (rove eval NAME -m TEACHER --train), train on them (rove sft) and start from that model"
        )
    errors = [one for one in evidence.diagnoses if one.id == "reward_error"]
    if model is None and len(policies) == 1 and errors:  # all rollouts of the other policies fail
        raise ConfigError(str(errors[0]))
    if model is None and len(policies) == 1:
        raise ConfigError(
            f"the environment has one scripted policy, '{policies[0].name}'; expected a good one and a weak one. Add a "
            "policy that guesses to `policies`: its reward shows how much a guess earns"
        )


def _column(title: str, condition: str, value: str) -> dict[str, Any]:
    return {"title": title, "condition": condition, "values": [value], "interval": True}


def _model_section(model: ModelEvidence | None, env_args: Mapping[str, Any]) -> Section:
    if model is None:
        values = {"arch": "llama", "size": "tiny", "env_args": dict(env_args)}
        return Section("model", values, "A new model (about 0.5M parameters) with a tokenizer for the environment.")
    reason = (
        f"Its reward is {model.reward:.3f} at T = 1; {model.spread_share:.0%} of {MODEL_GROUPS} groups have different rewards, "
        f"{'enough for RL without SFT' if model.spread_share >= MIN_SPREAD else 'too few for RL without SFT'}."
    )
    return Section("model", {"name": model.name}, reason)


def _sft_sections(
    env_args: Mapping[str, Any], evidence: Evidence, scale: Scale, sampled: Mapping[str, Any]
) -> list[Section]:
    """Return the settings of the teacher's rollouts and of SFT."""
    best = evidence.policies[-1]
    start_name, start = evidence.start
    goal = start + SFT_GOAL * (best.reward - start)
    available = _training_examples(env_args, evidence) or MAX_DATA_ROLLOUTS
    kept = best.good_share
    wanted = min(MAX_DATA_ROLLOUTS, min(DATA_TOKENS, scale.sft_tokens / kept) / evidence.rollout_tokens)
    each = max(1, int(wanted) // available) if best.varies else 1
    requested = max(1, int(wanted))
    examples = min(available, requested)
    steps_per_epoch = max(1, round(kept * examples * each / scale.sft_batch))
    epochs = round(scale.sft_tokens / (kept * examples * each * evidence.rollout_tokens))
    epochs = max(1, min(epochs, MAX_EPOCHS, MAX_SFT_STEPS // steps_per_epoch))
    every = scale.validate_every
    return [
        Section(
            "data",
            {
                "model": f"scripted:{best.name}",
                "num_examples": examples,
                "rollouts_per_example": each,
                "train": True,
                "env_args": _with_examples(env_args, evidence, requested),
            },
            f"The best policy: reward {best.reward:.3f}; {start_name} has {start:.3f}. A rollout has about "
            f"{evidence.rollout_tokens:.0f} tokens.{_limit(evidence)}",
        ),
        Section(
            "sft",
            {
                "min_reward": best.good_reward,
                "batch_size": scale.sft_batch,
                "learning_rate": scale.sft_rate,
                "epochs": epochs,
                "validate_every": every,
                "keep_best": "eval/sampled/reward/mean",
                "target": round(goal, 4),
                "patience": SFT_PATIENCE,
                "mixed_precision": True,
                **({"lora": scale.lora} if scale.lora else {}),
                "evaluation": [{**sampled, "every": every}],
            },
            f"Ends when the sampled reward reaches {goal:.3f}, {SFT_GOAL:.0%} of the way from {start_name} to the best policy.\n"
            f"`min_reward` selects {best.good_share:.0%} of the rollouts for training.",
        ),
    ]


def _rl_size(env_args: Mapping[str, Any], evidence: Evidence, scale: Scale) -> tuple[int, int]:
    """Return the number of groups in an RL step, and the maximum number of steps."""
    groups = int(RL_STEP_TOKENS / (GROUP_SIZE * max(1.0, evidence.rollout_tokens)))
    groups = min(groups, _training_examples(env_args, evidence) or groups)
    groups = max(scale.rl_groups, min(scale.max_rl_groups, groups))
    steps = int(RL_TOKENS / (groups * GROUP_SIZE * max(1.0, evidence.rollout_tokens)))
    return groups, min(scale.rl_steps, max(MIN_RL_STEPS, steps))


def _rl_section(env_args: Mapping[str, Any], evidence: Evidence, scale: Scale, sampled: Mapping[str, Any]) -> Section:
    groups, steps = _rl_size(env_args, evidence, scale)
    values = {
        "name": "RL",
        "steps": steps,
        "batch_size": groups * GROUP_SIZE,
        "rollouts_per_example": GROUP_SIZE,
        "learning_rate": scale.rl_rate,
        "final_lr_fraction": 0.3,
        "lr_backoff": LR_BACKOFF,
        "loss": {"entropy_bonus": scale.entropy_bonus, "entropy_target": ENTROPY_TARGET},
        "temperature": scale.temperature,
        "max_tokens": sampled["max_tokens"],
        "keep_best": "eval/sampled/reward/mean",
        "patience": RL_PATIENCE,
        "mixed_precision": True,
        "bf16_sampling": True,
        "env_args": _with_examples(env_args, evidence, steps * groups),
        **({"lora": scale.lora} if scale.lora else {}),
        "evaluation": [{**sampled, "every": 10}],
    }
    reason = "Ends earlier when the sampled reward on held-out examples has not risen for some evaluations."
    if _training_examples(env_args, evidence) is None:
        reason += " `num_examples` gives every step new examples."
    return Section("rl", [values], reason + _limit(evidence))


def _with_examples(env_args: Mapping[str, Any], evidence: Evidence, count: int) -> dict[str, Any]:
    """Return the arguments with the number of examples, if the environment has this argument and the user did not give it."""
    return {**({"num_examples": count} if "num_examples" in evidence.arguments else {}), **env_args}


def _training_examples(env_args: Mapping[str, Any], evidence: Evidence) -> int | None:
    """Return the number of training examples; None if the environment has as many as the recipe requests."""
    return evidence.limit if _makes_examples(env_args, evidence) else evidence.examples


def _makes_examples(env_args: Mapping[str, Any], evidence: Evidence) -> bool:
    """Return whether the recipe may choose the number of examples."""
    return "num_examples" in evidence.arguments and "num_examples" not in env_args
