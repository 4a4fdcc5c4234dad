"""Digests of code: they change with the code and with what it uses."""

from __future__ import annotations

from typing import Any

import pytest

import rove as vf
from rove.core.code_digest import digest_code, digest_main_code

NOTEBOOK = """
import rove as vf

PRICES = {"tea": 2, "cake": 3}


def price(name):
    return PRICES[name]


def correct(completion, answer):
    return float(any(price(word) == 2 for word in completion))


class Shop(vf.SingleTurnEnv):
    label = "shop"

    def env_response(self, messages, state):
        return [correct(messages, part) for part in ("a", "b")]


def make_policy(word):
    return lambda messages, state, rng: word


policy = make_policy("tea")
"""


def cell(source: str) -> dict[str, Any]:
    """Run the code of a notebook."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    exec(source, variables)
    return variables


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("correct", '"cake": 3', '"cake": 4'),
        ("correct", "return PRICES[name]", "return 1 + PRICES[name]"),
        ("Shop", "return PRICES[name]", "return 1 + PRICES[name]"),
        ("Shop", 'label = "shop"', 'label = "store"'),
        ("Shop", '("a", "b")', '("a", "c")'),
        ("policy", '"tea")', '"cake")'),
        ("policy", "rng: word", "rng: word * 2"),
    ],
)
def test_the_digest_of_a_notebooks_code_contains_what_it_uses(name: str, old: str, new: str):
    assert NOTEBOOK.count(old) == 1
    digest, repeated, edited = (
        digest_main_code(cell(source)[name]) for source in (NOTEBOOK, NOTEBOOK, NOTEBOOK.replace(old, new))
    )
    assert digest == repeated != edited


def test_code_of_other_modules_has_no_digest_of_a_notebook():
    assert digest_main_code(digest_code) == digest_main_code("text") == digest_main_code(vf.SingleTurnEnv) == ""
