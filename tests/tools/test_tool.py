"""Tests of functions as tools: schemas, conversion of arguments, and results."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError, ToolParseError
from rove.core.messages import call_arguments, call_id, call_name
from rove.tools.tool import as_content, make_tool, tool_identity
from rove.utils.functions import is_async


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass
class Tree:
    value: int
    kids: list[Tree] = dataclasses.field(default_factory=list)


SENTINEL = object()


def paint(
    center: Point,
    color: Color = Color.RED,
    size: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1,
    unit: Literal["cm", "in"] = "cm",
    tags: list[str] = [],  # noqa: B006
    note: Annotated[str, "shown below"] | None = None,
    weights: dict[str, float] = SENTINEL,  # type: ignore[assignment]
) -> str:
    """Paint a dot.

    Slowly.

    Args:
        center: the middle
        size: of the dot
    """
    return "done"


PAINT = make_tool(paint)


def test_the_schema_comes_from_the_signature_and_the_docstring():
    assert PAINT.definition == {
        "type": "function",
        "function": {
            "name": "paint",
            "description": "Paint a dot.\n\nSlowly.",
            "parameters": {
                "type": "object",
                "properties": {
                    "center": {
                        "title": "Point",
                        "type": "object",
                        "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                        "required": ["x"],
                        "description": "the middle",
                    },
                    "color": {"title": "Color", "enum": ["blue", "red"], "default": "red"},
                    "size": {"type": "integer", "minimum": 1, "maximum": 9, "description": "of the dot", "default": 1},
                    "unit": {"enum": ["cm", "in"], "default": "cm"},
                    "tags": {"type": "array", "items": {"type": "string"}, "default": []},
                    "note": {
                        "anyOf": [{"type": "string"}, {"type": "null"}],
                        "description": "shown below",
                        "default": None,
                    },
                    "weights": {"type": "object", "additionalProperties": {"type": "number"}},
                },
                "required": ["center"],
                "additionalProperties": False,
            },
        },
    }
    assert list(PAINT.parameters["properties"]) == ["center", "color", "size", "unit", "tags", "note", "weights"]


def test_a_wrong_key_of_a_dict_names_the_argument():
    def total(sizes: dict[int, int]) -> int: ...

    with pytest.raises(ToolParseError, match="total: argument 'sizes': Expected `int`, got `str` - at `key`"):
        make_tool(total).read({"sizes": {"x": 1}})


def test_arguments_are_converted_to_the_annotated_types():
    arguments = {"center": {"x": 1}, "color": "blue", "size": 3, "note": None, "weights": {"a": 1}}
    read = PAINT.read(arguments)
    assert read == {"center": Point(1), "color": Color.BLUE, "size": 3, "note": None, "weights": {"a": 1.0}}
    assert PAINT.read({"center": {"x": 1}}) == {"center": Point(1)}  # the function applies its own defaults


@each_row(
    ("arguments", "message"),
    [
        ({}, "paint needs the argument 'center'; expected at least center"),
        ({"center": {"x": 1}, "colour": "red"}, "paint has no argument 'colour'; did you mean 'color'?"),
        ({"center": {"x": "1"}}, "paint: argument 'center.x': Expected `int`, got `str`"),
        ({"center": {"x": 1.0}}, "paint: argument 'center.x': Expected `int`, got `float`"),
        ({"center": {"x": True}}, "paint: argument 'center.x': Expected `int`, got `bool`"),
        ({"center": {"x": 1}, "size": 10}, "paint: argument 'size': Expected `int` <= 9"),
        ({"center": {"x": 1}, "tags": ["a", 1]}, "paint: argument 'tags[1]': Expected `str`, got `int`"),
        ({"center": {"x": 1}, "tags": "a"}, "paint: argument 'tags': Expected `array`, got `str`"),
        (
            {"center": {"x": 1}, "unit": "m"},
            "paint: argument 'unit': Invalid enum value 'm'; expected one of 'cm', 'in'",
        ),
        ({"center": {"x": 1}, "color": None}, "paint: argument 'color': Expected `str`, got `null`"),
    ],
)
def test_invalid_arguments_are_reported_with_the_expected_ones(arguments: dict[str, Any], message: str):
    with pytest.raises(ToolParseError) as caught:
        PAINT.read(arguments)
    assert str(caught.value).startswith(message)


def test_error_messages_are_short_even_for_long_arguments():
    for arguments in ({"a" * 10**6: 1}, {"center": {"x": 1}, "unit": "x" * 10**6}):
        with pytest.raises(ToolParseError) as caught:
            PAINT.read(arguments)
        assert len(str(caught.value)) < 600


def test_a_missing_annotation_accepts_anything_with_a_warning():
    def look(at, count: int = 3):
        """Look."""

    with pytest.warns(
        UserWarning, match="argument 'at' of tool 'look' has no annotation, so it accepts any JSON value"
    ):
        tool = make_tool(look)
    assert tool.parameters["properties"] == {"at": {}, "count": {"type": "integer", "default": 3}}
    assert tool.read({"at": [1, None]}) == {"at": [1, None]}


def test_null_is_accepted_for_an_argument_with_default_none():
    def look(at: int = None):  # type: ignore[assignment]  # noqa: RUF013
        """Look."""

    assert make_tool(look).read({"at": None}) == {"at": None}


def test_recursive_types_use_schema_references():
    def grow(tree: Tree) -> None:
        """Grow."""

    tool = make_tool(grow)
    assert tool.parameters["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert tool.parameters["$defs"]["Tree"]["properties"]["kids"]["items"] == {"$ref": "#/$defs/Tree"}
    assert tool.read({"tree": {"value": 1, "kids": [{"value": 2}]}}) == {"tree": Tree(1, [Tree(2)])}


class Counter:
    """Counts."""

    def __call__(self, by: int = 1) -> int:
        return by

    async def later(self, by: int) -> int:
        """Count later."""
        return by


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@each_row(
    ("func", "name", "arguments", "description"),
    [
        (Counter(), "Counter", ["by"], "Counts."),
        (Counter().later, "later", ["by"], "Count later."),
        (functools.partial(add, 1), "add", ["b"], "Add."),
        (functools.partial(add, b=1), "add", ["a"], "Add."),
        (functools.wraps(add)(lambda *args, **kwargs: add(*args, **kwargs)), "add", ["a", "b"], "Add."),
    ],
)
def test_callables_with_named_arguments_can_be_tools(func: Any, name: str, arguments: list[str], description: str):
    tool = make_tool(func)
    assert (tool.name, list(tool.parameters["properties"]), tool.description) == (name, arguments, description)
    assert make_tool(tool) is tool
    with pytest.raises(ConfigError, match="a Tool already"):
        make_tool(tool, hidden=["a"])


def test_is_async_recognizes_methods_and_partials():
    counter = Counter()
    assert is_async(counter.later) and is_async(functools.partial(counter.later, 1))
    assert not is_async(counter) and not is_async(add)


def test_name_and_description_can_be_set():
    tool = make_tool(lambda: 1, name="one", description="Gives 1.")
    assert (tool.definition["function"]["name"], tool.definition["function"]["description"]) == ("one", "Gives 1.")
    assert tool.parameters == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def starred(*values: int) -> None: ...
def keywords(**values: int) -> None: ...
def positional(a: int, /) -> None: ...
def strange(a: Callable[[], int]) -> None: ...
def two_lists(a: list[int] | set[str]) -> None: ...
def missing(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@each_row(
    ("func", "message"),
    [
        (3, "3 is not a tool; expected a function"),
        (lambda: 1, r"cannot be named '<lambda>'; expected .* use a def, or make_tool\(func, name=…\)"),
        (starred, r"tool 'starred' takes \*values: 'int', which a tool schema cannot describe.* take a list or a dict"),
        (keywords, r"tool 'keywords' takes \*\*values"),
        (positional, "argument 'a' of tool 'positional' is positional-only.*remove the '/'"),
        (strange, "argument 'a' of tool 'strange' is annotated .*Callable.*no JSON form.*args_to_skip"),
        (two_lists, "may not contain more than one array-like"),
        (missing, "NameError: name 'Nowhere' is not defined.*found in its module"),
        (iter, "tool 'iter' hides its arguments"),
    ],
)
def test_an_invalid_tool_is_rejected(func: Any, message: str):
    with pytest.raises(ConfigError, match=message):
        make_tool(func)


def test_json_string_keys_are_converted_to_numbers():
    def rename(names: dict[int, str], weights: dict[float, list[int]]) -> None:
        """Rename."""

    read = make_tool(rename).read(json.loads('{"names": {"1": "a"}, "weights": {"0.5": [2]}}'))
    assert read == {"names": {1: "a"}, "weights": {0.5: [2]}}
    with pytest.raises(ToolParseError, match="argument"):
        make_tool(rename).read({"names": {"one": "a"}, "weights": {}})


def test_annotations_of_hidden_arguments_need_not_be_resolvable():
    def search(query: str, db: Connection, limit: int = 3) -> Rows:  # type: ignore[name-defined]  # noqa: F821
        """Search."""
        return (query, db, limit)

    with pytest.raises(ConfigError, match=r"an annotation of tool 'search' cannot be read .*Connection"):
        make_tool(search)
    for tool in (make_tool(search, hidden=["db"]), make_tool(functools.partial(search, db=1), name="search")):
        assert tool.parameters["properties"]["query"] == {"type": "string"}
        assert tool.read({"query": "a"}) == {"query": "a"}


def test_the_identity_of_a_tool_contains_its_definition_its_code_and_its_bound_arguments():
    def search(query: str, limit: int = 3) -> str:
        """Search."""
        return query * limit

    def changed(query: str, limit: int = 3) -> str:
        """Search."""
        return query + str(limit)

    functions = [
        search,
        changed,
        functools.partial(search, limit=1),
        functools.partial(search, limit=2),
        functools.partial(search, "a"),
        functools.partial(search, "b"),
    ]
    tools = [make_tool(function, name="search") for function in functions]
    tools.append(make_tool(search, name="search", hidden=["limit"]))
    tools.append(make_tool(search, name="search", description="Find."))
    identities = [tool_identity(tool) for tool in tools]
    assert len(set(identities)) == len(identities)
    assert all(identity.startswith("search #") for identity in identities)
    assert tool_identity(make_tool(functools.partial(search, limit=1), name="search")) == identities[2]


def test_hidden_arguments_are_neither_shown_nor_accepted():
    def find(db: Callable[[], int], query: str, limit: int = 3) -> None:
        """Find."""

    tool = make_tool(find, hidden=["db", "limit"])
    assert list(tool.parameters["properties"]) == ["query"]
    with pytest.raises(ToolParseError, match="find has no argument 'db'; known: query"):
        tool.read({"query": "a", "db": 1})
    tool.check_call({"query": "a", "db": 1})
    tool.check_call({"query": "a", "db": 1, "limit": 2})
    with pytest.raises(ConfigError, match="tool 'find' needs the argument 'db'; expected it from update_tool_args"):
        tool.check_call({"query": "a"})
    with pytest.raises(ConfigError, match="has no argument 'data'"):
        tool.check_call({"query": "a", "db": 1, "data": 2})
    with pytest.raises(ConfigError, match="tool 'find' has no argument 'dd' to hide; known: db, limit, query"):
        make_tool(find, hidden=["dd"])


def call(arguments: Any, name: Any = "f") -> dict[str, Any]:
    return {"id": "1", "function": {"name": name, "arguments": arguments}}


@each_row(
    ("arguments", "read"),
    [
        ('{"a": "\\"x\\""}', {"a": '"x"'}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ("null", {}),
        ('"{}"', {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_are_a_json_object(arguments: Any, read: dict[str, Any]):
    assert call_arguments(call(arguments)) == read


@each_row(
    ("arguments", "message"),
    [
        ('{"a": 1', 'the arguments of f are not JSON .*truncated.*: {"a": 1; expected a JSON object'),
        ("{'a': 1}", "not JSON"),
        ('"a text"', "the arguments of f are a text; expected a JSON object"),
        ("[1]", "are a list"),
        ("3", "are a number"),
        ("true", "are a bool"),
        (3, "are a number"),
        ("[" * 10**5, "not JSON"),
        ('"\ud800', "not JSON"),
        ("NaN", "not JSON"),
    ],
)
def test_malformed_arguments_are_reported(arguments: Any, message: str):
    with pytest.raises(ToolParseError, match=message) as caught:
        call_arguments(call(arguments))
    assert len(str(caught.value)) < 600


def test_missing_or_invalid_ids_and_names_of_calls_are_tolerated():
    assert (call_id(call("")), call_name(call(""))) == ("1", "f")
    for broken in (None, "f", [], {}, {"id": 3, "function": "f"}, {"id": None, "function": {"name": 3}}):
        assert (call_id(broken), call_name(broken)) == ("", None)
    assert call_name(call("", "")) is None


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


@each_row(
    ("value", "content"),
    [
        ("text", "text"),
        (None, "null"),
        (True, "true"),
        (3, "3"),
        (1.5, "1.5"),
        (float("nan"), "nan"),
        ([IMAGE, {"type": "text", "text": "a cat"}], [IMAGE, {"type": "text", "text": "a cat"}]),
        ([], "[]"),
        ([{"type": "cat"}], '[{"type":"cat"}]'),
        ([{"type": "file", "name": "a"}], '[{"type":"file","name":"a"}]'),
        ([{"type": "text", "text": "a"}, {"type": "text"}], '[{"type":"text","text":"a"},{"type":"text"}]'),
        ([{"type": ["text"]}], '[{"type":["text"]}]'),
        ({"é": [1, None]}, '{"é":[1,null]}'),
        (Point(1, 2), '{"x":1,"y":2}'),
        (Color.RED, '"red"'),
        ({(1, 2): 3}, '{"(1, 2)":3}'),
        ([1 + 2j], '["(1+2j)"]'),
        (1 + 2j, "(1+2j)"),
        (10**30, str(10**30)),
    ],
)
def test_results_become_strings_content_parts_or_json(value: Any, content: Any):
    assert as_content(value) == content


def test_numpy_arrays_become_json_lists():
    import numpy as np

    assert as_content(np.arange(3)) == "[0,1,2]"
    assert as_content({"mean": np.float32(0.5)}) == '{"mean":0.5}'


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def plain(n: int, t: str, o: float | None = None, items: list[int] = [], kind: Literal["a", "b"] = "a") -> None:  # noqa: B006
    """Every kind of type."""


PLAIN = make_tool(plain)
fields = {
    "n": st.integers(-(2**62), 2**62),
    "t": st.text(),
    "o": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "items": st.lists(st.integers(-9, 9)),
    "kind": st.sampled_from("ab"),
}


@settings(deadline=None)
@given(st.fixed_dictionaries({k: fields[k] for k in "nt"}, optional={k: fields[k] for k in ("o", "items", "kind")}))
def test_valid_arguments_are_passed_unchanged(arguments: dict[str, Any]):
    read = PLAIN.read(call_arguments(call(json.dumps(arguments))))
    assert read == arguments
    plain(**read)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(fields)) | st.text(max_size=4), json_values, max_size=5))
def test_other_arguments_raise_an_error_with_the_tool_name(arguments: dict[str, Any]):
    try:
        read = PLAIN.read(arguments)
    except ToolParseError as error:
        assert str(error).startswith("plain")
    else:
        assert read == arguments
        assert (type(read["n"]), type(read["t"])) == (int, str)
