"""Choose the settings of `rove train` from what an environment shows: its policies, lengths, turns and rewards."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
import tomli_w

from rove.clients.scripted import ScriptedClient
from rove.core.errors import ConfigError
from rove.core.records import RolloutRecord
from rove.envs.environment import Environment
from rove.models.from_scratch import train_tokenizer
from rove.rendering.renderer import Renderer, Tokenizer
from rove.rollouts.evaluate import conversation_texts, generate
from rove.train.callbacks import OnProgress, ignore
from rove.train.diagnosis import Diagnosis, before_training, hidden_share
from rove.train.policy_comparison import longest_response

POLICY_EXAMPLES = 150
"""Examples that each scripted policy is examined on, with two rollouts each."""
EVALUATION_ROLLOUTS, SAMPLED_ROLLOUTS = 400, 200
"""Held-out rollouts per row of the results table, and of each evaluation during training."""
PATIENCE = 6
"""Evaluations without a new best after which RL ends."""
MAX_DATA_ROLLOUTS, DATA_TOKENS = 40_000, 4_000_000
"""Maximum number of the teacher's rollouts, and of their tokens."""
SFT_TOKENS = 12_000_000
"""Maximum tokens of SFT: about five minutes of one CPU core for the smallest model."""
SFT_GOAL = 0.6
"""SFT ends when the sampled reward has gone this share of the way from the weakest policy to the best one. RL does the rest."""
SFT_BATCH, SFT_RATE = 128, 1.5e-3
GROUPS, GROUP_SIZE = 32, 8
"""Groups of an RL step, and rollouts in a group."""
RL_STEPS, RL_RATE, ENTROPY_BONUS = 200, 3e-4, 0.01


class Section(msgspec.Struct, frozen=True):
    """A table, or a list of tables, of a recipe file; without a name, settings at its top."""

    name: str
    values: Any
    reason: str = ""
    """Why the values are as they are: a comment of the file."""


class PolicyEvidence(msgspec.Struct, frozen=True):
    """Rollouts of a scripted policy."""

    name: str
    reward: float
    """Mean reward."""
    median: float
    """Median reward."""
    highest: float
    """Highest reward of one rollout."""
    spread: float
    """Standard deviation of the reward."""
    turns: float
    """Mean number of model turns."""
    varies: bool
    """Whether two rollouts of an example may differ."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment shows before any training."""

    policies: list[PolicyEvidence]
    """Scripted policies, from the weakest to the best."""
    examples: int | None
    """Rows of the training dataset; None if they are generated on demand."""
    has_evaluation_rows: bool
    """Whether the environment has separate evaluation rows."""
    arguments: frozenset[str]
    """Names of the arguments of `load_environment`."""
    functions: list[str]
    """Names of the reward functions with a weight."""
    rollout_tokens: float
    """Mean tokens of a whole rollout of the best policy."""
    response_tokens: int
    """Maximum tokens of one response."""
    hidden: float | None
    """Share of turns in which the best policy uses something that the conversation does not show; None if unknown."""
    diagnoses: list[Diagnosis]
    """What may prevent learning."""


async def examine(env: Environment, arguments: frozenset[str], on_progress: OnProgress = ignore) -> Evidence:
    """Run the scripted policies of an environment and return what they show.

    Raises:
        ConfigError: The environment has no scripted policies, or their rollouts show that nothing can be learned.
    """
    if not env.policies:
        raise ConfigError(
            "the environment has no scripted policies to learn from; start from a pretrained model: -m MODEL"
        )
    records: dict[str, list[RolloutRecord]] = {}
    for position, (name, policy) in enumerate(env.policies.items()):
        on_progress("policies", position, len(env.policies))
        client = ScriptedClient(policy, name)
        records[name] = await generate(env, client, num_examples=POLICY_EXAMPLES, rollouts_per_example=2, train=True)
    scored = {name: [one for one in some if one.scores is not None] for name, some in records.items()}
    found = sorted((_policy_evidence(name, some) for name, some in scored.items() if some), key=lambda one: one.reward)
    errors = {
        name: f"{error.phase}: {error.type}: {error.message}"
        for name, some in records.items()
        if (error := next((one.error for one in some if one.error is not None), None)) is not None
    }
    rewards = {name: [one.reward or 0.0 for one in some] for name, some in scored.items()}
    hidden = hidden_share(scored[found[-1].name]) if found else None
    diagnoses = before_training(rewards, errors, hidden)
    if diagnoses and (not found or diagnoses[0].kind == "no_spread"):
        raise ConfigError(f"{diagnoses[0].kind}: {diagnoses[0].text}; {diagnoses[0].advice}")
    best = scored[found[-1].name]
    assert best[0].scores is not None
    texts = [text for some in scored.values() for text in conversation_texts(some)]
    renderer = Renderer(cast("Tokenizer", train_tokenizer(texts)))
    conversations = [renderer.training_branches([*r.prompt, *r.completion], r.tools) for r in best]
    return Evidence(
        policies=found,
        examples=env.count_examples(train=True),
        has_evaluation_rows=env.eval_dataset is not None,
        arguments=arguments,
        functions=[name for name, weight in best[0].scores.weights.items() if weight],
        rollout_tokens=statistics.fmean(sum(len(ids) for ids, _ in branches) for branches in conversations),
        response_tokens=longest_response(renderer, [one for some in scored.values() for one in some]),
        hidden=hidden,
        diagnoses=diagnoses,
    )


def _policy_evidence(name: str, records: Sequence[RolloutRecord]) -> PolicyEvidence:
    rewards = [record.scores.reward for record in records if record.scores is not None]
    return PolicyEvidence(
        name=name,
        reward=statistics.fmean(rewards),
        median=statistics.median(rewards),
        highest=max(rewards),
        spread=statistics.pstdev(rewards),
        turns=statistics.fmean(len(record.steps) for record in records),
        varies=len({(r.example_id, msgspec.json.encode(r.completion)) for r in records})
        > len({record.example_id for record in records}),
    )


def choose(env: str, env_args: Mapping[str, Any], evidence: Evidence) -> list[Section]:
    """Return the settings of all stages for a new model.

    Args:
        env: Name of the environment.
        env_args: The user's arguments of the environment, for every stage.
        evidence: What the environment shows.
    """
    weakest, best = evidence.policies[0], evidence.policies[-1]
    goal = weakest.reward + SFT_GOAL * (best.reward - weakest.reward)
    max_tokens = 2 * evidence.response_tokens + 16
    available = MAX_DATA_ROLLOUTS if "num_examples" in evidence.arguments else (evidence.examples or MAX_DATA_ROLLOUTS)
    rollouts = int(min(MAX_DATA_ROLLOUTS, DATA_TOKENS / evidence.rollout_tokens))
    each = max(1, rollouts // available) if best.varies else 1
    examples = min(available, rollouts)
    seed = {"seed": 1} if "seed" in evidence.arguments else {}  # other rows than those of the results table
    sampled = {
        "env": env,
        "name": "sampled",
        "env_args": {**_with_examples(env_args, evidence, SAMPLED_ROLLOUTS), **seed},
        "num_examples": SAMPLED_ROLLOUTS,
        "temperature": 1.0,
        "max_tokens": max_tokens,
    }
    kept = 1.0 if best.spread == 0 else 0.5
    epochs = max(1, round(SFT_TOKENS / (kept * examples * each * evidence.rollout_tokens)))
    columns = [
        ("reward at T = 1", "sampled", "reward"),
        ("greedy", "greedy", "reward"),
        *((f"{name} at T = 1", "sampled", name) for name in evidence.functions[:2]),
    ]
    return [
        Section("", {"env": env, "references": [f"scripted:{one.name}" for one in evidence.policies]}),
        Section(
            "model",
            {"arch": "llama", "size": "tiny"},
            "A new model; its tokenizer is made for the environment's texts.",
        ),
        Section(
            "data",
            {
                "model": f"scripted:{best.name}",
                "num_examples": examples,
                "rollouts_per_example": each,
                "train": True,
                "env_args": _with_examples(env_args, evidence, examples),
            },
            f"The best policy: reward {best.reward:.3f}; the weakest, {weakest.name}, has {weakest.reward:.3f}.",
        ),
        Section(
            "sft",
            {
                "min_reward": min(best.median, best.reward),
                "batch_size": SFT_BATCH,
                "learning_rate": SFT_RATE,
                "epochs": epochs,
                "validate_every": 25,
                "keep_best": "eval/sampled/reward/mean",
                "target": round(goal, 4),
                "patience": 1000,
                "mixed_precision": True,
                "evaluation": [{**sampled, "every": 25}],
            },
            f"Ends when the sampled reward reaches {goal:.3f}, {SFT_GOAL:.0%} of the way from the weakest to the best policy.",
        ),
        Section(
            "rl",
            [
                {
                    "name": "RL",
                    "steps": RL_STEPS,
                    "batch_size": GROUPS * GROUP_SIZE,
                    "rollouts_per_example": GROUP_SIZE,
                    "learning_rate": RL_RATE,
                    "final_lr_fraction": 0.3,
                    "loss": {"entropy_bonus": ENTROPY_BONUS},
                    "max_tokens": max_tokens,
                    "keep_best": "eval/sampled/reward/mean",
                    "patience": PATIENCE,
                    "mixed_precision": True,
                    "bf16_sampling": True,
                    "env_args": _with_examples(env_args, evidence, RL_STEPS * GROUPS),
                    "evaluation": [{**sampled, "every": 10}],
                }
            ],
            "Ends earlier when the sampled reward on held-out examples has not risen for some evaluations.",
        ),
        Section(
            "evaluation",
            {
                "num_examples": EVALUATION_ROLLOUTS,
                "rollouts_per_example": 1,
                "max_tokens": max_tokens,
                "env_args": _with_examples(env_args, evidence, EVALUATION_ROLLOUTS),
            },
            "Held-out examples for each row of the results table.",
        ),
        Section(
            "conditions",
            [{"name": "sampled", "temperature": 1.0}, {"name": "greedy", "temperature": 0.0}],
            "RL maximizes the reward at T = 1.",
        ),
        Section(
            "columns",
            [
                {"title": title, "condition": condition, "values": [name], "interval": True}
                for title, condition, name in columns
            ],
        ),
    ]


def _with_examples(env_args: Mapping[str, Any], evidence: Evidence, count: int) -> dict[str, Any]:
    """Return the arguments with the number of examples, if the environment has this argument and the user did not give it."""
    return {**({"num_examples": count} if "num_examples" in evidence.arguments else {}), **env_args}


def as_toml(sections: Sequence[Section], comment: str) -> str:
    """Return a recipe as the text of a TOML file."""
    parts = ["".join(f"# {line}\n" for line in comment.splitlines())]
    for section in sections:
        reason = f"# {section.reason}\n" if section.reason else ""
        text = tomli_w.dumps({section.name: section.values} if section.name else section.values)
        if isinstance(section.values, list) and not text.startswith("[["):  # an array after a table would be part of it
            text = "\n".join(f"[[{section.name}]]\n{tomli_w.dumps(table)}" for table in section.values)
        parts.append(reason + text)
    return "\n".join(parts)
