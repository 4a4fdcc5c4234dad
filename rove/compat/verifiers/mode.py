"""Which v0 it is: as published, or with its known faults fixed (`ROVE_COMPAT=fixed`)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from rove.core.errors import ConfigError

VARIABLE = "ROVE_COMPAT"


def fixed() -> bool:
    """Whether the environment asks for the fixes that `docs/compat.md` lists.

    Raises:
        ConfigError: the variable is something else than "fixed", "v0" or nothing.
    """
    said = os.environ.get(VARIABLE, "")
    if said not in ("", "v0", "fixed"):
        raise ConfigError(f"{VARIABLE} is {said!r}; expected 'fixed' (the fixes of docs/compat.md), or 'v0' or nothing")
    return said == "fixed"


def set_former(owner: object, former: Mapping[str, Any]) -> None:
    """Set keywords that an object no longer has as attributes, as older releases did, each with a warning.

    Raises:
        TypeError: there is one, with ROVE_COMPAT=fixed.
    """
    if former and fixed():
        raise TypeError(f"{type(owner).__name__} has no argument {', '.join(former)}")
    for name, value in former.items():
        outdated(f"{type(owner).__name__}({name}=…)", "set the attribute instead")
        setattr(owner, name, value)


def outdated(what: str, instead: str) -> None:
    """Warn of a name or shape from before 0.1.11, which is still understood."""
    warnings.warn(f"{what} is from an older verifiers; {instead}", FutureWarning, stacklevel=3)
