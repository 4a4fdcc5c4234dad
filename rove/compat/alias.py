"""The name `verifiers`, and every module path that it had, for `rove.compat.verifiers`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rove.core.errors import ConfigError

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
    "envs.textarena_env": "integrations",
    "envs.reasoninggym_env": "integrations",
    "envs.tool_env": "tools",
    "envs.python_env": "sandbox",
    "envs.sandbox_env": "sandbox",
    "envs.experimental": "",
    "envs.experimental.gym_env": "gym",
    "envs.experimental.mcp_env": "mcp",
    "envs.integrations": "",
    "envs.integrations.openenv_env": "integrations",
    "envs.integrations.reasoninggym_env": "integrations",
    "envs.integrations.textarena_env": "integrations",
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
    "utils.tools": "former_tools",
    "utils.usage_utils": "usage",
    "trainers": "trainer",
    "legacy": "",
}
"""Path under `verifiers` → the module here that has its names; "" is the package itself."""


_WITHOUT = {
    "browser_env": "BrowserEnv",
    "cli_agent_env": "CliAgentEnv",
    "harbor_env": "HarborEnv",
    "opencode_env": "CliAgentEnv",
    "rlm_env": "RLMEnv",
    "vllm_client": "VLLMClient",
}
"""Module that is not provided → the class in it."""


class _Alias(ModuleType):
    """A module of `verifiers`: its names are those of a module here, and of the whole package."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__all__" and name != "__version__":
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        if _below(path) in _MODULES:  # vf.utils.data_utils, say, which nobody has imported yet
            return importlib.import_module(path)
        if name == "extract_boxed_answer":  # until 0.1.4 it found the first box
            return importlib.import_module(f"{HOME}.mathematics").boxed_answer()
        home = self.__dict__["__home__"]
        found = getattr(importlib.import_module(home), name, _ABSENT)
        if found is _ABSENT:
            found = getattr(importlib.import_module(HOME), name)  # or it says what to use instead
        return found

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *dir(importlib.import_module(self.__dict__["__home__"]))})


_ABSENT = object()


PROVIDED_VERSIONS = {
    NAME: (
        *("0.0.0", "0.1.0", "0.1.1", "0.1.2", "0.1.2.post0", "0.1.2.post1", "0.1.3", "0.1.3.post0", "0.1.4", "0.1.5"),
        *("0.1.5.post0", "0.1.6", "0.1.6.post0", "0.1.7", "0.1.7.post0", "0.1.8", "0.1.8.post0", "0.1.8.post1"),
        *("0.1.8.post2", "0.1.9", "0.1.9.post0", "0.1.9.post1", "0.1.9.post2", "0.1.9.post3", "0.1.10", "0.1.11"),
        *("0.1.12", "0.1.14", "0.2.0", "0.2.1", "0.3.0", "0.3.1"),
    )
}
"""What nothing is fetched for where a package is installed for rove: the versions that had the API which lives on here."""


class _Finder:
    """Finds the modules of `verifiers` here; what else must find them, and what is not fetched for them, it tells."""

    stand_ins = PROVIDED_VERSIONS

    def in_workers(self) -> str:
        """See the function of that name."""
        return in_workers()

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """A spec for a module that v0 had; None for all others."""
        if fullname != NAME and not fullname.startswith(f"{NAME}."):
            return None
        place = _below(fullname)
        instead = self._not_provided(place)
        if instead:
            raise ImportError(instead, name=fullname)
        if place not in _MODULES and place not in _PACKAGES:
            return None
        return ModuleSpec(fullname, self, origin=HOME, is_package=place in _PACKAGES)  # pyright: ignore[reportArgumentType]

    def _not_provided(self, place: str) -> str:
        """What to use instead of a module, or of a name that `from … import` asks for; "" for all others."""
        last = place.rpartition(".")[2]
        if place in _MODULES or place in _PACKAGES:
            return ""
        known = importlib.import_module(HOME)._NOT_HERE
        name = _WITHOUT.get(last, last)
        return f"rove.compat has no '{name}': {known[name]}" if name in known else ""

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


def install_fallback() -> None:
    """Answer for `verifiers` where nothing else does, as the commands do: an installed one is used as it is."""
    if _mine() is None:
        sys.meta_path.append(_Finder())


def install_replacement() -> None:
    """`install(replace=True)`, for whoever calls functions by name."""
    install(replace=True)


def in_workers() -> str:
    """Name of the function that does in a worker process what was done here: `offer`, or `replace`."""
    mine = _mine()
    return f"rove.compat:{'install_fallback' if mine is None or mine is sys.meta_path[-1] else 'install_replacement'}"


def missing_reason(path: str) -> str:
    """What there is to say where `verifiers.<path>` is not answered for; "" for a module that is, or a name that one has."""
    parts = [_WITHOUT.get(part, part) for part in path.split(".")]
    for place, part in enumerate(parts):
        if ".".join(parts[: place + 1]) in {*_MODULES, *_PACKAGES}:
            continue
        home = _MODULES.get(".".join(parts[:place]), "")
        if hasattr(importlib.import_module(f"{HOME}.{home}" if home else HOME), part):
            return ""
        try:
            getattr(importlib.import_module(HOME), part)
        except AttributeError as error:
            return str(error)
        return ""
    return ""


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
