"""A group of environments by the column `task`, one with a rubric that scores by itself."""

import verifiers as vf
from datasets import Dataset
from verifiers.types import Messages, RolloutScore, State


class CountRubric(vf.Rubric):
    async def score_rollout(
        self,
        prompt: Messages,
        completion: Messages,
        answer: str,
        state: State,
        task: str = "default",
        info: dict | None = None,
        **kwargs,
    ) -> RolloutScore:
        score = await super().score_rollout(prompt, completion, answer, state, task, info, **kwargs)
        count = len(completion[-1]["content"].split())
        return RolloutScore(reward=score.reward + count / 8, metrics={**score.metrics, "count": float(count)})

    def get_reward_func_names(self) -> list[str]:
        return [*super().get_reward_func_names(), "count"]


def of_task(task, **kwargs) -> float:
    return {"sums": 1.0, "words": 2.0}.get(task, 0.0)


def exact(completion, answer, **kwargs) -> float:
    return float(completion[-1]["content"] == answer)


def load_environment(**kwargs) -> vf.Environment:
    sums = vf.SingleTurnEnv(
        dataset=Dataset.from_list([{"question": "1 + 2?", "answer": "3"}, {"question": "3 + 4?", "answer": "7"}]),
        rubric=vf.Rubric(funcs=[exact, of_task], weights=[1.0, 0.5]),
    )
    words = vf.SingleTurnEnv(
        dataset=Dataset.from_list([{"question": "Two words.", "answer": "two words"}]),
        few_shot=[{"role": "user", "content": "One word."}, {"role": "assistant", "content": "word"}],
        rubric=CountRubric(funcs=[exact, of_task]),
    )
    return vf.EnvGroup(envs=[sums, words], env_names=["sums", "words"])
