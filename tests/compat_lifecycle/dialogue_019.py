"""Environments for `verifiers` 0.1.9 and 0.3.1 that override one life-cycle method each: asynchronous, with the state."""

# Written as published packages are.
# ruff: noqa: RUF005

from __future__ import annotations

import verifiers as vf
from datasets import Dataset

ROWS = [{"question": "first", "answer": "a"}, {"question": "second", "answer": "b"}]
ENDED: list[str] = []
"""Environments whose teardown has run."""


async def points(completion, state, **kwargs):
    """The model's turns, 10 for each other message, 100 for each point in the state."""
    roles = [message["role"] for message in completion]
    model_turns = roles.count("assistant")
    return model_turns + 10 * (len(roles) - model_turns) + 100 * state.get("points", 0)


def user(text):
    """Return a message of the user; since 0.1.11 prompts have messages of their own types."""
    return vf.UserMessage(content=text) if hasattr(vf, "UserMessage") else {"role": "user", "content": text}


class Dialogue(vf.MultiTurnEnv):
    """Responds to every turn."""

    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": f"reply {len(state['trajectory'])}"}]


class IsCompleted(Dialogue):
    """Ends after two responses of the environment."""

    async def env_response(self, messages, state, **kwargs):
        state["replies"] = state.get("replies", 0) + 1
        return [{"role": "user", "content": f"reply {state['replies']}"}]

    async def is_completed(self, state, **kwargs):
        return state.get("replies", 0) >= 2


class IsCompletedCalls(Dialogue):
    """Counts its calls, and ignores the limit of three turns."""

    async def is_completed(self, state, **kwargs):
        state["points"] = state.get("points", 0) + 1
        return state["points"] == 6


class IsCompletedSuper(Dialogue):
    """Also calls the inherited method."""

    async def is_completed(self, state, **kwargs):
        return await super().is_completed(state, **kwargs) or len(state["trajectory"]) == 2


class SetupState(Dialogue):
    """Returns the state with a further key."""

    async def setup_state(self, state, **kwargs):
        state = await super().setup_state(state)
        state["points"] = len(state["prompt"]) + len(state["answer"])
        return state


class EnvResponse(Dialogue):
    """Returns two messages, and ends the rollout with the second pair."""

    async def env_response(self, messages, state, **kwargs):
        state["points"] = state.get("points", 0) + len(messages)
        replies = [{"role": "user", "content": text} for text in (f"heard {len(messages)}", "go on")]
        if len(state["trajectory"]) == 2:
            state["final_env_response"] = replies
        return replies


class Rollout(Dialogue):
    """Changes the state after the inherited rollout."""

    async def rollout(self, input, client, model, sampling_args=None):
        state = await super().rollout(input, client, model, sampling_args)
        state["points"] = len(state["trajectory"])
        state["completion"] = state["completion"] + [{"role": "user", "content": f"the end of {state['answer']}"}]
        return state


class ReplacedRollout(Dialogue):
    """Does not call the inherited rollout: requests two responses, each in a new conversation."""

    async def rollout(self, input, client, model, sampling_args=None):
        state = await self.init_state(input, client, model, sampling_args)
        state = await self.setup_state(state)
        for question in ("draft", "final"):
            messages = list(state["prompt"]) + [user(question)]
            response = await self.get_model_response(state, messages)
            await self.add_model_response(state, messages, response)
        state["points"] = len(state["trajectory"])
        await self.render_completion(state)
        state["is_completed"] = True
        return state


class GetModelResponse(Dialogue):
    """Adds a message to the prompt."""

    async def get_model_response(self, state, prompt, *args, **kwargs):
        prompt = prompt + [user(f"{len(prompt)} so far")]
        return await super().get_model_response(state, prompt, *args, **kwargs)


class GetPromptMessages(Dialogue):
    """Shows the model only the prompt and the last message."""

    async def get_prompt_messages(self, state):
        messages = await super().get_prompt_messages(state)
        return messages[:2] + messages[2:][-1:]


class AddModelResponse(Dialogue):
    """Counts the messages of the prompts, and stores another prompt."""

    async def add_model_response(self, state, prompt_messages, response):
        state["points"] = state.get("points", 0) + len(prompt_messages)
        await super().add_model_response(state, prompt_messages[-2:], response)


class AddTrajectoryStep(Dialogue):
    """Sets the reward of a turn."""

    async def add_trajectory_step(self, state, trajectory_step):
        trajectory_step["reward"] = 0.5
        state["points"] = state.get("points", 0) + len(trajectory_step["completion"])
        await super().add_trajectory_step(state, trajectory_step)


class RenderCompletion(Dialogue):
    """Keeps only the messages of the model."""

    async def render_completion(self, state):
        await super().render_completion(state)
        state["completion"] = [message for message in state["completion"] if message["role"] == "assistant"]


class InitState(Dialogue):
    """Adds a key to the first state."""

    async def init_state(self, input, client, model, sampling_args=None):
        state = await super().init_state(input, client, model, sampling_args)
        state["points"] = len(state["prompt"]) + input["example_id"]
        return state


class Stop(Dialogue):
    """Has two stop conditions; the one with the higher priority is checked first."""

    @vf.stop
    async def a_second(self, state):
        state["points"] = state.get("points", 0) + 10
        return len(state["trajectory"]) == 2

    @vf.stop(priority=5)
    async def z_first(self, state):
        state["points"] = state.get("points", 0) + 1
        return len(state["trajectory"]) == 2


class MaxTurnsReached(Dialogue):
    """Overrides a stop condition without the decorator, so that it is no longer one."""

    async def max_turns_reached(self, state):
        return len(state["trajectory"]) >= 2

    @vf.stop
    async def four_turns(self, state):
        return len(state["trajectory"]) >= 4


class MaxTurnsReachedDecorated(Dialogue):
    """Stops a turn later than the inherited condition."""

    @vf.stop
    async def max_turns_reached(self, state):
        return len(state["trajectory"]) >= self.max_turns + 1


class Cleanup(Dialogue):
    """Changes the state before it is scored."""

    @vf.cleanup
    async def second(self, state):
        state["points"] = state.get("points", 0) * 2 + 1

    @vf.cleanup(priority=5)
    async def first(self, state):
        state["points"] = len(state["trajectory"])


class Teardown(Dialogue):
    """Is torn down once."""

    @vf.teardown
    async def end(self):
        ENDED.append(type(self).__name__)


class GetRewardFuncs(vf.Rubric):
    """Has functions and weights that no list contains."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_reward_func(self.second, weight=0.25)
        self.add_metric(self.third)

    async def second(self, completion, **kwargs):
        return len(completion)

    async def third(self, state):
        return float(len(state["trajectory"]))


class ScoreGroup(vf.Rubric):
    """Adds to the rewards of the inherited method."""

    async def score_group(self, states, *args, **kwargs):
        await super().score_group(states, *args, **kwargs)
        for state in states:
            state["reward"] += len(states) + 0.5
            state["metrics"]["last"] = float(len(state["completion"]))


class ScoreGroupWithSemaphore(vf.Rubric):
    """Takes the semaphore that 0.1.9 passes."""

    async def score_group(self, states, score_sem):
        await super().score_group(states, score_sem)
        async with score_sem:
            for state in states:
                state["reward"] += 0.25


ENVIRONMENTS = {
    "is_completed": IsCompleted,
    "is_completed, calls": IsCompletedCalls,
    "is_completed, super": IsCompletedSuper,
    "setup_state": SetupState,
    "env_response": EnvResponse,
    "rollout": Rollout,
    "rollout, own": ReplacedRollout,
    "get_model_response": GetModelResponse,
    "get_prompt_messages": GetPromptMessages,
    "add_model_response": AddModelResponse,
    "add_trajectory_step": AddTrajectoryStep,
    "render_completion": RenderCompletion,
    "init_state": InitState,
    "stop": Stop,
    "max_turns_reached": MaxTurnsReached,
    "max_turns_reached, stop": MaxTurnsReachedDecorated,
    "cleanup": Cleanup,
    "teardown": Teardown,
}
RUBRICS = {
    "score_group": ScoreGroup,
    "score_group, semaphore": ScoreGroupWithSemaphore,
    "get_reward_funcs": GetRewardFuncs,
}
REMOVED_IN_031 = {"score_group, semaphore"}
"""Cases that 0.3.1 does not run."""


def load_environment(case="is_completed"):
    rubric = RUBRICS.get(case, vf.Rubric)(funcs=[points])
    environment = ENVIRONMENTS.get(case, Dialogue)
    return environment(dataset=Dataset.from_list(ROWS), system_prompt="Play", rubric=rubric, max_turns=3)
