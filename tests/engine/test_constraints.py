from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch
from fakes import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import first_quick

from rove.core.errors import ConfigError
from rove.core.protocols import SamplingParams
from rove.engine.constraints import Constraint, constraint_for
from rove.engine.sampler import Row, Sampler
from rove.engine.stop_checker import StopChecker

SCHEMA = {
    "type": "object",
    "properties": {
        "move": {"type": "integer", "minimum": 0, "maximum": 8},
        "why": {"type": "string", "maxLength": 8},
        "sure": {"enum": ["yes", "no", None, 1.5]},
        "next": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    },
    "required": ["move", "why", "sure", "next"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def loaded() -> Any:
    return tiny_model()


def as_json(schema: dict[str, Any]) -> SamplingParams:
    return SamplingParams(response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})


def as_outputs(**given: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=given)


def form(loaded: Any, sampling: SamplingParams) -> Constraint:
    made = constraint_for(sampling, loaded.tokenizer, sorted(loaded.renderer.stop_ids))
    assert made is not None
    return made


def generate(loaded: Any, sampling: SamplingParams, seed: int, max_tokens: int = 200) -> tuple[str, str | None]:
    """What the model says, one whole forward pass for each token, and why it ended."""
    constraint, stop_ids = form(loaded, sampling), loaded.renderer.stop_ids
    vocab = loaded.model.config.vocab_size
    prompt = loaded.renderer.encode("hello world")
    sampler = Sampler(vocab, sorted(stop_ids), rows=[Row(sampling, seed, prompt, constraint=constraint)])
    ending = StopChecker(sampling, max_tokens, stop_ids, loaded.renderer.decode, constraint)
    ids = list(prompt)
    while ending.reason is None:
        with torch.inference_mode():
            logits = loaded.model(input_ids=torch.tensor([ids]), use_cache=False).logits[:, -1]
        ids.append(int(sampler.step(logits).ids))
        ending.push(ids[-1])
    return ending.text, ending.reason


def check(answer: Any) -> None:
    assert sorted(answer) == ["move", "next", "sure", "why"]
    assert type(answer["move"]) is int
    assert 0 <= answer["move"] <= 8
    assert isinstance(answer["why"], str)
    assert len(answer["why"]) <= 8
    assert answer["sure"] in ["yes", "no", None, 1.5]
    assert 1 <= len(answer["next"]) <= 3
    assert all(type(value) is bool for value in answer["next"])


@pytest.mark.broad
@pytest.mark.parametrize("temperature", first_quick([0.0, 1.0, 3.0]))
def test_a_random_model_says_json_of_the_schema(loaded: Any, temperature: float):
    for seed in range(4):
        sampling = SamplingParams(temperature=temperature, response_format=as_json(SCHEMA).response_format)
        text, reason = generate(loaded, sampling, seed)
        check(json.loads(text))
        assert reason == "stop"


@pytest.mark.parametrize("regex", ["[a-c]{3}-[0-9]+x", "(ab|cd){1,5}", "é€+🌍"])
def test_a_random_model_says_what_the_expression_matches(loaded: Any, regex: str):
    sampling = SamplingParams(structured_outputs={"regex": regex}, temperature=2.0, logit_bias={1: 3.0})
    for seed in range(3):
        text, reason = generate(loaded, sampling, seed)
        assert reason == "stop"
        assert re.fullmatch(regex, text)


def test_a_form_that_could_go_on_may_end_with_the_models_end(loaded: Any):
    said = {generate(loaded, as_outputs(regex="a+"), seed)[0] for seed in range(12)}
    assert all(re.fullmatch("a+", text) for text in said)
    assert len(said) > 1


def test_filters_penalties_and_min_tokens_leave_the_form_alone(loaded: Any):
    hard = SamplingParams(
        top_k=1,
        top_p=0.1,
        min_p=0.9,
        min_tokens=50,
        repetition_penalty=2.0,
        logit_bias={5: 100.0},
        response_format=as_json(SCHEMA).response_format,
    )
    text, reason = generate(loaded, hard, 0)
    check(json.loads(text))
    assert reason == "stop"


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(0, 99),
)
def test_a_choice_is_one_of_the_texts(loaded: Any, choices: list[str], seed: int):
    text, reason = generate(loaded, as_outputs(choice=choices), seed)
    assert text in choices
    assert reason == "stop"


@pytest.mark.parametrize(
    "sampling",
    [
        as_json({"enum": ["x"]}),
        as_outputs(json={"enum": ["x"]}),
        as_outputs(json='{"enum": ["x"]}', regex=None),
        as_outputs(grammar='start: "\\"x\\""'),
    ],
)
def test_every_way_to_ask_is_understood(loaded: Any, sampling: SamplingParams):
    assert generate(loaded, sampling, 0) == ('"x"', "stop")


@pytest.mark.parametrize(
    "sampling",
    [SamplingParams(response_format={"type": "json_object"}), as_outputs(json_object=True)],
)
def test_any_object_begins_like_one(loaded: Any, sampling: SamplingParams):
    assert generate(loaded, sampling, 0, max_tokens=3)[0].startswith("{")


def test_masks_are_of_the_models_own_width(loaded: Any):
    constraint = form(loaded, as_outputs(regex="[ab]"))
    vocab = len(loaded.tokenizer)
    a, b = (loaded.renderer.encode(text)[0] for text in "ab")
    for width in (vocab, vocab + 64):
        mask = constraint.mask(width)
        assert mask.dtype == torch.bool
        assert mask.nonzero()[:, 0].tolist() == sorted([a, b])
        assert len(mask) == width


def test_answers_do_not_share_their_progress(loaded: Any):
    first, second = (form(loaded, as_outputs(regex="ab")) for _ in range(2))
    first.advance(loaded.renderer.encode("a")[0])
    assert not torch.equal(first.mask(320), second.mask(320))
    first.advance(loaded.renderer.encode("b")[0])
    assert (first.done, second.done) == (True, False)


def test_the_models_end_completes_a_form(loaded: Any):
    constraint = form(loaded, as_outputs(regex="a+"))
    constraint.advance(loaded.renderer.encode("a")[0])
    assert not constraint.done
    constraint.advance(loaded.tokenizer.eos_token_id)
    assert (constraint.done, constraint.error) == (True, "")


def test_a_token_out_of_the_form_is_an_error(loaded: Any, capfd: pytest.CaptureFixture[str]):
    constraint = form(loaded, as_outputs(regex="a"))
    constraint.advance(loaded.renderer.encode("b")[0])
    assert constraint.done
    assert "doesn't satisfy the grammar" in constraint.error
    assert "\n" not in constraint.error
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(response_format={"type": "text"})])
def test_nothing_is_constrained_unless_asked_for(loaded: Any, sampling: SamplingParams):
    assert constraint_for(sampling, loaded.tokenizer) is None


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (as_json({"type": "objekt"}), "not possible: .*objekt"),
        (as_outputs(regex="a(b"), "not possible: .*unclosed group"),
        (as_outputs(grammar="start: nowhere"), "not possible: .*nowhere"),
        (as_outputs(regex=r"[^\s\S]"), "not possible: there is nothing that fits it; expected"),
        (as_json({"$ref": "#"}), "not possible: there is nothing"),
        (as_outputs(json="{"), "JSON schema .* is not valid"),
        (as_outputs(regex="a", choice=["b"]), "expected exactly one of"),
        (as_outputs(choice=[]), "expected exactly one of"),
        (as_outputs(choice=["a", 1]), "expected exactly one of"),
        (as_outputs(), "expected exactly one of"),
        (SamplingParams(response_format={"type": "json_schema"}), "response_format is .*; expected"),
        (SamplingParams(response_format={"type": "xml"}), "response_format is .*; expected"),
        (SamplingParams(response_format={"type": "json_object"}, structured_outputs={"regex": "a"}), "both given"),
    ],
)
def test_a_form_that_cannot_be_is_refused(loaded: Any, sampling: SamplingParams, message: str):
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        constraint_for(sampling, loaded.tokenizer)
