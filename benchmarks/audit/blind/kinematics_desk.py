"""Kinematics desk: solve problems of motion with a calculator, and hand in the result."""

import ast
import math
import operator
import random

import rove as vf

SYSTEM_PROMPT = (
    "Solve the problem. Use calculate(expression) for arithmetic; it knows + - * / ** and sqrt, sin, cos, tan, radians. "
    "Hand in the result in SI units with submit(value). You have three attempts. Use g = 9.81 m/s²."
)
G = 9.81
ATTEMPTS = 3
OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
FUNCTIONS = {"sqrt": math.sqrt, "sin": math.sin, "cos": math.cos, "tan": math.tan, "radians": math.radians}


def check_close(value, reference, tolerance=0.01):
    """Raise an AssertionError if a value is not within a relative tolerance of the reference."""
    assert abs(value - reference) <= tolerance * abs(reference), (
        f"submitted {value:g}, reference {reference:.5g}, relative tolerance {tolerance:.0%}"
    )


def evaluate(node):
    """The value of an arithmetic expression."""
    if isinstance(node, ast.Expression):
        return evaluate(node.body)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return math.pow(evaluate(node.left), evaluate(node.right))
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right))
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](evaluate(node.operand))
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in FUNCTIONS and len(node.args) == 1:
        return FUNCTIONS[node.func.id](evaluate(node.args[0]))
    raise ValueError("only numbers, + - * / **, and the functions sqrt, sin, cos, tan, radians are allowed")


def calculate(expression: str) -> float:
    """Evaluate an arithmetic expression.

    Args:
        expression: for example "sqrt(2 * 9.81 * 20)"
    """
    if len(expression) > 200:
        raise ValueError("the expression is too long")
    return evaluate(ast.parse(expression.strip(), mode="eval"))


def submit(value: float, state) -> str:
    """Hand in the result in SI units.

    Args:
        value: the number without its unit
    """
    if state["attempts"] >= ATTEMPTS:
        return "You have no attempts left."
    state["attempts"] += 1
    check_close(value, float(state["answer"]))
    state["accepted"] = True
    return "Accepted."


def solved(state):
    """1 if an attempt was accepted."""
    return float(state["accepted"])


def attempts(state):
    return float(state["attempts"])


class KinematicsEnv(vf.StatefulToolEnv):
    """Two tools; the rollout ends when a result is accepted or all attempts are used."""

    def __init__(self, **kwargs):
        super().__init__(tools=[calculate], parallel_calls=False, **kwargs)
        self.add_tool(submit, args_to_skip=["state"])

    async def setup_state(self, state, **kwargs):
        state.update(attempts=0, accepted=False)

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state} if tool_name == "submit" else tool_args

    @vf.stop
    def finished(self, state):
        return state["accepted"] or state["attempts"] >= ATTEMPTS


def fall(rng):
    height = rng.randint(4, 160)
    return f"A stone falls from a height of {height} m. How fast is it when it hits the ground?", math.sqrt(
        2 * G * height
    )


def brake(rng):
    speed, path = rng.randint(8, 50), rng.randint(12, 140)
    question = (
        f"A car that drives at {speed} m/s brakes evenly and stops after {path} m. How large is the deceleration?"
    )
    return question, speed**2 / (2 * path)


def throw(rng):
    speed, angle = rng.randint(6, 60), rng.randint(12, 78)
    question = f"A ball is kicked at {speed} m/s, {angle}° above level ground. How far does it fly?"
    return question, speed**2 * math.sin(math.radians(2 * angle)) / G


def meet(rng):
    gap, first, second = rng.randint(200, 6000), rng.randint(2, 30), rng.randint(2, 30)
    question = (
        f"Two cyclists, {gap} m apart, ride towards each other at {first} m/s and {second} m/s. When do they meet?"
    )
    return question, gap / (first + second)


KINDS = [fall, brake, throw, meet]


def rows(count, seed, start):
    """Problems without repetition; training and evaluation take every second one."""
    rng, found = random.Random(seed), {}
    while len(found) < 2 * count:
        question, result = rng.choice(KINDS)(rng)
        found.setdefault(question, result)
    return [{"question": question, "answer": f"{result:.8g}"} for question, result in list(found.items())[start::2]]


def load_environment(num_examples: int = 250, seed: int = 3, max_turns: int = 10):
    """Return an environment with problems of motion.

    Args:
        num_examples: Number of problems for training, and for evaluation.
        seed: Random seed of the problems.
        max_turns: Maximum model turns.
    """
    rubric = vf.Rubric([solved])
    rubric.add_metric(attempts)
    return KinematicsEnv(
        dataset=lambda: rows(num_examples, seed, 0),
        eval_dataset=lambda: rows(num_examples, seed, 1),
        system_prompt=SYSTEM_PROMPT,
        rubric=rubric,
        max_turns=max_turns,
    )
