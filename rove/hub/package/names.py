"""Names of owners, environments and versions on a hub. A name that passed here is safe as a part of a path and of a URL."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from packaging.utils import canonicalize_version
from packaging.version import InvalidVersion, Version

from rove.core.errors import ConfigError
from rove.hub.package import limits

RESERVED = frozenset({"simple", "static", "api", "index", "files"})
"""What a hub calls pages of its own; neither an owner nor an environment may be called so."""

_LIBRARIES = """
    accelerate aiohappyeyeballs aiohttp aiosignal annotated_doc annotated_types anthropic anyio attr attrs bm25s build
    certifi cffi click cryptography datasets dateutil dill fastapi filelock frozenlist fsspec functorch gymnasium h11
    hatchling hf_xet httpcore httpx huggingface_hub hypothesis idna jinja2 jsonschema jwt llguidance markdown_it markupsafe
    math_verify matplotlib mcp mdurl mpmath msgspec multidict multipart multiprocess networkx numpy openai packaging pandas
    pathspec peft pil playwright pluggy propcache psutil py pyarrow pycparser pydantic pydantic_core pygments pylab pyparsing
    pyproject_hooks pytest python_multipart pytz ray reasoning_gym referencing regex requests rich rove rpds safetensors scipy
    shellingham simpleeval six smolagents sniffio sse_starlette starlette sympy tensorboard textarena textual tokenizers
    tomli tomli_w tomlkit torch torchgen tqdm trackio transformers triton trove_classifiers typer typing_extensions
    typing_inspection tzdata urllib3 uvicorn verifiers vllm wandb websockets xxhash yaml yarl
"""
"""Modules of libraries that rove, its extras or most packages import."""
_TOOLS = (
    "conftest distutils easy_install imp pip pkg_resources setuptools sitecustomize usercustomize uv virtualenv wheel"
)
"""Modules that Python, packaging tools or pytest import by themselves."""
_NAMESPACES = "azure backports google mpl_toolkits nvidia opentelemetry ruamel sphinxcontrib zope"
"""Namespaces that several distributions share."""
OURS = frozenset(f"{_LIBRARIES} {_TOOLS} {_NAMESPACES}".split())
"""Modules that an environment must not bring, besides those of Python itself, in lower case: it would stand in for them."""

_OWNER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_LOOKALIKES = str.maketrans({"l": "1", "o": "0", "-": None, "_": None, ".": None})


class Reference(NamedTuple):
    """An environment on a hub: OWNER/NAME, or one version of it: OWNER/NAME@VERSION."""

    owner: str
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" + (f"@{self.version}" if self.version else "")


def parse_reference(text: str) -> Reference:
    """Read OWNER/NAME or OWNER/NAME@VERSION; the name and the version are normalised.

    Raises:
        ConfigError: it is something else.
    """
    path, at, version = text.partition("@")
    owner, slash, name = path.partition("/")
    if not slash:
        raise ConfigError(f"{text!r} names no environment of a hub; write OWNER/NAME or OWNER/NAME@VERSION")
    return Reference(check_owner(owner), normalise_name(name), normalise_version(version) if at else None)


def check_owner(owner: str) -> str:
    """An owner's name, as it is.

    Raises:
        ConfigError: it is none: 1 to 40 of a-z, 0-9 and "-", which stands neither first nor last.
    """
    if not _OWNER.fullmatch(owner):
        raise ConfigError(
            f"{_short(owner)} cannot be an owner's name; expected 1 to {limits.OWNER} of a-z, 0-9 and '-', not at an end"
        )
    return _free(owner, "an owner's name")


def normalise_name(name: str) -> str:
    """An environment's name as a hub writes it: lower case, "-" for every run of "-", "_" and "." (PEP 503).

    Raises:
        ConfigError: it cannot be a distribution's name, is too long, or is reserved.
    """
    if len(name) > limits.NAME or not name.isascii() or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{_short(name)} cannot be an environment's name; expected 1 to {limits.NAME} of a-z, 0-9, '-', '_' and '.', "
            "with a letter or digit at both ends"
        )
    return _free(re.sub(r"[-_.]+", "-", name).lower(), "an environment's name")


def check_name(name: str) -> str:
    """A name that must be normalised already, as in a manifest or in a hub's URL.

    Raises:
        ConfigError: it is none, or is written in another way.
    """
    if normalise_name(name) != name:
        raise ConfigError(f"the environment's name {_short(name)} is not normalised; write '{normalise_name(name)}'")
    return name


def normalise_version(version: str) -> str:
    """A version as PEP 440 writes it: "v1.0-Beta" is "1.0b0".

    Raises:
        ConfigError: it is none, or has a local part ("1.0+mine"), which belongs on no index.
    """
    expected = "expected one like 1.2.0, 1.2.0rc1 or 1.2.0.post1 (PEP 440)"
    if len(version) > limits.VERSION or not version.isascii():
        raise ConfigError(f"{_short(version)} cannot be a version; {expected}")
    try:
        parsed = Version(version)
    except InvalidVersion:
        raise ConfigError(f"{_short(version)} cannot be a version; {expected}") from None
    if parsed.local is not None:
        raise ConfigError(f"the version {_short(version)} has a local part; leave '+{parsed.local}' out")
    return str(parsed)


def check_version(version: str) -> str:
    """A version that must be normalised already.

    Raises:
        ConfigError: it is none, or is written in another way.
    """
    if normalise_version(version) != version:
        raise ConfigError(f"the version {_short(version)} is not normalised; write '{normalise_version(version)}'")
    return version


def version_key(version: str) -> str:
    """What all ways to write one version share: "1.0" and "1.0.0" are the same version, and only one of them may exist."""
    return canonicalize_version(version)


def skeleton(name: str) -> str:
    """What confusable names share: "to-lower", "to_1ower", "T0.Lower" and "tolovver" look, or read, alike."""
    return name.lower().translate(_LOOKALIKES).replace("rn", "m").replace("vv", "w")


def module_of(name: str) -> str:
    """The module's name that a package has unless its manifest says another."""
    return name.replace("-", "_")


def check_module(module: str) -> str:
    """The name of a module that a package may bring.

    Raises:
        ConfigError: Python cannot import it by that name, or it would hide a module of Python's or rove's.
    """
    if not module.isascii() or not module.isidentifier() or len(module) > limits.NAME:
        raise ConfigError(f"{_short(module)} cannot be a module's name; expected letters, digits and '_'")
    if module.lower() in OURS or module.lower() in {name.lower() for name in sys.stdlib_module_names}:
        raise ConfigError(f"a module '{module}' would hide the one that Python or rove needs; choose another name")
    return module


def _free(name: str, what: str) -> str:
    if name in RESERVED:
        raise ConfigError(f"'{name}' is reserved for the hub's own pages and cannot be {what}; choose another")
    return name


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
