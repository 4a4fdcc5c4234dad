"""The client of a model folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes import tiny_model

import rove
from rove.core.errors import ConfigError


def double(number: int) -> int:
    """Return twice the number."""
    return 2 * number


def test_a_folder_whose_template_ignores_tools_is_refused_before_the_first_rollout(tmp_path: Path):
    loaded = tiny_model()
    loaded.tokenizer.chat_template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    rows = [{"question": "2?", "answer": "4"}]
    with pytest.raises(ConfigError, match="no known tool-call format: it ignores tools"):
        rove.make_client(tmp_path, rove.ToolEnv(tools=[double], dataset=rows))
    rove.make_client(tmp_path, rove.SingleTurnEnv(dataset=rows))


def test_an_environment_with_images_is_refused_before_the_first_rollout(tmp_path: Path):
    loaded = tiny_model()
    loaded.save(tmp_path / "model")
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}}
    prompt = [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}]
    env = rove.SingleTurnEnv(dataset=[{"prompt": prompt, "answer": "a cat"}], rubric=rove.Rubric())
    refusal = "a part of type 'image_url'; expected 'text'.*Use a model at an endpoint"
    with pytest.raises(ConfigError, match=refusal):
        rove.make_client(tmp_path / "model", env)
    with pytest.raises(ConfigError, match=refusal):
        rove.evaluate_model(tmp_path / "model", env, save=False)
    with pytest.raises(ConfigError, match=refusal):
        rove.rl(tmp_path / "model", env, steps=1, batch_size=2, rollouts_per_example=2, run_dir=str(tmp_path / "run"))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
