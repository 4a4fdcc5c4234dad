"""Resolution of the `-m` option to a client."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_envs import Quiz, oracle

from rove.clients.openai import OpenAIClient
from rove.clients.replicas import Replicas
from rove.clients.scripted import ScriptedClient
from rove.core.errors import CPU_TORCH, ConfigError, MissingKeyError, needs_train_extra
from rove.stages.clients import find_endpoint, make_client

FILE = """
[[endpoint]]
endpoint_id = "qwen3-4b"
model = "Qwen/Qwen3-4B"
url = "http://localhost:8000/v1"
price = { input = 0.4, output = 1.6 }
max_concurrent = 7
"""


@pytest.fixture(autouse=True)
def separate_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "QWEN_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def env() -> Quiz:
    return Quiz(policies={"teacher": oracle})


def test_endpoint_names_precede_folders_but_not_scripted_policies():
    Path("endpoints.toml").write_text(FILE + FILE.replace("qwen3-4b", "scripted:teacher"), encoding="utf-8")
    Path("qwen3-4b").mkdir()
    client = make_client("qwen3-4b", env())
    assert isinstance(client, Replicas)
    assert client.identity == {"api": "OpenAIClient", "endpoint": "qwen3-4b", "model": "Qwen/Qwen3-4B"}
    assert client.max_concurrent == 7
    assert isinstance(make_client("scripted:teacher", env()), ScriptedClient)


def test_flags_take_precedence_over_the_endpoints_file(monkeypatch: pytest.MonkeyPatch):
    Path("endpoints.toml").write_text(FILE + "key = 'FILE_KEY'", encoding="utf-8")
    other_url = make_client("qwen3-4b", env(), "http://other/v1")
    assert isinstance(other_url, OpenAIClient)
    assert other_url.base_url == "http://other/v1"
    with pytest.raises(MissingKeyError, match="FILE_KEY"):
        make_client("qwen3-4b", env())
    with pytest.raises(MissingKeyError, match="QWEN_KEY"):
        make_client("qwen3-4b", env(), api_key_var="QWEN_KEY")
    monkeypatch.setenv("QWEN_KEY", "sk-1")
    client = make_client("qwen3-4b", env(), api_key_var="QWEN_KEY", max_concurrent=3, timeout=9, max_retries=2)
    assert isinstance(client, Replicas)
    [replica] = client._replicas
    assert (replica.client.timeout, replica.client.max_retries, client.max_concurrent) == (9, 2, 3)


def test_another_endpoints_file_can_be_given():
    Path("mine.toml").write_text(FILE, encoding="utf-8")
    assert isinstance(make_client("qwen3-4b", env(), endpoints="mine.toml"), Replicas)
    with pytest.raises(ConfigError, match=r"nowhere.toml does not exist"):
        make_client("qwen3-4b", env(), endpoints="nowhere.toml")


def test_find_endpoint_returns_the_price():
    assert find_endpoint("qwen3-4b") is None
    Path("endpoints.toml").write_text(FILE, encoding="utf-8")
    named_endpoint = find_endpoint("qwen3-4b")
    assert named_endpoint is not None
    assert named_endpoint.price == {"input": 0.4, "output": 1.6}
    assert find_endpoint("Qwen/Qwen3-4B") is None


def test_a_broken_endpoints_file_only_affects_endpoint_names():
    Path("endpoints.toml").write_text("[endpoint]", encoding="utf-8")
    with pytest.raises(ConfigError, match="two brackets"):
        make_client("qwen3-4b", env())
    assert find_endpoint("./model") is None
    assert isinstance(make_client("scripted:teacher", env()), ScriptedClient)
    assert isinstance(make_client("qwen3-4b", env(), "http://other/v1"), OpenAIClient)


def test_errors_suggest_the_nearest_endpoint_name():
    with pytest.raises(MissingKeyError, match=r"neither a folder nor a scripted policy \(scripted:teacher\)$"):
        make_client("qwen3-4", env())
    Path("endpoints.toml").write_text(FILE, encoding="utf-8")
    with pytest.raises(MissingKeyError, match=r"nor in endpoints.toml: did you mean 'qwen3-4b'\?$"):
        make_client("qwen3-4", env())
    with pytest.raises(MissingKeyError, match=r"nor in endpoints.toml: known: qwen3-4b$"):
        make_client("gpt", env())


def test_unknown_names_are_model_names_of_the_official_api(monkeypatch: pytest.MonkeyPatch):
    Path("endpoints.toml").write_text(FILE, encoding="utf-8")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    client = make_client("gpt", env())
    assert isinstance(client, OpenAIClient)
    assert client.is_official


def test_missing_policies_folders_and_keys_are_errors():
    with pytest.raises(ConfigError, match=r"no scripted policy 'techer'; did you mean 'teacher'\?"):
        make_client("scripted:techer", env())
    with pytest.raises(
        ConfigError, match=r"has no scripted policies; pass a model .* rove\.generate and a rove\.ScriptedClient"
    ):
        make_client("scripted:teacher", Quiz())
    with pytest.raises(ConfigError, match="model folder nowhere does not exist"):
        make_client("./nowhere", env())
    with pytest.raises(MissingKeyError, match="QWEN_KEY is not set"):
        make_client("gpt", env(), "http://other/v1", "QWEN_KEY")


@pytest.mark.parametrize(
    ("model", "base_url", "message"),
    [
        ("scripted:teacher", None, "device is 'cpu', but scripted:teacher is a scripted policy, so no device is used"),
        ("qwen3-4b", None, "device is 'cpu', but qwen3-4b runs at an endpoint"),
        ("some-model", "http://localhost:1/v1", "device is 'cpu', but some-model runs at an endpoint"),
    ],
)
def test_a_device_of_a_model_that_runs_elsewhere_is_an_error(model: str, base_url: str | None, message: str):
    Path("endpoints.toml").write_text(FILE, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        make_client(model, env(), base_url, device="cpu")


def test_missing_torch_error_shows_the_install_command_of_the_readme():
    expected = r"needs the package 'torch'.*pip install 'rove\[train\]'"
    with pytest.raises(ConfigError, match=expected) as refused, needs_train_extra():
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    assert str(refused.value).endswith(f": {CPU_TORCH}")
    readme = Path(__file__).parents[2] / "README.md"
    assert CPU_TORCH in readme.read_text(encoding="utf-8").splitlines()
