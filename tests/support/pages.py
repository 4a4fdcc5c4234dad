"""Run a documentation page from top to bottom, as a reader does.

Blocks of a page, by the first word after the language:

- ```` ```bash ````: commands, run in one shell that stops at the first failure.
- ```` ```bash server ````: one command that keeps running, such as `rove serve`; the next block runs once its port responds.
- ```` ```bash no-run ````: not run: needs a network, a key or a GPU.
- ```` ```text ````: the output of the last command block or script. A line "…" stands for any lines.
- ```` ```text varies ````: an output that differs by machine or run; not compared.
- ```` ```python ```` or `toml` that starts with a comment such as `# environments/capitals.py`: a file to write.
- ```` ```python no-run ````: code for another library; not run.
- ```` ```python ```` that starts with `# environments/roman/roman.py: replace correct`: a new version of one function of
  that file.
- ```` ```python ```` with `>>>`: a doctest; all doctests of a page share their names.
- ```` ```python ```` otherwise: a script, run in a separate process.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROVE = Path(sys.executable).with_name("rove")
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w./-]+\.(?:py|toml))(?:: replace (\w+))?\n")
SERVER_START_S = 60


@dataclass
class Page:
    """A page, and the replacements that make its commands faster in the test.

    Args:
        path: Path of the page in the repository.
        smaller: Replacements in commands and settings files; each must occur in the page.
        needs: Earlier pages whose files and `rove init` commands this page uses.
    """

    path: str
    smaller: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Return the fenced blocks of a page as (language, rest of the first line, content)."""
    return [(language, directive.strip(), content) for language, directive, content in BLOCK.findall(text)]


def matches(expected: str, printed: str) -> bool:
    """Return whether every shown line was printed, in this order and without others between them except at "…"."""
    pattern, gap = "", True
    for line in expected.strip("\n").splitlines():
        if line.strip() == "…":
            gap = True
            continue
        pattern += ("(?:.*\n)*?" if gap else "") + re.escape(line.rstrip()) + r"[ \t]*\n"
        gap = False
    return re.match(pattern, printed.rstrip("\n") + "\n") is not None


def run_page(page: Page, folder: Path, **env: str) -> None:
    """Run a page in an empty folder.

    Raises:
        AssertionError: a command failed, or an output is not what the page shows.
    """
    unused = [old for old in page.smaller if old not in page.text]
    assert not unused, f"{page.path} no longer contains {unused}"
    environment = {
        **os.environ,
        "PATH": f"{ROVE.parent}:{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "NO_PROXY": "*",
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(folder / ".cache"),
        **env,
    }
    for path in page.needs:
        for language, directive, content in blocks(Page(path).text):
            _write_file(language, directive, content, folder)
    printed = ""
    with _servers() as servers, _free_ports(page.text) as ports:
        for language, directive, content in blocks(page.text):
            for old, new in {**page.smaller, **ports}.items():
                if language in ("bash", "toml", "python") or old in ports:
                    content = content.replace(old, new)
            if _write_file(language, directive, content, folder):
                continue
            if language == "bash" and directive == "server":
                servers.append(_serve(content, folder, environment))
            elif language == "text" and directive == "":
                assert matches(content, printed), f"{page.path} shows\n{content}\nbut this was printed:\n{printed}"
            elif command := _command(language, directive, content, folder):
                printed = _run(command, folder, environment, page)


def _command(language: str, directive: str, content: str, folder: Path) -> list[str] | None:
    """Return the command that runs a block, or None for a block that is not run."""
    if language == "python" and directive == "no-run":
        return None
    if language == "python" and content.startswith(">>>"):
        with (folder / "doctests.txt").open("a", encoding="utf-8") as file:
            file.write(f"\n{content}")
        return [sys.executable, "-m", "doctest", "doctests.txt"]
    if language == "python":
        return [sys.executable, "-c", content]
    return ["bash", "-ec", content] if language == "bash" and directive == "" else None


def _write_file(language: str, directive: str, content: str, folder: Path) -> bool:
    """Write the block to the file that its first line names; return False if it names none."""
    name = FILE_NAME.match(content) if language in ("python", "toml") and directive == "" else None
    if name is None:
        return False
    file = folder / name[1]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(replace_function(file, name[2], content) if name[2] else content, encoding="utf-8")
    return True


def replace_function(file: Path, function: str, block: str) -> str:
    """Return the text of a file with another version of one of its functions."""
    text = file.read_text(encoding="utf-8")
    [old] = re.findall(rf"^def {function}\(.*?(?=\n\n\n|\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return text.replace(old, block.partition("\n")[2].rstrip("\n"))


def _run(command: list[str], folder: Path, env: Mapping[str, str], page: Page) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{page.path}:\n{command[-1]}\nended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@contextlib.contextmanager
def _servers() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def _serve(command: str, folder: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    words = shlex.split(command, comments=True)
    [port] = re.findall(r"\d{4,5}", command)
    log = folder / f".server-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            words,
            cwd=folder,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            executable=str(ROVE.with_name(words[0])),
        )
    end = time.monotonic() + SERVER_START_S
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), timeout=1):
            return process
        time.sleep(0.1)
    process.kill()
    raise AssertionError(f"{command} does not listen:\n{log.read_text()}")


@contextlib.contextmanager
def _free_ports(text: str) -> Iterator[dict[str, str]]:
    """Yield free ports for those that a page names, as replacements of text."""
    named = sorted(set(re.findall(r"(?:localhost:|127\.0\.0\.1:|--port )(\d{4})\b", text)))
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in named]
        free = {port: str(listener.getsockname()[1]) for port, listener in zip(named, sockets, strict=True)}
    yield free
