"""Targets for files: run folders, settings, questions, messages, packages."""

from __future__ import annotations

import hashlib
import io
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rove.audit.acceptance import read_baseline_file
from rove.audit.card import read_card
from rove.audit.comparison import read_report
from rove.check.package_files import Package, texts_of
from rove.clients.endpoints_file import read_endpoints
from rove.compat.source_reader import read as read_source
from rove.compat.verifiers.saved_results import saved_outputs
from rove.core.config import convert, read_toml
from rove.core.errors import Error, PackageError, RunError
from rove.envs.dataset import build_example, example_key
from rove.envs.questions import QuestionsEnv
from rove.hub.client.installing import read_lock
from rove.hub.package.archives import check_source, check_wheel, has_load_environment, record_hash, verify
from rove.hub.package.manifest import manifest_bytes, read_manifest
from rove.hub.package.signing import check_signature
from rove.runs.annotations import Annotations
from rove.runs.files import RunFiles
from rove.runs.metrics import panels
from rove.runs.run import Run
from rove.runs.serialization import decode_listing, decode_outcome, decode_place, decode_record, encode_record
from rove.runs.token_stats import file_of, read_tokens
from rove.runs.train_folder import TrainFolder
from rove.stages.evaluation import EvalConfig
from rove.stages.recipe import read_recipe
from rove.train.config import RLConfig, SFTConfig
from rove.train.message_files import conversation_from_row, read_rows
from tests.fuzz.target import Target, parts_of, text_of, write

_FOLDER = tempfile.TemporaryDirectory(prefix="rove-fuzz-")
FOLDER = Path(_FOLDER.name)
"""Folder of the files of this process."""


def read_rollout(data: bytes) -> None:
    """Read a line of rollouts.jsonl with each decoder."""
    for decode in (decode_place, decode_outcome, decode_listing):
        with suppress(RunError):
            decode(data)
    record = decode_record(data)
    assert decode_record(encode_record(record)) == record


RUN_FILES = (
    *("config.toml", "summary.json", "versions.json", "stopped.json", "metrics.jsonl", "alerts.jsonl"),
    *("rollouts.jsonl", "annotations.jsonl", "results.json", "complete.json", "diagnoses.json", "tokens"),
)


def read_run_folder(data: bytes) -> None:
    """Read a file of a run folder; the first line of the input is its name."""
    name, _, content = data.partition(b"\n")
    if text_of(name) not in RUN_FILES:
        return
    folder = FOLDER / "run"
    folder.mkdir(exist_ok=True)
    file = file_of(folder, 1) if name == b"tokens" else folder / text_of(name)
    file.parent.mkdir(exist_ok=True)
    write(file.parent, file.name, content)
    try:
        _read_all(folder)
    finally:
        file.unlink()


def _read_all(folder: Path) -> None:
    files, train = RunFiles(folder), TrainFolder(folder)
    readers: list[Callable[[], Any]] = [
        files.summary,
        files.versions,
        files.why_stopped,
        files.config,
        lambda: panels(files.metrics()),
        files.alerts,
        lambda: Annotations(folder).check(),
        lambda: read_tokens(folder, 1),
        lambda: list(Run(folder).rollouts()),
        lambda: list(Run(folder).outcomes()),
        lambda: Run(folder).ledger(),
        train.rows,
        train.completion,
        train.diagnoses,
    ]
    for reader in readers:
        with suppress(Error):
            reader()


def read_settings(data: bytes) -> None:
    """Read a settings file of every command."""
    values = read_toml(write(FOLDER, "settings.toml", data))
    for kind in (RLConfig, SFTConfig, EvalConfig):
        with suppress(Error):
            convert(kind, values)
    read_recipe(FOLDER / "recipe.toml", values, ["smoke"])


def read_other_toml(data: bytes) -> None:
    """Read the other files in TOML."""
    file = write(FOLDER, "other.toml", data)
    for read in (read_endpoints, read_lock, read_baseline_file):
        with suppress(Error):
            read(file)


def read_json_files(data: bytes) -> None:
    """Read the JSON files of an audit, and the results that verifiers saves."""
    read_card(data)
    with suppress(Error):
        read_report(write(FOLDER, "report.json", data))
    metadata, results = parts_of(data, 2)
    write(FOLDER, "metadata.json", metadata)
    write(FOLDER, "results.jsonl", results)
    settings = dict.fromkeys(("env_id", "model", "rollouts_per_example", "shuffle", "shuffle_seed"), "x")
    with suppress(ValueError):  # what `verifiers` raises
        saved_outputs(FOLDER, {**settings, "num_examples": 10})


SCORERS = ("exact", "numeric", "choice", "regex", "math")


def _question_reader(suffix: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        file = write(FOLDER, f"questions{suffix}", data)
        for scorer in SCORERS:
            with suppress(Error):
                env = QuestionsEnv(file, scorer, held_out=0.5)
                env.description.encode(errors="replace")
                for number, row in enumerate(env.examples(3)):
                    example_key(build_example(row, number))

    return read


def _message_reader(suffix: str) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        for source, row in read_rows(write(FOLDER, f"messages{suffix}", data)):
            conversation_from_row(source, row)

    return read


# Packages.


def read_manifests(data: bytes) -> None:
    """Read a manifest and its signature."""
    with suppress(PackageError):
        check_signature(b"content", data)
    assert manifest_bytes(read_manifest(data)) == data or b'"' in data  # unknown fields are not written again


def read_wheel(data: bytes) -> None:
    """Read a file as a wheel, and as a package of any form."""
    file = write(FOLDER, "my_sums-1.0-py3-none-any.whl", data)
    with suppress(Error):
        read_source(texts_of(Package("my_sums", "wheel", file)))
    check_wheel(file)


def read_source_archive(data: bytes) -> None:
    """Read a file as a source archive."""
    file = write(FOLDER, "my_sums-1.0.tar.gz", data)
    with suppress(Error):
        read_source(texts_of(Package("my_sums", "sdist", file)))
    check_source(file)


def read_wheel_parts(data: bytes) -> None:
    """Read a wheel whose metadata, tags, entry points, top level and module are the parts of the input."""
    parts = parts_of(data, 5)
    info = "my_sums-1.0.dist-info"
    names = [f"{info}/METADATA", f"{info}/WHEEL", f"{info}/entry_points.txt", f"{info}/top_level.txt", "my_sums.py"]
    check_wheel(write(FOLDER, "my_sums-1.0-py3-none-any.whl", wheel_of(dict(zip(names, parts)), info)))


def wheel_of(files: dict[str, bytes], info: str) -> bytes:
    """Return a wheel of these files with a correct RECORD."""
    rows = [
        f"{name},{record_hash(hashlib.sha256(content).hexdigest())},{len(content)}" for name, content in files.items()
    ]
    record = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return stream.getvalue()


def read_python(data: bytes) -> None:
    """Read the source of an environment without running it."""
    read_source({"my_sums.py": text_of(data)})
    with suppress(ValueError):  # its callers name the file
        has_load_environment(data)


def read_package_folder(data: bytes) -> None:
    """Check a package folder; the parts of the input are its manifest and its signature."""
    folder = FOLDER / "package"
    folder.mkdir(exist_ok=True)
    for name, part in zip(("manifest.json", "manifest.sig"), parts_of(data, 2), strict=True):
        write(folder, name, part)
    verify(folder)


_RUNS = ("tests/runs", "tests/viewer", "tests/support/run_folders.py")
_TOML_WORDS = ("[loss]", "[[rl]]", "[evaluation]", "env = ", "[sft]", '"""', "1979-05-27", "inf")
_QUESTION_WORDS = ('"question":', '"answer":', '"choices":', '"prompt":', "question,answer\n", '"role":', '"info":')
_MESSAGE_WORDS = (
    '"messages":',
    '"conversations":',
    '"from":',
    '"value":',
    '"prompt":',
    '"completion":',
    '"tool_calls":',
)

TARGETS = [
    Target(
        "rollout_line", read_rollout, _RUNS, ('"record":', '"steps":', '"scores":', '"prompt_ids":', '"shared_ids":')
    ),
    Target("run_folder", read_run_folder, _RUNS, tuple(f"{name}\n" for name in RUN_FILES)),
    Target("settings", read_settings, ("configs", "environments", "tests/core", "tests/train", "docs"), _TOML_WORDS),
    Target("other_toml", read_other_toml, ("configs", "tests/clients", "tests/audit", "tests/hub"), _TOML_WORDS),
    Target("json_files", read_json_files, ("tests/audit", "tests/compat"), ('"findings":', '"checks":')),
    Target("questions_jsonl", _question_reader(".jsonl"), ("tests/envs", "docs"), _QUESTION_WORDS),
    Target("questions_csv", _question_reader(".csv"), ("tests/envs", "docs"), (*_QUESTION_WORDS, '""', ",", ";")),
    Target("questions_parquet", _question_reader(".parquet"), (), ("PAR1",)),
    Target("messages_jsonl", _message_reader(".jsonl"), ("tests/train", "tests/fixtures", "docs"), _MESSAGE_WORDS),
    Target("messages_json", _message_reader(".json"), ("tests/train", "tests/fixtures", "docs"), _MESSAGE_WORDS),
    Target("manifest", read_manifests, ("tests/hub",), ('"files":', '"needs":', '"key":')),
    Target("package_folder", read_package_folder, ("tests/hub",), ('"files":',)),
    Target("wheel", read_wheel, (), ("PK\3\4", "PK\5\6", "PK\1\2")),
    Target("wheel_parts", read_wheel_parts, ("tests/hub",), ("Requires-Dist: ", "Tag: ")),
    Target("source_archive", read_source_archive, (), ("ustar\0", "\x1f\x8b")),
    Target(
        "python", read_python, ("tests/compat_packages", "environments", "tests/check"), ("import verifiers as vf",)
    ),
]
