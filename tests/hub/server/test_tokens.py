"""Tokens: scopes, expiry, and storage as hashes only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError, RejectedError
from rove.hub.server.store import Store
from rove.hub.server.tokens import Access, access_of, check_scope, make_token, revoke, tokens


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "hub")
    store.add_owner("acme")
    yield store
    store.close()


def test_a_token_is_stored_only_as_a_hash(store: Store):
    text = make_token(store.database, "acme", note="laptop")
    assert re.fullmatch(r"rove_[\w-]{43}", text)
    assert access_of(store.database, text) == Access("acme", ("read", "upload:acme/*"))
    store.close()
    for file in store.folder.rglob("*"):
        assert not file.is_file() or text[5:].encode() not in file.read_bytes()


def test_tokens_expire_and_can_be_revoked(store: Store):
    expired, valid = make_token(store.database, "acme", days=1e-9), make_token(store.database, "acme", days=None)
    with pytest.raises(RejectedError, match="has expired"):
        access_of(store.database, expired)
    access_of(store.database, valid)
    assert revoke(store.database, 2).revoked is not None
    with pytest.raises(RejectedError, match="was revoked"):
        access_of(store.database, valid)
    assert [token.id for token in tokens(store.database, "acme")] == [1, 2]
    assert tokens(store.database, "nobody") == []
    with pytest.raises(ConfigError, match="no token 9"):
        revoke(store.database, 9)


@pytest.mark.parametrize("text", ["", "rove_", "rove_" + "a" * 43, "none", "rove_" + "a" * 500, "rove_\udcff"])
def test_invalid_tokens_are_rejected(store: Store, text: str):
    with pytest.raises(RejectedError) as refused:
        access_of(store.database, text)
    assert refused.value.status == 401


@each_row(
    ("scopes", "owner", "name", "uploads", "administers"),
    [
        ((), "acme", "sums", False, False),
        (("read",), "acme", "sums", False, False),
        (("upload:acme/sums",), "acme", "sums", True, False),
        (("upload:acme/sums",), "acme", "sums-2", False, False),
        (("upload:acme/*",), "acme", "sums", True, False),
        (("upload:acme/*",), "zeta", "sums", False, False),
        (("upload:zeta/*",), "zeta", "sums", True, False),
        (("admin",), "acme", "sums", True, True),
        (("admin",), "zeta", "sums", False, False),
    ],
)
def test_scopes_permit_uploading_administering_and_reading(
    scopes: tuple[str, ...], owner: str, name: str, uploads: bool, administers: bool
):
    access = Access("acme", scopes)
    for allowed, check in (
        (uploads, lambda: access.check_upload(owner, name)),
        (administers, lambda: access.check_admin(owner, "hide it")),
    ):
        if allowed:
            check()
        else:
            with pytest.raises(RejectedError) as refused:
                check()
            assert refused.value.status == 403
    assert access.reads == ("acme" if {"read", "admin"} & set(scopes) else None)


def test_anonymous_access_permits_neither_uploads_nor_private_packages(store: Store):
    with pytest.raises(RejectedError) as refused:
        Access().check_upload("acme", "sums")
    assert refused.value.status == 401
    assert Access().reads is None


@settings(max_examples=50)
@given(st.text(max_size=20).map(lambda text: f"upload:{text}") | st.text(max_size=20))
def test_a_scope_is_rejected_or_returned_unchanged(text: str):
    try:
        assert check_scope(text) == text
    except ConfigError:
        return
    assert text in ("read", "admin") or re.fullmatch(r"upload:[a-z0-9-]+/(\*|[a-z0-9-]+)", text)


def test_tokens_with_invalid_options_are_not_created(store: Store):
    for scopes in (["write"], ["upload:"], ["upload:acme"], ["upload:Acme/*"], ["upload:acme/My"], ["upload:*/*"]):
        with pytest.raises(ConfigError):
            make_token(store.database, "acme", scopes)
    for options in ({"days": 0}, {"days": -1}, {"days": 1e9}, {"note": "a" * 101}, {"note": "a\nb"}):
        with pytest.raises(ConfigError):
            make_token(store.database, "acme", **options)
    with pytest.raises(ConfigError, match="no owner 'nobody'"):
        make_token(store.database, "nobody")
    assert tokens(store.database) == []
