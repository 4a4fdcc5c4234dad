"""A package in a folder is what it promises, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from packages import put_package, put_wheel, wheel_files, with_record

from rove.core.errors import PackageError
from rove.hub.package.archives import verify
from rove.hub.package.manifest import manifest_bytes, read_manifest
from rove.hub.package.signing import load_key, make_key, sign


def signed(folder: Path) -> str:
    """A package with a signature; its public key."""
    put_package(folder)
    key = folder.parent / "signing.key"
    public = make_key(key)
    (folder / "manifest.sig").write_bytes(sign((folder / "manifest.json").read_bytes(), load_key(key)))
    return public


def test_a_whole_package_passes(tmp_path: Path):
    manifest = put_package(tmp_path)
    package = verify(tmp_path)
    assert (package.manifest, package.signed_by) == (manifest, None)
    assert package.wheel.module == "my_sums"
    (tmp_path / "README.md").unlink()
    assert verify(tmp_path).manifest == manifest


def test_a_signature_is_looked_at(tmp_path: Path):
    public = signed(tmp_path / "p")
    assert verify(tmp_path / "p").signed_by == public
    assert verify(tmp_path / "p", [public]).signed_by == public
    with pytest.raises(PackageError, match="not one of the owner's keys"):
        verify(tmp_path / "p", ["somebody else"])
    (tmp_path / "p" / "manifest.sig").unlink()
    assert verify(tmp_path / "p").signed_by is None
    with pytest.raises(PackageError, match="is not signed"):
        verify(tmp_path / "p", [public])


def change(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        content = (folder / name).read_bytes()
        assert old in content
        (folder / name).write_bytes(content.replace(old, new, 1))

    return spoil


def swapped(folder: Path) -> None:
    """Another wheel, which is right in itself."""
    put_wheel(folder, with_record(wheel_files(modules={"my_sums.py": b"load_environment = print\n"})))


def rewritten(folder: Path) -> None:
    """The manifest says what is not so, in its one form."""
    file = folder / "manifest.json"
    manifest = read_manifest(file.read_bytes().replace(b'"description":"Sums"', b'"description":"Good"'))
    file.write_bytes(manifest_bytes(manifest))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (swapped, "not the expected file"),
        (change("my_sums-1.0-py3-none-any.whl", b"PK", b"PX"), "not the expected file"),
        (change("my_sums-1.0.tar.gz", b"\0", b"\1"), "not the expected file"),
        (change("manifest.json", b'"sha256":"', b'"sha256":"0'), "was modified"),
        (rewritten, "was modified"),
        (change("manifest.sig", b'"signature":"', b'"signature":"A'), "cannot be parsed"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda folder: (folder / "my_sums-1.0-py3-none-any.whl").unlink(), "whl is missing"),
        (lambda folder: (folder / "my_sums-1.0.tar.gz").unlink(), "gz is missing"),
        (lambda folder: (folder / "manifest.json").write_bytes(bytes(1 << 19)), "more than 262,144"),
        (change("README.md", b"Sums", b"Evil"), "differs from the README"),
    ],
)
def test_what_was_tampered_with_is_seen(tmp_path: Path, spoil: Callable[[Path], None], words: str):
    signed(tmp_path / "p")
    spoil(tmp_path / "p")
    with pytest.raises(PackageError, match=words):
        verify(tmp_path / "p")


def test_without_a_signature_the_manifests_own_lies_about_the_wheel_are_seen(tmp_path: Path):
    put_package(tmp_path)
    change("manifest.json", b'"module":"my_sums"', b'"module":"my_sumz"')(tmp_path)
    with pytest.raises(PackageError, match="its module is 'my_sums', but the manifest has 'my_sumz'"):
        verify(tmp_path)
