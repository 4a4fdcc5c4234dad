"""Names of owners, environments and versions on a hub. Checked names are safe as parts of paths and URLs.

Checks of invalid names raise `ConfigError`.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from packaging.utils import canonicalize_version
from packaging.version import InvalidVersion, Version

from rove.core.errors import ConfigError
from rove.hub.package import limits

RESERVED = frozenset({"simple", "static", "api", "index", "files"})
"""Names of a hub's own pages; not allowed for owners and environments."""

_LIBRARIES = """
    accelerate aiohappyeyeballs aiohttp aiosignal annotated_doc annotated_types anthropic anyio attr attrs bm25s build
    certifi cffi click cryptography datasets dateutil dill fastapi filelock frozenlist fsspec functorch furo gymnasium
    h11 gguf hatchling hf_xet httpcore httpx huggingface_hub hypothesis idna jinja2 jsonschema jwt llguidance
    markdown_it markupsafe math_verify matplotlib mcp mdurl mpmath msgspec multidict multipart multiprocess myst_parser
    networkx numpy openai packaging pandas pathspec peft pil playwright pluggy propcache psutil py pyarrow pycparser
    pydantic pydantic_core pygments pylab pyparsing pyproject_hooks pytest python_multipart pytz ray reasoning_gym
    referencing regex requests rich rove rpds safetensors scipy shellingham simpleeval six smolagents sniffio sphinx
    sphinx_copybutton sse_starlette starlette sympy tensorboard textarena textual tokenizers tomli tomli_w tomlkit torch
    torchgen tqdm trackio transformers triton trove_classifiers typer typing_extensions typing_inspection tzdata urllib3
    uvicorn verifiers vllm wandb websockets xxhash yaml yarl
"""
"""Modules of libraries that rove, its extras or many packages import."""
_TOOLS = (
    "conftest distutils easy_install imp pip pkg_resources setuptools sitecustomize usercustomize uv virtualenv wheel"
)
"""Modules that Python, packaging tools or pytest import automatically."""
_NAMESPACES = "azure backports google mpl_toolkits nvidia opentelemetry ruamel sphinxcontrib zope"
"""Namespace packages shared by several distributions."""
PROTECTED_MODULES = frozenset(f"{_LIBRARIES} {_TOOLS} {_NAMESPACES}".split())
"""Modules, in lower case, that an environment must not contain because it would replace them. Python's own modules are not
listed, but are protected as well."""

_OWNER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_LOOKALIKES = str.maketrans({"l": "1", "o": "0", "-": None, "_": None, ".": None})


class Reference(NamedTuple):
    """An environment on a hub, OWNER/NAME, or one of its versions, OWNER/NAME@VERSION."""

    owner: str
    name: str
    version: str | None = None

    def __str__(self) -> str:
        return f"{self.owner}/{self.name}" + (f"@{self.version}" if self.version else "")


def parse_reference(text: str) -> Reference:
    """Parse OWNER/NAME or OWNER/NAME@VERSION; normalize the name and the version."""
    path, at, version = text.partition("@")
    owner, slash, name = path.partition("/")
    if not slash:
        raise ConfigError(f"{text!r} is not an environment on a hub; write OWNER/NAME or OWNER/NAME@VERSION")
    return Reference(check_owner(owner), normalize_name(name), normalize_version(version) if at else None)


def check_owner(owner: str) -> str:
    """Check an owner's name and return it."""
    if not _OWNER.fullmatch(owner):
        raise ConfigError(
            f"{_quoted(owner)} is not a valid owner name; expected 1 to {limits.MAX_OWNER_CHARS} of a-z, 0-9 and '-', "
            "without '-' at either end"
        )
    return _check_not_reserved(owner, "an owner name")


def normalize_name(name: str) -> str:
    """Normalize an environment's name: lower case, "-" for every run of "-", "_" and "." (PEP 503)."""
    if len(name) > limits.MAX_NAME_CHARS or not name.isascii() or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{_quoted(name)} is not a valid environment name; expected 1 to {limits.MAX_NAME_CHARS} of a-z, 0-9, '-', '_' "
            "and '.', with a letter or digit at both ends"
        )
    return _check_not_reserved(re.sub(r"[-_.]+", "-", name).lower(), "an environment name")


def check_name(name: str) -> str:
    """Check a name that must already be normalized, as in a manifest or a URL."""
    return _check_normalized("the environment's name", name, normalize_name(name))


def normalize_version(version: str) -> str:
    """Normalize a version by PEP 440: "v1.0-Beta" becomes "1.0b0"."""
    try:
        if len(version) > limits.MAX_VERSION_CHARS or not version.isascii():
            raise InvalidVersion
        parsed = Version(version)
    except InvalidVersion:
        raise ConfigError(
            f"{_quoted(version)} is not a valid version; expected one like 1.2.0, 1.2.0rc1 or 1.2.0.post1 (PEP 440)"
        ) from None
    if parsed.local is not None:
        raise ConfigError(f"the version {_quoted(version)} has a local part; remove '+{parsed.local}'")
    return str(parsed)


def check_version(version: str) -> str:
    """Check a version that must already be normalized."""
    return _check_normalized("the version", version, normalize_version(version))


def _check_normalized(kind: str, name: str, normalized: str) -> str:
    if name != normalized:
        raise ConfigError(f"{kind} {_quoted(name)} is not normalized; write '{normalized}'")
    return name


def version_key(version: str) -> str:
    """Return a key that equal versions share: "1.0" and "1.0.0" are the same version, so only one of them may exist."""
    return canonicalize_version(version)


def skeleton(name: str) -> str:
    """Return a key that confusable names share, such as "to-lower", "to_1ower", "T0.Lower" and "tolovver"."""
    return name.lower().translate(_LOOKALIKES).replace("rn", "m").replace("vv", "w")


def module_of(name: str) -> str:
    """Return the default module name of a package."""
    return name.replace("-", "_")


def check_module(module: str) -> str:
    """Check the name of a package's module and return it."""
    if not module.isascii() or not module.isidentifier() or len(module) > limits.MAX_NAME_CHARS:
        raise ConfigError(f"{_quoted(module)} is not a valid module name; expected letters, digits and '_'")
    if module.lower() in PROTECTED_MODULES or module.lower() in {name.lower() for name in sys.stdlib_module_names}:
        raise ConfigError(f"the module '{module}' would hide a module that Python or rove needs; choose another name")
    return module


def _check_not_reserved(name: str, kind: str) -> str:
    if name in RESERVED:
        raise ConfigError(f"'{name}' is reserved for the hub's own pages and cannot be {kind}; choose another")
    return name


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "…")
