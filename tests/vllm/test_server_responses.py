"""What servers of vLLM answer, in our nouns."""

from __future__ import annotations

from typing import Any

import pytest

from rove.core.errors import ModelError
from rove.core.protocols import SamplingParams
from rove.engine.stop_checker import StopChecker
from rove.vllm.server import ParityCheck, max_differences, parse_generation, prompt_logprobs


def answer(ids: list[int], spans: list[tuple[str, int, int]], logprob: float = -1.0) -> dict[str, Any]:
    content = [{"token_id": i, "logprob": logprob, "top_logprobs": []} for i in ids]
    versions = [{"version": v, "start": a, "end": b} for v, a, b in spans]
    choice = {
        "finish_reason": "length",
        "token_ids": ids,
        "weight_versions": versions,
        "logprobs": {"content": content},
    }
    return {"choices": [choice], "prompt_logprobs": None}


def test_tokens_know_which_weights_have_sampled_them():
    asked = SamplingParams()
    told = answer([5, 6, 7], [("3", 0, 2), ("4", 2, 3)])
    made = parse_generation(told, [1], asked, StopChecker(asked, 8), 4)
    assert (made.policy_version, made.version_spans) == (3, [(3, 2), (4, 1)])
    cut = parse_generation(told, [1], asked, StopChecker(asked, 8, frozenset([6])), 4)
    assert (cut.ids, cut.finish_reason, cut.policy_version, cut.version_spans) == ([5, 6], "stop", 3, [])
    assert parse_generation(answer([5], []), [1], asked, StopChecker(asked, 8), 9).policy_version == 9


def test_probabilities_that_are_no_numbers_are_an_error():
    with pytest.raises(ModelError, match="not finite"):
        parse_generation(
            answer([5], [("1", 0, 1)], -9999.0), [1], SamplingParams(), StopChecker(SamplingParams(), 8), 1
        )


def test_how_far_a_server_is_off():
    told = answer([1], [("1", 0, 1)], -0.5)
    told["prompt_logprobs"] = [None, {"8": {"logprob": -1.0}, "3": {"logprob": -0.1}}, {"9": {"logprob": -2.0}}]
    assert prompt_logprobs(told, [7, 8, 9]) == [-1.0, -2.0]
    off = max_differences(told, ParityCheck([7, 8, 9], [-1.25, -2.0], [-9.0, -0.75]))
    assert off == (0.25, 0.25)


def test_the_likeliest_come_in_order_whoever_was_drawn():
    told = answer([5], [("1", 0, 1)])
    one = {"token_id": 5, "logprob": -3.0}
    others = [{"token_id": 6, "logprob": -0.5}, {"token_id": 7, "logprob": -1.5}]
    told["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = [one, *others]
    asked = SamplingParams(logprobs=2)
    assert parse_generation(told, [1], asked, StopChecker(asked, 8), 1).top_logprobs == [[(6, -0.5), (7, -1.5)]]
