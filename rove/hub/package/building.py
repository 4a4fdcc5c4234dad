"""An environment's folder as a package: wheel, source archive and manifest, the same bytes from the same files."""

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
from rove.hub.package.facts import SEED, Facts, play
from rove.hub.package.folder import MANIFEST, README
from rove.hub.package.manifest import WEB, File, Manifest, Needs, PolicyScores, Source, manifest_bytes, one_line
from rove.hub.package.reading import Declared, arguments, check_api, compatibility, declared, read_code, secrets
from rove.hub.package.unpacking import Members
from rove.utils.files import atomic_replace

REPOSITORY = ("repository", "source", "source code", "code", "homepage", "home")
"""Under which names `[project.urls]` has it, the likeliest first."""


@dataclass(frozen=True)
class Built:
    """A package that was built."""

    folder: Path
    """Holds wheel, source archive, manifest.json and README.md."""
    manifest: Manifest
    warnings: list[str] = field(default_factory=list)


def build(folder: Path, output: Path | None = None, playing: bool = True, python: str | None = None) -> Built:
    """Build the package in a folder into OUTPUT/NAME-VERSION/, which is there whole or not at all.

    The build backend that pyproject.toml names makes a source archive of a copy of the folder, and a wheel of that archive; both
    are packed anew, so that neither the machine nor the time shows. Then the environment is loaded from the wheel and its
    scripted policies play a little.

    Args:
        output: default: the folder's own `dist`.
        playing: False: load nothing; the manifest says what can be read.
        python: interpreter that has what the environment needs. Default: this one.

    Raises:
        ConfigError: the folder holds no pyproject.toml, or `[tool.rove]` is wrong.
        PackageError: the backend fails, what it made is no environment's package or one for verifiers v1, or it cannot be loaded.
    """
    project_file = folder / "pyproject.toml"
    if not project_file.is_file():
        raise ConfigError(
            f"{folder} has no pyproject.toml; give the folder of an environment, or make one: rove init NAME"
        )
    said = declared(read_toml(project_file))
    with tempfile.TemporaryDirectory(prefix="rove-build-") as place:
        work = Path(place)
        draft = work / "package"
        draft.mkdir()
        wheel, members, files = build_archives(folder, work, draft)
        code = read_code(members)
        check_api(code)
        facts = None
        if playing:
            write_members(work / "installed", members)
            facts = play(work / "installed", wheel.module, python)
        manifest, warnings = describe(wheel, members, code, said, facts, files, commit_of(folder))
        (draft / MANIFEST).write_bytes(manifest_bytes(manifest))
        (draft / README).write_text(wheel.readme, encoding="utf-8")
        target = (output or folder / OUTPUT) / f"{wheel.name}-{wheel.version}"
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:  # the temporary folder may be on another disk
            shutil.copytree(draft, beside, dirs_exist_ok=True)
            beside.chmod(0o755)
            atomic_replace(beside, target)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return Built(target, manifest, warnings)


def describe(
    wheel: Wheel,
    members: Members,
    code: Reading,
    said: Declared,
    facts: Facts | None,
    files: list[File],
    commit: str,
) -> tuple[Manifest, list[str]]:
    """The manifest of a wheel, and what its author should know: what is declared, what can be read, what was seen."""
    warnings = _warnings(wheel, said, facts)
    scores = facts.policies if facts is not None else {}
    seen = [reward for score in scores.values() for reward in score.rewards]
    tags = said.tags if said.tags is not None else wheel.keywords
    urls = {name.lower(): url for name, url in wheel.urls.items() if url.startswith(WEB)}
    generator = re.search(rb"^Generator:\s*(.+)$", members[_info(members) + "/WHEEL"], re.MULTILINE)
    manifest = Manifest(
        name=wheel.name,
        version=wheel.version,
        module=wheel.module,
        description=one_line(wheel.summary, limits.DESCRIPTION),
        tags=sorted({_tag(tag) for tag in tags} - {""}),
        licence=one_line(wheel.licence),
        authors=[one_line(author) for author in wheel.authors],
        requires_python=wheel.requires_python,
        dependencies=wheel.dependencies,
        compatibility=compatibility(code),  # pyright: ignore[reportArgumentType]
        reward_range=said.reward_range or ((min(seen), max(seen)) if seen else None),
        metrics=facts.metrics if facts is not None else [],
        tools=facts.tools if facts is not None else [],
        policies={
            name: PolicyScores(reward=sum(score.rewards) / len(score.rewards), n=len(score.rewards))
            for name, score in scores.items()
            if score.rewards
        },
        seeds=[SEED] if seen else [],
        needs=Needs(
            network=said.needs.network or (facts is not None and facts.network),
            secrets=sorted({*said.needs.secrets, *secrets(code)}),
            sandbox=said.needs.sandbox or (facts is not None and facts.sandbox),
        ),
        data_sources=sorted({*said.data_sources, *code.datasets}),
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


def _warnings(wheel: Wheel, said: Declared, facts: Facts | None) -> list[str]:
    warnings = []
    for name, score in sorted(facts.policies.items() if facts is not None else ()):
        if score.failed:
            of = score.failed + len(score.rewards)
            warnings.append(f"player '{name}' failed in {score.failed} of {of} rollouts: {score.error}")
        low, high = said.reward_range or (-float("inf"), float("inf"))
        outside = [reward for reward in score.rewards if not low <= reward <= high]
        if outside:
            warnings.append(f"player '{name}' got {outside[0]:g}, outside of the reward_range that pyproject.toml says")
    if facts is not None and not facts.policies:
        warnings.append("it has no scripted policies: nobody can see before installing it that it can be solved")
    for what, there in (
        ("description", wheel.summary),
        ('licence (license = "MIT", say)', wheel.licence),
        ('README (readme = "README.md")', wheel.readme),
    ):
        if not there:
            warnings.append(f"[project] in pyproject.toml has no {what}")
    return warnings


def _info(members: Members) -> str:
    return next(path.split("/")[0] for path in members if path.split("/")[0].endswith(".dist-info"))


def _tag(word: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")


def commit_of(folder: Path) -> str:
    """The commit that a folder is of; "" where there is no git, or nothing of it is in one."""

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    if not git("ls-files"):
        return ""
    return git("rev-parse", "HEAD") + "-dirty" * bool(git("status", "--porcelain", "--", ".", f":(exclude){OUTPUT}"))
