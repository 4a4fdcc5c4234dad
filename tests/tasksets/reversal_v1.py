"""A single-turn verifiers v1 taskset: reverse a word."""

import os
from typing import Literal

import verifiers.v1 as vf

WORDS = ["lantern", "harbour", "pepper", "meadow", "sixpence", "orchard"]


class ReversalConfig(vf.TasksetConfig):
    split: Literal["train", "test", "all"] = "all"


class ReversalData(vf.TaskData):
    answer: str


class ReversalTask(vf.Task[ReversalData, vf.State, vf.TaskConfig]):
    @vf.stop
    async def gave_up(self, trace: vf.Trace) -> bool:
        return trace.num_turns > 0 and "pass" in trace.last_reply

    @vf.reward(weight=0.8)
    async def exact(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.2)
    async def letters(self, trace: vf.Trace) -> dict[str, float]:
        return {"same_letters": float(sorted(trace.last_reply) == sorted(self.data.answer))}

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        if trace.last_reply == "break":
            raise ValueError("the metric broke")
        if trace.last_reply == "crash":
            os._exit(3)
        return float(len(trace.last_reply))


class ReversalTaskset(vf.Taskset[ReversalTask, ReversalConfig]):
    def load(self) -> list[ReversalTask]:
        splits = {"train": slice(4), "test": slice(4, None), "all": slice(None)}
        return [
            ReversalTask(
                ReversalData(
                    name=word,
                    prompt=f"Say {word} backwards.",
                    system_prompt="Answer with one word.",
                    answer=word[::-1],
                ),
                self.config.task,
            )
            for word in WORDS[splits[self.config.split]]
        ]


__all__ = ["ReversalTaskset"]
