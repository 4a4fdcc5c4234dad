"""Parsing of vLLM's responses."""

from __future__ import annotations

from typing import Any

import pytest

from rove.core.errors import ModelError
from rove.core.protocols import SamplingParams
from rove.engine.stop_checker import StopChecker
from rove.vllm.server import ParityCheck, max_differences, parse_generation, prompt_logprobs


def vllm_response(ids: list[int], spans: list[tuple[str, int, int]], logprob: float = -1.0) -> dict[str, Any]:
    content = [{"token_id": i, "logprob": logprob, "top_logprobs": []} for i in ids]
    versions = [{"version": v, "start": a, "end": b} for v, a, b in spans]
    choice = {
        "finish_reason": "length",
        "token_ids": ids,
        "weight_versions": versions,
        "logprobs": {"content": content},
    }
    return {"choices": [choice], "prompt_logprobs": None}


def test_generations_have_the_weight_versions_of_their_tokens():
    sampling = SamplingParams()
    response = vllm_response([5, 6, 7], [("3", 0, 2), ("4", 2, 3)])
    generation = parse_generation(response, [1], sampling, StopChecker(sampling, 8), 4)
    assert (generation.policy_version, generation.version_spans) == (3, [(3, 2), (4, 1)])
    truncated = parse_generation(response, [1], sampling, StopChecker(sampling, 8, frozenset([6])), 4)
    assert (truncated.ids, truncated.finish_reason, truncated.policy_version, truncated.version_spans) == (
        [5, 6],
        "stop",
        3,
        [],
    )
    assert parse_generation(vllm_response([5], []), [1], sampling, StopChecker(sampling, 8), 9).policy_version == 9


def test_non_finite_logprobs_raise_an_error():
    with pytest.raises(ModelError, match="not finite"):
        parse_generation(
            vllm_response([5], [("1", 0, 1)], -9999.0), [1], SamplingParams(), StopChecker(SamplingParams(), 8), 1
        )


def test_max_differences_between_a_server_and_the_parity_check():
    response = vllm_response([1], [("1", 0, 1)], -0.5)
    response["prompt_logprobs"] = [None, {"8": {"logprob": -1.0}, "3": {"logprob": -0.1}}, {"9": {"logprob": -2.0}}]
    assert prompt_logprobs(response, [7, 8, 9]) == [-1.0, -2.0]
    differences = max_differences(response, ParityCheck([7, 8, 9], [-1.25, -2.0], [-9.0, -0.75]))
    assert differences == (0.25, 0.25)


def test_top_logprobs_are_sorted_and_exclude_the_sampled_token():
    response = vllm_response([5], [("1", 0, 1)])
    sampled = {"token_id": 5, "logprob": -3.0}
    alternatives = [{"token_id": 6, "logprob": -0.5}, {"token_id": 7, "logprob": -1.5}]
    response["choices"][0]["logprobs"]["content"][0]["top_logprobs"] = [sampled, *alternatives]
    sampling = SamplingParams(logprobs=2)
    assert parse_generation(response, [1], sampling, StopChecker(sampling, 8), 1).top_logprobs == [
        [(6, -0.5), (7, -1.5)]
    ]
