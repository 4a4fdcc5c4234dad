"""What v0's environments over other libraries do, as data: by the real library or by rove's, whichever `vf` is."""

from __future__ import annotations

import asyncio
from typing import Any

MIXTURE = ["leg_counting", {"name": "countdown", "weight": 2.0, "config": {"min_numbers": 3, "max_numbers": 3}}]
ANSWERS = ("<answer>12</answer>", "no tag", "<answer>1 + 2</answer> x", "")
GAMES = (
    ("[apple]", "[lemon]", "[river]"),
    ("no brackets", "[mango]"),
    ("[apple]",) * 3,
    ("[xyz]", "[abc]"),
    ("[lemon]", "[mango]", "[grape]", "[house]", "[river]", "[apple]"),
    ("[berry]",),
)


def reasoning(vf: Any) -> list[Any]:
    """Rows, and what four answers to each are worth, of one family and of a mixture."""
    told: list[Any] = []
    for gym, options in (("chain_sum", {}), (MIXTURE, {"system_prompt": "Be brief."})):
        env = vf.ReasoningGymEnv(gym, num_train_examples=3, num_eval_examples=2, seed=5, **options)
        for row in [*env.get_dataset(), *env.get_eval_dataset()]:
            known = {name: row[name] for name in ("prompt", "answer", "info")}
            told.append({name: _plain(value) for name, value in known.items()})
            for answer in ANSWERS:
                state = vf.State(input={**known, "example_id": 0})
                state.update(completion=[vf.AssistantMessage(content=answer)], trajectory=[], metrics={}, reward=0.0)
                asyncio.run(env.rubric.score_rollout(state))
                told.append([state["reward"], dict(state["metrics"])])
    return told


def script(vf: Any) -> Any:
    """A client of `vf` that says one line after the other."""

    class Script(vf.Client):
        def __init__(self, lines: tuple[str, ...]):
            super().__init__(None)
            self.lines = lines

        def setup_client(self, config: Any) -> Any:
            return None

        async def to_native_tool(self, tool: Any) -> Any:
            return tool

        async def to_native_prompt(self, messages: Any) -> Any:
            return messages, {}

        async def raise_from_native_response(self, response: Any) -> None: ...

        async def from_native_response(self, response: Any) -> Any:
            return response

        async def close(self) -> None: ...

        async def get_native_response(self, prompt: Any, *_: Any, **__: Any) -> Any:
            line = self.lines[min(sum(one.role == "assistant" for one in prompt), len(self.lines) - 1)]
            text = f"<think>t</think><guess>{line}</guess>" if line.startswith("[") else line
            said = vf.ResponseMessage(content=text, finish_reason="stop", is_truncated=False, tokens=None)
            return vf.Response(id="1", created=0, model="m", message=said, usage=None)

    return Script


def words(vf: Any) -> list[Any]:
    """Rows of Wordle, and games by scripted policies."""

    async def right(parser: Any, completion: Any, answer: str) -> float:
        return float(parser.parse_answer(completion) == f"[{answer}]")

    async def told_of(feedback: Any) -> list[Any]:
        parser = vf.XMLParser(fields=["think", "guess"], answer_field="guess")
        rubric = vf.Rubric(funcs=[right, parser.get_format_reward_func()], weights=[1.0, 0.2], parser=parser)
        env = vf.TextArenaEnv(
            game="Wordle-v0",
            num_train_examples=3,
            num_eval_examples=2,
            system_prompt="Play.",
            parser=parser,
            rubric=rubric,
            seed=3,
            max_turns=8,
            **feedback,
        )
        rows = [*env.get_dataset(), *env.get_eval_dataset()]
        told: list[Any] = [[_plain(row["prompt"]), row["answer"]] for row in rows]
        for lines in GAMES:
            row = {"prompt": rows[0]["prompt"], "answer": rows[0]["answer"], "example_id": 0}
            played = await env.run_rollout(row, script(vf)(lines), "m", {})
            said = [[one["role"], one["content"]] for one in played["completion"]]
            told.append([said, played["reward"], dict(played["metrics"]), played["stop_condition"]])
        return told

    async def both() -> list[Any]:
        return [*await told_of({}), *await told_of({"feedback_fn": lambda shown: shown.split("[GAME]")[-1].strip()})]

    return asyncio.run(both())


def _plain(value: Any) -> Any:
    return [dict(one) for one in value] if isinstance(value, list) else value
