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
    check_group_rewards(name, group_rewards, "verifiers v1")
    check_chat_messages(name, message_type, "verifiers v1")


def check_group_rewards(name: str, group_rewards: Sequence[str], library: str) -> None:
    """Raise ConfigError if an environment has group rewards."""
    if group_rewards:
        raise ConfigError(
            f"'{name}' has group rewards ({', '.join(group_rewards)}), but {library} scores every rollout alone; "
            "rewrite these functions without @group_reward, or remove them"
        )


def check_chat_messages(name: str, message_type: str, library: str) -> None:
    """Raise ConfigError if the prompts of an environment are raw texts."""
    if message_type == "completion":
        raise ConfigError(
            f"'{name}' has message_type 'completion', but {library} has only chat messages; expected an environment with "
            "message_type 'chat'"
        )
