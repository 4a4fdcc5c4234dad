"""`rove doctor`."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
from commands import Rove, in_process_rove
from toy_envs import scripted_client

from rove.server import base_url_of, listening, make_app
from rove.stages.models import ModelConfig, run_model_new
from rove.stages.recipe import load_recipe


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "model"
    run_model_new(ModelConfig(env="tictactoe", output=str(folder), games=20))
    return folder


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Run a server in a thread that answers OK and requires an API key."""
    ready, stop, urls = threading.Event(), threading.Event(), []

    async def main() -> None:
        async with listening(make_app(scripted_client("OK."), "tiny", api_key="sk-something")) as runner:
            urls.append(base_url_of(runner))
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    ready.wait()
    yield urls[0]
    stop.set()
    thread.join()


def statuses(out: str) -> dict[str, str]:
    return {finding["id"]: finding["severity"] for finding in json.loads(out)["findings"]}


def test_an_endpoint_is_checked(rove: Rove, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "sk-something")
    done = rove("doctor", "-m", "tiny", "-b", url, "-k", "MY_KEY")
    assert done.status == 0
    assert "accepted" in done.out
    assert f"rove eval reverse_text -m tiny -b {url}" in done.out
    table = [line for line in done.out.splitlines() if line.startswith(tuple("┏┃┡│└"))]
    assert {len(line) for line in table} == {100}


def test_a_wrong_key_is_reported_as_json(rove: Rove, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "sk-another")
    done = rove("doctor", "-m", "tiny", "-b", url, "-k", "MY_KEY", "--json")
    assert done.status == 1
    assert statuses(done.out)["key"] == "high"
    assert json.loads(done.out)["failed"] is True
    assert rove("doctor", "-m", "tiny", "-b", url, "-k", "NO_SUCH_KEY").status == 2


def test_every_replica_of_an_endpoint_is_checked(rove: Rove, url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_KEY", "sk-something")
    table = f'[[endpoint]]\nendpoint_id = "both"\nmodel = "tiny"\nkey = "MY_KEY"\nurl = "{url}"\n'
    Path("endpoints.toml").write_text(table + table.replace(url, "http://127.0.0.1:9/v1"), encoding="utf-8")
    done = rove("doctor", "-m", "both", "--json")
    assert done.status == 1
    findings = [(finding["id"], finding["severity"], finding["text"]) for finding in json.loads(done.out)["findings"]]
    assert any(name == "response" and level == "ok" and text.startswith(f"{url}: ") for name, level, text in findings)
    assert findings[-1][:2] == ("reachable", "high") and findings[-1][2].startswith("http://127.0.0.1:9/v1: ")


@pytest.mark.broad
def test_a_model_folder_is_checked(rove: Rove, model: Path):
    done = rove("doctor", "-m", str(model), "--json")
    assert done.status == 0
    comparison_statuses = statuses(done.out)
    assert comparison_statuses["logprobs"] == comparison_statuses["context"] == comparison_statuses["seed"] == "ok"
    assert rove("doctor", "-m", "./nowhere").status == 2


def write_demo_settings(model: Path, stage: int = 0) -> str:
    """Write the RL settings of the demo to a file and return its name."""
    values = {name: value for name, value in load_recipe("tictactoe").rl[stage].items() if name != "name"}
    Path("rl.toml").write_text(tomli_w.dumps({"env": "tictactoe", "model": str(model), **values}), encoding="utf-8")
    return "rl.toml"


@pytest.mark.broad
@pytest.mark.parametrize("stage", [0, 1])
def test_the_settings_of_the_demo_pass(rove: Rove, model: Path, stage: int):
    done = rove("doctor", write_demo_settings(model, stage), "--quick", "--json")
    assert done.status == 0
    assert set(statuses(done.out).values()) == {"ok", "skipped"}


@pytest.mark.slow
def test_the_settings_of_the_demo_fail_for_an_untrained_model(rove: Rove, model: Path):
    done = rove("doctor", write_demo_settings(model), "--groups", "2")
    assert done.status == 1
    assert "rove sft" in done.out
    assert "fix the findings of severity high" in done.out


@pytest.mark.broad
def test_doctor_accepts_the_flags_of_rl(rove: Rove, model: Path):
    words = ["doctor", "tictactoe", "-m", str(model), "-r", "4", "-a", '{"num_groups": 3}', "--quick", "--json"]
    done = rove(*words, "--batch-size", "32", "--learning_rate", "0.01", "-T", "1.4")
    assert done.status == 0
    comparison_statuses = statuses(done.out)
    assert {name for name, status in comparison_statuses.items() if status == "medium"} == {
        "batch",
        "sampling",
        "learning_rate",
    }
    assert rove(*words, "--batch-size", "30").status == 1
    diverging = rove("doctor", "tictactoe", "-m", str(model), "--quick", "--learning_rate", "10")
    assert diverging.status == 1
    assert "fix the findings of severity high" in diverging.out and "rove rl" not in diverging.out
    shown_run = rove("doctor", "@", write_demo_settings(model), "--steps", "20", "-r", "8", "--quick")
    assert "train: rove rl @ rl.toml --steps 20 --rollouts-per-example 8" in shown_run.out
    assert "did you mean 'batch_size'?" in rove(*words, "--batch-sise", "32").err


def test_a_recipe_of_rove_train_is_refused(rove: Rove):
    Path("recipe.toml").write_text('references = []\ncolumns = []\n[[rl]]\nname = "RL"\n[evaluation]\n')
    advice = "recipe.toml is a recipe of rove train; check it with rove train ENV --recipe recipe.toml --dry-run"
    for words in (["doctor", "recipe.toml"], ["rl", "@", "recipe.toml"], ["eval", "@recipe.toml"]):
        done = rove(*words)
        assert (done.status, done.err) == (2, f"error: {advice}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give a model (-m MODEL"),
        (["-m", "scripted:teacher"], "needs no check"),
        (["nowhere.toml"], "settings file nowhere.toml does not exist"),
        (["tictactoe", "-m", "x", "-b", "http://localhost/v1"], "whose weights cannot be trained here"),
        (["-m", "gpt-5"], "no API key"),
    ],
)
def test_invalid_arguments_are_refused(rove: Rove, words: list[str], message: str):
    done = rove("doctor", *words)
    assert done.status == 2
    assert message in done.err
