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


def _rows(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    pairs = [(rng.randint(0, 99), rng.randint(0, 99)) for _ in range(count)]
    return [{{"question": f"What is {{a}} + {{b}}?", "answer": str(a + b)}} for a, b in pairs]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Questions with one right answer."""
    parser = vf.XMLParser(["answer"])

    def correct(completion: vf.Messages, answer: str) -> float:
        return float(parser.parse_answer(completion) == answer)

    rubric = vf.Rubric([correct], [1.0], parser=parser)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2)
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, seed),
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


def _rows(count: int, seed: int) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    return [{{"question": "Guess my number between 1 and 100.", "answer": str(rng.randint(1, 100))}} for _ in range(count)]


def load_environment(num_examples: int = 100, seed: int = 0, max_turns: int = 8) -> vf.Environment:
    """Numbers to guess."""
    parser = vf.XMLParser(["guess"], answer_field="guess")
    return GuessEnv(
        dataset=lambda: _rows(num_examples, seed),
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
