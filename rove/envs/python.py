"""Environments in which the model has a Python that remembers."""

from __future__ import annotations

import inspect
from typing import Any

from rove.core.state import State
from rove.envs.sandbox import SandboxEnv
from rove.rubrics import MathRubric, Rubric, RubricGroup
from rove.sandbox import Functions
from rove.tools.tool import make_tool

MATH_PROMPT = (
    "Solve the problem. Use the tool `python` for whatever is better computed than guessed: variables stay from call to call. "
    "Put the final answer in \\boxed{}."
)


class PythonEnv(SandboxEnv):
    """The model has a Python of its own in a sandbox (tool `python`): variables, functions and files stay from call to call.

    Told are what the code prints, the value of its last expression, and how it failed; the middle of what is too long is left
    out. After a call that was stopped Python starts anew, and the model is told that variables are gone.
    Arguments: see `SandboxEnv`; for a model to have bash as well, `env.add_tool(env.bash, args_to_skip=["state"])`.
    """

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.remove_tool("bash")
        words = inspect.getdoc(PythonEnv.python) or ""
        told = words.partition("\n\nArgs:")[0]
        if self.packages:
            told += f" Packages: {', '.join(self.packages)}."
        self.add_tool(make_tool(self.python, description=told, hidden=["state"]))

    def functions(self, state: State) -> Functions:
        """Async functions of ours that the model's code can call (see `Session.run_python`). Default: none.

        The model knows of them what the prompt tells.
        """
        return {}

    async def python(self, code: str, state: State) -> str:
        """Run Python and get what it prints and the value of its last expression. Variables stay. There is no network.

        Args:
            code: may have several lines
        """
        session = await self.sandbox(state)
        return self.told(await session.run_python(code, functions=self.functions(state)), state)


class CodeMathEnv(PythonEnv):
    """Questions of mathematics, Python to work them out, the answer in \\boxed{}.

    Args:
        system_prompt: Default: says so.
        rubric: Default: a `MathRubric` (extra `math`).
        Everything else: see `SandboxEnv`.
    """

    def __init__(
        self,
        system_prompt: str | None = MATH_PROMPT,
        rubric: Rubric | RubricGroup | None = None,
        **kwargs: Any,
    ):
        super().__init__(system_prompt=system_prompt, rubric=MathRubric() if rubric is None else rubric, **kwargs)
