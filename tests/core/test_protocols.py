from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import ConfigError, OverlongPromptError
from rove.core.protocols import SamplingParams, available_tokens


def test_parameters_without_a_value_stay_unset():
    reported = msgspec.structs.asdict(SamplingParams.from_args({"temperature": 0.5, "top_k": None}, None, {}))
    assert {name: value for name, value in reported.items() if value is not None} == {"temperature": 0.5, "extra": {}}


def test_later_arguments_override_earlier_ones_in_any_form():
    params = SamplingParams.from_args(
        {"max_tokens": 5, "logprobs": 3, "stop": ["a"], "mine": 1},
        {"max_completion_tokens": 7, "logprobs": True, "top_logprobs": 2, "stop": "b", "extra_body": {"mine": 2}},
    )
    assert params == SamplingParams(max_tokens=7, logprobs=2, stop=["b"], extra={"mine": 2})


@each_row(
    ("arguments", "logprobs"),
    [
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 4}, 4),
        ({"top_logprobs": 4}, 4),
        ({"logprobs": 5}, 5),
        ({"logprobs": 0}, 0),
        ({"logprobs": False}, None),
        ({"logprobs": False, "top_logprobs": 4}, None),
        ({}, None),
    ],
)
def test_log_probabilities_can_be_requested_in_the_form_of_both_apis(arguments: dict[str, Any], logprobs: int | None):
    assert SamplingParams.from_args(arguments) == SamplingParams(logprobs=logprobs)


def test_false_disables_log_probabilities():
    assert SamplingParams.from_args({"logprobs": True}, {"logprobs": False}).logprobs is None


def test_token_ids_of_a_logit_bias_may_be_strings():
    assert SamplingParams.from_args({"logit_bias": {"17": -100, 3: 1.5}}).logit_bias == {17: -100.0, 3: 1.5}


@each_row(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1; expected a number, 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"max_tokens": 0}, "max_tokens is 0; expected an integer, 1 or more"),
        ({"top_p": 0}, "top_p is 0.*; expected a number, more than 0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_k": 1.5}, "top_k is 1.5; expected an integer"),
        ({"min_p": 2}, "min_p is 2.*; expected a number, 0 to 1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0.*; expected a number, more than 0"),
        ({"presence_penalty": 2.5}, "presence_penalty is 2.5; expected a number, -2 to 2"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens is 5; expected max_tokens .4. or less"),
        ({"logprobs": -1}, "logprobs is -1; expected an integer, 0 or more"),
        ({"logit_bias": {"a": 1}}, "expected token ids as its keys"),
        ({"logit_bias": {3: 101}}, "logit_bias.3 is 101.*; expected a number, -100 to 100"),
        ({"logit_bias": {-3: 1}}, r"logit_bias has the keys .-3."),
        ({"stop": ["a", ""]}, "expected texts that are not empty"),
        ({"stop": ""}, "expected texts that are not empty"),
        ({"response_format": {"json_schema": {}}}, "response_format is .*; expected .*json_schema"),
        ({"response_format": "json"}, "response_format is 'json': expected `object"),
        ({"structured_outputs": "a+"}, "structured_outputs is .*: expected `object"),
    ],
)
def test_invalid_values_are_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        SamplingParams.from_args(arguments)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 12))
def test_available_tokens_after_a_prompt(ids: list[int], context: int):
    if len(ids) >= context:
        with pytest.raises(OverlongPromptError, match=rf"{len(ids)} tokens, the context is {context}"):
            available_tokens(ids, 10, context)
    else:
        assert available_tokens(ids, 10, context) == context - len(ids)


def test_a_prompt_that_is_only_scored_may_fill_the_context():
    assert available_tokens([1, 2, 3], 10, 3, min_new_tokens=0) == 0
    with pytest.raises(OverlongPromptError, match="expected at most 3"):
        available_tokens([1, 2, 3, 4], 10, 3, min_new_tokens=0)
    with pytest.raises(OverlongPromptError, match="expected at most 2"):
        available_tokens([1, 2, 3], 10, 3)


@pytest.mark.parametrize(("ids", "reported"), [([], "no tokens"), ([3, 10], "token 10; .* 0 to 9"), ([-1], "token -1")])
def test_invalid_prompts_are_refused(ids: list[int], reported: str):
    with pytest.raises(ConfigError, match=reported):
        available_tokens(ids, 10, 99)
