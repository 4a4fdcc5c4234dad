"""Multi-turn with stop conditions of several priorities, a cleanup, and state that setup_state returns."""

import verifiers as vf
from datasets import Dataset


class GuessEnv(vf.MultiTurnEnv):
    async def setup_state(self, state: vf.State, **kwargs) -> vf.State:
        state = await super().setup_state(state)
        state["secret"] = int(state["answer"])
        state["guesses"] = []
        return state

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs) -> vf.Messages:
        guess = self.parser.parse_answer(messages)
        if guess is None or not guess.strip().isdigit():
            return [{"role": "user", "content": "Write <guess>NUMBER</guess>."}]
        number = int(guess)
        state["guesses"].append(number)
        hint = "higher" if number < state["secret"] else "lower"
        return [vf.UserMessage(content=f"Not {number}: {hint}.")]

    @vf.stop
    async def found(self, state: vf.State) -> bool:
        if not state["trajectory"]:
            return False
        guess = self.parser.parse_answer(state["trajectory"][-1]["completion"])
        return guess is not None and guess.strip() == str(state["secret"])

    @vf.stop(priority=10)
    async def gave_up(self, state: vf.State, **kwargs) -> bool:
        return bool(state["trajectory"]) and "I give up" in (state["trajectory"][-1]["completion"][-1]["content"] or "")

    @vf.cleanup
    async def count(self, state: vf.State):
        state["rounds"] = len(state["guesses"])


def load_environment(max_turns: int = 4, **kwargs):
    parser = vf.XMLParser(["guess"], answer_field="guess")

    def solved(state):
        return 1.0 if state["stop_condition"] == "found" else 0.0

    def rounds(state):
        return state["rounds"]

    def last_words(completion):
        return len(completion[-1]["content"])

    rubric = vf.Rubric(funcs=[solved, rounds, parser.get_format_reward_func()], weights=[1.0, 0.0, 0.2], parser=parser)
    rubric.add_metric(last_words)
    rows = [
        {"question": f"Guess a number from 1 to 9 (game {i}).", "answer": str(n)} for i, n in enumerate([5, 7, 2, 9])
    ]
    return GuessEnv(
        dataset=Dataset.from_list(rows),
        system_prompt="Answer as\n" + parser.get_format_str(),
        parser=parser,
        rubric=rubric,
        max_turns=max_turns,
        **kwargs,
    )
