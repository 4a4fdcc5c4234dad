"""What verifiers v1 cannot run, for `rove build --verifiers-v1` and `rove.integrations.verifiers_v1`. It needs no verifiers."""

from __future__ import annotations

from collections.abc import Sequence

from rove.core.errors import ConfigError
from rove.envs.environment import Environment


def group_rewards_of(env: Environment) -> list[str]:
    """Return the names of an environment's reward functions that need a whole group."""
    rubric = env.scoring_rubric
    if not rubric.has_group_rewards:
        return []
    return rubric.group_reward_names or ["a function of its rubric"]


def check_exportable(name: str, group_rewards: Sequence[str], message_type: str) -> None:
    """Check that verifiers v1 can run an environment.

    Raises:
        ConfigError: it has group rewards, or its prompts are raw texts.
    """
    if group_rewards:
        raise ConfigError(
            f"'{name}' has group rewards ({', '.join(group_rewards)}), but verifiers v1 scores every rollout alone; "
            "rewrite these functions without @group_reward, or remove them"
        )
    if message_type == "completion":
        raise ConfigError(
            f"'{name}' has message_type 'completion', but verifiers v1 has only chat messages; expected an environment with "
            "message_type 'chat'"
        )
