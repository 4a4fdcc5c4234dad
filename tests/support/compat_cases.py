"""Strategies of hypothesis for the cases of `compat_worker.py`, on which rove.compat and the real library are compared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

WORKER = Path(__file__).with_name("compat_worker.py")
FUZZ = Path(__file__).parents[1] / "compat_recorded" / "fuzz.json"

TAGS = ["think", "answer", "code", "move"]
PIECES = [f"<{tag}>" for tag in TAGS] + [f"</{tag}>" for tag in TAGS]
PIECES += ["\n", " ", "4", "x y", "\\boxed{", "}", "{", "####", "\\frac{1}{2}", "…", "é"]
TEXT = st.lists(st.sampled_from(PIECES), max_size=10).map("".join)
PART = st.one_of(
    TEXT.map(lambda text: {"type": "text", "text": text}),
    st.just({"type": "image_url", "image_url": {"url": "data:,"}}),
)
CONTENT = st.one_of(TEXT, st.lists(PART, min_size=1, max_size=3))
COMPLETION = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["assistant", "user", "tool", "system"]), "content": CONTENT}),
    max_size=4,
)
FIELD = st.one_of(st.sampled_from(TAGS), st.lists(st.sampled_from(TAGS), min_size=1, max_size=2, unique=True))


@st.composite
def parsers(draw: Any) -> Any:
    fields, used_names = [], set()
    for field in draw(st.lists(FIELD, min_size=1, max_size=3)):
        names = [field] if isinstance(field, str) else field
        if not used_names & set(names):
            fields.append(field)
            used_names |= set(names)
    return {
        "parser": draw(st.sampled_from(["XMLParser", "XMLParser", "ThinkParser", "MaybeThinkParser", "Parser"])),
        "fields": fields,
        "answer_field": draw(st.sampled_from(TAGS)),
        "extract": draw(st.booleans()),
        "text": draw(TEXT),
        "completion": draw(COMPLETION),
        "values": draw(st.dictionaries(st.sampled_from(TAGS), st.sampled_from(["1", "", "a b"]))),
    }


texts = st.fixed_dictionaries({"text": TEXT})

SINGLE = ["prompt", "completion", "answer", "state", "info", "task", "parser", "colour"]
PLURAL = ["prompts", "completions", "answers", "states", "infos", "tasks"]


@st.composite
def function(draw: Any) -> Any:
    group = draw(st.integers(0, 3)) == 0
    takes = draw(
        st.lists(st.sampled_from(PLURAL if group else SINGLE), min_size=1 if group else 0, max_size=3, unique=True)
    )
    if draw(st.integers(0, 9)) == 0:
        takes = [*takes, "nobody_has_this"]
    return {
        "name": draw(st.sampled_from(["f", "g", "h", "reward"])),
        "takes": takes,
        "takes_all": draw(st.booleans()),
        "group": group,
        "returns": "list[float]" if group and draw(st.booleans()) else draw(st.sampled_from(["", "float"])),
        "does": draw(st.sampled_from(["length", "constant", "names", "constant"] if group else DOES)),
        "value": draw(st.sampled_from([0.0, 1.0, -0.5, 2, True])),
        "is_async": draw(st.booleans()),
    }


DOES = ["length", "raise", "constant", "names", "text", "none"]


@st.composite
def rubric(draw: Any) -> Any:
    functions = draw(st.lists(function(), max_size=3))
    weight = st.sampled_from([1.0, 0.0, -1.0, 0.3])
    weights = draw(st.one_of(st.none(), st.lists(weight, min_size=len(functions), max_size=len(functions))))
    return {"functions": functions, "weights": weights, "metrics": draw(st.lists(function(), max_size=1))}


ROW = st.fixed_dictionaries(
    {
        "answer": st.sampled_from(["", "4", "long answer"]),
        "info": st.sampled_from([{}, {"level": 2}]),
        "colour": st.sampled_from(["red", "blue"]),
        "step_rewards": st.lists(st.sampled_from([None, 0.5]), max_size=2),
    }
)
rubrics = st.fixed_dictionaries(
    {
        "rubrics": st.lists(rubric(), min_size=1, max_size=3),
        "rows": st.lists(ROW, min_size=1, max_size=3),
        "alone": st.booleans(),
    }
)

CALL = st.sampled_from(
    [
        {"id": "c1", "name": "add", "arguments": "{}"},
        {"id": "c2", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
        {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}},
    ]
)
MESSAGE = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "system", "text"]), "content": CONTENT}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.one_of(st.none(), TEXT)},
        optional={"tool_calls": st.lists(CALL, max_size=2), "reasoning_content": st.sampled_from(["hm", None])},
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXT, "tool_call_id": st.just("c1")}),
    st.fixed_dictionaries({"role": st.sampled_from(["user", "robot", "tool"]), "content": st.one_of(TEXT, st.just(5))}),
)
messages = st.fixed_dictionaries({"messages": st.one_of(TEXT, st.lists(MESSAGE, max_size=3))})


@st.composite
def prompts(draw: Any) -> Any:
    """Draw rows with the same columns, because a Dataset has the same columns in all rows."""
    content = TEXT.filter(bool)
    has_prompt = draw(st.booleans())
    turns = st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": content}), min_size=1, max_size=2
    )
    shape: dict[str, Any] = {"prompt": turns} if has_prompt else {"question": content}
    for name, values in COLUMNS.items():
        if draw(st.booleans()):
            shape[name] = draw(st.sampled_from(values))
    few_shot = st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": content}),
        min_size=1,
        max_size=2,
    )
    return {
        "rows": draw(st.lists(st.fixed_dictionaries(shape), min_size=1, max_size=2)),
        "system_prompt": draw(st.one_of(st.none(), st.just("Be brief."))),
        "few_shot": draw(st.one_of(st.none(), few_shot)),
    }


COLUMNS = {
    "answer": [st.sampled_from(["", "4"]), st.integers(0, 3)],
    "info": [st.sampled_from(["{}", '{"a": 1}']), st.just({"level": 1, "names": ["x"]})],
    "example_id": [st.integers(5, 9), st.sampled_from(["a", "b"])],
    "env_id": [st.just("other")],
    "colour": [st.sampled_from(["red", "blue"])],
}

NAMES = ["alpha", "beta", "gamma", "max_turns_reached", "zeta"]
PRIORITY = st.one_of(st.none(), st.integers(-5, 200))
STOP = st.fixed_dictionaries({"name": st.sampled_from(NAMES), "priority": PRIORITY, "after": st.integers(0, 4)})
CLOSE = st.fixed_dictionaries({"name": st.sampled_from(["end_a", "end_b"]), "priority": PRIORITY})
stops = st.fixed_dictionaries(
    {
        "stops": st.lists(STOP, max_size=3, unique_by=lambda stop: stop["name"]),
        "cleanups": st.lists(CLOSE, max_size=2, unique_by=lambda cleanup: cleanup["name"]),
        "max_turns": st.sampled_from([-1, 0, 1, 2, 3]),
        "max_tokens": st.sampled_from([-1, 3, 6]),
        "final_after": st.integers(0, 4),
        "fails_after": st.integers(0, 5),
        "text": st.booleans(),
        "said": st.lists(st.sampled_from(["ab", "cut…", "xyz"]), max_size=4),
    }
)

TYPES = [
    "int",
    "float",
    "str",
    "bool",
    "list[int]",
    "list[list[str]]",
    "Literal['a', 'b']",
    "Literal[1, 2]",
    "int | None",
]
TYPES += [
    "Optional[str]",
    "Union[int, str]",
    "Any",
    "set[int]",
    "tuple[int, str]",
    "Colour",
    "Point",
    "list[Point]",
    "List[str]",
]
DEFAULTS = {"int": "3", "str": "'x'", "bool": "True", "float": "0.5", "int | None": "None", "Optional[str]": "None"}
DEFAULTS |= {"Literal['a', 'b']": "'b'", "list[int]": "None"}
CLASSES = """
class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"

@dataclasses.dataclass
class Point:
    x: int
    label: str = "p"
"""


@st.composite
def tools(draw: Any) -> Any:
    names = draw(st.lists(st.sampled_from(["a", "b_count", "query", "Value", "max_len"]), max_size=4, unique=True))
    required, optional, notes = [], [], []
    for name in names:
        kind = draw(st.sampled_from(["", *TYPES]))
        hint = f": {kind}" if kind else ""
        if kind in DEFAULTS and draw(st.booleans()):
            optional.append(f"{name}{hint} = {DEFAULTS[kind]}")
        else:
            required.append(name + hint)
        if draw(st.booleans()):
            notes.append(
                (name, draw(st.sampled_from(["the number", "what to look for: a word", "Some value (or none)."])))
            )
    style = draw(st.sampled_from(["google", "numpy", "rest", "plain", "none"]))
    kind = "async def" if draw(st.booleans()) else "def"
    head = f"{kind} tool({', '.join(required + optional)}):"
    return {"source": f"{CLASSES}\n{head}\n{_docstring(style, notes)}    return 1\n"}


def _docstring(style: str, notes: list[tuple[str, str]]) -> str:
    if style == "none":
        return ""
    lines = ["Do something useful.", "", "It takes a while."]
    if style == "google" and notes:
        lines += ["", "Args:", *(f"    {name}: {note}" for name, note in notes), "", "Returns:", "    Something."]
    elif style == "numpy" and notes:
        lines += [
            "",
            "Parameters",
            "----------",
            *(line for name, note in notes for line in (f"{name} : int", f"    {note}")),
        ]
    elif style == "rest" and notes:
        lines += ["", *(f":param {name}: {note}" for name, note in notes), ":return: something"]
    body = "\n".join(f"    {line}".rstrip() for line in lines)
    return f'    """{body.strip()}\n    """\n'


ANSWER = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.one_of(st.none(), TEXT)},
    optional={
        "reasoning_content": st.sampled_from(["hm", "", None]),
        "reasoning": st.sampled_from(["hm", "", None]),
        "refusal": st.sampled_from(["no", "", None]),
        "tool_calls": st.lists(
            st.fixed_dictionaries(
                {
                    "id": st.sampled_from(["c1", "c2"]),
                    "type": st.just("function"),
                    "function": st.sampled_from([{"name": "add", "arguments": "{}"}, {"name": "add", "arguments": ""}]),
                }
            ),
            max_size=2,
            unique_by=lambda call: call["id"],
        ),
    },
)
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
answers = st.fixed_dictionaries(
    {
        "choices": st.lists(
            st.fixed_dictionaries(
                {
                    "index": st.just(0),
                    "message": ANSWER,
                    "finish_reason": st.sampled_from(["stop", "length", "tool_calls", "content_filter"]),
                    "logprobs": st.none(),
                }
            ),
            min_size=1,
            max_size=1,
        )
    },
    optional={"usage": st.sampled_from([USAGE, None])},
)

groups = st.fixed_dictionaries(
    {
        "members": st.lists(prompts(), min_size=2, max_size=2),
        "names": st.sampled_from([None, ["a", "b"]]),
        "nested": st.booleans(),
        "system_prompt": st.sampled_from([None, "Of the group."]),
    }
)

KINDS = {
    "parsers": parsers(),
    "texts": texts,
    "rubrics": rubrics,
    "prompts": prompts(),
    "stops": stops,
    "tools": tools(),
    "messages": messages,
    "answers": answers,
    "groups": groups,
}


class LibraryWorker:
    """A worker process that runs cases on a library, "rove" or "real"."""

    def __init__(self, library: str, python: str = sys.executable, **variables: str):
        root = str(Path(__file__).parents[2])
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | variables
        env |= {"PYTHONPATH": root} if library == "rove" else {}
        self._process = subprocess.Popen(
            [python, str(WORKER), library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )

    def run_case(self, kind: str, case: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, case]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the worker died of {kind} {case}"
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
