"""Build an environment's folder into a package: wheel, source archive and manifest, reproducibly."""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import msgspec

import rove
from rove.check.rules import OTHER_API, V1, generation
from rove.compat.source_reader import Reading, read
from rove.core.config import convert, read_toml
from rove.core.errors import ConfigError, PackageError, RemoteError, WorkerError
from rove.core.plain import JsonObject
from rove.hub.package import limits
from rove.hub.package.archives import LOAD, MANIFEST, README, Wheel
from rove.hub.package.backend import OUTPUT, build_archives, dist_info, git_output, write_members
from rove.hub.package.manifest import (
    ROVE,
    V0,
    WEB,
    Argument,
    File,
    Manifest,
    Needs,
    PolicyScores,
    Source,
    manifest_bytes,
    one_line,
)
from rove.hub.package.unpacking import Members
from rove.hub.package.verifiers_v1 import check_verifiers_v1, write_verifiers_v1
from rove.remote.environment import INTERPRETER_VARIABLES, rove_only_folder
from rove.utils.files import atomic_replace
from rove.workers import Workers

SECRET = re.compile(r"[A-Z0-9_]*(KEY|TOKEN|SECRET|PASSWORD)[A-Z0-9_]*")
"""Names of environment variables that are treated as secrets."""
MAX_IMPORT_HOPS = 5
"""Maximum number of imports followed to find `load_environment`."""


class DeclaredNeeds(Needs, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The table `[tool.rove.needs]`."""


class Declared(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The table `[tool.rove]` of a package's pyproject.toml; missing values are derived."""

    tags: list[str] | None = None
    """Search tags (default: the `keywords` of `[project]`)."""
    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward (default: as observed in the scripted policies' rollouts)."""
    data_sources: list[str] = []
    """Data sources, in addition to the names passed to `load_dataset`."""
    needs: DeclaredNeeds = DeclaredNeeds()
    """Requirements, in addition to those found in the code and in rollouts."""
    eval: JsonObject = {}
    """Recommended evaluation settings; see `rove eval`."""


def declared(project: JsonObject) -> Declared:
    """Return the table `[tool.rove]` of a parsed pyproject.toml."""
    return convert(Declared, project.get("tool", {}).get("rove", {}))


def arguments(members: Members, module: str) -> list[Argument]:
    """Return the arguments of `load_environment` as written; [] if its source is not in the package."""
    function = _load_environment(members, _file_of(members, module.split(".")), LOAD, MAX_IMPORT_HOPS)
    if function is None:
        return []
    plain = [*function.args.posonlyargs, *function.args.args]
    defaults = [None] * (len(plain) - len(function.args.defaults)) + list(function.args.defaults)
    pairs = [*zip(plain, defaults, strict=True), *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)]
    return [
        Argument(name=argument.arg, type=_written(argument.annotation) or "", default=_written(default))
        for argument, default in pairs
    ]


def read_code(members: Members) -> Reading:
    """Read the package's modules; see `rove.compat.source_reader`."""
    code = read({path: members[path].decode("utf-8", "replace") for path in sorted(members) if path.endswith(".py")})
    for path, error in code.broken.items():
        raise PackageError(f"{path} cannot be parsed as Python: {error}")
    return code


def compatibility(code: Reading) -> str:
    """Return the API that the package is written for: `verifiers` v0 if any module imports it."""
    return V0 if any(feature.split(".")[0] == "module:verifiers" for feature in code.features) else ROVE


def check_api(code: Reading) -> None:
    """Check that rove provides the API that the package is written for."""
    uses_rove = any(feature.split(".")[0] == "module:rove" for feature in code.features)
    if not uses_rove and generation(code.features) == V1:
        raise PackageError(f"this package cannot run: {OTHER_API}")


def secrets(code: Reading) -> list[str]:
    """Return the names of environment variables in the code that suggest a secret."""
    return sorted(name for name in code.keys if SECRET.fullmatch(name))


def _load_environment(
    members: Members, file: str, name: str, hops: int
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    if file not in members or hops == 0:
        return None
    for node in reversed(ast.parse(members[file]).body):  # the last definition wins, as when the module runs
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _load_environment(members, _imported_file(members, file, node), alias.name, hops - 1)
    return None


def _imported_file(members: Members, file: str, node: ast.ImportFrom) -> str:
    """Return the file of the module that `from … import` names in a file of the package."""
    parts = file.removesuffix(".py").split("/")
    above = parts[: len(parts) - node.level] if node.level else []
    return _file_of(members, [*above, *(node.module or "").split(".")])


def _file_of(members: Members, parts: list[str]) -> str:
    path = "/".join(part for part in parts if part)
    return f"{path}.py" if f"{path}.py" in members else f"{path}/__init__.py"


def _written(node: ast.expr | None) -> str | None:
    return None if node is None else one_line(ast.unparse(node))


WORKER = Path(__file__).with_name("facts_worker.py")
TIMEOUT_S = 300.0
"""Time limit for loading an environment and running its policies."""
EXAMPLES = 5
"""Number of examples per policy."""
SEED = 0


class Score(msgspec.Struct, kw_only=True, frozen=True):
    """Results of one scripted policy."""

    rewards: list[float]
    """Rewards of the scored rollouts."""
    failed: int = 0
    error: str = ""
    """Error of the last failed rollout."""


class Facts(msgspec.Struct, kw_only=True, frozen=True):
    """Facts that were observed while the environment ran."""

    metrics: list[str] = []
    """Names of the rubric's reward functions and metrics."""
    tools: list[str] = []
    policies: dict[str, Score] = {}
    network: bool = False
    """Whether the environment connected to another machine."""
    sandbox: bool = False
    group_rewards: list[str] = []
    """Names of the reward functions that need a whole group."""
    message_type: str = "chat"


def measure(
    folder: Path, module: str, python: str | None = None, examples: int = EXAMPLES, seconds: float = TIMEOUT_S
) -> Facts:
    """Load the environment of a module and run its scripted policies.

    Args:
        python: Interpreter with the package's dependencies (default: the current interpreter).
    """
    # Another interpreter gets rove from a folder that contains only rove: this interpreter's packages may not fit it.
    ours = [path for path in sys.path if path] if python is None else [rove_only_folder().name]
    workers = Workers(
        WORKER,
        {"folder": str(folder), "module": module, "examples": examples, "seed": SEED},
        python=python,
        paths=[str(folder), *ours],
        env=_inherited_variables(python),
        start_seconds=seconds,
        name=f"environment '{module}'",
    )
    try:
        workers.start()
        return msgspec.convert(workers.setup_result, Facts)
    except RemoteError as error:
        message = error.args[0] if error.type == "ConfigError" else str(error)
        raise PackageError(
            f"{message}; install its dependencies into the interpreter given by --python, or build without rollouts (--no-play)"
        ) from error
    except WorkerError as error:
        raise PackageError(f"{error}; fix the environment, or build without rollouts (--no-play)") from error
    finally:
        workers.close()


REPOSITORY = ("repository", "source", "source code", "code", "homepage", "home")
"""Keys of `[project.urls]` that may hold the repository, in order of preference."""


@dataclass(frozen=True)
class Built:
    """A package built by `build`."""

    folder: Path
    """Contains the wheel, the source archive, manifest.json and README.md."""
    manifest: Manifest
    warnings: list[str] = field(default_factory=list)
    verifiers_v1: Path | None = None
    """The wheel that makes the environment a taskset of verifiers v1, if it was requested."""


def build(
    folder: Path,
    output: Path | None = None,
    run_policies: bool = True,
    python: str | None = None,
    verifiers_v1: bool = False,
) -> Built:
    """Build the package in a folder into OUTPUT/NAME-VERSION/, atomically and reproducibly.

    The build backend named in pyproject.toml makes a source archive from a copy of the folder, and a wheel from that
    archive. rove then loads the environment from the wheel and runs its scripted policies on a few examples for the
    manifest.

    Args:
        output: Output folder (default: `dist` in `folder`).
        run_policies: If False, the environment is not loaded; the manifest then contains only what the source declares.
        python: Interpreter with the environment's dependencies (default: the current interpreter).
        verifiers_v1: Also write a wheel for verifiers v1 into the output folder.

    Raises:
        ConfigError: the folder has no pyproject.toml, or verifiers v1 cannot run the environment.
        PackageError: the package cannot be built.

    Example:
        >>> package = build(Path("environments/my_task"))
        >>> package.manifest.version
        '0.1.0'
    """
    project_file = folder / "pyproject.toml"
    if not project_file.is_file():
        raise ConfigError(
            f"{folder} has no pyproject.toml; give the folder of an environment, or create one with rove init NAME"
        )
    if verifiers_v1 and not run_policies:
        raise ConfigError("--verifiers-v1 loads the environment to check its rewards; leave out --no-play")
    table = declared(read_toml(project_file))
    with tempfile.TemporaryDirectory(prefix="rove-build-") as temporary:
        work = Path(temporary)
        draft = work / "package"
        draft.mkdir()
        wheel, members, files = build_archives(folder, work, draft)
        code = read_code(members)
        check_api(code)
        facts = None
        if run_policies:
            write_members(work / "installed", members)
            facts = measure(work / "installed", wheel.module, python)
            if verifiers_v1:
                check_verifiers_v1(wheel.name, compatibility(code), facts.group_rewards, facts.message_type)
        manifest, warnings = describe(wheel, members, code, table, facts, files, commit_of(folder))
        (draft / MANIFEST).write_bytes(manifest_bytes(manifest))
        (draft / README).write_text(wheel.readme, encoding="utf-8", newline="\n")
        target = (output or folder / OUTPUT) / f"{wheel.name}-{wheel.version}"
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:  # the temporary folder may be on another disk
            shutil.copytree(draft, staging, dirs_exist_ok=True)
            staging.chmod(0o755)  # `mkdtemp` lets only this user read the folder
            atomic_replace(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    taskset = write_verifiers_v1(wheel, target.parent) if verifiers_v1 else None
    return Built(target, manifest, warnings, taskset)


def _inherited_variables(python: str | None) -> dict[str, str]:
    """Return the environment variables of the worker; other interpreters must not get variables that configure this one."""
    excluded = () if python is None else INTERPRETER_VARIABLES
    return {name: value for name, value in os.environ.items() if name not in excluded}


def describe(
    wheel: Wheel,
    members: Members,
    code: Reading,
    table: Declared,
    facts: Facts | None,
    files: list[File],
    commit: str,
) -> tuple[Manifest, list[str]]:
    """Return the manifest of a wheel, from declarations, source code and rollouts, with warnings for its author."""
    measured = facts or Facts()
    observed = list(chain.from_iterable(score.rewards for score in measured.policies.values()))
    tags = table.tags if table.tags is not None else wheel.keywords
    urls = {name.lower(): url for name, url in wheel.urls.items() if url.startswith(WEB)}
    generator = re.search(rb"^Generator:\s*(.+)$", members[f"{dist_info(members)}/WHEEL"], re.MULTILINE)
    manifest = Manifest(
        name=wheel.name,
        version=wheel.version,
        module=wheel.module,
        description=one_line(wheel.summary, limits.MAX_DESCRIPTION_CHARS),
        tags=sorted({re.sub(r"[^a-z0-9]+", "-", tag.lower()).strip("-") for tag in tags} - {""}),
        licence=one_line(wheel.licence),
        authors=[one_line(author) for author in wheel.authors],
        requires_python=wheel.requires_python,
        dependencies=wheel.dependencies,
        compatibility=compatibility(code),  # pyright: ignore[reportArgumentType]
        reward_range=table.reward_range or ((min(observed), max(observed)) if observed else None),
        metrics=measured.metrics,
        tools=measured.tools,
        policies={
            name: PolicyScores(reward=sum(score.rewards) / len(score.rewards), n=len(score.rewards))
            for name, score in measured.policies.items()
            if score.rewards
        },
        seeds=[SEED] if observed else [],
        needs=Needs(
            network=table.needs.network or measured.network,
            secrets=sorted({*table.needs.secrets, *secrets(code)}),
            sandbox=table.needs.sandbox or measured.sandbox,
        ),
        data_sources=sorted({*table.data_sources, *code.datasets}),
        arguments=arguments(members, wheel.module),
        source=Source(
            repository=next((urls[name] for name in REPOSITORY if name in urls), ""),
            commit=commit,
            builder=generator[1].decode("utf-8", "replace").strip() if generator else "",
        ),
        rove=rove.__version__,
        content=wheel.content,
        files=files,
    )
    return manifest, _warnings(wheel, table, facts)


def _warnings(wheel: Wheel, table: Declared, facts: Facts | None) -> list[str]:
    warnings = []
    for name, score in sorted(facts.policies.items() if facts is not None else ()):
        if score.failed:
            total = score.failed + len(score.rewards)
            warnings.append(f"policy '{name}' failed in {score.failed} of {total} rollouts: {score.error}")
        low, high = table.reward_range or (-float("inf"), float("inf"))
        outside = [reward for reward in score.rewards if not low <= reward <= high]
        if outside:
            warnings.append(f"policy '{name}' had reward {outside[0]:g}, outside the reward_range in pyproject.toml")
    if facts is not None and not facts.policies:
        warnings.append("it has no scripted policies; users cannot see before installing it that it can be solved")
    for field_name, value in (
        ("description", wheel.summary),
        ('license (for example license = "MIT")', wheel.licence),
        ('README (readme = "README.md")', wheel.readme),
    ):
        if not value:
            warnings.append(f"[project] in pyproject.toml has no {field_name}")
    return warnings


def commit_of(folder: Path) -> str:
    """Return the git commit of a folder, with "-dirty" for uncommitted changes; "" if it is not in a repository."""
    if not git_output(folder, "ls-files"):
        return ""
    changes = git_output(folder, "status", "--porcelain", "--", ".", f":(exclude){OUTPUT}")
    commit = git_output(folder, "rev-parse", "HEAD").strip()
    return f"{commit}-dirty" if changes else commit
