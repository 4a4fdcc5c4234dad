"""A class with reset and step, as GymEnv takes it."""

import verifiers as vf
from verifiers.envs.experimental.gym_env import GymEnv


class Walk:
    """From a seeded place to 5, one step at a time."""

    def __init__(self, length: int = 5):
        self.length = length

    def reset(self, seed: int = 0):
        self.place = seed % 4
        return f"You are at {self.place}. Reach {self.length}.", {"seed": seed}

    def step(self, action: int):
        self.place += action
        done = self.place >= self.length
        return f"You are at {self.place}.", 1.0 if done else -0.1, done, False, {"place": self.place}

    def close(self):
        self.place = None


class WordyGym(GymEnv):
    def wrap_response(self, text: str) -> vf.Messages:
        return [vf.UserMessage(content=f"{text}\nStep?")]


def load_environment(num_eval_episodes: int = 4, **kwargs):
    return WordyGym(
        env_cls=Walk,
        env_kwargs={"length": 5},
        action_parser=lambda text: int(text.strip()),
        num_train_episodes=3,
        num_eval_episodes=num_eval_episodes,
        max_episode_steps=4,
        seed=10,
        system_prompt="Answer with a number of steps.",
        **kwargs,
    )
