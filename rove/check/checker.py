"""Check a package: build it, install it into a virtual environment, read its code, run scripted rollouts, give a verdict."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from email.message import Message
from email.parser import HeaderParser
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from rove import compat
from rove.check.package_files import Package, as_wheel, module_of, texts_of
from rove.check.rollouts import CheckLimits, Failure, RolloutResults, run_rollouts
from rove.check.rules import OTHER_API, SUPPORTED_VERSIONS, V1, deviations, generation
from rove.compat.source_reader import Reading, read
from rove.compat.verifiers import errors as v0_errors
from rove.compat.verifiers.release import newest_allowed, project_requirements
from rove.core.errors import ConfigError
from rove.core.findings import Finding
from rove.remote.venv import make_venv
from rove.statistics.summary import broken_reward
from rove.utils.files import UNREADABLE_ARCHIVE

Status = Literal["runs unchanged", "runs with deviations", "needs", "cannot run"]
RUNS: tuple[Status, ...] = ("runs unchanged", "runs with deviations")
PLACEHOLDER = "rove-check"
"""Placeholder value for an unset key, so that the check can continue past it."""
PREPARE = "rove.compat:install_replacement"
"""Function that makes `verifiers` resolve to rove in the package's process, even if the package has installed it."""
FIND_TIMEOUT_S = 60.0
MODULE = re.compile(r"No module named '([\w.]+)'|needs the package (\w+)|pip install '?(rove\[\w+\])")
KEY = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN|SECRET)\b")
ABOUT_KEYS = re.compile(r"environ|api[ _-]key", re.IGNORECASE)
"""Pattern of errors about environment variables and keys of APIs."""
WORD = re.compile(r"\w+")
KEY_ERROR = re.compile(r"KeyError: '([A-Z][A-Z0-9_]+)'")
ARGUMENT = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.*?) \(")
NETWORK = re.compile(
    r"name resolution|Connection ?error|Connection refused|Max retries exceeded|Couldn't reach|Cannot connect to host"
    r"|Network is unreachable|LocalEntryNotFound|OfflineMode|cannot find the (?:requested|appropriate) .*cache|Hub\b",
    re.IGNORECASE,
)
FILE = re.compile(r"No such file or directory: '([^']+)'|FileNotFoundError: ([^\n]+)")
DATA = re.compile(r"DatasetNotFoundError|doesn't exist on the Hub")
"""Pattern of errors about missing files and datasets."""
WHEEL = re.compile(r"^\S+\.whl cannot")
MACHINE_PATH = re.compile(r"(?:/[^\s/'\"]+)+/(?:site-packages|rove-alone-\w+|lib/python[\d.]+)/(?:site-packages/)?")
FIND_MODULES = (
    "import importlib.util as u, json, sys; "
    "print(json.dumps([n for n in json.load(sys.stdin) if n not in sys.modules and u.find_spec(n) is None]))"
)


class Report(msgspec.Struct):
    """Result of checking a package."""

    package: str
    status: Status = "runs unchanged"
    why: str = ""
    """The missing requirement, or the reason why the package cannot run."""
    generation: str = ""
    """The API generation: "G0" to "G3", "verifiers v1", "rove" or "neither"."""
    names: dict[str, list[str]] = {}
    """API → those of its names that the package uses."""
    lacking: dict[str, str] = {}
    """Names of the verifiers API that rove does not provide → explanation."""
    deviations: list[Finding] = []
    keys: dict[str, str] = {}
    """Environment variables that the package reads → "set", "not set" or "not set, optional"."""
    missing_modules: list[str] = []
    """Imported modules that are not installed with the package."""
    extras: list[str] = []
    """Extras of the package, which may provide missing modules."""
    rollouts: RolloutResults = msgspec.field(name="played", default_factory=RolloutResults)
    placeholders: list[str] = []
    """Unset environment variables that had a placeholder value during the rollouts."""

    @property
    def verdict(self) -> str:
        """The status with its reason."""
        if not self.why:
            return self.status
        separator = ": " if self.status == "cannot run" else " "
        return f"{self.status}{separator}{self.why}"

    @property
    def runs(self) -> bool:
        """Whether the package runs, with or without deviations."""
        return self.status in RUNS


def check(
    package: Package,
    env_args: Mapping[str, Any] | None = None,
    limited: CheckLimits | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Report:
    """Check a package: its API, its requirements, and scripted rollouts.

    A fault of the package never raises an exception. The package sees this process's environment variables, including API keys,
    so its requests to endpoints may cost money.
    """
    report = Report(package.name)
    with tempfile.TemporaryDirectory(prefix="rove-check-") as name:
        folder = Path(name).resolve()
        try:
            _check(package, report, folder, env_args or {}, limited or CheckLimits(), on_stage)
        except ConfigError as error:
            _judge(report, str(error))
        except Exception as error:  # one package must not stop the check of the others
            report.status, report.why = "cannot run", f"the check itself failed: {type(error).__name__}: {error}"
        # Reports are compared and published: they must not differ by temporary folders, or show a user's folders.
        folders = (f"{folder}/", f"{package.path.parent}/")
        report.why = _without_paths(folders, report.why)
        rollouts = report.rollouts
        rollouts.unloaded = _without_paths(folders, rollouts.unloaded)
        rollouts.swallowed = [_without_paths(folders, error) for error in rollouts.swallowed]
        failures: list[Failure] = []
        for failure in rollouts.failures:
            failures.append(msgspec.structs.replace(failure, message=_without_paths(folders, failure.message)))
        rollouts.failures = failures
    return report


def _check(
    package: Package,
    report: Report,
    folder: Path,
    env_args: Mapping[str, Any],
    limited: CheckLimits,
    on_stage: Callable[[str], None],
) -> None:
    on_stage("reading")
    reading = read(texts_of(package))
    needs = _requirements(package)
    _record_reading(report, reading, needs)
    # Such a package requires verifiers 0.4, which would be downloaded with all of its dependencies.
    if report.generation == V1:
        _judge(report, OTHER_API)
        return
    python = None
    if package.kind != "module":
        on_stage("building")
        # What users install is checked: a wheel may lack files of the project, and generated code is only in the wheel.
        wheel = as_wheel(package, folder, limited.install_seconds)
        texts = texts_of(wheel)
        reading = read(texts)
        _record_reading(report, reading, _requirements(wheel) or needs)
        report.extras = sorted(_metadata(wheel.path).get_all("Provides-Extra", []))
        module = module_of(wheel, texts)
        on_stage("installing")
        python = make_venv(folder / "venv", [str(wheel.path)], limited.install_seconds, compat.PROVIDED_VERSIONS)
    else:
        module = module_of(package, {})
    report.missing_modules = _missing(python, reading)
    run = partial(run_rollouts, module, env_args, package.env_dir, python, limited=limited, prepare=PREPARE)
    on_stage("running rollouts")
    report.rollouts = run(variables={})
    _judge(report, report.rollouts.unloaded)
    # Many packages read a judge's key when they are loaded; with a placeholder, everything but the judge can be checked.
    if report.why.startswith(("the key ", "the keys ")):
        required = {name for name, value in report.keys.items() if value == "not set"}
        report.placeholders = sorted({*unset_keys(report, report.rollouts.unloaded), *required})
        with_placeholders = run(variables=dict.fromkeys(report.placeholders, PLACEHOLDER))
        if not with_placeholders.unloaded:
            report.rollouts = with_placeholders
    _judge_rollouts(report)


def _record_reading(report: Report, reading: Reading, needs: Sequence[str]) -> None:
    """Add names, generation, deviations and keys from the code to the report; `needs` are the package's requirements."""
    report.names = {api: sorted(names) for api, names in reading.names.items() if names}
    report.generation = generation(reading.features, newest_allowed(needs))
    if "verifiers" in report.names and report.generation != V1:
        report.deviations = deviations(reading.features)
        reasons = {name: compat.missing_reason(name) for name in report.names["verifiers"]}
        report.lacking = {name: reason for name, reason in reasons.items() if reason}
    report.keys = {}
    for name, is_required in sorted(reading.keys.items()):
        unset = "not set" if is_required else "not set, optional"
        report.keys[name] = "set" if name in os.environ else unset


def _judge_rollouts(report: Report) -> None:
    rollouts = report.rollouts
    if report.status in ("needs", "cannot run"):
        return
    if rollouts.failures and rollouts.failed == rollouts.rollouts:
        first = rollouts.failures[0]
        _judge(report, f"{first.type}: {first.message}", "every rollout failed: ")
        return
    if rollouts.broken:  # a reward function raised in every rollout
        name, error = next(iter(rollouts.broken.items()))
        _judge(report, error)
        if report.status == "cannot run":
            report.why = broken_reward(name, _one_line(error))
        return
    if "verifiers" in report.names and rollouts.failures:
        features = {"rollout:error"}
        # v0 records its own exceptions, and ends the whole run after any other; these two are separate rows of the page.
        if any(failure.phase != "model" and not hasattr(v0_errors, failure.type) for failure in rollouts.failures):
            features.add("rollout:own error")
        report.deviations += [deviation for deviation in deviations(features) if deviation not in report.deviations]
    if report.deviations:
        report.status = "runs with deviations"


def _judge(report: Report, error: str, prefix: str = "") -> None:
    """Set the verdict that an error message implies; without an error, change nothing."""
    if not error:
        return
    report.status = "needs"
    keys = unset_keys(report, error)
    # From the most to the least specific cause.
    if module := MODULE.search(error):
        _judge_module(report, next(filter(None, module.groups())))
    elif keys:
        report.why = f"the {'keys' if len(keys) > 1 else 'key'} {', '.join(keys)}"
    elif argument := ARGUMENT.search(error):
        report.why = f"the argument {argument[1]} (-a)"
    elif "depends on verifiers" in error:
        report.status = "cannot run"
        report.why = f"it requires verifiers other than {SUPPORTED_VERSIONS}: {_one_line(error)}"
    elif resource := _missing_resource(error):
        report.why = f"{resource}: {prefix}{_one_line(error)}"
    else:
        # A name that rove lacks is the likely cause, so the verdict names its replacement.
        explanations = {explanation for explanation in report.lacking.values() if explanation not in error}
        report.status = "cannot run"
        report.why = "; ".join([f"{prefix}{_one_line(error)}", *sorted(explanations)])


def _judge_module(report: Report, name: str) -> None:
    top_level = name.split(".")[0]
    if top_level == compat.NAME:
        report.status, report.why = "cannot run", f"rove does not provide {name}"
        return
    report.why = f"the module {top_level}, which it does not install"
    if report.extras:
        report.why += f" (its extras: {', '.join(report.extras)})"


def _missing_resource(error: str) -> str:
    """Return "data" or "the network" if an error is about one of the two; "" for other errors and for failed installations."""
    if "cannot be installed" in error or "cannot be built" in error:
        return ""
    if FILE.search(error) or DATA.search(error):
        return "data"
    return "the network" if NETWORK.search(error) else ""


def unset_keys(report: Report, error: str) -> list[str]:
    """Return the unset variables named in an error, preferring those that the package reads."""
    names = [word for word in WORD.findall(error) if word in report.keys]
    # A library may need a key that the package's own code never names.
    if not names:
        names = KEY_ERROR.findall(error)
        # Constants such as EOS_TOKEN and PRIMARY_KEY have names of the same form.
        if ABOUT_KEYS.search(error):
            names += KEY.findall(error)
    return [name for name in dict.fromkeys(names) if name not in os.environ]


def _one_line(error: str) -> str:
    """Return an error as one line: its first line, plus the installer's reason if the first line ends in a colon."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    text = lines[0]
    if text.endswith(":"):
        # pip prints its reason last, but a conflict of requirements before its advice.
        reason = next((line for line in lines if "depends on" in line), lines[-1])
        text = f"{text} {reason}" if reason != text else text
    return WHEEL.sub("it cannot", text)


def _without_paths(folders: Sequence[str], error: str) -> str:
    """Remove paths of temporary folders and of this machine from an error."""
    error = MACHINE_PATH.sub("", error)
    for folder in folders:
        error = error.replace(folder, "")
    return error


def _requirements(package: Package) -> list[str]:
    """Return a package's declared requirements; [] for a source distribution, because its wheel is read later."""
    if package.kind == "wheel":
        return _metadata(package.path).get_all("Requires-Dist", [])
    if package.kind == "sdist":
        return []
    # `project_requirements` takes a module's file, and searches its folder and the parent folder.
    return project_requirements(package.path / "module.py" if package.path.is_dir() else package.path)


def _metadata(wheel: Path) -> Message:
    try:
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            return HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
    except UNREADABLE_ARCHIVE as error:
        raise ConfigError(f"{wheel.name} is not a valid wheel: {error}") from error


def _missing(python: str | None, reading: Reading) -> list[str]:
    """Return the imported modules that are not installed, without those whose import is optional."""
    required = sorted(name for name, is_required in reading.imports.items() if is_required)
    if not required:
        return []
    # In the interpreter of the package's virtual environment; the list is only a note, so a failure is not a verdict.
    try:
        done = subprocess.run(
            [python or sys.executable, "-c", FIND_MODULES],
            input=json.dumps(required),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=FIND_TIMEOUT_S,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return []
