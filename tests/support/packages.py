"""Packages for tests of the hub: valid ones, and helpers that make invalid ones."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rove.hub.package.archives import check_wheel, record_hash
from rove.hub.package.manifest import File, Manifest, filename, manifest_bytes

MODULE = b"def load_environment(num_examples: int = 10):\n    raise RuntimeError('this was run')\n"
README = "# Sums\n\nAdd two numbers.\n"


def wheel_files(
    name: str = "my-sums",
    version: str = "1.0",
    modules: Mapping[str, bytes] | None = None,
    extra: str = "",
    readme: str = README,
) -> dict[str, bytes]:
    """Return the files of a wheel without RECORD."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.3\nName: {name}\nVersion: {version}\nSummary: Sums\nRequires-Python: >=3.11\n"
    metadata += f"Requires-Dist: rove>=0.1\n{extra}Description-Content-Type: text/markdown\n\n{readme}"
    return {
        **(modules or {f"{name.replace('-', '_')}.py": MODULE}),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }


def with_record(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files with a correct RECORD."""
    info = next(path.split("/")[0] for path in files if ".dist-info/" in path)
    lines = [f"{path},{record_hash(hashlib.sha256(data).hexdigest())},{len(data)}\n" for path, data in files.items()]
    return {**files, f"{info}/RECORD": ("".join(lines) + f"{info}/RECORD,,\n").encode()}


def make_zip(files: Mapping[str, bytes], modes: Mapping[str, int] | None = None) -> bytes:
    """Return a zip of files; `modes` are the types and permissions of entries that are not plain files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            info = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
            info.external_attr = (modes or {}).get(path, 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return stream.getvalue()


def put_wheel(
    folder: Path, files: Mapping[str, bytes] | None = None, name: str = "my_sums-1.0-py3-none-any.whl"
) -> Path:
    """Write a wheel into a folder and return its path."""
    (folder / name).write_bytes(make_zip(files or with_record(wheel_files())))
    return folder / name


def source_files(name: str = "my-sums", version: str = "1.0") -> dict[str, bytes]:
    """Return the files of a source archive."""
    folder = f"{name.replace('-', '_')}-{version}"
    return {
        f"{folder}/PKG-INFO": f"Metadata-Version: 2.3\nName: {name}\nVersion: {version}\n".encode(),
        f"{folder}/pyproject.toml": b"[project]\n",
        f"{folder}/my_sums.py": MODULE,
    }


def make_tar(
    files: Mapping[str, bytes], kinds: Mapping[str, bytes] | None = None, form: int = tarfile.USTAR_FORMAT
) -> bytes:
    """Return a gzipped tar; `kinds` are the types of entries that are not plain files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as archive:
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.type = (kinds or {}).get(path, tarfile.REGTYPE)
            if info.type == tarfile.REGTYPE:
                info.size = len(data)
            else:
                info.linkname = data.decode()
            archive.addfile(info, io.BytesIO(data))
    return gzip.compress(stream.getvalue(), mtime=0)


def put_source(folder: Path, content: bytes | None = None, name: str = "my_sums-1.0.tar.gz") -> Path:
    """Write a source archive into a folder and return its path."""
    (folder / name).write_bytes(content or make_tar(source_files()))
    return folder / name


def file_entry(file: Path, kind: Any = "wheel") -> File:
    """Return the manifest's entry for a file."""
    content = file.read_bytes()
    return File(filename=file.name, kind=kind, sha256=hashlib.sha256(content).hexdigest(), size=len(content))


def put_package(
    folder: Path,
    name: str = "my-sums",
    version: str = "1.0",
    extra_files: Mapping[str, bytes] | None = None,
    readme: str = README,
    modules: Mapping[str, bytes] | None = None,
    dependencies: Iterable[str] = (),
    is_with_source: bool = True,
    **fields: Any,
) -> Manifest:
    """Write a package: wheel (with `extra_files`), source archive and manifest.json; `fields` are fields of the manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    extra = "".join(f"Requires-Dist: {dependency}\n" for dependency in dependencies)
    files = {**wheel_files(name, version, modules, extra, readme), **(extra_files or {})}
    wheel = put_wheel(folder, with_record(files), filename(name, version, "wheel"))
    entries = [file_entry(wheel)]
    if is_with_source:
        source = put_source(folder, make_tar(source_files(name, version)), filename(name, version, "source"))
        entries.append(file_entry(source, "source"))
    checked = check_wheel(wheel)
    defaults: dict[str, Any] = {
        "name": name,
        "version": version,
        "module": checked.module,
        "description": "Sums",
        "requires_python": checked.requires_python,
        "dependencies": checked.dependencies,
        "content": checked.content,
        "files": entries,
    }
    manifest = Manifest(**{**defaults, **fields})
    (folder / "manifest.json").write_bytes(manifest_bytes(manifest))
    (folder / "README.md").write_text(checked.readme, encoding="utf-8")
    return manifest


def rename_in_zip_index(archive: bytes, old: str, new: str) -> bytes:
    """Return a zip whose index has another name for a file than the header before its content; both have the same length."""
    offset = struct.unpack("<L", archive[-6:-2])[0]
    return archive[:offset] + archive[offset:].replace(old.encode(), new.encode())
