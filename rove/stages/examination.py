"""Examine an environment before training: its policies, lengths and rewards, and a pretrained model in it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Awaitable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar, cast

import msgspec

from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError
from rove.core.findings import Finding
from rove.core.plain import JsonMapping, JsonObject
from rove.core.protocols import Client, Limits
from rove.core.records import RolloutRecord
from rove.engine.client import EngineClient
from rove.envs.environment import Environment
from rove.models.from_scratch import train_tokenizer
from rove.models.load import LoadedModel
from rove.rendering.prompt_checks import check_first_prompt
from rove.rendering.renderer import Renderer, Tokenizer
from rove.rollouts.evaluate import conversation_texts, generate
from rove.stages.clients import SCRIPTED
from rove.train.diagnosis import Task, before_training
from rove.train.policy_comparison import longest_response
from rove.train.predictability import hidden_share

T = TypeVar("T")

MODEL = "the model"
"""Name of the pretrained model in places where a policy's name is expected."""

POLICY_EXAMPLES = 150
"""Number of examples on which each scripted policy is examined, with two rollouts each; fewer examples with larger groups."""
TEACHER_EXAMPLES = 20
"""The same for a teacher that is a model, whose rollouts may cost money."""
UNTRAINED_EXAMPLES = 8
"""Number of examples on which a policy that does not know the format is run."""
UNTRAINED_FACTOR = 8
"""Such a rollout ends at this multiple of the turns that the policies need at most."""
MAX_POLICY_TURNS = 1_000
"""Maximum number of turns of a scripted policy, which may never end a game."""
MAX_COUNTED, MAX_COUNTED_HELD_OUT = 40_000, 2_000
"""Maximum number of training and held-out examples that a generator makes to count them; a recipe needs no more."""
MODEL_GROUPS = 8
"""Maximum number of groups on which a pretrained model is examined."""
MODEL_OPERATIONS = 3e11
"""Number of floating-point operations, about ten seconds of a slow CPU core, after which no more groups are sampled, unless the
rewards of every group are equal so far."""
MIN_GROUPS, WORSE_SHARE = 3, 0.5
"""From this number of groups on, a model with less than this share of its teacher's reward is clearly worse, even if all rewards
are equal."""
MODEL_TOKENS = 128
"""Maximum tokens per response of a pretrained model in an environment without scripted policies."""
GROUP_SIZE = 8
"""Number of rollouts in a group."""


class Teacher(NamedTuple):
    """A model whose rollouts SFT trains on."""

    name: str
    """Name of the model, as for `rove eval -m`."""
    client: Client


class PolicyEvidence(msgspec.Struct, frozen=True):
    """Facts about a scripted policy, or about a model that is the teacher, from rollouts."""

    name: str
    reward: float
    """Mean reward."""
    highest: float
    """Highest reward of one rollout."""
    lowest: float
    """Lowest reward of one rollout."""
    varies: bool
    """Whether two rollouts of an example may differ."""
    good_reward: float
    """Minimum reward of the rollouts that SFT trains on: the mean or the median, whichever is larger."""
    good_share: float
    """Share of the rollouts with at least this reward."""
    is_model: bool = False
    """Whether the policy is a model."""

    @property
    def model(self) -> str:
        """The policy's name for `rove eval -m`."""
        return self.name if self.is_model else f"{SCRIPTED}{self.name}"


class ModelEvidence(msgspec.Struct, frozen=True):
    """Facts about a pretrained model from groups of rollouts at temperature 1."""

    name: str
    parameters: int
    reward: float
    """Mean reward."""
    lowest: float
    """Lowest reward of one rollout."""
    spread_share: float
    """Share of the groups whose rewards differ."""
    response_tokens: int
    """Number of tokens of the longest response."""
    groups: int
    """Number of groups."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about an environment before any training."""

    policies: list[PolicyEvidence] = []
    """Scripted policies and the teacher, from the weakest to the best."""
    teacher_name: str = ""
    """Name of the policy that was requested as the teacher; "" for the best one."""
    model: ModelEvidence | None = None
    """The pretrained model, if training starts from one."""
    examples: int | None
    """Number of rows in the training dataset; None if they are generated on demand."""
    held_out: int | None = None
    """Number of rows in the evaluation dataset; None if they are generated on demand."""
    limit: int | None = None
    """Number of rows in the training dataset if the recipe requests more; else None."""
    held_out_limit: int | None = None
    """Number of rows in the evaluation dataset if the recipe requests more; else None."""
    arguments: frozenset[str]
    """Names of the arguments of `load_environment`."""
    seed: int = 0
    """Value of the argument `seed` for the training examples."""
    seed_repeats: bool = False
    """Whether another seed generates some of the same examples, as if it reshuffled a fixed pool."""
    shared: int = 0
    """Number of examples of the results table that have the same question and answer as an example that selects the weights."""
    functions: list[str]
    """Names of the reward functions with a weight."""
    is_raw_text: bool = False
    """Whether the model continues a raw text instead of a conversation."""
    has_tools: bool = False
    """Whether all rollouts offer tools."""
    has_group_rewards: bool = False
    """Whether a reward depends on the other rollouts of a group, so that every evaluation needs whole groups."""
    rollout_tokens: float = 0.0
    """Mean number of tokens in a whole rollout of the best policy or, without policies, of the model."""
    sampled_tokens: float = 0.0
    """Mean number of tokens in the responses of such a rollout."""
    turns: float = 1.0
    """Mean number of responses in such a rollout."""
    untrained_turns: int = 1
    """Maximum number of responses in a rollout while the model has not learned the format."""
    rollout_seconds: float = 0.0
    """Seconds per rollout of the fastest scripted policy: the time that environment and rubric take."""
    teacher_seconds: float = 0.0
    """Seconds per rollout of the best policy."""
    setup_seconds: float = 0.0
    """Seconds that a first evaluation of one rollout takes, mostly for loading data and starting processes."""
    response_tokens: int = MODEL_TOKENS
    """Number of tokens in the scripted policies' longest response."""
    hidden: float | None = None
    """How much the best policy depends on information that the conversation does not show; see `hidden_share`."""
    diagnoses: list[Finding] = []
    """Findings about problems that may prevent learning."""
    split: str = ""
    """How the environment splits its rows into training and held-out rows, if it states this."""

    @property
    def teacher(self) -> PolicyEvidence:
        """The policy whose rollouts SFT trains on."""
        requested = [policy for policy in self.policies if policy.name == self.teacher_name]
        return requested[0] if requested else self.policies[-1]

    @property
    def members(self) -> int:
        """Minimum number of rollouts per example in evaluations and in the teacher's data."""
        return GROUP_SIZE if self.has_group_rewards else 1

    @property
    def reward_unit(self) -> float:
        """The order of magnitude of the range of rewards, a power of ten: 1 for a range from 0.32 to 3.2."""
        rewards = [reward for policy in self.policies for reward in (policy.highest, policy.lowest)]
        if self.model is not None:
            rewards += [self.model.reward, self.model.lowest]
        reward_range = max(rewards, default=0.0) - min(rewards, default=0.0)
        return 10.0 ** round(math.log10(reward_range)) if reward_range > 0 else 1.0

    @property
    def task(self) -> Task:
        """The facts about the environment that diagnoses of training need."""
        best = self.teacher
        highest = max(policy.highest for policy in self.policies)
        name, start = self.start
        task = Task(weakest=start, best=best.reward, highest=highest, hidden=self.hidden)
        if self.model is None or name != MODEL:
            return task
        # No weak policy shows what a guess earns.
        return msgspec.structs.replace(task, start_name=name, lowest=min(best.lowest, self.model.lowest))

    @property
    def start(self) -> tuple[str, float]:
        """The level at which SFT starts: name and reward of the weakest policy, or of the pretrained model if no policy is weaker
        than the teacher.
        """
        weakest, best = self.policies[0], self.teacher
        if self.model is not None and weakest is best:
            return MODEL, min(self.model.reward, best.reward)
        return weakest.name, weakest.reward


def read_evidence(file: Path) -> Evidence:
    """Read the evidence from a `rove train` folder."""
    return msgspec.json.decode(file.read_bytes(), type=Evidence)


class Examination(NamedTuple):
    """The evidence, and the rollouts that it comes from."""

    evidence: Evidence
    texts: list[str]
    """Rollouts of all scripted policies as texts."""
    conversations: list[tuple[list[int], list[bool]]]
    """Rollouts of the best policy, or of the model, each as token ids and whether each token is sampled."""


async def examine(
    env: Environment,
    arguments: frozenset[str],
    loaded: LoadedModel | None = None,
    tokenizer: JsonMapping = MappingProxyType({}),
    teacher: Teacher | str | None = None,
) -> Examination:
    """Run the scripted policies of an environment, a teacher, and a pretrained model; return the evidence.

    Args:
        env: The environment.
        arguments: Names of the arguments of the environment's `load_environment`.
        loaded: The pretrained model; None if training starts from a new model.
        tokenizer: Settings of a new model's tokenizer; see `train_tokenizer`.
        teacher: A model, or the name of a scripted policy, whose rollouts SFT trains on. Default: the best policy.

    Raises:
        ConfigError: There is neither a policy nor a model to learn from, or the rollouts show that nothing can be learned.
    """
    if loaded is None:
        check_first_prompt(env, train=True)
    else:
        loaded.renderer.check_environment(env, train=True)
    if not env.policies and loaded is None:
        raise ConfigError(
            "the environment has no scripted policies to learn from; start from a pretrained model (rove train NAME -m MODEL), "
            "or collect rollouts of a teacher (rove eval NAME -m TEACHER --train) and train a new model on them (rove sft)"
        )
    async with env.used_in_run():  # a teardown after the first rollouts would end what all of them need
        return await _examine(env, arguments, loaded, tokenizer, teacher)


async def _examine(
    env: Environment,
    arguments: frozenset[str],
    loaded: LoadedModel | None,
    tokenizer: JsonMapping,
    teacher: Teacher | str | None,
) -> Examination:
    """Do what `examine` does, in an environment that is in use."""
    teacher_model = teacher if isinstance(teacher, Teacher) else None
    try:
        records, seconds, setup = await _run_policies(env, teacher_model)
    finally:
        if teacher_model is not None:
            await teacher_model.client.close()
    scored = _scored(records)
    model_name = None if teacher_model is None else teacher_model.name
    policies = [_policy_evidence(name, records_of, name == model_name) for name, records_of in scored.items()]
    # Of policies with equal rewards, the one with the shortest rollouts is the teacher: they train fastest.
    policies.sort(key=lambda policy: (policy.reward, -_mean_length(scored[policy.name])))
    teacher_name = teacher.name if isinstance(teacher, Teacher) else teacher or ""
    if teacher_name:
        _check_teacher(teacher_name, records)
    best = scored[teacher_name or policies[-1].name] if policies else []
    hidden = hidden_share(best)
    rewards = {name: [record.reward or 0.0 for record in scored[name]] for name in scored}
    failed = sum(record.error is not None for record in chain.from_iterable(records.values()))
    diagnoses = before_training(rewards, _first_errors(records), hidden, failed)
    # Training would be in vain: no policy is better than another, or nothing could be scored.
    for diagnosis in diagnoses:
        if diagnosis.id == "no_spread" or not scored:
            raise ConfigError(str(diagnosis))

    all_records = list(chain.from_iterable(scored.values()))
    texts = conversation_texts(all_records)
    # The same tokenizer as that of the model that will be trained, so that the lengths are those of training.
    renderer = Renderer(cast("Tokenizer", train_tokenizer(texts, **tokenizer))) if loaded is None else loaded.renderer
    limit = longest_response(renderer, all_records) if scored else MODEL_TOKENS
    model: ModelEvidence | None = None
    if loaded is not None:
        model, model_records = await _try_model(env, loaded, min(MODEL_TOKENS, 2 * limit + 16), best)
        best = best or model_records
    assert best[0].scores is not None
    conversations = [renderer.training_branches([*record.prompt, *record.completion], record.tools) for record in best]
    evidence = Evidence(
        policies=policies,
        teacher_name=teacher_name,
        model=model,
        examples=count_up_to(env, MAX_COUNTED, train=True),
        held_out=count_up_to(env, MAX_COUNTED_HELD_OUT),
        arguments=arguments,
        is_raw_text=env.message_type == "completion",
        has_tools=all(record.tools for record in best),
        has_group_rewards=env.scoring_rubric.has_group_rewards,
        functions=[name for name, weight in best[0].scores.weights.items() if weight],
        rollout_tokens=statistics.fmean(sum(len(ids) for ids, _ in branches) for branches in conversations),
        sampled_tokens=statistics.fmean(sum(sum(mask) for _, mask in branches) for branches in conversations),
        turns=statistics.fmean(max(1, len(record.steps)) for record in best),
        untrained_turns=await _untrained_turns(env, all_records),
        # Those of a teacher that is a model include its sampling.
        rollout_seconds=min((seconds[name] for name in scored if name != model_name), default=0.0),
        teacher_seconds=seconds[teacher_name or policies[-1].name] if policies else 0.0,
        setup_seconds=setup,
        response_tokens=limit,
        hidden=hidden,
        diagnoses=diagnoses,
        split=env.split_description,
    )
    return Examination(evidence, texts, list(chain.from_iterable(conversations)))


def _check_teacher(name: str, records: Mapping[str, Sequence[RolloutRecord]]) -> None:
    """Raise a `ConfigError` if no rollout of the teacher has been scored."""
    if any(record.scores is not None for record in records.get(name, [])):
        return
    error = _first_errors(records).get(name, "it ran no rollout")
    raise ConfigError(
        f"reward_error: every rollout of the teacher {name} fails; the first: {error}; fix the cause, choose another "
        "teacher, or leave it out"
    )


async def _run_policies(
    env: Environment, teacher: Teacher | None
) -> tuple[dict[str, list[RolloutRecord]], dict[str, float], float]:
    """Return the rollouts and the seconds per rollout of each scripted policy and of the teacher, and the seconds of a first
    evaluation."""
    records: dict[str, list[RolloutRecord]] = {}
    seconds: dict[str, float] = {}
    setup = 0.0
    limits = Limits(max_turns=MAX_POLICY_TURNS)
    members = GROUP_SIZE if env.scoring_rubric.has_group_rewards else 2
    for name, policy in env.policies.items():
        client = ScriptedClient(policy, name)
        single: JsonObject = {"num_examples": 1, "rollouts_per_example": 1, "train": True}
        _, first_seconds = await _timed(generate(env, client, limits=limits, **single))
        setup = setup or first_seconds
        # Without what is loaded only once.
        _, single_seconds = await _timed(generate(env, client, limits=limits, **single))
        examples = 2 * POLICY_EXAMPLES // members
        options: JsonObject = {"num_examples": examples, "rollouts_per_example": members, "train": True}
        records[name], total_seconds = await _timed(generate(env, client, limits=limits, **options))
        # The difference is the time of the rollouts alone; noise must not make it zero.
        rollout_seconds = max(total_seconds - single_seconds, total_seconds / 20)
        seconds[name] = rollout_seconds / max(1, len(records[name]))
    if teacher is not None:
        options = {"num_examples": TEACHER_EXAMPLES, "rollouts_per_example": 2, "train": True}
        records[teacher.name], total_seconds = await _timed(generate(env, teacher.client, **options))
        seconds[teacher.name] = total_seconds / max(1, len(records[teacher.name]))
    return records, seconds, setup


def _scored(records: Mapping[str, Sequence[RolloutRecord]]) -> dict[str, list[RolloutRecord]]:
    """Return the scored rollouts of each policy that has scored rollouts."""
    scored: dict[str, list[RolloutRecord]] = {}
    for name, policy_records in records.items():
        scored_records = [record for record in policy_records if record.scores is not None]
        if scored_records:
            scored[name] = scored_records
    return scored


def count_up_to(env: Environment, limit: int, train: bool = False) -> int | None:
    """Return the number of examples; None if a generator makes them and there are more than `limit`."""
    whole_count = env.count_examples(train=train)
    if whole_count is not None:
        return whole_count
    count = env.count_examples(limit + 1, train=train)
    return None if count is None or count > limit else count


async def _untrained_turns(env: Environment, policy_records: Sequence[RolloutRecord]) -> int:
    """Return the maximum number of responses in a rollout of a policy that does not know the format."""
    # A game may wait for a legal move forever. What matters is whether such rollouts are much longer.
    max_turns = UNTRAINED_FACTOR * max([1, *(len(record.steps) for record in policy_records)])
    client = ScriptedClient(lambda messages, state, rng: "?", "untrained")
    records = await generate(
        env,
        client,
        num_examples=UNTRAINED_EXAMPLES,
        rollouts_per_example=1,
        train=True,
        limits=Limits(max_turns=max_turns),
    )
    return max([1, *(len(record.steps) for record in records)])


async def _timed(work: Awaitable[T]) -> tuple[T, float]:
    """Return a result and the seconds that it took."""
    started = time.perf_counter()
    result = await work
    return result, time.perf_counter() - started


def _first_errors(records: Mapping[str, Sequence[RolloutRecord]]) -> dict[str, str]:
    """Return the first error of each policy with failed rollouts."""
    texts: dict[str, str] = {}
    for name, policy_records in records.items():
        error = next((record.error for record in policy_records if record.error is not None), None)
        if error is not None:
            texts[name] = f"{error.phase}: {error.type}: {error.message}{error.source_line}"
    return texts


def _mean_length(records: Sequence[RolloutRecord]) -> float:
    """Return the mean number of bytes of the conversations."""
    return statistics.fmean(len(msgspec.json.encode([*record.prompt, *record.completion])) for record in records)


def _policy_evidence(name: str, records: Sequence[RolloutRecord], is_model: bool) -> PolicyEvidence:
    rewards = [record.scores.reward for record in records if record.scores is not None]
    mean, highest = statistics.fmean(rewards), max(rewards)
    good = min(max(statistics.median(rewards), mean), highest)  # a mean of equal rewards may be above them by rounding
    examples = {record.example_id for record in records}
    responses = {(record.example_id, msgspec.json.encode(record.completion)) for record in records}
    return PolicyEvidence(
        name=name,
        reward=mean,
        highest=highest,
        lowest=min(rewards),
        good_reward=good,
        good_share=statistics.fmean(reward >= good for reward in rewards),
        varies=len(responses) > len(examples),
        is_model=is_model,
    )


async def _try_model(
    env: Environment, loaded: LoadedModel, max_tokens: int, teacher_records: Sequence[RolloutRecord]
) -> tuple[ModelEvidence, list[RolloutRecord]]:
    """Sample groups of rollouts of a pretrained model; return the evidence from them, and the scored rollouts.

    Args:
        teacher_records: The teacher's rollouts; empty without a teacher.

    Raises:
        ConfigError: Every rollout failed.
    """
    parameters = sum(weight.numel() for weight in loaded.model.parameters())
    records = await _sample_groups(env, loaded, max_tokens, 2 * parameters, teacher_records)
    scored = [record for record in records if record.scores is not None]
    if not scored:
        error = next(iter(_first_errors({"the model": records}).values()))
        raise ConfigError(f"reward_error: every rollout of the model fails; the first: {error}; fix the environment")
    rewards = [record.reward or 0.0 for record in scored]
    groups = _rewards_of_groups(scored)
    steps = chain.from_iterable(record.steps for record in scored)
    evidence = ModelEvidence(
        name=loaded.name,
        parameters=parameters,
        reward=statistics.fmean(rewards),
        lowest=min(rewards),
        spread_share=sum(len(different) > 1 for different in groups) / len(groups),
        response_tokens=max(len(step.tokens.completion_ids) for step in steps if step.tokens is not None),
        groups=len(groups),
    )
    return evidence, scored


async def _sample_groups(
    env: Environment,
    loaded: LoadedModel,
    max_tokens: int,
    token_operations: int,
    teacher_records: Sequence[RolloutRecord],
) -> list[RolloutRecord]:
    """Sample rollouts until they have taken `MODEL_OPERATIONS` and either the rewards of a group differ or the model is clearly
    worse than its teacher, which SFT can change; at most `MODEL_GROUPS` groups.

    Args:
        token_operations: Number of floating-point operations per sampled token.
    """
    client = EngineClient.from_model(loaded)
    # All groups at once if they are cheap, otherwise one after the other.
    at_once = int(MODEL_OPERATIONS / (token_operations * GROUP_SIZE * max_tokens))
    at_once = min(MODEL_GROUPS, max(1, at_once))
    # A small dataset has fewer groups.
    available = env.count_examples(MODEL_GROUPS, train=True)
    groups_limit = MODEL_GROUPS if available is None else max(1, available)
    records: list[RolloutRecord] = []
    operations = 0
    for first in range(0, groups_limit, at_once):
        has_spread = any(len(different) > 1 for different in _rewards_of_groups(records))
        is_worse = first >= MIN_GROUPS and _is_clearly_worse(records, teacher_records)
        if operations >= MODEL_OPERATIONS and (has_spread or is_worse):
            break
        groups = await generate(
            env,
            client,
            num_examples=min(at_once, MODEL_GROUPS - first),
            skip_examples=first,
            rollouts_per_example=GROUP_SIZE,
            sampling_args={"temperature": 1.0, "max_tokens": max_tokens},
            train=True,
        )
        records += groups
        for step in chain.from_iterable(record.steps for record in groups):
            operations += token_operations * (len(step.tokens.completion_ids) if step.tokens is not None else 0)
    await client.close()
    return records


def _is_clearly_worse(records: Sequence[RolloutRecord], teacher_records: Sequence[RolloutRecord]) -> bool:
    """Return whether a model has less than `WORSE_SHARE` of its teacher's reward, counted from the lowest reward."""
    rewards = [record.reward for record in records if record.reward is not None]
    teacher_rewards = [record.reward for record in teacher_records if record.reward is not None]
    if not rewards or not teacher_rewards:
        return False
    lowest = min(0.0, *rewards, *teacher_rewards)
    return statistics.fmean(rewards) - lowest < WORSE_SHARE * (statistics.fmean(teacher_rewards) - lowest)


def _rewards_of_groups(records: Sequence[RolloutRecord]) -> list[set[float]]:
    """Return the different rewards of each group with scored rollouts."""
    rewards: dict[int, set[float]] = {}
    for record in records:
        if record.scores is not None:
            rewards.setdefault(record.example_id, set()).add(record.scores.reward)
    return list(rewards.values())
