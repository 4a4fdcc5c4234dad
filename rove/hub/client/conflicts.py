"""Check that an environment can be installed into the running interpreter without replacing or hiding what is there."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from rove.core.errors import ConfigError
from rove.hub.package.contents import has_load_environment

HINT = "install it without --into-current, into a virtual environment of its own"


def check_current(name: str, module: str) -> None:
    """Check that a package replaces no distribution and hides no module of this interpreter, unless it is an environment.

    pip uninstalls a distribution of the same name first, whatever it contains.

    Args:
        name: Normalized name of the package.
        module: Its only top-level module.

    Raises:
        ConfigError: The module belongs to another distribution, the name to one with other modules, or a module of this name
            that is not an environment can be imported.
    """
    owners = metadata.packages_distributions()
    others = sorted({owner for owner in owners.get(module, []) if canonicalize_name(owner) != name})
    if others:
        raise ConfigError(f"the module '{module}' is installed already, by {', '.join(others)}; {HINT}")
    modules = {top for top, names in owners.items() if name in [str(canonicalize_name(owner)) for owner in names]}
    replaced = sorted(top for top in modules - {module} if top.isidentifier() and not top.startswith("__editable__"))
    if replaced:
        raise ConfigError(f"it would replace '{name}', which is installed and has {', '.join(replaced)}; {HINT}")
    file = _importable(module)
    if file is not None and not _is_environment(file):
        raise ConfigError(f"it would replace or hide the module {file}, which is not an environment; {HINT}")


def _importable(module: str) -> Path | None:
    """Return the file that `import module` runs; None where there is no such file."""
    try:
        spec = importlib.util.find_spec(module)
    except ValueError:  # a module that is running and has no spec
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def _is_environment(file: Path) -> bool:
    try:
        return has_load_environment(file.read_bytes())
    except (OSError, ValueError):
        return False
