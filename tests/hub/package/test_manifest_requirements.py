"""Dependency strings of packages: what is too long or nests too deep is refused before the parser reads it."""

from __future__ import annotations

import pytest

from rove.hub.package import limits
from rove.hub.package.manifest import applies, parse_requirement, parse_specifiers


def nested(depth: int) -> str:
    return f"a; {'(' * depth}os_name == 'x'{')' * depth}"


def test_a_dependency_is_parsed() -> None:
    assert parse_requirement("numpy[x]>=1.26; python_version < '3'").name == "numpy"
    assert not applies(parse_requirement("numpy; python_version < '3'"))
    assert applies(parse_requirement("x; extra == 'dev'"), "dev")
    assert parse_specifiers(">=3.11,<4").contains("3.12")
    assert parse_requirement(nested(limits.MAX_PARENTHESES)).marker is not None


@pytest.mark.parametrize("depth", [limits.MAX_PARENTHESES + 1, 200, 2_000, 100_000])
def test_a_marker_that_nests_too_deep_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match="parentheses; expected at most|characters; expected at most"):
        parse_requirement(nested(depth))


@pytest.mark.parametrize("text", ["", "a b", "a @", "a; (os_name", "a" * 501, "a[" * 200])
def test_what_is_not_a_requirement_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_requirement(text)


@pytest.mark.parametrize("text", ["3.11", ">=", ">=x", ">=" + "1" * 500])
def test_what_is_not_a_specifier_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_specifiers(text)


def test_a_marker_that_compares_what_cannot_be_compared_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        applies(parse_requirement("a; os_name ~= 'posix'"))
