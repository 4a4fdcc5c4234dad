"""A manifest is read as it was written, and nothing else is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packages import put_package
from tiers import first_quick

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


LONG = 250_000


@pytest.mark.parametrize(
    "text",
    [
        "<script>", "</SCRIPT >", "< / script", "<\\script>", "<img src=x>", "<b onclick=x>", "<b class='a' ONload = x",
        "<svg/onload=x>", "javascript:x", "JavaScript :x", "<meta http-equiv=refresh>", "<iframe", "<link rel=stylesheet>",
    ],
)  # fmt: skip
def test_what_acts_is_found(text: str):
    assert find_markup(f"words {text} words")


@pytest.mark.parametrize(
    "text",
    [
        "", "Answer <answer>42</answer>, think in <think>…</think>.", "x < y and y > z", "Jane <jane@example.org>", ">=3.11,<4",
        "<b>bold</b>", "on = 1", "a script", "JavaScript", "<scripted>", "one<two",
    ],
)  # fmt: skip
def test_what_is_text_is_left_alone(text: str):
    assert find_markup(text) is None


@pytest.mark.parametrize(
    "piece", first_quick(["<", "< ", "<\t/", "< on", "<on", "on ", "<ona ", "javascript ", "\\", "<a"], 3)
)
def test_no_text_takes_long(piece: str):
    """Where the time grew with the square of the length, one of these would take minutes."""
    assert find_markup(piece * (LONG // len(piece))) is None
    assert find_markup("<" + piece.strip("<") * (LONG // len(piece))) is None
    assert find_markup("<" + " " * LONG) is None


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
