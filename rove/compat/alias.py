"""The name `verifiers`, and every module path that it had, for `rove.compat.verifiers`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rove.errors import ConfigError

NAME = "verifiers"
HOME = "rove.compat.verifiers"

_PACKAGES = (
    "",
    "clients",
    "envs",
    "envs.experimental",
    "envs.integrations",
    "parsers",
    "rubrics",
    "rubrics.experimental",
)
_PACKAGES += ("utils", "scripts", "trainers", "inference", "tools", "legacy")
_MODULES = {
    "types": "types",
    "errors": "errors",
    "decorators": "decorators",
    "clients": "clients",
    "clients.client": "clients",
    "clients.anthropic_messages_client": "clients",
    "clients.nemorl_chat_completions_client": "clients",
    "clients.openai_chat_completions_client": "clients",
    "clients.openai_chat_completions_token_client": "clients",
    "clients.openai_completions_client": "clients",
    "clients.openai_responses_client": "clients",
    "clients.renderer_client": "clients",
    "envs": "",
    "envs.env_group": "group",
    "envs.environment": "environment",
    "envs.multiturn_env": "multiturn",
    "envs.singleturn_env": "multiturn",
    "envs.stateful_tool_env": "tools",
    "envs.tool_env": "tools",
    "envs.python_env": "sandbox",
    "envs.sandbox_env": "sandbox",
    "envs.experimental": "",
    "envs.experimental.gym_env": "gym",
    "envs.experimental.mcp_env": "mcp",
    "envs.integrations": "",
    "parsers": "parsers",
    "parsers.maybe_think_parser": "parsers",
    "parsers.parser": "parsers",
    "parsers.think_parser": "parsers",
    "parsers.xml_parser": "parsers",
    "rubrics": "",
    "rubrics.judge_rubric": "judge",
    "rubrics.math_rubric": "mathematics",
    "rubrics.rubric": "rubrics",
    "rubrics.rubric_group": "rubrics",
    "rubrics.tool_rubric": "former",
    "rubrics.experimental": "",
    "utils": "",
    "utils.async_utils": "calls",
    "utils.client_utils": "clients",
    "utils.config_utils": "errors",
    "utils.data_utils": "data",
    "utils.env_utils": "loading",
    "utils.eval_utils": "evaluation",
    "utils.error_utils": "errors",
    "utils.logging_utils": "logs",
    "utils.message_utils": "messages",
    "utils.response_utils": "multiturn",
    "utils.save_utils": "outputs",
    "utils.tool_utils": "schema",
    "utils.usage_utils": "usage",
    "trainers": "trainer",
    "legacy": "",
}
"""Path under `verifiers` → the module here that has its names; "" is the package itself."""


class _Alias(ModuleType):
    """A module of `verifiers`: its names are those of a module here, and of the whole package."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__" and name != "__version__":
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        if _below(path) in _MODULES:  # vf.utils.data_utils, say, which nobody has imported yet
            return importlib.import_module(path)
        home = self.__dict__["__home__"]
        found = getattr(importlib.import_module(home), name, _ABSENT)
        if found is _ABSENT:
            found = getattr(importlib.import_module(HOME), name, _ABSENT)
        if found is _ABSENT:
            raise AttributeError(f"module '{self.__name__}' of rove.compat has no attribute '{name}'")
        return found

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *dir(importlib.import_module(self.__dict__["__home__"]))})


_ABSENT = object()


class _Finder:
    """Finds the modules of `verifiers` here."""

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """A spec for a module that v0 had; None for all others."""
        if fullname != NAME and not fullname.startswith(f"{NAME}."):
            return None
        place = _below(fullname)
        if place not in _MODULES and place not in _PACKAGES:
            return None
        return ModuleSpec(fullname, self, origin=HOME, is_package=place in _PACKAGES)  # pyright: ignore[reportArgumentType]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module."""
        return _Alias(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Say where its names are."""
        home = _MODULES.get(_below(module.__name__), "")
        module.__dict__["__home__"] = f"{HOME}.{home}" if home else HOME
        module.__dict__["__file__"] = sys.modules[__name__].__file__


def _below(fullname: str) -> str:
    """The path under `verifiers`; that under `verifiers.legacy` is the same."""
    place = fullname.removeprefix(NAME).removeprefix(".")
    return place.removeprefix("legacy.")


def install(*, replace: bool = False) -> None:
    """Let `import verifiers`, and every module path that 0.3.1 had, find `rove.compat.verifiers`. Once is enough.

    Args:
        replace: also where a library of that name is installed.

    Raises:
        ConfigError: a library of that name is installed (without `replace`), or imported already.
    """
    mine = _mine()
    loaded = sys.modules.get(NAME)
    if loaded is not None and not isinstance(loaded, _Alias) and not _is_shim(loaded):
        raise ConfigError(
            f"{NAME} {getattr(loaded, '__version__', '')} is imported already, from {loaded.__file__}; call "
            "rove.compat.install() before anything that imports it"
        )
    if not replace and (mine is None or mine is sys.meta_path[-1]):
        other = _installed()
        if other is not None:
            raise ConfigError(
                f"a library named {NAME} is installed ({other}), so that packages use that one; uninstall it, or put rove "
                "in its place with install(replace=True) or --compat"
            )
    if mine is not None:
        sys.meta_path.remove(mine)
    sys.meta_path.insert(0, mine or _Finder())


def offer() -> None:
    """Answer for `verifiers` where nothing else does, as the commands do: an installed one is used as it is."""
    if _mine() is None:
        sys.meta_path.append(_Finder())


def replace() -> None:
    """`install(replace=True)`, for whoever calls functions by name."""
    install(replace=True)


def in_workers() -> str:
    """Name of the function that does in a worker process what was done here: `offer`, or `replace`."""
    mine = _mine()
    return f"rove.compat:{'offer' if mine is None or mine is sys.meta_path[-1] else 'replace'}"


def uninstall() -> None:
    """Undo `install`; modules that have imported names keep them."""
    mine = _mine()
    if mine is not None:
        sys.meta_path.remove(mine)
    for name in [name for name, module in sys.modules.items() if isinstance(module, _Alias)]:
        del sys.modules[name]


def _mine() -> Any:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


def _installed() -> str | None:
    """Where another library of the name is; None where there is none, or only the distribution that stands for this one."""
    for finder in sys.meta_path:
        spec = None if isinstance(finder, _Finder) else finder.find_spec(NAME, None)
        if spec is not None and spec.origin is not None:
            with open(spec.origin, encoding="utf-8") as file:
                return None if _SHIM in file.read() else spec.origin
    return None


_SHIM = "rove.compat"
"""What the module of the shim distribution says, and no other of that name."""


def _is_shim(module: ModuleType) -> bool:
    return bool(getattr(module, "__rove_shim__", False))
