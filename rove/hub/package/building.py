"""Build an environment's folder into a package: wheel, source archive and manifest, reproducibly."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import rove
from rove.check.source_reader import Reading
from rove.core.config import read_toml
from rove.core.errors import ConfigError
from rove.hub.package import limits
from rove.hub.package.archives import Wheel
from rove.hub.package.backend import OUTPUT, build_archives, write_members
from rove.hub.package.facts import SEED, Facts, measure
from rove.hub.package.folder import MANIFEST, README
from rove.hub.package.manifest import WEB, File, Manifest, Needs, PolicyScores, Source, manifest_bytes, one_line
from rove.hub.package.reading import Declared, arguments, check_api, compatibility, declared, read_code, secrets
from rove.hub.package.unpacking import Members
from rove.utils.files import atomic_replace

REPOSITORY = ("repository", "source", "source code", "code", "homepage", "home")
"""Keys of `[project.urls]` that may hold the repository, in order of preference."""


@dataclass(frozen=True)
class Built:
    """A package built by `build`."""

    folder: Path
    """Contains the wheel, the source archive, manifest.json and README.md."""
    manifest: Manifest
    warnings: list[str] = field(default_factory=list)


def build(folder: Path, output: Path | None = None, playing: bool = True, python: str | None = None) -> Built:
    """Build the package in a folder into OUTPUT/NAME-VERSION/, atomically and reproducibly.

    The build backend named in pyproject.toml makes a source archive of a copy of the folder, and a wheel of that archive. rove
    then loads the environment from the wheel and runs its scripted policies on a few examples for the manifest.

    Args:
        folder: Folder with pyproject.toml.
        output: Output folder (default: `dist` in `folder`).
        playing: False does not load the environment; the manifest then contains only what the source declares.
        python: Interpreter with the environment's dependencies (default: this one).

    Raises:
        ConfigError: The folder has no pyproject.toml, or `[tool.rove]` is invalid.
        PackageError: The build fails, the result is not an environment package or is written for verifiers v1, or the
            environment cannot be loaded.

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
    table = declared(read_toml(project_file))
    with tempfile.TemporaryDirectory(prefix="rove-build-") as temporary:
        work = Path(temporary)
        draft = work / "package"
        draft.mkdir()
        wheel, members, files = build_archives(folder, work, draft)
        code = read_code(members)
        check_api(code)
        facts = None
        if playing:
            write_members(work / "installed", members)
            facts = measure(work / "installed", wheel.module, python)
        manifest, warnings = describe(wheel, members, code, table, facts, files, commit_of(folder))
        (draft / MANIFEST).write_bytes(manifest_bytes(manifest))
        (draft / README).write_text(wheel.readme, encoding="utf-8")
        target = (output or folder / OUTPUT) / f"{wheel.name}-{wheel.version}"
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:  # the temporary folder may be on another disk
            shutil.copytree(draft, staging, dirs_exist_ok=True)
            staging.chmod(0o755)
            atomic_replace(staging, target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return Built(target, manifest, warnings)


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
    warnings = _warnings(wheel, table, facts)
    scores = facts.policies if facts is not None else {}
    observed = [reward for score in scores.values() for reward in score.rewards]
    tags = table.tags if table.tags is not None else wheel.keywords
    urls = {name.lower(): url for name, url in wheel.urls.items() if url.startswith(WEB)}
    generator = re.search(rb"^Generator:\s*(.+)$", members[_info(members) + "/WHEEL"], re.MULTILINE)
    manifest = Manifest(
        name=wheel.name,
        version=wheel.version,
        module=wheel.module,
        description=one_line(wheel.summary, limits.MAX_DESCRIPTION_CHARS),
        tags=sorted({_tag(tag) for tag in tags} - {""}),
        licence=one_line(wheel.licence),
        authors=[one_line(author) for author in wheel.authors],
        requires_python=wheel.requires_python,
        dependencies=wheel.dependencies,
        compatibility=compatibility(code),  # pyright: ignore[reportArgumentType]
        reward_range=table.reward_range or ((min(observed), max(observed)) if observed else None),
        metrics=facts.metrics if facts is not None else [],
        tools=facts.tools if facts is not None else [],
        policies={
            name: PolicyScores(reward=sum(score.rewards) / len(score.rewards), n=len(score.rewards))
            for name, score in scores.items()
            if score.rewards
        },
        seeds=[SEED] if observed else [],
        needs=Needs(
            network=table.needs.network or (facts is not None and facts.network),
            secrets=sorted({*table.needs.secrets, *secrets(code)}),
            sandbox=table.needs.sandbox or (facts is not None and facts.sandbox),
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
    return manifest, warnings


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
    for what, value in (
        ("description", wheel.summary),
        ('license (for example license = "MIT")', wheel.licence),
        ('README (readme = "README.md")', wheel.readme),
    ):
        if not value:
            warnings.append(f"[project] in pyproject.toml has no {what}")
    return warnings


def _info(members: Members) -> str:
    return next(path.split("/")[0] for path in members if path.split("/")[0].endswith(".dist-info"))


def _tag(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")


def commit_of(folder: Path) -> str:
    """Return the git commit of a folder, with "-dirty" for uncommitted changes; "" if it is not in a repository."""

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    if not git("ls-files"):
        return ""
    return git("rev-parse", "HEAD") + "-dirty" * bool(git("status", "--porcelain", "--", ".", f":(exclude){OUTPUT}"))
