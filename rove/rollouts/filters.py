"""Filter expressions over rollouts, like `metrics.win > 0 and not is_truncated`.

An expression has comparisons, `and`, `or`, `not`, `in`, arithmetic on numbers and four functions. It has no methods,
attributes, loops or assignments and a limited length, so an untrusted expression reaches only the record and uses little CPU.
docs/decisions/dependencies.md explains the choice of simpleeval.
"""

# simpleeval has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
from simpleeval import EvalWithCompoundTypes, InvalidExpression

from rove.core.errors import ConfigError, nearest
from rove.core.plain import JsonObject
from rove.core.records import RolloutRecord, Scores

FUNCTIONS: dict[str, Callable[..., Any]] = {"abs": abs, "len": len, "max": max, "min": min}
NAMES = (
    "answer",
    "example_id",
    "info",
    "is_truncated",
    "metrics",
    "num_turns",
    "reward",
    "rewards",
    "rollout_index",
    "stop_condition",
    "usage",
)
"""Names that an expression can use; see `visible`."""
TABLES = ("metrics", "rewards", "usage")
"""Names whose fields are the same in every rollout of an environment, so an unknown field is an error."""
ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
MAX_LENGTH = 1000
MAX_PARTS = 200

_PARTS = (
    *(ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.IfExp),
    *(ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot),
    *(ast.BinOp, *ARITHMETIC),
    *(ast.Name, ast.Load, ast.Constant, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Call),
)


def merged_metrics(scores: Scores) -> dict[str, float]:
    """Return reward functions and metrics by name, as in dataset rows."""
    return {**scores.rewards, **scores.metrics}


def visible(record: RolloutRecord, scores: Scores) -> JsonObject:
    """Return the names and values that an expression can use for a scored rollout.

    `metrics` has every function of the rubric by name, with any weight, as in dataset rows; `rewards` has only the functions
    with a weight other than 0.
    """
    return {
        "answer": record.answer,
        "example_id": record.example_id,
        "info": record.info,
        "is_truncated": record.is_truncated,
        "metrics": merged_metrics(scores),
        "num_turns": len(record.steps),
        "reward": scores.reward,
        "rewards": scores.rewards,
        "rollout_index": record.rollout_index,
        "stop_condition": record.stop_condition,
        "usage": msgspec.structs.asdict(record.usage),
    }


class Filter:
    """A predicate over rollouts, given as an expression; failed rollouts never pass.

    Args:
        expression: See the module and `visible`. A metric must exist in every rollout, unless the expression tests for
            it: `'win' in metrics and metrics.win > 0`.
    """

    def __init__(self, expression: str):
        self.expression = expression
        self._tree = self._parsed()
        nodes = list(ast.walk(self._tree))
        called = [node.func for node in nodes if isinstance(node, ast.Call)]
        self._fields: list[tuple[str, object]] = []
        self._tested_fields: set[object] = set()
        for node in nodes:
            self._check(node, called)
            field = _field_of(node)
            if field is not None:
                self._fields.append(field)
            if isinstance(node, ast.Compare):
                self._tested_fields.update(_tested_fields(node))
        self._evaluator = _Evaluator()

    def __call__(self, record: RolloutRecord) -> bool:
        """Return whether a rollout passes."""
        if record.scores is None:
            return False
        names = visible(record, record.scores)
        for table, field in self._fields:
            # Before the evaluation, which would not reach a misspelled field behind an `and`.
            if field not in names[table] and field not in self._tested_fields:
                raise self._error(_no_field(table, field, names[table]), record)
        self._evaluator.names = names
        try:
            return bool(self._evaluator.eval(self.expression, self._tree.body))
        except (InvalidExpression, ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise self._error(str(error), record) from error

    def _error(self, problem: str, record: RolloutRecord | None = None) -> ConfigError:
        rollout = f" (example {record.example_id}, rollout {record.rollout_index})" if record else ""
        return ConfigError(f"filter {self.expression!r}: {problem}{rollout}")

    def _parsed(self) -> ast.Expression:
        if len(self.expression) > MAX_LENGTH:
            raise ConfigError(f"a filter has at most {MAX_LENGTH} characters, this one has {len(self.expression)}")
        try:
            tree = ast.parse(self.expression.strip(), mode="eval")
        except SyntaxError as error:
            position = f" at character {error.offset}" if error.offset else ""
            refused = self.expression.strip()[(error.offset or 1) - 1 :]
            if refused.startswith("=") and not refused.startswith("=>"):
                position += " (a comparison is written ==)"
            raise self._error(f"{error.msg}{position}; write it like 'metrics.win > 0 and not is_truncated'") from error
        except (ValueError, RecursionError, MemoryError) as error:  # a null character, or nothing but brackets
            raise self._error(f"not an expression: {error}") from error
        if sum(1 for _ in ast.walk(tree)) > MAX_PARTS:
            raise self._error(f"longer than {MAX_PARTS} names, values and operators")
        return tree

    def _check(self, node: ast.AST, called: list[ast.expr]) -> None:
        if not isinstance(node, _PARTS):
            raise self._error(
                f"{type(node).__name__} is not allowed here; comparisons, and, or, not, in, + - * / // % are"
            )
        if isinstance(node, ast.Call):
            function = node.func.id if isinstance(node.func, ast.Name) else ""
            if function not in FUNCTIONS:
                raise self._error(f"'{ast.unparse(node.func)}' cannot be called; functions are {', '.join(FUNCTIONS)}")
        if isinstance(node, ast.Name) and node not in called and node.id not in NAMES:
            raise self._error(
                f"there is no name '{node.id}'; {_meant(node.id, NAMES)}; "
                f"a reward function or metric is metrics.{node.id}"
            )


def _field_of(node: ast.AST) -> tuple[str, object] | None:
    """Return ("metrics", "win") for `metrics.win` and for `metrics['win']`."""
    if isinstance(node, ast.Attribute):
        table, field = node.value, node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        table, field = node.value, node.slice.value
    else:
        return None
    if not isinstance(table, ast.Name) or table.id not in TABLES:
        return None
    return table.id, field


def _tested_fields(node: ast.Compare) -> list[Any]:
    """Return ["win"] for `'win' in metrics` and for `'win' not in metrics`."""
    if isinstance(node.left, ast.Constant) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return [node.left.value]
    return []


def _no_field(table: str, field: object, fields: Mapping[str, object]) -> str:
    return f"{table} has no '{field}' here; {_meant(str(field), fields)}"


def _meant(name: str, names: Iterable[str]) -> str:
    """Return a hint with the nearest name, if one is similar, and all available names."""
    options = sorted(names)
    hint = nearest(name, options)
    return f"{hint} There are: {', '.join(options)}" if hint.endswith("?") else hint


def _on_numbers(operation: Callable[[Any, Any], object]) -> Callable[[Any, Any], Any]:
    """Return an arithmetic operation that accepts numbers only: operations on texts can fill the memory."""

    def checked(a: object, b: object) -> object:
        if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
            raise TypeError(f"arithmetic is for numbers, not for {a!r:.50} and {b!r:.50}")
        return operation(a, b)

    return checked


class _Evaluator(EvalWithCompoundTypes):
    """Evaluates only what `Filter` allows; a dot accesses a field of a table, never a Python attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.functions = FUNCTIONS
        self.operators.update({kind: _on_numbers(operation) for kind, operation in ARITHMETIC.items()})
        self.operators[ast.Is], self.operators[ast.IsNot] = operator.eq, operator.ne  # plain data has no identity

    def _eval_attribute(self, node: ast.Attribute) -> object:
        table = self._eval(node.value)
        if not isinstance(table, dict):
            raise InvalidExpression(f"'{ast.unparse(node.value)}' has no fields: it is {table!r:.50}")
        if node.attr not in table:
            raise InvalidExpression(_no_field(ast.unparse(node.value), node.attr, table))
        return table[node.attr]
