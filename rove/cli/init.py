"""`rove init`: a new environment package that works at once."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from rove.cli.common import hint
from rove.errors import ConfigError

SINGLE_TURN = '''"""{title}: say here what the model is asked to do."""

from __future__ import annotations

import random
from typing import Any

import rove as vf


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A player that always answers right: rove eval {name} -m scripted:oracle."""
    return f"<answer>{{state['answer']}}</answer>"


# No sum is in both: what is measured must not have been trained on.
PAIRS = random.Random("split").sample([(a, b) for a in range(100) for b in range(100)], k=10_000)
HELD_OUT, TRAINED = PAIRS[:2_000], PAIRS[2_000:]


def _rows(pairs: list[tuple[int, int]], count: int, seed: int) -> list[dict[str, Any]]:
    chosen = random.Random(seed).sample(pairs, min(count, len(pairs)))
    return [{{"question": f"What is {{a}} + {{b}}?", "answer": str(a + b)}} for a, b in chosen]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Questions with one right answer: at most 8,000 to train on, and 2,000 others to evaluate on."""
    parser = vf.XMLParser(["answer"])

    def correct(completion: vf.Messages, answer: str) -> float:
        return float(parser.parse_answer(completion) == answer)

    rubric = vf.Rubric([correct], [1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(TRAINED, num_examples, seed),
        eval_dataset=lambda: _rows(HELD_OUT, num_examples, seed),
        system_prompt=f"Answer the question. Write it as\\n{{parser.get_format_str()}}",
        rubric=rubric,
        players={{"oracle": oracle}},
    )
'''

MULTI_TURN = '''"""{title}: a guessing game; say here what yours is."""

from __future__ import annotations

import random
from typing import Any

import rove as vf


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """A player that halves the range every turn: rove eval {name} -m scripted:oracle."""
    return f"<guess>{{(state['low'] + state['high']) // 2}}</guess>"


class GuessEnv(vf.MultiTurnEnv):
    """The model guesses a number; the environment answers "higher" or "lower"."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(low=1, high=100, solved=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        guess = self.parser.parse_answer(messages) or ""
        if not guess.isdigit():
            return "Write <guess>number</guess>."
        number, secret = int(guess), int(state["answer"])
        if number == secret:
            state["solved"] = True
            state["final_env_response"] = "Right."
            return None
        if number < secret:
            state["low"] = number + 1
            return "Higher."
        state["high"] = number - 1
        return "Lower."


def solved(state: vf.State) -> float:
    """1 when the number was found in time."""
    return float(state["solved"])


# No number is in both: what is measured must not have been trained on.
NUMBERS = random.Random("split").sample(range(1, 101), k=100)
HELD_OUT, TRAINED = NUMBERS[:20], NUMBERS[20:]


def _rows(numbers: list[int], count: int, seed: int) -> list[dict[str, Any]]:
    chosen = random.Random(seed).sample(numbers, min(count, len(numbers)))
    return [{{"question": "Guess my number between 1 and 100.", "answer": str(number)}} for number in chosen]


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Numbers to guess: at most 80 to train on, and 20 others to evaluate on."""
    parser = vf.XMLParser(["guess"], answer_field="guess")
    return GuessEnv(
        dataset=lambda: _rows(TRAINED, num_examples, seed),
        eval_dataset=lambda: _rows(HELD_OUT, num_examples, seed),
        system_prompt="Guess the number. Answer <guess>number</guess>",
        parser=parser,
        rubric=vf.Rubric([solved], [1.0], parser=parser),
        players={{"oracle": oracle}},
        max_turns=max_turns,
    )
'''

PYPROJECT = """[project]
name = "{dashed}"
version = "0.1.0"
description = "{title}: a rove environment."
requires-python = ">=3.11"
dependencies = ["rove"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
only-include = ["{name}.py"]
"""

README = """# {dashed}

Say what the model is asked to do, what it is rewarded for, and what the arguments mean.

    rove eval {name} -m scripted:oracle

`oracle` is a scripted player: it shows that the task can be solved and that the rubric says so.

`rove rl` trains on the rows of `dataset`; `rove eval` and `[[evaluation]]` measure on those of `eval_dataset`: keep them apart.
What `rove sft` learns from should be played on the former, too:

    rove eval {name} -m scripted:oracle --train -n -1
"""

TEST = '''"""The environment keeps its promises."""

import asyncio
from pathlib import Path

from rove import ScriptedClient, evaluate, load_environment

HERE = Path(__file__).resolve().parents[1]


def test_the_oracle_gets_full_marks() -> None:
    env = load_environment("{name}", env_dir=HERE.parent, num_examples=20)
    summary = asyncio.run(evaluate(env, ScriptedClient(env.players["oracle"])))
    assert summary["failed"] == 0
    assert summary["reward"]["mean"] >= 1.0


def test_the_same_seed_gives_the_same_examples() -> None:
    first, second = (load_environment("{name}", env_dir=HERE.parent, num_examples=5, seed=3) for _ in range(2))
    assert first.get_dataset() == second.get_dataset()


def test_what_is_measured_is_not_trained_on() -> None:
    env = load_environment("{name}", env_dir=HERE.parent)
    trained = {{(str(row["prompt"]), row["answer"]) for row in env.get_dataset()}}
    held_out = {{(str(row["prompt"]), row["answer"]) for row in env.get_eval_dataset()}}
    assert trained and held_out and not trained & held_out
'''


def scaffold(name: str, folder: Path, multi_turn: bool) -> Path:
    """Write the package; returns its folder.

    Raises:
        ConfigError: the name cannot be a module's, or the folder exists.
    """
    module = name.replace("-", "_")
    if not module.isidentifier() or module != module.lower():
        raise ConfigError(f"'{name}' cannot be a package name; use lower-case letters, digits and dashes, like my-task")
    target = folder / module
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name or delete it")
    words = {"name": module, "dashed": module.replace("_", "-"), "title": module.replace("_", " ").capitalize()}
    files = {
        f"{module}.py": MULTI_TURN if multi_turn else SINGLE_TURN,
        "pyproject.toml": PYPROJECT,
        "README.md": README,
        f"tests/test_{module}.py": TEST,
    }
    for path, text in files.items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(**words), encoding="utf-8")
    return target


@click.command()
@click.argument("name")
@click.option("--multi-turn", is_flag=True, help="A game of several turns instead of one question.")
@click.option("--dir", "folder", type=click.Path(), default="environments", show_default=True, help="Where to put it.")
def command(name: str, multi_turn: bool, folder: str) -> None:
    """Write a new environment package NAME that passes its own tests at once."""
    console = Console(highlight=False)
    target = scaffold(name, Path(folder), multi_turn)
    for file in sorted(target.rglob("*.*")):
        if file.is_file():
            console.print(f"  {file}")
    where = "" if folder == "environments" else f" --env_dir {folder}"
    hint(
        console,
        f"try it: rove eval {target.name} -m scripted:oracle{where}",
        f"test it: pip install pytest; python -m pytest {target}",
        f"edit {target / target.name}.py",
    )
