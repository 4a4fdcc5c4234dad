"""Checking one package: built, installed into a virtual environment of its own, read, loaded, played, judged."""

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
from pathlib import Path
from typing import Any, Literal

import msgspec

from rove import compat
from rove.check.packages import Package, as_wheel, module_of, texts_of
from rove.check.rules import ANSWERED, OTHER_API, V1, Deviation, deviations, generation
from rove.check.run import Limited, Played, play
from rove.check.source_reader import Reading, read
from rove.compat.verifiers import errors as v0_errors
from rove.compat.verifiers.release import newest_allowed, project_requirements
from rove.core.errors import ConfigError
from rove.remote.venv import make_venv
from rove.statistics.reward_errors import broken_reward

Status = Literal["runs unchanged", "runs with deviations", "needs", "cannot run"]
RUNS: tuple[Status, ...] = ("runs unchanged", "runs with deviations")
PLACEHOLDER = "rove-check"
"""The value of a key that is not set, to see what else there is."""
FIND_SECONDS = 60.0
MODULE = re.compile(r"No module named '([\w.]+)'|needs the package (\w+)|pip install '?(rove\[\w+\])")
KEY = re.compile(r"\b[A-Z][A-Z0-9_]*_(?:KEY|TOKEN|SECRET)\b")
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
"""What the error of a package has in it that lacks a file, or a data set."""
WHEEL = re.compile(r"^\S+\.whl cannot")
PLACE = re.compile(r"(?:/[^\s/'\"]+)+/(?:site-packages|rove-alone-\w+|lib/python[\d.]+)/(?:site-packages/)?")
ASK = (
    "import importlib.util as u, json, sys; "
    "print(json.dumps([n for n in json.load(sys.stdin) if n not in sys.modules and u.find_spec(n) is None]))"
)


class Report(msgspec.Struct):
    """What was found of a package."""

    package: str
    status: Status = "runs unchanged"
    why: str = ""
    """What is needed, or why it cannot run."""
    generation: str = ""
    """What it is written for: "G0" to "G3", "verifiers v1", "rove", or "neither"."""
    names: dict[str, list[str]] = {}
    """API → names of it that are used."""
    lacking: dict[str, str] = {}
    """Those of verifiers that rove does not answer for → what it says of them."""
    deviations: list[Deviation] = []
    keys: dict[str, str] = {}
    """Environment variables that it reads → "set", "not set", or "not set, optional"."""
    missing_modules: list[str] = []
    """What it imports somewhere and what is not installed with it."""
    extras: list[str] = []
    """Its own extras: what it may need more is perhaps there."""
    played: Played = msgspec.field(default_factory=Played)
    placeholders: list[str] = []
    """Keys that are not set, and had a placeholder while it played."""

    @property
    def verdict(self) -> str:
        """In words."""
        return f"{self.status}{': ' if self.status == 'cannot run' else ' '}{self.why}" if self.why else self.status

    @property
    def runs(self) -> bool:
        """Whether it does."""
        return self.status in RUNS


def check(
    package: Package,
    env_args: Mapping[str, Any] | None = None,
    limited: Limited | None = None,
    tell: Callable[[str], None] = lambda words: None,
) -> Report:
    """What a package is written for, what it needs, and what becomes of scripted rollouts in it.

    Never raises for what the package is or does. Environment variables, keys included, are those of this process: what
    it asks of an endpoint may cost something.

    Args:
        env_args: for its `load_environment`.
        limited: how long it may take.
        tell: told what is done now.
    """
    report = Report(package.name)
    with tempfile.TemporaryDirectory(prefix="rove-check-") as name:
        folder = Path(name).resolve()
        try:
            _check(package, report, folder, (env_args or {}, limited or Limited(), tell))
        except ConfigError as error:
            _judge(report, str(error))
        except Exception as error:  # one package must not end the check of the others
            report.status, report.why = "cannot run", f"the check itself failed: {type(error).__name__}: {error}"
        places = (f"{folder}/", f"{package.path.parent}/")
        report.why = _without(places, report.why)
        played = report.played
        played.unloaded = _without(places, played.unloaded)
        played.swallowed = [_without(places, one) for one in played.swallowed]
        played.failures = [
            msgspec.structs.replace(one, message=_without(places, one.message)) for one in played.failures
        ]
    return report


def _check(package: Package, report: Report, folder: Path, given: tuple[Any, Limited, Callable[[str], None]]) -> None:
    env_args, limited, tell = given
    tell("reading")
    reading = read(texts_of(package))
    needs = _requirements(package)
    _note(report, reading, needs)
    if report.generation == V1:
        return _judge(report, OTHER_API)
    python = None
    if package.kind != "module":
        tell("building")
        wheel = as_wheel(package, folder, limited.install_seconds)
        texts = texts_of(wheel)
        reading = read(texts)
        _note(report, reading, _requirements(wheel) or needs)
        report.extras = sorted(_metadata(wheel.path).get_all("Provides-Extra", []))
        module = module_of(wheel, texts)
        tell("installing")
        python = make_venv(folder / "venv", [str(wheel.path)], limited.install_seconds, compat.PROVIDED_VERSIONS)
    else:
        module = module_of(package, {})
    report.missing_modules = _missing(python, reading)
    where = (module, env_args, package.env_dir, python)
    tell("playing")
    played = report.played = play(*where, {}, limited, "rove.compat:install_replacement")
    _judge(report, played.unloaded)
    if report.why.startswith(("the key ", "the keys ")):
        needed = {name for name, value in report.keys.items() if value == "not set"}
        report.placeholders = sorted({*_unset_keys(report, report.why), *needed})
        variables = dict.fromkeys(report.placeholders, PLACEHOLDER)
        again = play(*where, variables, limited, "rove.compat:install_replacement")
        if not again.unloaded:
            report.played = again
    _add_played(report)


def _note(report: Report, reading: Reading, needs: Sequence[str]) -> None:
    """What the files say; `needs` are the requirements of the package."""
    report.names = {api: sorted(names) for api, names in reading.names.items() if names}
    report.generation = generation(reading.features, newest_allowed(needs))
    if "verifiers" in report.names and report.generation != V1:
        report.deviations = deviations(reading.features)
        told = {name: compat.missing_reason(name) for name in report.names["verifiers"]}
        report.lacking = {name: said for name, said in told.items() if said}
    told = {True: "not set", False: "not set, optional"}
    report.keys = {name: "set" if name in os.environ else told[needed] for name, needed in sorted(reading.keys.items())}


def _add_played(report: Report) -> None:
    """What the rollouts say."""
    played = report.played
    if report.status in ("needs", "cannot run"):
        return
    if played.failures and played.failed == played.rollouts:
        first = played.failures[0]
        return _judge(report, f"{first.type}: {first.message}", "every rollout failed: ")
    if played.broken:
        name, error = next(iter(played.broken.items()))
        return _judge_reward(report, name, error)
    if "verifiers" in report.names and played.failures:
        noted = {"played:error"}
        if any(one.phase != "model" and not hasattr(v0_errors, one.type) for one in played.failures):
            noted.add("played:own error")
        report.deviations += [one for one in deviations(noted) if one not in report.deviations]
    if report.deviations:
        report.status = "runs with deviations"


def _judge_reward(report: Report, name: str, error: str) -> None:
    """The verdict of a package one of whose reward functions raised in every rollout."""
    _judge(report, error)
    if report.status == "cannot run":
        report.why = broken_reward(name, _in_a_line(error))


def _judge(report: Report, said: str, before: str = "") -> None:
    """The verdict that an error's words mean; none where nothing was said."""
    if not said:
        return
    report.status, keys = "needs", _unset_keys(report, said)
    if module := MODULE.search(said):
        name = next(filter(None, module.groups()))
        report.why = f"the module {name.split('.')[0]}, which it does not install"
        report.why += f" (its extras: {', '.join(report.extras)})" if report.extras else ""
        if name.split(".")[0] == compat.NAME:
            report.status, report.why = "cannot run", f"rove does not answer for {name}"
    elif keys:
        report.why = f"the {'keys' if len(keys) > 1 else 'key'} {', '.join(keys)}"
    elif argument := ARGUMENT.search(said):
        report.why = f"the argument {argument[1]} (-a)"
    elif "depends on verifiers" in said:
        report.status, report.why = "cannot run", f"it asks for another verifiers than {ANSWERED}: {_in_a_line(said)}"
    elif lacked := _lacked(said):
        report.why = f"{lacked}: {before}{_in_a_line(said)}"
    else:
        told = {one for one in report.lacking.values() if one not in said}
        report.status, report.why = "cannot run", "; ".join([f"{before}{_in_a_line(said)}", *sorted(told)])


def _lacked(said: str) -> str:
    """Data or the network, where an error is about them; "" where not, or where installing failed."""
    if "cannot be installed" in said or "cannot be built" in said:
        return ""
    if FILE.search(said) or DATA.search(said):
        return "data"
    return "the network" if NETWORK.search(said) else ""


def _unset_keys(report: Report, said: str) -> list[str]:
    """The environment variables that an error is about: those that the package reads, if it names such."""
    known = [name for name in WORD.findall(said) if name in report.keys]
    return [name for name in dict.fromkeys(known or _keys_in(said)) if name not in os.environ]


def _keys_in(said: str) -> list[str]:
    return list(dict.fromkeys([*KEY_ERROR.findall(said), *KEY.findall(said)]))


def _in_a_line(said: str) -> str:
    """An error in one line: its first, with what an installer says further down where that ends in a colon."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    more = [next((line for line in lines if "depends on" in line), lines[-1])] if lines[0].endswith(":") else []
    return WHEEL.sub("it cannot", " ".join([lines[0], *(line for line in more if line != lines[0])]))


def _without(places: Sequence[str], said: str) -> str:
    """Without folders that are gone, or differ from machine to machine."""
    said = PLACE.sub("", said)
    for place in places:
        said = said.replace(place, "")
    return said


def _requirements(package: Package) -> list[str]:
    """What a package declares that it needs; nothing for a source distribution, of which a wheel is built."""
    if package.kind == "wheel":
        return _metadata(package.path).get_all("Requires-Dist", [])
    return (
        []
        if package.kind == "sdist"
        else project_requirements(package.path / "x" if package.path.is_dir() else package.path)
    )


def _metadata(wheel: Path) -> Message:
    try:
        with zipfile.ZipFile(wheel) as archive:
            [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            return HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheel.name} is no wheel: {error}") from error


def _missing(python: str | None, reading: Reading) -> list[str]:
    """Modules that are imported and not there; those that the package does without left out."""
    wanted = sorted(name for name, needed in reading.imports.items() if needed)
    if not wanted:
        return []
    try:
        done = subprocess.run(
            [python or sys.executable, "-c", ASK],
            input=json.dumps(wanted),
            capture_output=True,
            text=True,
            timeout=FIND_SECONDS,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return []
