"""Manifests: writing, reading, and rejecting everything that is not canonical and valid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packages import put_package
from tiers import each_row, first_quick

from rove.core.errors import PackageError
from rove.hub.package import limits
from rove.hub.package.manifest import (
    Argument,
    Manifest,
    Needs,
    PolicyScores,
    Source,
    applies,
    canonical,
    find_markup,
    manifest_bytes,
    parse_requirement,
    parse_specifiers,
    read_manifest,
)

HASH = "0" * 64
FILES = [{"filename": "my_sums-1.0-py3-none-any.whl", "kind": "wheel", "sha256": HASH, "size": 10}]
MINIMAL_FIELDS: dict[str, Any] = {
    "name": "my-sums",
    "version": "1.0",
    "module": "my_sums",
    "content": HASH,
    "files": FILES,
}


def make_manifest(**fields: Any) -> Manifest:
    return msgspec.convert({**MINIMAL_FIELDS, **msgspec.to_builtins(fields)}, Manifest)


def manifest_json(**fields: Any) -> bytes:
    return canonical({"schema": 1, **MINIMAL_FIELDS, **fields})


def test_a_manifest_is_read_back_as_written(tmp_path: Path):
    manifest = put_package(
        tmp_path,
        tags=["math", "two-step"],
        reward_range=(0.0, 1.2),
        policies={"oracle": PolicyScores(reward=1.2, n=5)},
        needs=Needs(network=True, secrets=["MY_KEY"]),
        arguments=[Argument(name="num_examples", type="int", default="10")],
        source=Source(repository="https://example.org/x", commit="a" * 40 + "-dirty", builder="hatchling 1"),
    )
    content = (tmp_path / "manifest.json").read_bytes()
    assert read_manifest(content) == manifest
    assert manifest_bytes(read_manifest(content)) == content
    assert manifest.wheel.kind == "wheel"
    assert manifest.source_archive is not None


@settings(max_examples=50)
@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp"]), max_size=limits.MAX_DESCRIPTION_CHARS),
    st.dictionaries(
        st.text("abc", max_size=5), st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 9))
    ),
)
def test_writing_and_reading_a_manifest_is_canonical(description: str, players: dict[str, tuple[float, int]]):
    scores = {name: PolicyScores(reward=reward, n=n) for name, (reward, n) in players.items()}
    content = manifest_bytes(make_manifest(description=description, policies=scores))
    parsed = read_manifest(content)
    assert parsed.description == description
    assert parsed.policies == scores
    assert manifest_bytes(parsed) == content


@settings(max_examples=50)
@given(
    st.one_of(
        st.binary(max_size=200), st.recursive(st.none() | st.text() | st.floats(), st.lists).map(msgspec.json.encode)
    )
)
def test_random_content_is_rejected(content: bytes):
    with pytest.raises(PackageError, match="manifest"):
        read_manifest(content)


def test_an_unknown_field_is_ignored():
    content = manifest_json(colour="blue")
    assert read_manifest(content).name == "my-sums"


def test_another_schema_is_rejected_before_its_fields_are_read():
    for schema in (2, 0, "1", True, None, 1.0):
        with pytest.raises(PackageError, match="this rove reads schema 1; update rove"):
            read_manifest(canonical({"schema": schema}))


@pytest.mark.parametrize(
    "content",
    [
        manifest_json().replace(b'"my-sums"', b' "my-sums"'),
        manifest_json().rstrip(b"\n"),
        manifest_json() + b"\n",
        manifest_json().replace(b'{"content"', b'{"name":"other","content"'),
        manifest_json().replace(b"my_sums-1", b"\\u006dy_sums-1"),
    ],
    ids=["space", "no newline", "two newlines", "key twice", "escape"],
)
def test_json_that_is_not_canonical_is_rejected(content: bytes):
    with pytest.raises(PackageError, match="not canonical JSON"):
        read_manifest(content)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "My_Sums"}, "write 'my-sums'"),
        ({"name": "../x"}, "environment name"),
        ({"version": "1.0.0-beta"}, "write '1.0.0b0'"),
        ({"module": "os"}, "would hide"),
        ({"description": "x" * 501}, "500"),
        ({"description": "two\nlines"}, r"U\+000A"),
        ({"description": "abc\u202edcba"}, r"U\+202E"),
        ({"tags": ["Two Words"]}, "tags"),
        ({"tags": ["ok\n"]}, "tags"),
        ({"tags": ["<script>"]}, "tags"),
        ({"licence": "x" * 201}, "licence"),
        ({"authors": ["x"] * 201}, "authors"),
        ({"dependencies": ["evil @ https://example.org/evil.whl"]}, "name a version of it that an index has"),
        ({"dependencies": ["evil @ file:///etc"]}, "name a version of it that an index has"),
        ({"dependencies": ["two words"]}, "cannot be read"),
        ({"requires_python": "three"}, "requires Python"),
        ({"compatibility": "other"}, "compatibility"),
        ({"reward_range": [2.0, 1.0]}, "lowest, highest"),
        ({"needs": {"secrets": ["sk-123"]}}, "secrets"),
        ({"source": {"repository": "javascript:alert(1)"}}, "expected https"),
        ({"source": {"commit": "--upload-pack=x"}}, "commit"),
        ({"policies": {"a\u0000": {"reward": 1.0, "n": 1}}}, r"U\+0000"),
        ({"content": "0" * 63}, "content"),
        ({"files": []}, "files"),
        ({"files": FILES * 2}, "one wheel"),
        ({"files": [{**FILES[0], "filename": "../x-1.0-py3-none-any.whl"}]}, "expected my_sums-1.0-py3"),
        ({"files": [{**FILES[0], "size": limits.MAX_ARCHIVE_BYTES + 1}]}, "size"),
        ({"files": [{**FILES[0], "sha256": "A" * 64}]}, "sha256"),
    ],
)
def test_invalid_fields_are_rejected(fields: dict[str, Any], words: str):
    with pytest.raises(PackageError, match=words):
        read_manifest(manifest_json(**fields))


def test_invalid_manifests_cannot_be_written():
    with pytest.raises(PackageError, match="NaN"):
        manifest_bytes(make_manifest(reward_range=(float("-inf"), float("inf"))))
    with pytest.raises(PackageError, match="NaN"):
        manifest_bytes(msgspec.structs.replace(make_manifest(), policies={"x": PolicyScores(reward=float("nan"), n=1)}))
    with pytest.raises(PackageError, match="tags"):
        manifest_bytes(msgspec.structs.replace(make_manifest(), tags=["Not A Tag"]))


def test_a_very_large_or_deeply_nested_manifest_is_rejected():
    with pytest.raises(PackageError, match="expected at most 262,144"):
        read_manifest(b" " * (limits.MAX_MANIFEST_BYTES + 1))
    with pytest.raises(PackageError, match="cannot be read as JSON"):
        read_manifest(b"[" * 200_000)
    with pytest.raises(PackageError, match="cannot be read|schema"):
        read_manifest(b'{"schema":' + b"9" * 5000 + b"}")


LONG_TEXT_CHARS = 250_000


@each_row(
    "text",
    [
        "<script>", "</SCRIPT >", "< / script", "<\\script>", "<img src=x>", "<b onclick=x>", "<b class='a' ONload = x",
        "<svg/onload=x>", "javascript:x", "JavaScript :x", "<meta http-equiv=refresh>", "<iframe", "<link rel=stylesheet>",
    ],
)  # fmt: skip
def test_active_markup_is_found(text: str):
    assert find_markup(f"words {text} words")


@each_row(
    "text",
    [
        "", "Answer <answer>42</answer>, think in <think>…</think>.", "x < y and y > z", "Jane <jane@example.org>", ">=3.11,<4",
        "<b>bold</b>", "on = 1", "a script", "JavaScript", "<scripted>", "one<two",
    ],
)  # fmt: skip
def test_plain_text_contains_no_markup(text: str):
    assert find_markup(text) is None


@pytest.mark.parametrize(
    "piece", first_quick(["<", "< ", "<\t/", "< on", "<on", "on ", "<ona ", "javascript ", "\\", "<a"], 3)
)
def test_the_time_to_find_markup_is_linear(piece: str):
    """With a search of quadratic time, one of these would take minutes."""
    assert find_markup(piece * (LONG_TEXT_CHARS // len(piece))) is None
    assert find_markup("<" + piece.strip("<") * (LONG_TEXT_CHARS // len(piece))) is None
    assert find_markup("<" + " " * LONG_TEXT_CHARS) is None


def nested_marker(depth: int) -> str:
    return f"a; {'(' * depth}os_name == 'x'{')' * depth}"


def test_requirements_and_specifiers_are_parsed() -> None:
    assert parse_requirement("numpy[x]>=1.26; python_version < '3'").name == "numpy"
    assert not applies(parse_requirement("numpy; python_version < '3'"))
    assert applies(parse_requirement("x; extra == 'dev'"), "dev")
    assert parse_specifiers(">=3.11,<4").contains("3.12")
    assert parse_requirement(nested_marker(limits.MAX_PARENTHESES)).marker is not None


@pytest.mark.parametrize("depth", [limits.MAX_PARENTHESES + 1, 200, 2_000, 100_000])
def test_a_deeply_nested_marker_is_rejected(depth: int) -> None:
    with pytest.raises(ValueError, match="parentheses; expected at most|characters; expected at most"):
        parse_requirement(nested_marker(depth))


@each_row("text", ["", "a b", "a @", "a; (os_name", "a" * 501, "a[" * 200])
def test_invalid_requirements_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        parse_requirement(text)


@pytest.mark.parametrize("text", ["3.11", ">=", ">=x", ">=" + "1" * 500])
def test_invalid_specifiers_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        parse_specifiers(text)


def test_an_invalid_comparison_in_a_marker_is_a_value_error() -> None:
    with pytest.raises(ValueError):
        applies(parse_requirement("a; os_name ~= 'posix'"))
