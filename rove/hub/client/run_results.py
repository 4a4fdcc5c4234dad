"""What a run came to, to be published with the environment that it was made in: its figures, its settings, a few rollouts."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rove.clients.masking import MASK, NO_KEY, Secrets
from rove.core.digest import digest_files
from rove.core.errors import RunError
from rove.core.records import RolloutRecord
from rove.hub.package.manifest import Manifest
from rove.runs.run import Run

SCHEMA = 1
EXAMPLES = 3
"""Rollouts that are published beside the figures."""
KEPT_PRIVATE = ("run_dir", "env_dir", "base_url", "endpoints", "isolation", "api_key_var")
"""Settings that say something of the machine, and nothing of the result."""
_FIELDS = re.compile(
    r"(^|[_-])(key|api[_-]?keys|token|secrets?|passwords?|passwd|credentials?|authorization|cookies?)([_-]?\d+)?$",
    re.IGNORECASE,
)
_VARIABLES = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
_SHORTEST = 8
_VALUES = re.compile(
    r"\b(?:sk|pk|rk|rove|hf|ghp|gho|github_pat|xox[abp]|glpat)[-_][\w-]{12,}|\bAKIA[0-9A-Z]{16}\b"
    r"|(?<=Bearer )[\w.~+/=-]{8,}|(?<=://)[^\s/@:]*:[^\s/]+(?=@)"
)
"""Keys as their makers write them, and names with passwords in URLs."""


def results_of(folder: str | Path, manifest: Manifest, wheel: Path, examples: int = EXAMPLES) -> dict[str, Any]:
    """A finished evaluation as a hub keeps it, without secrets: model, summary, settings and some rollouts.

    Args:
        folder: the run folder.
        manifest, wheel: of the package that the run was made in.
        examples: how many rollouts: the worst, the best, and others at equal distances between.

    Raises:
        RunError: it is no finished evaluation, or one in another environment, or of other code than the package's.
    """
    run = Run(folder)
    content, summary = run.config(), run.summary()
    if content.get("kind") != "eval":
        raise RunError(f"{folder} is a run of `rove {content.get('kind')}`; results come from `rove eval`")
    if summary is None:
        raise RunError(f"{folder} is not complete; the same `rove eval` again completes it")
    config, identity = content["config"], str(content["identity"].get("env", ""))
    if identity.rsplit("#", 1)[-1] != code_digest(wheel, manifest.module):
        raise RunError(
            f"{folder} was made in '{config.get('env')}' ({identity}), which is not the code of {manifest.name} "
            f"{manifest.version}; evaluate in the environment as it is now, then push that run"
        )
    records = sorted(run.finished(), key=lambda record: record.reward or 0.0)
    told = {
        "schema": SCHEMA,
        "model": _model(str(config.get("model", ""))),
        "content": manifest.content,
        "summary": summary,
        "settings": {name: value for name, value in config.items() if name not in (*KEPT_PRIVATE, "model")},
        "examples": [_told(records[place]) for place in _places(len(records), examples)],
        "sha256": hashlib.sha256((run.path / "rollouts.jsonl").read_bytes()).hexdigest(),
    }
    return without_secrets(told)


def code_digest(wheel: Path, module: str) -> str:
    """The hash that a run's identity has of an environment's code, from its wheel."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name == f"{module}.py" or (name.startswith(f"{module}/") and name.endswith(".py")):
                archive.extract(name, folder)
        return digest_files(Path(folder).rglob("*.py"))


def without_secrets(value: Any) -> Any:
    """The same, with what looks like a key masked: by the name of its field, by how it is written, or because an environment
    variable whose name sounds like one has that value."""
    own = {
        name: text
        for name, text in os.environ.items()
        if _VARIABLES.search(name.upper()) and len(text) >= _SHORTEST and not text.isalpha()
    }
    return _masked(value, Secrets(NO_KEY, own), "")


def _masked(value: Any, secrets: Secrets, field: str) -> Any:
    if isinstance(value, Mapping):
        inside = field if _FIELDS.search(field) else None
        return {str(key): _masked(item, secrets, inside or str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, secrets, field) for item in value]
    if isinstance(value, str):
        if value and _FIELDS.search(field):
            return MASK
        return _VALUES.sub(MASK, secrets.masked_in(value))
    return value


def _told(record: RolloutRecord) -> dict[str, Any]:
    """What people look at of a rollout: no tokens, no times."""
    names = ("prompt", "completion", "answer", "info", "scores", "stop_condition", "is_truncated", "tools")
    return {name: msgspec.to_builtins(getattr(record, name)) for name in names}


def _places(count: int, wanted: int) -> Sequence[int]:
    wanted = min(count, wanted)
    return sorted({round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)})


def _model(model: str) -> str:
    """A model's name; of a folder the last two parts of its path."""
    return "/".join(Path(model).parts[-2:]) if model.startswith((".", "/", "~")) else model
