"""What holds for every integration: it is found under its name, it is light, and it says what it needs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable

import pytest

import rove as vf
from rove.errors import ConfigError
from rove.integrations.environments.libraries import needs

NEEDING: list[tuple[str, str, Callable[[], object]]] = [
    ("gymnasium", "gym", lambda: vf.GymEnv("FrozenLake-v1")),
    ("textarena", "textarena", lambda: vf.TextArenaEnv("TicTacToe-v0")),
    ("reasoning_gym", "reasoning-gym", lambda: vf.ReasoningGymEnv("gcd")),
]


@pytest.mark.parametrize(("module", "extra", "make"), NEEDING)
def test_a_library_that_is_missing_is_told(
    module: str, extra: str, make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == module else find(name))
    with pytest.raises(ConfigError, match=rf"pip install 'rove\[{extra}\]'"):
        make()


def test_a_library_that_is_there_is_not_imported() -> None:
    program = "import sys\nfrom rove.integrations.environments.libraries import needs\nneeds('wave', 'x', 'it')\n"
    subprocess.run([sys.executable, "-c", f"{program}assert 'wave' not in sys.modules"], check=True)
    with pytest.raises(ConfigError, match="it needs 'no_such_library'"):
        needs("no_such_library", "x", "it")
