"""Results of v0's environments for other libraries, as data; `vf` is the real library or rove.compat."""

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


def reasoning_gym_results(vf: Any) -> list[Any]:
    """Return the rows of a family and of a mixture, and the rewards of four answers to each row."""
    results: list[Any] = []
    for gym, options in (("chain_sum", {}), (MIXTURE, {"system_prompt": "Be brief."})):
        env = vf.ReasoningGymEnv(gym, num_train_examples=3, num_eval_examples=2, seed=5, **options)
        for row in [*env.get_dataset(), *env.get_eval_dataset()]:
            columns = {name: row[name] for name in ("prompt", "answer", "info")}
            results.append({name: _plain(value) for name, value in columns.items()})
            for answer in ANSWERS:
                state = vf.State(input={**columns, "example_id": 0})
                state.update(completion=[vf.AssistantMessage(content=answer)], trajectory=[], metrics={}, reward=0.0)
                asyncio.run(env.rubric.score_rollout(state))
                results.append([state["reward"], dict(state["metrics"])])
    return results


def scripted_client_class(vf: Any) -> Any:
    """Return a client class of `vf` whose replies are the given lines in order."""

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
            line = self.lines[min(sum(turn.role == "assistant" for turn in prompt), len(self.lines) - 1)]
            text = f"<think>t</think><guess>{line}</guess>" if line.startswith("[") else line
            message = vf.ResponseMessage(content=text, finish_reason="stop", is_truncated=False, tokens=None)
            return vf.Response(id="1", created=0, model="m", message=message, usage=None)

    return Script


def text_arena_results(vf: Any) -> list[Any]:
    """Return the rows of Wordle, and games with scripted replies."""

    async def right(parser: Any, completion: Any, answer: str) -> float:
        return float(parser.parse_answer(completion) == f"[{answer}]")

    async def play_games(feedback: Any) -> list[Any]:
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
        results: list[Any] = [[_plain(row["prompt"]), row["answer"]] for row in rows]
        for lines in GAMES:
            row = {"prompt": rows[0]["prompt"], "answer": rows[0]["answer"], "example_id": 0}
            state = await env.run_rollout(row, scripted_client_class(vf)(lines), "m", {})
            transcript = [[message["role"], message["content"]] for message in state["completion"]]
            results.append([transcript, state["reward"], dict(state["metrics"]), state["stop_condition"]])
        return results

    async def play_with_and_without_feedback() -> list[Any]:
        return [
            *await play_games({}),
            *await play_games({"feedback_fn": lambda observation: observation.split("[GAME]")[-1].strip()}),
        ]

    return asyncio.run(play_with_and_without_feedback())


def _plain(value: Any) -> Any:
    return [dict(message) for message in value] if isinstance(value, list) else value
