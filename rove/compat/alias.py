"""An import finder that resolves `verifiers`, and every module path of the library, to `rove.compat.verifiers`.

docs/decisions/compat.md explains why this is a finder, and why it comes last by default.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from rove.core.errors import ConfigError
from rove.workers.import_alias import ImportAlias, set_import_alias

NAME = "verifiers"
TARGET = "rove.compat.verifiers"

_PACKAGES = {
    "",
    *["clients", "envs", "envs.experimental", "envs.integrations", "inference", "legacy", "parsers"],
    *["rubrics", "rubrics.experimental", "scripts", "tools", "trainers", "utils"],
}
_PATHS_OF_MODULE = {
    "": "envs envs.experimental envs.integrations rubrics rubrics.experimental utils legacy",
    "clients": "clients clients.client clients.anthropic_messages_client clients.nemorl_chat_completions_client "
    "clients.openai_chat_completions_client clients.openai_chat_completions_token_client "
    "clients.openai_completions_client clients.openai_responses_client clients.renderer_client "
    "utils.client_utils",
    "data": "utils.data_utils",
    "decorators": "decorators utils.async_utils",
    "environment": "envs.environment utils.env_utils",
    "errors": "errors utils.config_utils utils.error_utils",
    "evaluation": "utils.eval_utils utils.save_utils utils.usage_utils",
    "group": "envs.env_group",
    "integrations": "envs.textarena_env envs.reasoninggym_env envs.experimental.gym_env envs.integrations.openenv_env "
    "envs.integrations.reasoninggym_env envs.integrations.textarena_env",
    "judge": "rubrics.judge_rubric",
    "legacy_environments": "rubrics.tool_rubric utils.tools",
    "logs": "utils.logging_utils",
    "mcp": "envs.experimental.mcp_env",
    "messages": "utils.message_utils",
    "multiturn": "envs.multiturn_env envs.singleturn_env utils.response_utils",
    "parsers": "parsers parsers.maybe_think_parser parsers.parser parsers.think_parser parsers.xml_parser",
    "rubrics": "rubrics.math_rubric rubrics.rubric rubrics.rubric_group",
    "sandbox": "envs.python_env envs.sandbox_env",
    "tools": "envs.stateful_tool_env envs.tool_env utils.tool_utils",
    "trainer": "trainers",
    "types": "types",
}
"""Module of `rove.compat.verifiers` → the paths under `verifiers` that provide its names; "" is the package itself."""
_MODULES: dict[str, str] = {}
for _module, _paths in _PATHS_OF_MODULE.items():
    _MODULES.update(dict.fromkeys(_paths.split(), _module))

_UNSUPPORTED_MODULES = {
    "browser_env": "BrowserEnv",
    "cli_agent_env": "CliAgentEnv",
    "harbor_env": "HarborEnv",
    "opencode_env": "CliAgentEnv",
    "rlm_env": "RLMEnv",
    "vllm_client": "VLLMClient",
}
"""Module that rove does not provide → a class of this module; `rove.compat.verifiers.UNSUPPORTED` names a replacement for it."""

PROVIDED_VERSIONS = {
    NAME: (
        *("0.0.0", "0.1.0", "0.1.1", "0.1.2", "0.1.2.post0", "0.1.2.post1", "0.1.3", "0.1.3.post0", "0.1.4", "0.1.5"),
        *("0.1.5.post0", "0.1.6", "0.1.6.post0", "0.1.7", "0.1.7.post0", "0.1.8", "0.1.8.post0", "0.1.8.post1"),
        *("0.1.8.post2", "0.1.9", "0.1.9.post0", "0.1.9.post1", "0.1.9.post2", "0.1.9.post3", "0.1.10", "0.1.11"),
        *("0.1.12", "0.1.14", "0.2.0", "0.2.1", "0.3.0", "0.3.1"),
    )
}
"""Versions with the API that rove provides: installing a package for rove does not download these."""

_SHIM_MARKER = "rove.compat"
"""Text that only the `verifiers` module of rove's shim distribution contains."""


class _AliasModule(ModuleType):
    """A module of `verifiers`, with the names of its target module and of the whole package."""

    __target__: str

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        # In v0, importing the package imported its submodules; here `vf.utils.data_utils` is imported at its first use.
        if _relative_path(path) in _MODULES:
            return importlib.import_module(path)
        # Until 0.1.4 it found the first box and since then the last one, so it depends on the importing package.
        if name == "extract_boxed_answer":
            return importlib.import_module(f"{TARGET}.rubrics").boxed_answer_extractor()
        target = importlib.import_module(self.__target__)
        # A dozen modules here cover v0's 53 paths, so a name may be in another module than under v0's path.
        return getattr(target, name) if hasattr(target, name) else getattr(importlib.import_module(TARGET), name)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *dir(importlib.import_module(self.__target__))})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and loads the modules of `verifiers`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that v0 had; None for any other module."""
        if fullname != NAME and not fullname.startswith(f"{NAME}."):
            return None
        relative = _relative_path(fullname)
        if relative in _MODULES or relative in _PACKAGES:
            return ModuleSpec(fullname, self, origin=TARGET, is_package=relative in _PACKAGES)
        module_name = relative.rpartition(".")[2]
        class_name = _UNSUPPORTED_MODULES.get(module_name, module_name)
        replacements: dict[str, str] = importlib.import_module(TARGET).UNSUPPORTED
        # `from verifiers import BrowserEnv` imports a submodule of that name if the package has no such attribute.
        if class_name in replacements:
            raise ImportError(f"rove.compat has no '{class_name}': {replacements[class_name]}", name=fullname)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Create an empty module."""
        return _AliasModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Set the source of the module's names."""
        module.__dict__["__target__"] = _target_of(_relative_path(module.__name__))
        module.__dict__["__file__"] = __file__


def _relative_path(fullname: str) -> str:
    """Return the path under `verifiers`; modules under `verifiers.legacy` keep their earlier paths."""
    return fullname.removeprefix(NAME).removeprefix(".").removeprefix("legacy.")


def _target_of(relative: str) -> str:
    target = _MODULES.get(relative, "")
    return f"{TARGET}.{target}" if target else TARGET


def install(*, replace: bool = False) -> None:
    """Make `import verifiers`, and every module path that 0.3.1 had, resolve to `rove.compat.verifiers`.

    A second call has no effect.

    Args:
        replace: whether to take precedence over an installed verifiers.

    Raises:
        ConfigError: verifiers is installed (without `replace`), or has been imported already.
    """
    finder = _finder()
    loaded = sys.modules.get(NAME)
    is_ours = isinstance(loaded, _AliasModule) or getattr(loaded, "__rove_shim__", False)
    # Modules that have imported names of the real library would keep them, and mix both libraries' classes.
    if loaded is not None and not is_ours:
        raise ConfigError(
            f"{NAME} {getattr(loaded, '__version__', '')} is imported already, from {loaded.__file__}; call "
            "rove.compat.install() before the first import of it"
        )
    # A finder in last position is the fallback of rove's commands: an installed library would take precedence.
    if not replace and (finder is None or finder is sys.meta_path[-1]):
        installed = _installed_file()
        if installed is not None:
            raise ConfigError(
                f"{NAME} is installed ({installed}) and takes precedence; uninstall it, or let rove replace it with "
                "install(replace=True) or --compat"
            )
    if finder is not None:
        sys.meta_path.remove(finder)
    sys.meta_path.insert(0, finder or _Finder())
    set_import_alias(ImportAlias("rove.compat:install_replacement", PROVIDED_VERSIONS))


def install_fallback() -> None:
    """Resolve `verifiers` only if no such library is installed, as rove's commands do."""
    if _finder() is None:
        sys.meta_path.append(_Finder())
        set_import_alias(ImportAlias("rove.compat:install_fallback", PROVIDED_VERSIONS))


def install_replacement() -> None:
    """Call `install(replace=True)`; a function without arguments for worker processes, which call it by name."""
    install(replace=True)


def uninstall() -> None:
    """Undo `install`. Names that modules have already imported stay available."""
    finder = _finder()
    if finder is not None:
        sys.meta_path.remove(finder)
    aliased = [name for name, module in sys.modules.items() if isinstance(module, _AliasModule)]
    for name in aliased:
        del sys.modules[name]
    set_import_alias(None)


def missing_reason(path: str) -> str:
    """Return why `verifiers.<path>` is not available, with a replacement if there is one; "" if it is available."""
    module = ""
    for part in path.split("."):
        name = _UNSUPPORTED_MODULES.get(part, part)
        submodule = f"{module}.{name}".removeprefix(".")
        if submodule in _MODULES or submodule in _PACKAGES:
            module = submodule
            continue
        if hasattr(importlib.import_module(_target_of(module)), name):
            return ""
        try:
            getattr(importlib.import_module(TARGET), name)
        except AttributeError as error:
            return str(error)
        return ""
    return ""


def _finder() -> _Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, _Finder)), None)


def _installed_file() -> str | None:
    """Return the file of an installed verifiers; None if it is not installed or is rove's shim distribution of that name."""
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            continue
        spec = finder.find_spec(NAME, None)
        if spec is None or spec.origin is None:
            continue
        # The shim is found as `verifiers`, too. It is read and not imported: its import would install the alias.
        with open(spec.origin, encoding="utf-8") as file:
            is_shim = _SHIM_MARKER in file.read()
        return None if is_shim else spec.origin
    return None
