"""Parse the dependency strings of packages that anybody may have made."""

from __future__ import annotations

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rove.hub.package import limits


def parse_requirement(text: str) -> Requirement:
    """Parse a dependency such as "numpy>=1.26; python_version < '3.13'".

    The parser of `packaging` calls itself for each parenthesis, so their number is limited before it reads the text.

    Raises:
        ValueError: The text is too long, nests too deep, or is not a requirement (PEP 508).
    """
    if len(text) > limits.DESCRIPTION:
        raise ValueError(f"it has {len(text):,} characters; expected at most {limits.DESCRIPTION}")
    if text.count("(") > limits.PARENTHESES:
        raise ValueError(f"it has {text.count('('):,} parentheses; expected at most {limits.PARENTHESES}")
    return Requirement(text)


def parse_specifiers(text: str) -> SpecifierSet:
    """Parse the Python versions that a package supports, such as ">=3.11,<4".

    Raises:
        ValueError: The text is too long, or is not a list of version specifiers (PEP 440).
    """
    if len(text) > limits.LINE:
        raise ValueError(f"it has {len(text):,} characters; expected at most {limits.LINE}")
    return SpecifierSet(text)


def applies(requirement: Requirement, extra: str = "") -> bool:
    """Return whether a requirement applies to this interpreter when `extra` is requested ("" requests none).

    Raises:
        ValueError: The marker compares values that cannot be compared.
    """
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})
