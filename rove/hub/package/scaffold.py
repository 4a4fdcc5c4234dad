"""Create an environment package from a template."""

from __future__ import annotations

from pathlib import Path

from rove.core.errors import ConfigError
from rove.hub.package.names import check_module, normalize_name

TEMPLATES = Path(__file__).with_name("templates")
"""Folder with one template folder per kind, and `every` for files of all kinds. The templates are working packages named
my-task."""


def scaffold(name: str, folder: Path, kind: str = "single_turn") -> Path:
    """Write the package; return its folder."""
    module = name.replace("-", "_")
    if not module.isidentifier() or module != module.lower():
        raise ConfigError(f"'{name}' cannot be a package name; use lower-case letters, digits and dashes, like my-task")
    normalize_name(name)
    check_module(module)
    target = folder / module
    if target.exists():
        raise ConfigError(f"{target} already exists; choose another name or delete it")
    words = {"my_task": module, "my-task": module.replace("_", "-"), "My task": module.replace("_", " ").capitalize()}
    for source in (TEMPLATES / "every", TEMPLATES / kind):
        for file in sorted(filter(Path.is_file, source.rglob("*"))):
            if "__pycache__" in file.parts:
                continue
            path = str(file.relative_to(source)).replace("my_task", module)
            path = path.replace("checks.py", f"tests/test_{module}.py")
            text = file.read_text(encoding="utf-8")
            for word, replacement in words.items():
                text = text.replace(word, replacement)
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_text(text, encoding="utf-8", newline="\n")
    return target
