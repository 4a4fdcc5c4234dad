"""Errors: class hierarchy, phase of an exception, and suggestions for misspelled names."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rove.core import errors
from rove.core.errors import (
    ConfigError,
    EmptyModelResponseError,
    Error,
    InfraError,
    InvalidModelResponseError,
    MissingKeyError,
    ModelError,
    OverlongPromptError,
    RejectedError,
    RunError,
    as_json,
    nearest,
    phase,
    phase_of,
    traceback_text,
)


def make(kind: type[Error], message: str) -> Error:
    return RejectedError(400, message) if kind is RejectedError else kind(message)


CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Error)]


def test_the_class_hierarchy():
    assert issubclass(ConfigError, ValueError)
    assert MissingKeyError.__bases__ == (ConfigError,)
    assert EmptyModelResponseError.__bases__ == (InvalidModelResponseError,)
    assert InvalidModelResponseError.__bases__ == OverlongPromptError.__bases__ == (ModelError,)
    assert ModelError.__bases__ == InfraError.__bases__ == RunError.__bases__ == (Error,)


def test_the_documented_class_hierarchy_is_complete():
    documentation = errors.__doc__ or ""
    assert [kind.__name__ for kind in CLASSES if kind.__name__ not in documentation] == []


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_can_be_pickled(kind):
    error = make(kind, "what happened")
    error.attempts = ["HTTP 500"]
    copied = pickle.loads(pickle.dumps(error))
    assert (type(copied), str(copied), copied.attempts) == (kind, "what happened", ["HTTP 500"])


@pytest.mark.parametrize("kind", CLASSES)
def test_attempts_are_empty_by_default_and_not_shared(kind):
    first, second = make(kind, "a"), make(kind, "b")
    assert list(first.attempts) == []
    first.attempts = [*first.attempts, "HTTP 500"]
    assert list(second.attempts) == []


def test_infra_errors_list_their_attempts():
    assert InfraError("gave up", (text for text in ["HTTP 500", "HTTP 503"])).attempts == ["HTTP 500", "HTTP 503"]


def test_nearest_suggests_a_similar_name_or_lists_the_known_ones():
    options = ["num_examples", "seed", "max_turns"]
    assert nearest("num_exmples", options) == "did you mean 'num_examples'?"
    assert nearest("max-turns", options) == "did you mean 'max_turns'?"
    assert nearest("xyz", options) == "known: max_turns, num_examples, seed"
    assert nearest("xyz", []) == "none are known here"


@given(st.lists(st.text("abcdef_", min_size=1), min_size=1, unique=True))
def test_an_exact_name_is_its_own_nearest(options):
    assert nearest(options[0], options) == f"did you mean '{options[0]}'?"


def test_the_innermost_phase_is_recorded():
    with pytest.raises(KeyError) as caught, phase("outer"), phase("inner"):
        raise KeyError("x")
    assert phase_of(caught.value) == "inner"


def test_the_default_phase_is_rollout():
    assert phase_of(ValueError()) == "rollout"


def test_a_phase_without_an_exception_is_not_recorded():
    error = ValueError("x")
    with phase("over"):
        str(error)
    with pytest.raises(ValueError, match="x"), phase("outer"):
        raise error
    assert phase_of(error) == "outer"


def test_cancellations_record_their_phase():
    with pytest.raises(asyncio.CancelledError) as caught, phase("tool"):
        raise asyncio.CancelledError
    assert phase_of(caught.value) == "tool"


def _deep(depth: int) -> None:
    if depth:
        _deep(depth - 1)
    raise ValueError("the last line")


def test_a_traceback_names_the_function_and_is_truncated_at_its_beginning():
    with pytest.raises(ValueError, match="the last line") as caught:
        _deep(0)
    assert "in _deep" in traceback_text(caught.value)
    short = traceback_text(caught.value, limit=30)
    assert (len(short), short[0]) == (31, "…")
    assert short.endswith("the last line\n")


def test_values_are_shown_as_json_if_json_can_represent_them():
    assert as_json({"a": [None, True, "é"]}) == '{"a": [null, true, "é"]}'
    assert as_json({(1, 2): 3}) == "{(1, 2): 3}"
    assert as_json({"a": Path("b")}) == '{"a": "b"}'


@pytest.mark.parametrize("name", ["fcntl", "rove.missing", None])
def test_a_missing_module_that_pip_cannot_install_is_not_an_error_of_the_installation(name: str | None):
    with pytest.raises(ModuleNotFoundError, match="No module"), errors.needs_train_extra():
        raise ModuleNotFoundError(f"No module named '{name}'", name=name)


def test_the_cause_of_an_import_error_without_a_name_is_reported():
    cause = ModuleNotFoundError("No module named 'jinja2.ext'", name="jinja2.ext")
    with pytest.raises(ConfigError, match=r"needs the package 'jinja2.ext'"), errors.needs_train_extra():
        raise ModuleNotFoundError("Could not import module 'X'") from cause
    with pytest.raises(ModuleNotFoundError, match="Could not import"), errors.needs_train_extra():
        raise ModuleNotFoundError("Could not import module 'X'") from AttributeError("SIGKILL")
