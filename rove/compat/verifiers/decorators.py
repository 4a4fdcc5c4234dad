"""v0's marks on methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def _mark(kind: str, func: Any, **notes: Any) -> Any:
    def decorate(method: Any) -> Any:
        setattr(method, kind, True)
        for name, value in notes.items():
            setattr(method, f"{kind}_{name}", value)
        return method

    return decorate if func is None else decorate(func)


def stop(func: Any = None, priority: int = 0) -> Any:
    """Mark `(self, state) -> bool` as a stop condition; its name becomes `state["stop_condition"]`."""
    return _mark("stop", func, priority=priority)


def cleanup(func: Any = None, priority: int = 0, stage: str = "rollout") -> Any:
    """Mark `(self, state)` to run after every rollout."""
    return _mark("cleanup", func, priority=priority, stage=stage)


def teardown(func: Any = None, priority: int = 0) -> Any:
    """Mark `(self)` to run once, at the end."""
    return _mark("teardown", func, priority=priority)


def setup(func: Any = None, priority: int = 0) -> Any:
    """A mark of the preview of 0.4; kept, and read by nothing here."""
    return _mark("setup", func, priority=priority)


def update(func: Any = None, priority: int = 0, stage: str = "rollout") -> Any:
    """A mark of the preview of 0.4; kept, and read by nothing here."""
    return _mark("update", func, priority=priority, stage=stage)


def metric(func: Any = None, priority: int = 0, stage: str = "rollout") -> Any:
    """A mark of the preview of 0.4; kept, and read by nothing here."""
    return _mark("metric", func, priority=priority, stage=stage)


def reward(func: Any = None, weight: float = 1.0, priority: int = 0, stage: str = "rollout") -> Any:
    """A mark of the preview of 0.4; kept, and read by nothing here."""
    return _mark("reward", func, priority=priority, stage=stage, weight=weight)


def advantage(func: Any = None, priority: int = 0) -> Any:
    """A mark of the preview of 0.4; kept, and read by nothing here."""
    return _mark("advantage", func, priority=priority, stage="group")


def discover_decorated(obj: Any, kind: str) -> list[Callable[..., Any]]:
    """The methods of an object that have a mark: highest priority first, then by name."""
    marked = [method for _, method in inspect.getmembers(obj, inspect.ismethod) if hasattr(method, kind)]
    return sorted(marked, key=lambda method: (-getattr(method, f"{kind}_priority", 0), method.__name__))
