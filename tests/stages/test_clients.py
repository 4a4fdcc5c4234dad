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
