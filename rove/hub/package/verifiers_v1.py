"""Write the package that makes a built environment a taskset of verifiers v1 (version 0.4)."""

from __future__ import annotations

from pathlib import Path

from rove.core.errors import ConfigError
from rove.hub.package.archives import Wheel
from rove.hub.package.backend import pack_wheel
from rove.hub.package.manifest import V0
from rove.integrations.verifiers_export import check_exportable
from rove.utils.files import atomic_write

VERIFIERS = "verifiers>=0.4,<0.5"
"""The versions of verifiers for which the package is written."""

MODULE = '''"""The rove environment "{module}" as a taskset of verifiers v1, written by `rove build --verifiers-v1`."""

from rove.integrations.verifiers_v1 import RoveEnv, RoveHarness, RoveTaskset


class {class_name}(RoveTaskset):
    """Rows of the rove environment "{module}"."""

    environment = "{module}"


__all__ = ["{class_name}", "RoveEnv", "RoveHarness"]
'''
METADATA = """Metadata-Version: 2.1
Name: {name}
Version: {version}
Summary: The rove environment "{module}" for verifiers v1: vf-eval, prime-rl, and torchtitan.
Requires-Python: >=3.11
Requires-Dist: rove
Requires-Dist: {package}=={version}
Requires-Dist: {verifiers}
"""
WHEEL = """Wheel-Version: 1.0
Generator: rove
Root-Is-Purelib: true
Tag: py3-none-any
"""


def check_verifiers_v1(name: str, compatibility: str, group_rewards: list[str], message_type: str) -> None:
    """Check that verifiers v1 can run an environment.

    Raises:
        ConfigError: it imports `verifiers` v0, or `check_exportable` refuses it.
    """
    if compatibility == V0:
        raise ConfigError(
            f"'{name}' is written for verifiers v0, whose modules verifiers 0.4 replaces; expected an environment that "
            "imports rove: replace 'import verifiers as vf' with 'import rove as vf'"
        )
    check_exportable(name, group_rewards, message_type)


def write_verifiers_v1(wheel: Wheel, folder: Path) -> Path:
    """Write the wheel of the taskset into a folder and return its path."""
    module = f"{wheel.module}_v1"
    name = f"{wheel.name}-v1"
    info = f"{module}-{wheel.version}.dist-info"
    class_name = "".join(part.capitalize() for part in wheel.module.split("_")) + "Taskset"
    metadata = METADATA.format(
        name=name, version=wheel.version, module=wheel.module, package=wheel.name, verifiers=VERIFIERS
    )
    members = {
        f"{module}/__init__.py": MODULE.format(module=wheel.module, class_name=class_name).encode(),
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": WHEEL.encode(),
    }
    file = folder / f"{module}-{wheel.version}-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(file, pack_wheel(members, name, wheel.version))
    return file
