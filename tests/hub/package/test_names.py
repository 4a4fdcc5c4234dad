"""Names, versions and references on a hub."""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Iterable, Iterator
from importlib import metadata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tiers import each_row

from rove.core.errors import ConfigError
from rove.hub.package import names

SAFE_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
NAME_TEXT = st.text(string.ascii_letters + string.digits + "-_.", min_size=1, max_size=70)
ANY_TEXT = st.one_of(st.text(max_size=80), NAME_TEXT, st.text("aA1-_./\\%\0\n\u212a\u017f .@~", max_size=8))


@settings(max_examples=50)
@given(ANY_TEXT)
def test_an_accepted_name_is_safe_in_paths_and_urls_and_stable_under_normalization(text: str):
    for check in (names.normalize_name, names.check_owner):
        try:
            name = check(text)
        except ConfigError as error:
            assert len(str(error)) < 300
            continue
        assert SAFE_NAME.fullmatch(name)
        assert name not in names.RESERVED
        assert check(name) == name


@settings(max_examples=50)
@given(NAME_TEXT)
def test_names_are_normalized_as_in_pip(text: str):
    try:
        assert names.normalize_name(text) == canonicalize_name(text)
    except ConfigError:
        assert text[0] in "-_." or text[-1] in "-_." or len(text) > 64 or canonicalize_name(text) in names.RESERVED


@settings(max_examples=50)
@given(st.text(max_size=70))
def test_an_accepted_version_is_safe_and_stable_under_normalization(text: str):
    try:
        version = names.normalize_version(text)
    except ConfigError:
        return
    assert re.fullmatch(r"[0-9a-z.!]+", version)
    assert names.normalize_version(version) == names.check_version(version) == version


@settings(max_examples=50)
@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.sampled_from(["", "a1", "rc2", ".post1", ".dev3"]))
def test_equal_versions_have_equal_keys(numbers: list[int], end: str):
    plain = ".".join(map(str, numbers)) + end
    longer = ".".join(map(str, [*numbers, 0])) + end
    assert names.version_key(plain) == names.version_key(longer)
    assert Version(plain) == Version(longer)


@each_row("bad", ["", "-a", "a-", "A", "a_b", "a.b", "ä", "a" * 41, "api", "../a", "a/b", "a\n"])
def test_invalid_owners_are_rejected(bad: str):
    with pytest.raises(ConfigError, match="owner"):
        names.check_owner(bad)


@pytest.mark.parametrize(
    "bad", ["", "-a", "a-", "a b", "a/b", "..", "\u212aey", "ta\u0455k", "a" * 65, "Simple", "a\n", "a@1"]
)
def test_invalid_names_are_rejected(bad: str):
    with pytest.raises(ConfigError, match="environment name"):
        names.normalize_name(bad)


@each_row("bad", ["", "one", "1.0+local", "1.0/..", "1" * 65, "1.0\u0661x", "latest"])
def test_invalid_versions_are_rejected(bad: str):
    with pytest.raises(ConfigError, match="version"):
        names.normalize_version(bad)


def test_errors_suggest_the_normalized_form():
    with pytest.raises(ConfigError, match="write 'my-task'"):
        names.check_name("My_Task")
    with pytest.raises(ConfigError, match="write '1.0b0'"):
        names.check_version("v1.0-Beta")
    with pytest.raises(ConfigError, match=r"remove '\+mine'"):
        names.check_version("1.0+mine")


def test_references_are_parsed():
    assert names.parse_reference("Ann/x".lower()) == ("ann", "x", None)
    reference = names.parse_reference("ann/My_Task@1.0.0-rc1")
    assert reference == names.Reference("ann", "my-task", "1.0.0rc1")
    assert str(reference) == "ann/my-task@1.0.0rc1"
    for bad in ("task", "ann/", "/task", "ann/task@", "ann/b/c", "ann/task@new"):
        with pytest.raises(ConfigError):
            names.parse_reference(bad)


def test_names_that_look_alike_share_a_skeleton():
    existing = {names.skeleton(name) for name in ("to-lower", "modern-sums")}
    for name in ("to-1ower", "t0-lower", "tolower", "to-lovver", "modem-sums", "m0dern-sums"):
        assert names.skeleton(name) in existing, name
    for name in ("to-upper", "sums"):
        assert names.skeleton(name) not in existing, name


@settings(max_examples=50)
@given(NAME_TEXT)
def test_skeletons_ignore_case_and_separators(text: str):
    assert (
        names.skeleton(text) == names.skeleton(text.upper()) == names.skeleton(text.replace("-", "_").replace(".", "-"))
    )


def test_invalid_and_hiding_module_names_are_rejected():
    assert names.check_module(names.module_of("my-task")) == "my_task"
    for bad in (
        "json",
        "rove",
        "Rove",
        "sitecustomize",
        "1a",
        "a-b",
        "a.b",
        unicodedata.normalize("NFKD", "ä"),
        "a" * 65,
    ):
        with pytest.raises(ConfigError):
            names.check_module(bad)


def test_no_module_may_hide_a_dependency_of_rove():
    """Checks the installed modules of rove's dependencies and extras, and of the core's indirect dependencies."""
    modules: dict[str, list[str]] = {}
    for module, owners in metadata.packages_distributions().items():
        for owner in owners:
            modules.setdefault(canonicalize_name(owner), []).append(module)

    def requirements(name: str, extras: Iterable[str]) -> Iterator[str]:
        for requirement in map(Requirement, metadata.requires(name) or []):
            if requirement.marker is None or any(
                requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            ):
                yield canonicalize_name(requirement.name)

    extras = {*(metadata.metadata("rove").get_all("Provides-Extra") or [])} - {"dev"}
    direct, core = {*requirements("rove", extras)}, [*requirements("rove", [])]
    for name in core:
        core.extend(indirect for indirect in requirements(name, []) if indirect not in core)
    protected = {module for name in {*core, *direct} for module in modules.get(name, [])}
    assert {"yarl", "multidict", "markdown_it", "cryptography"} <= protected
    for module in protected:
        with pytest.raises(ConfigError):
            names.check_module(module.lower())
            names.normalize_name(module)  # A module that begins with "_" cannot have a package's name.
