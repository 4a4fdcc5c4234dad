"""Type checkers read rove from outside: a user's project, README, the first hour and the tutorials."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pages import ROOT, blocks, replace_function

from tests.docs.consumer import quiz

CONSUMER = Path(__file__).with_name("consumer")
PAGES = [
    Path("README.md"),
    *sorted(path.relative_to(ROOT) for path in (ROOT / "docs/first_hour").glob("*.md")),
    *sorted(path.relative_to(ROOT) for path in (ROOT / "docs/tutorials").glob("*.md")),
]
FILE_NAME = re.compile(r"# ([\w./-]+\.py)(?:: replace (\w+))?\n")


NOTEBOOKS = {"6_stages"}
"""Pages whose Python blocks share their names, as the cells of a notebook do."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a user's project and a virtual environment in which rove is installed."""
    folder = tmp_path_factory.mktemp("project")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "venv/lib" / version / "site-packages"
    shutil.copytree(ROOT / "rove", packages / "rove", ignore=shutil.ignore_patterns("__pycache__", "static"))
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    shutil.copytree(CONSUMER, folder / "consumer")
    settings = {"venvPath": str(folder), "venv": "venv", "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return folder


def pyright(project: Path, *paths: str) -> list[tuple[str, int, str, str]]:
    """Return file, line, severity and message of everything that pyright reports."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", "pyrightconfig.json"]
    config = json.loads((project / "pyrightconfig.json").read_text())
    (project / "pyrightconfig.json").write_text(json.dumps({**config, "include": list(paths)}))
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    return [
        (Path(item["file"]).name, item["range"]["start"]["line"] + 1, item["severity"], item["message"])
        for item in json.loads(done.stdout)["generalDiagnostics"]
    ]


def mypy(project: Path, folder: Path, *paths: str, strict: bool = False) -> str:
    """Return what mypy prints about files of a folder."""
    python = project / "venv/bin/python"
    options = ["--explicit-package-bases", "--strict" if strict else "--check-untyped-defs"]
    command = [sys.executable, "-m", "mypy", "--python-executable", python, "--cache-dir", project / "cache", *options]
    return subprocess.run([*command, *paths], cwd=folder, capture_output=True, text=True, check=False).stdout


def write_pages(folder: Path) -> list[str]:
    """Write the Python code of every page as modules, and return their paths.

    The files that a page writes are modules of their own; its doctests and scripts become one module each.
    """
    written: list[str] = []
    for page in PAGES:
        doctests = notebook = ""
        for number, (language, flags, content) in enumerate(blocks((ROOT / page).read_text(encoding="utf-8"))):
            if language != "python" or flags == "no-run":
                continue
            if content.startswith(">>>"):
                doctests += "".join(
                    line[4:] + "\n" for line in content.splitlines() if re.match(r"(>>>|\.\.\.) ?", line)
                )
                continue
            name = FILE_NAME.match(content)
            if name is None and page.stem in NOTEBOOKS:
                notebook += content
                continue
            path = folder / page.stem / (name[1] if name else f"script_{number}.py")
            path.parent.mkdir(parents=True, exist_ok=True)
            if name and name[2] and not path.exists():  # a page of the first hour changes the file of an earlier page
                [earlier] = folder.glob(f"*/{name[1]}")
                shutil.copy(earlier, path)
            path.write_text(replace_function(path, name[2], content) if name and name[2] else content, encoding="utf-8")
            written.append(str(path.relative_to(folder)))
        for file_name, content in (("doctests.py", doctests), ("notebook.py", notebook)):
            if content:
                path = folder / page.stem / file_name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8")
                written.append(str(path.relative_to(folder)))
    return sorted(set(written))


def test_the_consumer_runs(tmp_path: Path):
    assert asyncio.run(quiz.main(str(tmp_path))) == 1.0


def test_the_package_is_marked_as_typed():
    assert (ROOT / "rove/py.typed").exists()


@pytest.mark.slow
def test_pyright_reads_results_as_types(project: Path):
    reports = pyright(project, "consumer/reveal.py", "consumer/quiz.py", "consumer/wrong.py")
    revealed = [message for name, _, _, message in reports if name == "reveal.py"]
    types = [re.search(r'is "(.*)"$', message)[1] for message in revealed]
    assert types == [
        "Environment",
        "Environment",
        "ScriptedClient",
        "EvaluationResult",
        "float",
        "dict[str, FunctionEstimate]",
        "list[RolloutRecord]",
        "EvaluationResult",
        "Comparison",
        "EvaluationResult",
    ]
    assert [report for report in reports if report[0] == "quiz.py"] == []
    lines = (CONSUMER / "wrong.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, start=1) if "# wrong" in line}
    assert {line for name, line, severity, _ in reports if name == "wrong.py" and severity == "error"} == wrong


@pytest.mark.slow
def test_mypy_reads_results_as_types(project: Path):
    printed = mypy(project, project / "consumer", "quiz.py", "reveal.py", strict=True)
    types = re.findall(r'Revealed type is "([^"]*)"', printed)
    assert [re.sub(r"\b(?:\w+\.)+", "", name) for name in types] == [
        "Environment",
        "Environment",
        "ScriptedClient",
        "EvaluationResult",
        "float",
        "dict[str, FunctionEstimate]",
        "list[RolloutRecord]",
        "EvaluationResult",
        "Comparison",
        "EvaluationResult",
    ], printed
    assert ": error:" not in printed


@pytest.mark.slow
def test_the_code_of_the_pages_has_no_type_errors(project: Path):
    paths = write_pages(project / "pages")
    assert len(paths) >= 8
    errors = [report for report in pyright(project, "pages") if report[2] == "error"]
    assert errors == []
    for page in sorted({Path(path).parts[0] for path in paths}):
        files = [str(Path(path).relative_to(page)) for path in paths if Path(path).parts[0] == page]
        printed = mypy(project, project / "pages" / page, *files)
        assert ": error:" not in printed, printed
