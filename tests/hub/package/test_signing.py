"""Keys and signatures."""

from __future__ import annotations

import base64
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, x25519
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rove.core.errors import ConfigError, PackageError
from rove.hub.package.signing import check_signature, key_file, load_key, make_key, public_key, sign

CONTENT = b'{"name":"my-sums"}\n'


@pytest.fixture
def key(tmp_path: Path) -> Any:
    make_key(tmp_path / "rove" / "signing.key")
    return load_key(tmp_path / "rove" / "signing.key")


def test_a_new_key_is_private_and_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    mask_before = os.umask(0)
    try:
        public = make_key()
    finally:
        os.umask(mask_before)
    file = key_file()
    assert file == tmp_path / "rove" / "signing.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in file.parent.iterdir()] == ["signing.key"]
    assert public_key(load_key()) == public
    content = file.read_bytes()
    with pytest.raises(ConfigError, match="already exists"):
        make_key()
    assert file.read_bytes() == content


def test_a_signature_is_deterministic_and_verifies(key: Any):
    signature = sign(CONTENT, key)
    assert sign(CONTENT, key) == signature
    assert check_signature(CONTENT, signature) == public_key(key)
    assert check_signature(CONTENT, signature, [public_key(key)]) == public_key(key)
    signature_fields = json.loads(signature)  # Verify independently of rove.
    ed25519.Ed25519PublicKey.from_public_bytes(base64.b64decode(signature_fields["key"])).verify(
        base64.b64decode(signature_fields["signature"]), CONTENT
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_any_changed_byte_is_detected(key: Any, position: int, change: int):
    signature, changed = sign(CONTENT, key), bytearray(CONTENT)
    changed[position] ^= change
    with pytest.raises(PackageError, match="was modified"):
        check_signature(bytes(changed), signature)


def test_a_signature_by_another_key_is_rejected(tmp_path: Path, key: Any):
    other_key = make_key(tmp_path / "other.key")
    for keys in ([other_key], []):
        with pytest.raises(PackageError, match="not one of the owner's keys"):
            check_signature(CONTENT, sign(CONTENT, key), keys)
    forged = {**json.loads(sign(CONTENT, key)), "key": other_key}
    with pytest.raises(PackageError, match="was modified"):
        check_signature(CONTENT, json.dumps(forged).encode(), [other_key])


def test_malformed_signatures_are_rejected(key: Any):
    valid = json.loads(sign(CONTENT, key))
    for invalid in (
        b"",
        b"[]",
        b"\xff",
        json.dumps({**valid, "more": 1}).encode(),
        json.dumps({**valid, "signature": valid["signature"][:-4]}).encode(),
        json.dumps({**valid, "key": "*" * 44}).encode(),
        json.dumps({**valid, "key": base64.b64encode(bytes(31)).decode()}).encode(),
        json.dumps({"key": valid["key"]}).encode(),
    ):
        with pytest.raises(PackageError, match="manifest.sig cannot be parsed"):
            check_signature(CONTENT, invalid)


def test_unusable_key_files_are_errors(tmp_path: Path):
    file = tmp_path / "signing.key"
    with pytest.raises(ConfigError, match="create one with rove hub key"):
        load_key(file)
    make_key(file)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match=r"mode 640\); run chmod 600"):
        load_key(file)
    file.chmod(0o600)
    file.write_bytes(b"not a key")
    with pytest.raises(ConfigError, match="does not contain a readable key"):
        load_key(file)
    plain = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    file.write_bytes(x25519.X25519PrivateKey.generate().private_bytes(*plain))
    with pytest.raises(ConfigError, match="not an Ed25519 key"):
        load_key(file)
