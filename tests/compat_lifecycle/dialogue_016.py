"""Environments for `verifiers` 0.1.6 that override one life-cycle method each: asynchronous, with (messages, state)."""

# Written as published packages are.
# ruff: noqa: B006, RUF005

from __future__ import annotations

import verifiers as vf
from datasets import Dataset

ROWS = [{"question": "first", "answer": "a"}, {"question": "second", "answer": "b"}]


async def points(completion, state, **kwargs):
    """The model's turns, 10 for each other message, 100 for each point in the state."""
    roles = [message["role"] for message in completion]
    model_turns = roles.count("assistant")
    return model_turns + 10 * (len(roles) - model_turns) + 100 * state.get("points", 0)


class Dialogue(vf.MultiTurnEnv):
    """Responds to every turn."""

    async def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": f"reply {state['turn']}"}], state


class IsCompleted(Dialogue):
    """Ends after its own second response: the decision depends on the last message."""

    async def is_completed(self, messages, state, **kwargs):
        return await super().is_completed(messages, state, **kwargs) or messages[-1]["content"] == "reply 2"


class IsCompletedCalls(Dialogue):
    """Counts its calls, and ignores the limit of three turns."""

    async def is_completed(self, messages, state, **kwargs):
        state["points"] = state.get("points", 0) + 1
        return state["points"] == 8


class SetupState(Dialogue):
    """Returns a new dict."""

    async def setup_state(self, state, **kwargs):
        return {**state, "points": len(state["prompt"]) + len(state["answer"])}


class EnvResponse(Dialogue):
    """Returns a new dict as the state, and two messages; reads the completion so far."""

    async def env_response(self, messages, state, **kwargs):
        replies = [{"role": "user", "content": text} for text in (f"heard {len(messages)}", "go on")]
        return replies, {**state, "points": state.get("points", 0) + len(state["completion"])}


class Rollout(Dialogue):
    """Appends to the completion after the inherited rollout."""

    async def rollout(
        self,
        client,
        model,
        prompt,
        completion=None,
        answer="",
        state={},
        task="default",
        info=None,
        example_id=0,
        sampling_args=None,
        **kwargs,
    ):
        completion, state = await super().rollout(
            client, model, prompt, completion, answer, state, task, info, example_id, sampling_args, **kwargs
        )
        state["points"] = len(state["responses"])
        return completion + [{"role": "user", "content": f"the end of {answer}"}], state


class ReplacedRollout(Dialogue):
    """Does not call the inherited rollout: requests two responses, each in a new conversation."""

    async def rollout(self, client, model, prompt, completion=None, answer="", state=None, *args, **kwargs):
        state["completion"] = []
        for question in ("draft", "final"):
            messages = list(prompt) + [{"role": "user", "content": question}]
            response = await self.get_model_response(client, model, messages, message_type="chat")
            state["responses"].append(response)
            state["turn"] += 1
            state["completion"].append({"role": "user", "content": question})
            state["completion"].append({"role": "assistant", "content": response.choices[0].message.content})
        state["points"] = state["turn"]
        return state["completion"], state


class GetModelResponse(Dialogue):
    """Adds a message to the prompt."""

    async def get_model_response(
        self, client, model, prompt, oai_tools=None, sampling_args=None, message_type=None, **kwargs
    ):
        prompt = prompt + [{"role": "user", "content": f"{len(prompt)} so far"}]
        return await super().get_model_response(
            client, model, prompt, oai_tools, sampling_args, message_type=message_type, **kwargs
        )


class GetContextMessages(Dialogue):
    """Shows the model only the prompt and the last message."""

    async def get_context_messages(self, state):
        return state["prompt"] + state["completion"][-1:]


class InitState(Dialogue):
    """Adds a key to the first state."""

    async def init_state(self, prompt, completion, answer, task, info, example_id, **kwargs):
        state = await super().init_state(prompt, completion, answer, task, info, example_id, **kwargs)
        state["points"] = len(prompt) + example_id
        return state


class InitCompletion(Dialogue):
    """Starts the completion with a message."""

    async def init_completion(self):
        return [{"role": "assistant", "content": "move so"}]


class MaxTurnsReached(Dialogue):
    """Counts the turns of the environment, too."""

    async def max_turns_reached(self, state):
        return len(state["completion"]) >= 4


class FormatDataset(Dialogue):
    """Builds prompts itself."""

    def format_dataset(self, dataset, system_prompt=None, few_shot=None, question_key="question", answer_key="answer"):
        def prompt(row):
            return {"prompt": [{"role": "user", "content": f"{system_prompt}: {row[question_key].upper()}"}]}

        return super().format_dataset(dataset.map(prompt), system_prompt, few_shot, question_key, answer_key)


class GetEvalDataset(Dialogue):
    """Evaluates only the last row."""

    def __init__(self, dataset, **kwargs):
        super().__init__(eval_dataset=dataset, **kwargs)

    def get_eval_dataset(self, n=-1, seed=None):
        return self.eval_dataset.select([1])


class GetDataset(Dialogue):
    """Has only training rows, and uses the last one."""

    def get_dataset(self, n=-1, seed=None):
        return self.dataset.select([1])


class ScoreRollout(vf.Rubric):
    """Adds to the score of the inherited method."""

    async def score_rollout(self, prompt, completion, answer, state, task="default", info=None, **kwargs):
        score = await super().score_rollout(prompt, completion, answer, state, task, info, **kwargs)
        score.reward += len(answer) + 0.5
        score.metrics["last"] = float(completion[-1]["content"][-1])
        return score


class CallRewardFunc(vf.Rubric):
    """Doubles what a function returns."""

    async def call_reward_func(self, func, *args, **kwargs):
        return 2 * await super().call_reward_func(func, *args, **kwargs)


class GetRewardFuncs(vf.Rubric):
    """Has functions and weights that no list contains."""

    def get_reward_funcs(self):
        return [*super().get_reward_funcs(), self.second]

    def get_reward_weights(self):
        return [*super().get_reward_weights(), 0.25]

    def get_reward_func_names(self):
        return [*super().get_reward_func_names(), "second"]

    def second(self, completion, **kwargs):
        return len(completion)


ENVIRONMENTS = {
    "is_completed": IsCompleted,
    "is_completed, calls": IsCompletedCalls,
    "setup_state": SetupState,
    "env_response": EnvResponse,
    "rollout": Rollout,
    "rollout, own": ReplacedRollout,
    "get_model_response": GetModelResponse,
    "get_context_messages": GetContextMessages,
    "init_state": InitState,
    "init_completion": InitCompletion,
    "max_turns_reached": MaxTurnsReached,
    "format_dataset": FormatDataset,
    "get_eval_dataset": GetEvalDataset,
    "get_dataset": GetDataset,
}
RUBRICS = {
    "score_rollout": ScoreRollout,
    "call_reward_func": CallRewardFunc,
    "get_reward_funcs": GetRewardFuncs,
}


def load_environment(case="is_completed"):
    rubric = RUBRICS.get(case, vf.Rubric)(funcs=[points])
    environment = ENVIRONMENTS.get(case, Dialogue)
    return environment(dataset=Dataset.from_list(ROWS), system_prompt="Play", rubric=rubric, max_turns=3)
