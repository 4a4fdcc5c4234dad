"""A manifest is read as it was written, and nothing else is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packages import put_package

from rove.core.errors import PackageError
from rove.hub.package import limits
from rove.hub.package.manifest import (
    Argument,
    Manifest,
    Needs,
    PolicyScores,
    Source,
    canonical,
    manifest_bytes,
    read_manifest,
)

HASH = "0" * 64
FILES = [{"filename": "my_sums-1.0-py3-none-any.whl", "kind": "wheel", "sha256": HASH, "size": 10}]
PLAIN: dict[str, Any] = {"name": "my-sums", "version": "1.0", "module": "my_sums", "content": HASH, "files": FILES}


def made(**fields: Any) -> Manifest:
    return msgspec.convert({**PLAIN, **msgspec.to_builtins(fields)}, Manifest)


def document(**fields: Any) -> bytes:
    return canonical({"schema": 1, **PLAIN, **fields})


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path):
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
def test_whatever_is_in_it_it_has_one_form(description: str, players: dict[str, tuple[float, int]]):
    scores = {name: PolicyScores(reward=reward, n=n) for name, (reward, n) in players.items()}
    content = manifest_bytes(made(description=description, policies=scores))
    again = read_manifest(content)
    assert again.description == description
    assert again.policies == scores
    assert manifest_bytes(again) == content


@settings(max_examples=50)
@given(
    st.one_of(
        st.binary(max_size=200), st.recursive(st.none() | st.text() | st.floats(), st.lists).map(msgspec.json.encode)
    )
)
def test_whatever_comes_it_is_read_or_refused(content: bytes):
    with pytest.raises(PackageError, match="manifest"):
        read_manifest(content)


def test_a_field_of_a_newer_rove_is_let_be():
    content = document(colour="blue")
    assert read_manifest(content).name == "my-sums"


def test_another_schema_is_refused_before_its_fields_are_looked_at():
    for schema in (2, 0, "1", True, None, 1.0):
        with pytest.raises(PackageError, match="this rove reads schema 1; update rove"):
            read_manifest(canonical({"schema": schema}))


@pytest.mark.parametrize(
    "content",
    [
        document().replace(b'"my-sums"', b' "my-sums"'),
        document().rstrip(b"\n"),
        document() + b"\n",
        document().replace(b'{"content"', b'{"name":"other","content"'),
        document().replace(b"my_sums-1", b"\\u006dy_sums-1"),
    ],
    ids=["space", "no newline", "two newlines", "key twice", "escape"],
)
def test_any_other_form_is_refused(content: bytes):
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
def test_what_no_manifest_says(fields: dict[str, Any], words: str):
    with pytest.raises(PackageError, match=words):
        read_manifest(document(**fields))


def test_nothing_is_written_that_would_not_be_read():
    with pytest.raises(PackageError, match="NaN"):
        manifest_bytes(made(reward_range=(float("-inf"), float("inf"))))
    with pytest.raises(PackageError, match="NaN"):
        manifest_bytes(msgspec.structs.replace(made(), policies={"x": PolicyScores(reward=float("nan"), n=1)}))
    with pytest.raises(PackageError, match="tags"):
        manifest_bytes(msgspec.structs.replace(made(), tags=["Not A Tag"]))


def test_a_huge_or_a_deep_one_is_refused():
    with pytest.raises(PackageError, match="expected at most 262,144"):
        read_manifest(b" " * (limits.MAX_MANIFEST_BYTES + 1))
    with pytest.raises(PackageError, match="cannot be read as JSON"):
        read_manifest(b"[" * 200_000)
    with pytest.raises(PackageError, match="cannot be read|schema"):
        read_manifest(b'{"schema":' + b"9" * 5000 + b"}")
