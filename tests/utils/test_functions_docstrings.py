"""Reading docstrings in three styles and free text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tiers import each_row

from rove.utils.functions import read_docstring

GOOGLE = """Find pages.

    By title, then by text.

    Args:
        query: words; the form is: any
            of them
        limit (Callable[[int], str], optional): at most so many.

        **more: passed on
    Returns:
        pages: not an argument
    """
NUMPY = """Find pages.

    By title, then by text.

    Parameters
    ----------
    query : str
        words; the form is: any
        of them
    limit : int, optional
        at most so many.
    **more
        passed on

    Returns
    -------
    pages : list
        not an argument
    """
REST = """Find pages.

    By title, then by text.

    :param query: words; the form is: any
        of them
    :type query: str
    :param int limit: at most so many.
    :keyword more: passed on
    :returns: not an argument
    """


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_all_styles_give_the_same_result(text: str):
    assert read_docstring(text) == (
        "Find pages.\n\nBy title, then by text.",
        {"query": "words; the form is: any of them", "limit": "at most so many.", "more": "passed on"},
    )


def test_numpy_names_on_one_line_share_a_description():
    assert read_docstring("Parameters\n----------\na, b : int\n    both\n") == ("", {"a": "both", "b": "both"})


def test_a_section_without_arguments_only_ends_the_description():
    assert read_docstring("Go.\n\nReturns:\n    x: y\n\nArgs:\n    a: b") == ("Go.", {"a": "b"})
    assert read_docstring("Go.\n\nExample:\n\n    go(x: 1)") == ("Go.", {})


@each_row("text", ["Note: this: that", "args: are fun", "a - b\n--", "Look:\n    x: y\nz", "---"])
def test_text_outside_of_sections_is_description(text: str):
    assert read_docstring(text) == (text, {})


@given(
    st.none()
    | st.lists(st.sampled_from(["Args:", "a: b", "  a: b", "----", "Parameters", ":param a: b", ""])).map("\n".join)
)
@example("Args:")
@example("Parameters\n---")
def test_any_text_is_read(text: str | None):
    description, described = read_docstring(text)
    assert all(line.strip() in (text or "") for line in description.splitlines())
    assert all("\n" not in value for value in described.values())
