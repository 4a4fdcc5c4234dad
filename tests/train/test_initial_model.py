"""Settings of the chat template in training: checked before anything is written, the same for sampling and training, kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fakes import tiny_model

import rove
from rove.core.digest import fingerprint
from rove.core.errors import ConfigError
from rove.models.load import load_model
from rove.models.templates import CHATML_SOURCE
from rove.stages.identity import identity_of
from rove.train.config import RLConfig

PROMPT = "<|im_start|>user\nsay 0<|end|>\n<|im_start|>assistant\n"


def length(completion: Any) -> float:
    """Return the length of the response."""
    text = completion if isinstance(completion, str) else completion[-1]["content"]
    return float(len(text))


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny model without a chat template."""
    monkeypatch.chdir(tmp_path)
    model = tiny_model()
    model.tokenizer.chat_template = None
    model.save(tmp_path / "base")
    return "base"


def environment(**options: Any) -> rove.Environment:
    rows = [{"question": f"say {number}", "answer": ""} for number in range(2)]
    return rove.SingleTurnEnv(dataset=rows, rubric=rove.Rubric(funcs=[length]), **options)


SIZES: dict[str, Any] = {"steps": 1, "batch_size": 4, "rollouts_per_example": 2, "max_tokens": 4, "device": "cpu"}


def test_messages_need_a_template_and_the_error_comes_before_the_run(base: str):
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 2
    with pytest.raises(ConfigError, match="no chat template"):
        rove.rl(base, environment(), **SIZES)
    with pytest.raises(ConfigError, match="no chat template"):
        rove.sft(base, rows)
    with pytest.raises(ConfigError, match="no chat template"):
        rove.make_client(base, environment())
    with pytest.raises(ConfigError, match="does not mention"):
        rove.rl(base, environment(), **SIZES, chat_template="chatml", template_args={"enable_thinking": False})
    assert not Path("runs").exists()


@pytest.mark.broad
def test_a_base_model_trains_on_raw_texts_without_a_template(base: str):
    result = rove.rl(base, environment(message_type="completion"), **SIZES)
    record = next(iter(result.run.finished()))
    tokens = record.steps[0].tokens
    assert tokens is not None and load_model(base, "cpu").renderer.decode(tokens.prompt_ids).startswith("say ")
    assert load_model(result.model, "cpu").renderer.template == ""
    rows = [{"prompt": f"{number} ", "completion": "b"} for number in range(4)]
    assert rove.sft(base, rows, epochs=1).model.is_dir()


def test_rl_with_a_named_template_samples_what_sft_trains_and_keeps_it(base: str):
    result = rove.rl(base, environment(), **SIZES, chat_template="chatml")
    record = min(result.run.finished(), key=lambda each: each.example_id)
    tokens = record.steps[0].tokens
    renderer = load_model(result.model, "cpu").renderer
    assert tokens is not None and renderer.decode(tokens.prompt_ids) == PROMPT
    ids, mask = renderer.training_branches([*record.prompt, {"role": "assistant", "content": "x"}])[0]
    assert ids[: mask.index(True)] == tokens.prompt_ids
    # The next stage needs no setting.
    rove.evaluate_model(result.model, environment(), num_examples=1, rollouts_per_example=1, max_tokens=2)
    assert 'chat_template = "chatml"' in (result.run.path / "config.toml").read_text()


def test_settings_of_the_template_are_part_of_the_identity(base: str):
    identity = identity_of(RLConfig(env="tictactoe", model=base), set())
    changed = RLConfig(env="tictactoe", model=base, chat_template="chatml", template_args={"a": 1})
    expected = {"chat_template": fingerprint({"source": CHATML_SOURCE}), "template_args": {"a": 1}}
    assert identity_of(changed, set()) == {**identity, **expected}


def test_the_identity_of_a_template_file_is_its_content(base: str):
    Path("t.jinja").write_text("{{ messages }}")
    config = RLConfig(env="tictactoe", model=base, chat_template="t.jinja")
    first = identity_of(config, set())
    Path("t.jinja").write_text("{{ messages[0] }}")
    assert identity_of(config, set()) != first


def client_identity(model: str, **settings: Any) -> dict[str, Any]:
    client: Any = rove.make_client(model, **settings)
    return client.identity


def test_an_evaluation_records_the_settings_and_is_identified_by_them(base: str):
    assert client_identity(base).keys() == {"model"}
    assert client_identity(base, chat_template="chatml").keys() == {"model", "chat_template"}
    options: dict[str, Any] = {"num_examples": 1, "rollouts_per_example": 1, "max_tokens": 2, "run_dir": "e"}
    rove.evaluate_model(base, environment(), chat_template="chatml", **options)
    assert 'chat_template = "chatml"' in Path("e/config.toml").read_text()
    Path("base/chat_template.jinja").write_text("{% if x %}{% endif %}{{ messages[0].content }}")
    assert client_identity(base, template_args={"x": 1})["template_args"] == {"x": 1}


@pytest.mark.parametrize("settings", [{"chat_template": "chatml"}, {"template_args": {"enable_thinking": False}}])
def test_models_that_run_elsewhere_refuse_the_settings(settings: dict[str, Any]):
    (name,) = settings
    with pytest.raises(ConfigError, match=f"{name} is .*runs at an endpoint"):
        rove.make_client("gpt", base_url="http://localhost:1/v1", **settings)
    with pytest.raises(ConfigError, match=f"{name} is .*is a scripted policy"):
        rove.make_client("scripted:teacher", environment(), **settings)


NO_SYSTEM = """{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|end|>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


def test_messages_that_the_template_rejects_are_an_error_before_the_run(base: str):
    (Path(base) / "chat_template.jinja").write_text(NO_SYSTEM)
    with_system = environment(system_prompt="Be brief.")
    message = "rejects messages with the roles system, user: .*System role not supported; change the roles"
    with pytest.raises(ConfigError, match=message):
        rove.make_client(base, with_system)
    with pytest.raises(ConfigError, match=message):
        rove.evaluate_model(base, with_system)
    with pytest.raises(ConfigError, match=message):
        rove.rl(base, with_system, **SIZES)
    group = rove.EnvGroup([environment(), with_system], ["plain", "brief"])
    with pytest.raises(ConfigError, match=f"environment brief of the group: .*{message}"):
        rove.evaluate_model(base, group)
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rows = [{"messages": chat}, {"messages": chat}, {"messages": [{"role": "system", "content": "s"}, *chat]}]
    with pytest.raises(ConfigError, match=f"row 3: .*{message}"):
        rove.sft(base, rows)
    assert not Path("runs").exists()


def test_a_prompt_that_a_rollout_completes_or_an_agent_reads_is_not_rendered(base: str):
    (Path(base) / "chat_template.jinja").write_text(NO_SYSTEM)
    rows = [{"prompt": [{"role": "system", "content": "s"}], "answer": ""}]
    rove.make_client(base, rove.SingleTurnEnv(dataset=rows))
    rows = [{"question": "q", "answer": ""}]
    rove.make_client(base, rove.AgentEnv(lambda access, state: "", dataset=rows, system_prompt="for the agent"))


def test_an_evaluation_says_how_many_prompts_did_not_fit(base: str, capsys: pytest.CaptureFixture[str]):
    rows = [{"question": "hi", "answer": ""}, {"question": "long " * 2000, "answer": ""}]
    env = rove.SingleTurnEnv(dataset=rows, rubric=rove.Rubric(funcs=[lambda completion: len(completion)]))
    rove.evaluate_model(base, env, chat_template="chatml", num_examples=2, rollouts_per_example=2, max_tokens=2)
    text = " ".join("".join(capsys.readouterr()).split())
    assert "2 of 4 rollouts ended because the prompt did not fit the model's context" in text
