"""What is seen of an environment that plays in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiers import first_quick

from rove.core.errors import PackageError
from rove.hub.package.building import Score, measure

HEAD = """
import rove as vf

def good(messages, state, rng):
    return state["answer"]

def bad(messages, state, rng):
    raise ValueError("lost its mind")

def double(n: int) -> int:
    "Twice as much."
    return 2 * n

def load_environment() -> vf.Environment:
"""
ROWS = 'dataset=[{"question": "?", "answer": "a"}] * 3'
PLAIN = f"""
    import my_words  # beside it in the wheel
    import socket
    try:
        socket.getaddrinfo("example.invalid", 80)
    except OSError:
        pass
    def correct(completion, answer):
        return float(completion[-1]["content"] == answer)
    return vf.SingleTurnEnv({ROWS}, rubric=vf.Rubric([correct]), policies={{"good": good, "bad": bad}})
"""


def test_players_metrics_and_the_network_are_seen(tmp_path: Path):
    (tmp_path / "my_env.py").write_text(HEAD + PLAIN)
    (tmp_path / "my_words.py").write_text("")
    facts = measure(tmp_path, "my_env")
    assert facts.policies["good"] == Score(rewards=[1.0, 1.0, 1.0])
    assert facts.policies["bad"] == Score(rewards=[], failed=3, error="ValueError: lost its mind")
    assert "correct" in facts.metrics
    assert (facts.tools, facts.network, facts.sandbox) == ([], True, False)


def test_tools_and_sandboxes_of_groups_are_seen_without_players(tmp_path: Path):
    body = f"    return vf.EnvGroup([vf.ToolEnv(tools=[double], {ROWS}), vf.PythonEnv({ROWS})], env_names=['a', 'b'])\n"
    (tmp_path / "my_env.py").write_text(HEAD + body)
    facts = measure(tmp_path, "my_env", python=sys.executable)
    assert {"double", "python"} <= set(facts.tools)
    assert (facts.policies, facts.network, facts.sandbox) == ({}, False, True)


@pytest.mark.parametrize(
    ("body", "words"),
    first_quick(
        [
            ("raise KeyError('the data is gone')", r"the data is gone(.|\n)*--python(.|\n)*--no-play"),
            ("import nothing_of_that_name", r"nothing_of_that_name(.|\n)*--no-play"),
            ("import os; os._exit(7)", "--no-play"),
            ("import time; time.sleep(60)", r"--no-play"),
            ("return 5", "expected a rove Environment"),
        ]
    ),
)
def test_what_cannot_be_loaded_is_told(tmp_path: Path, body: str, words: str):
    (tmp_path / "my_env.py").write_text(HEAD + "    " + body)
    with pytest.raises(PackageError, match=words):
        measure(tmp_path, "my_env", seconds=5.0 if "sleep" in body else 60.0)
