"""The JSON format of `/generate`: token ids in, token ids out."""

from __future__ import annotations

from typing import Any

import pytest
from tiers import each_row

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage
from rove.core.protocols import Response, SamplingParams
from rove.core.records import StepTokens, Usage
from rove.wire.serving import TokenLogprob, new_head
from rove.wire.tokens import last_chunks, read_request, response_body, text_chunks, usage_chunk

HEAD = new_head("gen", "toy")
TOKENS = [TokenLogprob("a", -1.0, [TokenLogprob("b", -0.5, id=6)], 5), TokenLogprob("b", -2.0, [], 6, 1)]
RESPONSE = Response(AssistantMessage("ab"), Usage(3, 2), "length", StepTokens([1, 2, 3], [5, 6], [-1.0, -2.0], 4))


def test_read_request_parses_the_body():
    parsed = read_request(
        {"prompt_ids": [1, 2], "n": 2, "seed": 7, "top_k": 3, "logprobs": 2, "stream": True, "own": 1}
    )
    assert [(choice.prompt_ids, choice.request.seed) for choice in parsed.choices] == [([1, 2], 7), ([1, 2], 8)]
    assert parsed.choices[0].request.sampling_params == SamplingParams(seed=7, top_k=3, logprobs=2, extra={"own": 1})
    assert (parsed.n, parsed.stream, parsed.logprobs, parsed.is_token_stream) == (2, True, 2, True)
    assert read_request({"prompt_ids": [1]}).logprobs == 0  # log-probabilities are always returned


@each_row(
    "body",
    [{}, {"prompt_ids": []}, {"prompt_ids": [-1]}, {"prompt_ids": "a"}, {"prompt_ids": [1], "logprobs": 101}, [], None],
)
def test_invalid_bodies_are_refused(body: Any):
    with pytest.raises(ConfigError):
        read_request(body)


def test_a_whole_response_and_its_stream_have_the_same_content():
    (whole,) = response_body(HEAD, [RESPONSE], RESPONSE.usage, [TOKENS])["choices"]
    assert whole == {
        "index": 0,
        "ids": [5, 6],
        "logprobs": [-1.0, -2.0],
        "top_logprobs": [[(6, -0.5)], []],
        "text": "ab",
        "finish_reason": "length",
        "policy_version": 4,
    }
    first, last = text_chunks(HEAD, 0, "", "", TOKENS[:1])[0], last_chunks(HEAD, 0, RESPONSE, "", TOKENS[1:])[0]
    parts = [chunk["choices"][0] for chunk in (first, last)]
    assert [item for part in parts for item in part["ids"]] == whole["ids"]
    assert {name: parts[1][name] for name in ("text", "finish_reason", "policy_version")}.items() <= whole.items()
    assert usage_chunk(HEAD, RESPONSE.usage)["usage"]["total_tokens"] == 5
