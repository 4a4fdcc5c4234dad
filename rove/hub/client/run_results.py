"""Results of an evaluation, prepared for publication: scores, settings and a few rollouts, without secrets."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rove import Run
from rove.core.digest import digest_files
from rove.core.errors import RunError
from rove.core.masking import public_path, without_secrets
from rove.core.plain import JsonObject
from rove.core.records import RolloutRecord
from rove.hub.package.manifest import Manifest

SCHEMA = 1
EXAMPLES = 3
"""Number of rollouts published with the scores."""
PRIVATE_SETTINGS = ("run_dir", "env_dir", "base_url", "endpoints", "isolation", "api_key_var")
"""Settings that describe the machine rather than the result; they are not published."""


def collect_results(folder: str | Path, manifest: Manifest, wheel: Path) -> JsonObject:
    """Return the publishable results of a finished evaluation, without secrets."""
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
        "model": public_path(model),
        "content": manifest.content,
        "summary": summary,
        "settings": {name: value for name, value in config.items() if name not in (*PRIVATE_SETTINGS, "model")},
        "examples": [_public_fields(records[index]) for index in _evenly_spaced(len(records), EXAMPLES)],
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


def _public_fields(record: RolloutRecord) -> JsonObject:
    """Return the readable fields of a rollout, without tokens and timings."""
    names = ("prompt", "completion", "answer", "info", "scores", "stop_condition", "is_truncated", "tools")
    return {name: msgspec.to_builtins(getattr(record, name)) for name in names}


def _evenly_spaced(count: int, max_count: int) -> Sequence[int]:
    num_chosen = min(count, max_count)
    last, intervals = count - 1, max(1, num_chosen - 1)
    return sorted({round(i * last / intervals) for i in range(num_chosen)})
