"""Documentation pages: their Python examples and commands are run and their output is compared."""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from settings_page import PAGE, TABLES, page, rows

from rove.core.config import load
from rove.core.errors import RunError
from rove.envs.loading import example_environments
from rove.hub.package.building import declared
from rove.models.load import load_model
from rove.train.config import RLConfig
from rove.wire import chat, completions, tokens
from tests.engine.test_lora import adapter_of, save

ROOT = Path(__file__).resolve().parents[2]
ROVE = Path(sys.executable).with_name("rove")


def blocks(file: str, language: str) -> list[str]:
    text = (ROOT / file).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[list[str]]:
    joined = block.replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in joined.splitlines() if line.strip()]


def run(command: list[str], folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    assert command[0] == "rove", command
    done = subprocess.run([str(ROVE), *command[1:]], cwd=folder, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


def check_examples(page: str, least: int = 0, replaced: Callable[[str], str] = str) -> None:
    """Run the Python examples of a page and compare their output; require more than `least` examples."""
    examples = replaced("\n".join(blocks(page, "python")))
    test = doctest.DocTestParser().get_doctest(examples, {}, page, page, 0)
    assert len(test.examples) > least
    report = io.StringIO()
    failed = doctest.DocTestRunner(verbose=False).run(test, out=report.write).failed
    assert not failed, report.getvalue()


def test_walkthrough_examples_print_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_examples("docs/walkthrough.md", 40)


def test_run_folder_page_examples_print_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_examples("docs/run_folder.md", 5)


def test_compat_page_examples_print_the_shown_output() -> None:
    check_examples("docs/compat.md", 12)


def test_readme_environment_is_short_and_prints_the_shown_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [code] = blocks("README.md", "python")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    [expected] = re.findall(r"print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
    assert out.getvalue().strip() == expected
    definition = code.split("\n\n\nenv = ")[0]
    assert len([line for line in definition.splitlines() if line.strip()]) <= 13


@pytest.mark.broad
def test_readme_start_commands(tmp_path: Path) -> None:
    [start] = [
        b for b in blocks("README.md", "bash") if "scripted:teacher" in b and "rove play" in b and "sft" not in b
    ]
    for command in commands(start):
        moves = "\n".join(str(n) for n in range(9)) * 3 if command[1] == "play" else ""
        run(command, tmp_path, input=moves)


SMALLER_VALUES = {"14000": "150", '{"num_examples": 14000}': '{"num_examples": 150}', "1000": "8", "200": "2"}
SMALLER_FLAGS = {
    "sft": ["--epochs", "1"],
    "rl": ["--batch-size", "16", "-t", "12", "--rollouts-per-example", "4"],
    "eval": ["-t", "12"],
    "play": ["-t", "12"],
}


@pytest.mark.slow
def test_readme_training_commands(tmp_path: Path) -> None:
    [loop] = [b for b in blocks("README.md", "bash") if "rove sft" in b]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    for command in commands(loop):
        small = [SMALLER_VALUES.get(word, word) for word in command] + SMALLER_FLAGS.get(command[1], [])
        moves = "\n".join(str(n) for n in range(9)) * 12 if command[1] == "play" else ""
        done = subprocess.run(
            [str(ROVE), *small[1:]], cwd=tmp_path, capture_output=True, text=True, check=False, input=moves, env=env
        )
        assert done.returncode == 0, f"{shlex.join(small)}\n{done.stdout}\n{done.stderr}"
    assert (tmp_path / "runs/rl/final/config.json").exists()


@pytest.fixture
def example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(ROOT / "docs/example_runs", tmp_path / "example_runs")
    for block in blocks("docs/evaluation.md", "toml"):
        (tmp_path / block.split(":")[0].lstrip("# ")).write_text(block)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_evaluation_page_commands(example_runs: Path) -> None:
    outputs = [
        run(command, example_runs).stdout
        for block in blocks("docs/evaluation.md", "bash")
        for command in commands(block)
    ]
    assert any("rl is better than sft" in text for text in outputs)
    assert any("no detectable difference" in text for text in outputs)
    assert any("3 questions, scorer 'numeric': the last number in the answer equals" in text for text in outputs)
    assert (example_runs / "draws.jsonl").read_text().count("\n") == 116


def test_evaluation_page_examples_print_the_shown_output(example_runs: Path) -> None:
    check_examples("docs/evaluation.md")


def test_tools_page_examples_print_the_shown_output() -> None:
    check_examples("docs/tools.md", 25)


def test_agents_page_examples_print_the_shown_output() -> None:
    check_examples("docs/agents.md", 20)


@pytest.mark.slow
def test_agents_page_commands(tmp_path: Path) -> None:
    [package] = [block for block in blocks("docs/agents.md", "python") if not block.startswith(">>>")]
    (tmp_path / "sure.py").write_text(package)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    [block] = blocks("docs/agents.md", "bash")
    outputs = [run(command, tmp_path, env=env).stdout for command in commands(block)]
    assert "stop conditions: agent_finished (16)" in outputs[0]
    metrics = (tmp_path / "runs/rl/metrics.jsonl").read_text()
    assert metrics.count('"reward/mean"') == 2 and '"rollouts/failed":0.0' in metrics


@pytest.mark.broad
def test_hub_page_build_commands_tables_and_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    [build_block] = [block for block in blocks("docs/hub.md", "bash") if "rove init" in block]
    outputs = [run(command, tmp_path).stdout for command in commands(build_block)]
    assert "rove push environments/my_sums" in outputs[-1]
    package_folder = Path("environments/my_sums/dist/my-sums-0.1.0")
    assert {file.name for file in package_folder.iterdir()} >= set(
        re.findall(r"^\| `(my_sums\S+|manifest.json)`", (ROOT / "docs/hub.md").read_text(encoding="utf-8"), re.M)
    )
    for block in blocks("docs/hub.md", "toml"):
        table = tomllib.loads(block)
        assert not (table.keys() - {"tool", "project"})
        declared(table)
    check_examples("docs/hub.md", 10)


@pytest.mark.broad
def test_hub_page_commands_publish_and_install(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    page = blocks("docs/hub.md", "bash")
    first = next(number for number, block in enumerate(page) if "rove push" in block)
    run(commands(next(block for block in page if "rove init" in block))[0], tmp_path, env=env)
    token = run(["rove", "hub", "token", "ada", "--json"], tmp_path, env=env)
    hub = subprocess.Popen(
        [str(ROVE), "hub", "serve", "--port", "0"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    )
    try:
        assert hub.stdout is not None
        url = next(line for line in hub.stdout if " is at http" in line).split(" is at ")[1].split()[0]
        env |= {"ROVE_HUB": url, "ROVE_HUB_TOKEN": json.loads(token.stdout)["token"]}
        outputs = [run(command, tmp_path, env=env).stdout for block in page[first:] for command in commands(block)]
    finally:
        hub.terminate()
        hub.communicate()
    for number, words in enumerate(
        ("published", "scored", "already published", "ada/my-sums", "1.2", "installed", "5 of 5")
    ):
        assert words in outputs[number], outputs[number]


@pytest.mark.broad
def test_environments_page_lists_every_environment_and_its_commands_work(tmp_path: Path) -> None:
    page = (ROOT / "docs/environments.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\w+)\]", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(example_environments())
    for block in blocks("docs/environments.md", "bash"):
        for command in commands(block):
            assert "20 of 20 rollouts scored" in run(command, tmp_path).stdout


@pytest.mark.broad
def test_sandbox_page_examples_and_commands(contained: None, tmp_path: Path) -> None:
    check_examples("docs/sandbox.md")
    for block in blocks("docs/sandbox.md", "bash"):
        for command in commands(block):
            assert "reward" in run(command, tmp_path).stdout


@pytest.mark.slow
def test_recursion_page_examples_and_commands(contained: None, tmp_path: Path) -> None:
    check_examples("docs/recursion.md", 15)
    for block in blocks("docs/recursion.md", "bash"):
        for command in commands(block):
            assert "sub_calls" in run(command, tmp_path).stdout


@pytest.mark.broad
def test_evaluation_page_shows_the_error_for_a_changed_setting(example_runs: Path) -> None:
    [refusal] = [block for block in blocks("docs/evaluation.md", "text") if block.startswith("error:")]
    command = [
        str(ROVE),
        "eval",
        "tictactoe",
        "-m",
        "scripted:teacher",
        "-n",
        "2",
        "-r",
        "1",
        "--run-dir",
        "runs/teacher",
    ]
    subprocess.run(command, check=True, capture_output=True)
    done = subprocess.run([*command, "-T", "0.5"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, refusal)


@pytest.mark.slow
def test_judging_page_examples_print_the_shown_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_examples("docs/judging.md", 40)


@pytest.fixture
def ports() -> Callable[[str], str]:
    """Return a function that replaces the ports of a page with free ports."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        free = {
            port: str(server_socket.getsockname()[1])
            for port, server_socket in zip(("8000", "8001", "8002"), sockets, strict=True)
        }
    return lambda text: re.sub(r"\b800[0-2]\b", lambda match: free[match[0]], text)


def start_server(command: str, folder: Path, stack: ExitStack, expected_text: str = "serving tiny", **env: str) -> None:
    """Start a server, wait until it listens, and stop it at the end of the test."""
    process = subprocess.Popen(
        [str(ROVE), *shlex.split(command, comments=True)[1:]],
        cwd=folder,
        env=os.environ | env,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(process.wait)
    stack.callback(process.terminate)
    assert process.stdout is not None
    line = process.stdout.readline()
    while line.startswith(("loading ", "device: ")):
        line = process.stdout.readline()
    assert expected_text in line
    stack.callback(process.stdout.close)


def test_serving_page_lists_all_fields() -> None:
    page = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    requests = (
        chat.read_request({"messages": [{"role": "user", "content": "a"}]}),
        completions.read_request({"prompt": "a"}),
        tokens.read_request({"prompt_ids": [1]}),
    )
    fields = page.partition("## Fields of a request")[2]
    assert [name for request in requests for name in request.fields if f"`{name}`" not in fields] == []


@pytest.mark.broad
def test_serving_page_commands_and_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: Callable[[str], str]
) -> None:
    env = {"NO_PROXY": "*", "SERVER_KEY": "sk-something", "PATH": f"{ROVE.parent}:{os.environ['PATH']}"}
    outputs = {}
    with ExitStack() as stack:
        for block in blocks("docs/serving.md", "bash"):
            for line in ports(block).replace("\\\n", " ").strip().splitlines():
                if "--adapter" in line:
                    (tmp_path / "adapters").mkdir()
                    save(adapter_of(load_model(tmp_path / "models/tiny", "cpu"), 0), tmp_path / "adapters/pirate")
                if line.startswith("rove serve"):
                    start_server(line, tmp_path, stack, **env)
                    continue
                done = subprocess.run(
                    ["bash", "-c", line], cwd=tmp_path, env=os.environ | env, capture_output=True, text=True
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
                assert '"error"' not in done.stdout, f"{line}\n{done.stdout}"
                outputs[line] = done.stdout
        answers = {line: text for line, text in outputs.items() if line.startswith("curl")}
        for expected in (
            '"role":"assistant"',
            "data: [DONE]",
            '"policy_version":0',
            '"owned_by":"rove"',
            "rove_requests_total",
        ):
            assert any(expected in text for text in answers.values()), expected
        assert len(answers) == 11 and all(answers.values())
        monkeypatch.setenv("NO_PROXY", "*")
        check_examples("docs/serving.md", 25, ports)


@pytest.mark.broad
def test_viewer_page_commands(tmp_path: Path, ports: Callable[[str], str]) -> None:
    answers = []
    with ExitStack() as stack:
        for block in blocks("docs/viewer.md", "bash"):
            mine = re.sub(r"\b812([3-6])\b", lambda match: str(8000 + int(match[1]) - 3), block)
            for line in ports(mine).strip().splitlines():
                if line.startswith(("rove view", "rove play")):
                    start_server(line, tmp_path, stack, " at http" if "play" in line else "showing runs at")
                elif line.startswith("rove"):
                    run(shlex.split(line, comments=True), tmp_path)
                else:
                    environment = os.environ | {"NO_PROXY": "*"}
                    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True)
                    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
                    answers.append(done.stdout)
    assert len(answers) == 5
    assert '"verdict":"optimal is better than teacher' in answers[-1]


def test_viewer_page_examples_print_the_shown_output() -> None:
    check_examples("docs/viewer.md", 4)


@pytest.mark.parametrize(("page", "folder"), [("viewer", "viewer"), ("hub_server", "hub")])
def test_pictures_of_a_page_exist_and_are_small(page: str, folder: str) -> None:
    pictures = re.findall(rf"!\[.*?\]\(({folder}/.*?)\)", (ROOT / f"docs/{page}.md").read_text(encoding="utf-8"))
    assert pictures
    assert all((ROOT / "docs" / path).stat().st_size < 150_000 for path in pictures)


@pytest.mark.slow
def test_doctor_page_commands(tmp_path: Path, ports: Callable[[str], str]) -> None:
    [settings] = blocks("docs/doctor.md", "toml")
    (tmp_path / settings.split(":")[0].lstrip("# ")).write_text(settings)
    with ExitStack() as stack:
        for block in blocks("docs/doctor.md", "bash"):
            for line in ports(block).strip().splitlines():
                if line.startswith("rove serve"):
                    start_server(line, tmp_path, stack)
                else:
                    run(shlex.split(line, comments=True), tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_settings_page_lists_every_setting_with_its_default() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: make settings-page"
    undocumented = [line for kind in TABLES.values() for line in rows(kind) if line.endswith("|  |")]
    assert undocumented == []
    assert "| `batch_size` | `256` | integer, 1 or more | Rollouts per step" in page()


def test_models_page_settings_are_valid(tmp_path: Path) -> None:
    [settings] = blocks("docs/models.md", "toml")
    (tmp_path / "rl.toml").write_text(settings)
    config = load(RLConfig, {}, ["@", str(tmp_path / "rl.toml")])
    config.check()
    assert (config.model, config.mixed_precision, config.run_dir) == ("smollm2-135m", True, "runs/short")


@pytest.mark.slow
def test_training_page_settings_file_works(tmp_path: Path) -> None:
    table, *_ = blocks("docs/training.md", "toml")
    (tmp_path / "rl.toml").write_text(table)
    config = load(RLConfig, {}, ["@", str(tmp_path / "rl.toml")])
    config.check()
    assert config.alerts.zero_advantage_groups == 0.9
    words = "rl -m models/tiny --steps 1 --batch-size 4 -r 2 -t 4 --run-dir runs/whole @ rl.toml"
    run(["rove", "model", "new", "--env", "tictactoe", "-o", "models/tiny"], tmp_path)
    (tmp_path / "rl.toml").write_text(table.replace("= 100", "= 2").replace("= 64", "= 4"))
    run(["rove", *words.split()], tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert '"eval/optimal/reward/mean"' in (tmp_path / "runs/whole/metrics.jsonl").read_text()


def test_scale_page_settings_are_valid(tmp_path: Path) -> None:
    [table] = blocks("docs/scale.md", "toml")
    (tmp_path / "rl.toml").write_text(table.replace("/path/to/venv/bin/vllm", sys.executable))
    config = load(RLConfig, {"env": "tictactoe", "model": "models/tiny"}, ["@", str(tmp_path / "rl.toml")])
    config.check()
    assert (config.backend, config.vllm.gpus) == ("vllm", ["1"])


@pytest.mark.slow
def test_training_page_examples(tmp_path: Path) -> None:
    _, examples, lines = blocks("docs/training.md", "toml")
    tables = lines.replace("= 32", "= 4") + examples.replace("= 100", "= 2").replace("= 512", "= 4")
    (tmp_path / "measured.toml").write_text(tables)
    own_loop, turns, bad = blocks("docs/training.md", "python")
    (tmp_path / "mine.py").write_text(own_loop)
    (tmp_path / "four.py").write_text(turns)
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    run(["rove", "model", "new", "--env", "tictactoe", "-o", "models/tiny"], tmp_path, env=env)
    words = "rl tictactoe -m models/tiny --steps 1 --batch-size 4 -r 2 -t 4 --run-dir runs/mine --loss mine:pushy @ measured.toml"
    run(["rove", *words.split()], tmp_path, env=env)
    metrics = (tmp_path / "runs/mine/metrics.jsonl").read_text()
    assert '"eval/random/reward/mean"' in metrics and '"eval/lines/missed"' in metrics
    words = "rl four -m models/tiny --steps 1 --batch-size 4 -r 2 -t 4 --run-dir runs/four"
    run(["rove", *words.split()], tmp_path, env=env)
    assert '"turn_reward/mean"' in (tmp_path / "runs/four/metrics.jsonl").read_text()
    with pytest.raises(RunError, match="bad_batch"):
        exec(compile(bad.replace("runs/mine", str(tmp_path / "runs/mine")), "docs/training.md", "exec"), {})


@pytest.mark.slow
def test_training_page_adapter_commands(tmp_path: Path) -> None:
    [block] = blocks("docs/training.md", "bash")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    run(["rove", "model", "new", "--env", "tictactoe", "-o", "runs/sft/final"], tmp_path, env=env)
    smaller = {"rl": ["--steps", "1", "--batch-size", "4", "-r", "2", "-t", "4"], "eval": ["-n", "2", "-t", "4"]}
    for command in commands(block):
        run(command + smaller.get(command[1], []), tmp_path, env=env)
    names = {file.name for file in (tmp_path / "runs/adapter/final").iterdir()}
    assert names == {"CHECKSUMS", "README.md", "adapter_config.json", "adapter_model.safetensors", "base.txt"}
    assert load_model(tmp_path / "models/merged", "cpu").adapter is None


def test_study_pages_show_every_stored_plot() -> None:
    reports = ROOT / "benchmarks/reports"
    pages = [(reports / name).read_text(encoding="utf-8") for name in ("study.md", "recipe_study.md")]
    plots = [path for page in pages for path in re.findall(r"!\[.*?\]\((study/.*?)\)", page)]
    assert sorted(plots) == sorted(str(path.relative_to(reports)) for path in (reports / "study").iterdir())
    assert all((reports / path).stat().st_size < 80_000 for path in plots)


@pytest.mark.slow
def test_study_page_commands(tmp_path: Path) -> None:
    env, output = {**os.environ, "OMP_NUM_THREADS": "1"}, ""
    for block in blocks("benchmarks/reports/study.md", "bash"):
        for python, script, *words in commands(block):
            assert python == "python"
            small = [sys.executable, str(ROOT / script), *words, "--smoke"]
            done = subprocess.run(small, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{shlex.join(small)}\n{done.stdout}\n{done.stderr}"
            output += done.stdout
    page = (ROOT / "benchmarks/reports/study.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `.*?` \| \d \|", page, flags=re.MULTILINE))
    assert rows and rows <= set(re.findall(r"^\| `.*?` \| \d \|", output, flags=re.MULTILINE))
    plots = {path.name for path in (tmp_path / "runs/study").glob("*.png")}
    assert plots == {Path(plot).name for plot in re.findall(r"!\[.*?\]\((study/.*?)\)", page)}


@pytest.mark.slow
def test_recipe_study_page_shows_the_stored_results(tmp_path: Path) -> None:
    [block] = blocks("benchmarks/reports/recipe_study.md", "bash")
    [python, script, plots], [*_, setting] = commands(block)
    assert python == "python"
    words = [sys.executable, str(ROOT / script), plots, "--output", str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    page = (ROOT / "benchmarks/reports/recipe_study.md").read_text(encoding="utf-8")
    assert done.stdout.strip() in page
    assert f"`{setting}`" in done.stdout
    assert {path.name for path in tmp_path.glob("*.png")} == set(re.findall(r"\(study/(.*?)\)", page))


@pytest.mark.slow
def test_commands_of_rove_train_write_recipes(tmp_path: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    rows = [json.dumps({"question": f"{a} + 1?", "answer": str(a + 1)}) for a in range(200)]
    (tmp_path / "questions.jsonl").write_text("\n".join(rows))
    run(["rove", "init", "my-task", "--dir", "FOLDER"], tmp_path, env=env)
    [first, *_] = blocks("docs/train.md", "bash")
    [tools] = blocks("docs/tools.md", "bash")
    for command in commands(first) + commands(tools):
        if "-m" not in command:  # commands with a pretrained model would download it
            run([*command, *(["--dry-run"] if "--dry-run" not in command else [])], tmp_path, env=env)
    assert len(list(tmp_path.glob("runs/*/recipe.toml"))) == 4
