"""Environments for `verifiers` 0.1.2 that override one life-cycle method each: synchronous, with (messages, state)."""

# Written as published packages are.
# ruff: noqa: B006, RUF005

from __future__ import annotations

import verifiers as vf
from datasets import Dataset

ROWS = [{"question": "first", "answer": "a"}, {"question": "second", "answer": "b"}]


def points(completion, state, **kwargs):
    """The model's turns, 10 for each other message, 100 for each point in the state."""
    roles = [message["role"] for message in completion]
    model_turns = roles.count("assistant")
    return model_turns + 10 * (len(roles) - model_turns) + 100 * state.get("points", 0)


class Dialogue(vf.MultiTurnEnv):
    """Responds to every turn until the third."""

    def is_completed(self, messages, state, **kwargs):
        return state["turn"] >= 3

    def env_response(self, messages, state, **kwargs):
        return [{"role": "user", "content": f"reply {state['turn']}"}], state


class IsCompleted(Dialogue):
    """Ends after its own second response: the decision depends on the last message."""

    def is_completed(self, messages, state, **kwargs):
        return messages[-1]["content"] == "reply 2"


class IsCompletedCalls(Dialogue):
    """Counts its calls."""

    def is_completed(self, messages, state, **kwargs):
        state["points"] = state.get("points", 0) + 1
        return state["points"] == 6


class DefaultLimit(Dialogue):
    """Never ends by itself."""

    def is_completed(self, messages, state, **kwargs):
        return False


class SetupState(Dialogue):
    """Returns a new dict."""

    def setup_state(self, state, **kwargs):
        return {**state, "points": len(state["prompt"]) + len(state["answer"])}


class EnvResponse(Dialogue):
    """Returns a new dict as the state, and two messages."""

    def env_response(self, messages, state, **kwargs):
        replies = [{"role": "user", "content": text} for text in (f"heard {len(messages)}", "go on")]
        return replies, {**state, "points": state.get("points", 0) + len(messages)}


class Rollout(Dialogue):
    """Appends to the completion after the inherited rollout."""

    async def rollout(self, client, model, prompt, answer, task="default", info={}, sampling_args={}, **kwargs):
        completion, state = await super().rollout(client, model, prompt, answer, task, info, sampling_args, **kwargs)
        state["points"] = len(state["responses"])
        return completion + [{"role": "user", "content": f"the end of {answer}"}], state


class ReplacedRollout(Dialogue):
    """Does not call the inherited rollout: requests two responses, each in a new conversation."""

    async def rollout(self, client, model, prompt, answer, task="default", info={}, sampling_args={}, **kwargs):
        state = {"prompt": prompt, "completion": [], "answer": answer, "task": task, "info": info, "responses": []}
        state["turn"] = 0
        completion = []
        for question in ("draft", "final"):
            messages = list(prompt) + [{"role": "user", "content": question}]
            response = await self.get_model_response(
                prompt=messages, client=client, model=model, sampling_args=sampling_args, message_type="chat"
            )
            state["responses"].append(response)
            state["turn"] += 1
            completion.append({"role": "user", "content": question})
            completion.append({"role": "assistant", "content": response.choices[0].message.content})
        state["points"] = state["turn"]
        return completion, state


class GetModelResponse(Dialogue):
    """Adds a message to the prompt."""

    async def get_model_response(
        self, client, model, prompt, oai_tools=None, sampling_args={}, message_type=None, **kwargs
    ):
        prompt = prompt + [{"role": "user", "content": f"{len(prompt)} so far"}]
        return await super().get_model_response(
            client, model, prompt, oai_tools, sampling_args, message_type=message_type, **kwargs
        )


class FormatDataset(Dialogue):
    """Builds prompts itself."""

    def format_dataset(self, dataset, system_prompt=None, few_shot=None, question_key="question", answer_key="answer"):
        def prompt(row):
            return {"prompt": [{"role": "user", "content": f"{system_prompt}: {row[question_key].upper()}"}]}

        return dataset.map(prompt)


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

    async def score_rollout(self, prompt, completion, answer, state, task="default", info={}, **kwargs):
        score = await super().score_rollout(prompt, completion, answer, state, task, info, **kwargs)
        score.reward += len(answer) + 0.5
        score.metrics["last"] = float(completion[-1]["content"][-1])
        return score


class ScoreRollouts(vf.Rubric):
    """Subtracts the mean."""

    async def score_rollouts(self, prompts, completions, answers, states, tasks, infos, **kwargs):
        scores = await super().score_rollouts(prompts, completions, answers, states, tasks, infos, **kwargs)
        scores.reward = [reward - len(prompts[0]) for reward in scores.reward]
        return scores


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
    "is_completed, never": DefaultLimit,
    "setup_state": SetupState,
    "env_response": EnvResponse,
    "rollout": Rollout,
    "rollout, own": ReplacedRollout,
    "get_model_response": GetModelResponse,
    "format_dataset": FormatDataset,
    "get_eval_dataset": GetEvalDataset,
    "get_dataset": GetDataset,
}
RUBRICS = {
    "score_rollout": ScoreRollout,
    "score_rollouts": ScoreRollouts,
    "get_reward_funcs": GetRewardFuncs,
}


def load_environment(case="is_completed"):
    rubric = RUBRICS.get(case, vf.Rubric)(funcs=[points])
    environment = ENVIRONMENTS.get(case, Dialogue)
    return environment(dataset=Dataset.from_list(ROWS), system_prompt="Play", rubric=rubric)
