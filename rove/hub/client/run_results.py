"""Results of an evaluation, prepared for publication: scores, settings and a few rollouts, without secrets."""

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
"""Number of rollouts published with the scores."""
PRIVATE_SETTINGS = ("run_dir", "env_dir", "base_url", "endpoints", "isolation", "api_key_var")
"""Settings that describe the machine rather than the result; they are not published."""
_SECRET_FIELD = re.compile(
    r"(^|[_-])(key|api[_-]?keys|token|secrets?|passwords?|passwd|credentials?|authorization|cookies?)([_-]?\d+)?$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")
_MIN_SECRET_CHARS = 8
_SECRET_VALUE = re.compile(
    r"\b(?:sk|pk|rk|rove|hf|ghp|gho|github_pat|xox[abp]|glpat)[-_][\w-]{12,}|\bAKIA[0-9A-Z]{16}\b"
    r"|(?<=Bearer )[\w.~+/=-]{8,}|(?<=://)[^\s/@:]*:[^\s/]+(?=@)"
)
"""API keys in the formats of common providers, and credentials in URLs."""


def collect_results(folder: str | Path, manifest: Manifest, wheel: Path, examples: int = EXAMPLES) -> dict[str, Any]:
    """Return the publishable results of a finished evaluation, without secrets.

    Args:
        folder: The run folder.
        manifest: Manifest of the evaluated package.
        wheel: Wheel of the evaluated package.
        examples: Number of rollouts to include: lowest and highest reward, and evenly spaced ones in between.

    Raises:
        RunError: The run is not a finished evaluation, or evaluated other code than the package's.
    """
    run = Run(folder)
    content, summary = run.config(), run.summary()
    if content.get("kind") != "eval":
        raise RunError(f"{folder} is a run of `rove {content.get('kind')}`; expected a run of `rove eval`")
    if summary is None:
        raise RunError(f"{folder} is not complete; run the same `rove eval` command again to complete it")
    config, identity = content["config"], str(content["identity"].get("env", ""))
    model = str(config.get("model", ""))
    if identity.rsplit("#", 1)[-1] != code_digest(wheel, manifest.module):
        raise RunError(
            f"{folder} evaluated '{config.get('env')}' ({identity}), whose code differs from {manifest.name} "
            f"{manifest.version}; evaluate the current version and push that run"
        )
    records = sorted(run.finished(), key=lambda record: record.reward or 0.0)
    document = {
        "schema": SCHEMA,
        "model": "/".join(Path(model).parts[-2:]) if model.startswith((".", "/", "~")) else model,
        "content": manifest.content,
        "summary": summary,
        "settings": {name: value for name, value in config.items() if name not in (*PRIVATE_SETTINGS, "model")},
        "examples": [_public_fields(records[index]) for index in _evenly_spaced(len(records), examples)],
        "sha256": hashlib.sha256((run.path / "rollouts.jsonl").read_bytes()).hexdigest(),
    }
    return without_secrets(document)


def code_digest(wheel: Path, module: str) -> str:
    """Compute the hash of a wheel's code as it appears in a run's identity."""
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name == f"{module}.py" or (name.startswith(f"{module}/") and name.endswith(".py")):
                archive.extract(name, folder)
        return digest_files(Path(folder).rglob("*.py"))


def without_secrets(value: Any) -> Any:
    """Return a copy of a JSON value with secrets masked.

    A string is masked if its field name suggests a secret, if it has the format of an API key, or if it is the value of an
    environment variable whose name suggests a secret.
    """
    own = {
        name: text
        for name, text in os.environ.items()
        if _SECRET_VARIABLE.search(name.upper()) and len(text) >= _MIN_SECRET_CHARS and not text.isalpha()
    }
    return _masked(value, Secrets(NO_KEY, own), "")


def _masked(value: Any, secrets: Secrets, field: str) -> Any:
    if isinstance(value, Mapping):
        inside = field if _SECRET_FIELD.search(field) else None
        return {str(key): _masked(item, secrets, inside or str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(item, secrets, field) for item in value]
    if isinstance(value, str):
        if value and _SECRET_FIELD.search(field):
            return MASK
        return _SECRET_VALUE.sub(MASK, secrets.mask_text(value))
    return value


def _public_fields(record: RolloutRecord) -> dict[str, Any]:
    """Return the readable fields of a rollout, without tokens and timings."""
    names = ("prompt", "completion", "answer", "info", "scores", "stop_condition", "is_truncated", "tools")
    return {name: msgspec.to_builtins(getattr(record, name)) for name in names}


def _evenly_spaced(count: int, wanted: int) -> Sequence[int]:
    wanted = min(count, wanted)
    return sorted({round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)})
