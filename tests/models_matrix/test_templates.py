"""Families with a published chat template: tools and reasoning in rollouts of a tiny model that has the template."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_envs import generate_sync, rows

import rove as vf
from rove.core.errors import ConfigError
from rove.engine.client import EngineClient
from rove.models.load import LoadedModel, load_model
from rove.rendering.renderer import Renderer
from rove.train.sequences import sequences_from_messages, sequences_from_record
from tests.models.test_published_templates import FORMATS, REFUSED
from tests.models_matrix.conftest import Result
from tests.rollouts.test_tool_tokens import add, call_pattern, trained_text

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

PUBLISHED = {
    "cohere": "cohere",
    "cohere2": "cohere2",
    "deepseek_v3": "deepseekv3",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "gemma4": "gemma4_v5",
    "gemma4_text": "gemma4_v5",
    "glm4_moe": "glm4moe",
    "gpt_oss": "gptoss",
    "lfm2": "lfm2_2_5_v2",
    "llama": "llama3_2",
    "nemotron_h": "nemotron_3_nano",
    "phi3": "phi3_5",
    "qwen2": "qwen2_5",
    "qwen3": "qwen3",
    "qwen3_5": "qwen3_6",
    "qwen3_moe": "qwen3_instruct_2507",
}
"""Family → template of one of its published models, in the wheel of TRL."""
NO_TEMPLATE = "the packages contain no published template of this family"
BRANCHES: dict[str, str] = {}
"""Template → why each of its turns is a separate sequence."""


@pytest.fixture
def loaded(family: str, folder: Path, templates: Path) -> LoadedModel:
    """Return the family's tiny model with a published chat template."""
    loaded = load_model(folder, "cpu")
    loaded.tokenizer.chat_template = (templates / f"{PUBLISHED[family]}.jinja").read_text(encoding="utf-8")
    return loaded._replace(renderer=Renderer(loaded.tokenizer, sorted(loaded.renderer.stop_ids)))


def with_reasoning(renderer: Renderer, answer: str) -> str:
    """Return how the template writes a message with reasoning and this answer; the answer alone if it writes no reasoning."""
    user = vf.UserMessage("q0")
    message = vf.AssistantMessage(answer, reasoning_content="hello hells")
    whole = renderer.tokenizer.apply_chat_template([user, message], tokenize=False)
    prompt = renderer.text([user])
    if "</think>" not in renderer.template or not whole.startswith(prompt):
        return answer
    return whole[len(prompt) :].partition(answer)[0] + answer


def test_calls_go_round_through_the_published_template(request: pytest.FixtureRequest, family: str, result: Result):
    if family not in PUBLISHED:
        result("Tools")
        pytest.skip(NO_TEMPLATE)
    name = PUBLISHED[family]
    result("Tools", FORMATS.get(name, "refused"))
    loaded: LoadedModel = request.getfixturevalue("loaded")
    renderer = loaded.renderer
    env = vf.ToolEnv(tools=[add], dataset=rows(1), max_turns=3)
    if name not in FORMATS:
        with pytest.raises(ConfigError, match=REFUSED.get(name, "no known tool-call format")):
            renderer.check_tools([{"type": "function", "function": {"name": "add", "parameters": {}}}])
        pytest.xfail(renderer.tool_support.problem)
    assert renderer.tool_format is not None and renderer.tool_format.name == FORMATS[name]
    form = {"regex": with_reasoning(renderer, "world").removesuffix("world") + call_pattern(renderer, 1)}
    sampling = {"structured_outputs": form, "temperature": 1.0, "max_tokens": 400}
    [record] = generate_sync(env, EngineClient.from_model(loaded), sampling_args=sampling)
    assert record.error is None, record.error
    assert (record.stop_condition, len(record.steps)) == ("max_turns_reached", 3)
    assert record.scores is not None and record.scores.metrics["add_calls"] == 3
    sequences = sequences_from_record(record, 1.0)
    turns = [step.tokens for step in record.steps if step.tokens is not None]
    assert len(sequences) == (3 if name in BRANCHES else 1)
    trained = [
        id for sequence in sequences for id, is_trained in zip(sequence.ids, sequence.mask, strict=True) if is_trained
    ]
    assert trained == [id for turn in turns for id in turn.completion_ids]
    # A saved rollout is enough to train on: the same text.
    saved = sequences_from_messages(renderer, [*record.prompt, *record.completion], record.tools)
    end = trained_text(renderer, saved[-1]).removeprefix(renderer.decode(turns[-1].completion_ids))
    assert "".join(trained_text(renderer, sequence) for sequence in saved).replace(end, "") == renderer.decode(trained)


def test_reasoning_is_kept_as_the_published_template_has_it(
    request: pytest.FixtureRequest, family: str, result: Result
):
    result("Thinking")
    if family not in PUBLISHED:
        pytest.skip(NO_TEMPLATE)
    loaded: LoadedModel = request.getfixturevalue("loaded")
    renderer = loaded.renderer
    expected = with_reasoning(renderer, "world")
    if expected == "world":
        pytest.skip("its template writes no reasoning")
    env = vf.SingleTurnEnv(dataset=[{"question": "q0"}])
    sampling = {"structured_outputs": {"regex": expected}, "temperature": 1.0, "max_tokens": 60}
    [record] = generate_sync(env, EngineClient.from_model(loaded), sampling_args=sampling)
    assert record.error is None, record.error
    [step] = record.steps
    assert step.tokens is not None and renderer.decode(step.tokens.completion_ids) == expected
    parser = vf.ThinkParser()
    assert parser.parse_answer(record.completion) == "world"
    assert parser.get_format_reward_func()(record.completion) == 1.0
    # SFT on the message, and on data with the reasoning in a field, trains the text that was sampled.
    field = vf.AssistantMessage("world", reasoning_content="hello hells")
    for message in (record.completion[0], field):
        [sequence] = sequences_from_messages(renderer, [*record.prompt, message], [])
        assert renderer.decode(sequence.ids).startswith(renderer.decode(step.tokens.ids))
        assert trained_text(renderer, sequence).startswith(expected)
