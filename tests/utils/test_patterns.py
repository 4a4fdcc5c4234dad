"""Patterns that are compiled at their first use."""

import re

import pytest

from rove.utils.patterns import lazy_pattern


def test_a_lazy_pattern_works_like_a_compiled_one():
    compiled = re.compile("(a)|b", re.IGNORECASE)
    pattern = lazy_pattern("(a)|b", re.IGNORECASE)
    assert [match[0] for match in pattern.finditer("ABC")] == ["A", "B"]
    assert pattern.sub("x", "aBc") == compiled.sub("x", "aBc") == "xxc"
    assert (pattern.pattern, pattern.flags, pattern.groups) == (compiled.pattern, compiled.flags, compiled.groups)


def test_a_lazy_pattern_is_compiled_at_its_first_use():
    pattern = lazy_pattern("(")
    with pytest.raises(re.error, match="missing"):
        pattern.match("a")
