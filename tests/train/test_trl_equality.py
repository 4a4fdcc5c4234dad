"""The tokens and the loss mask of SFT equal those of TRL's SFTTrainer, but for listed differences.

docs/guides/train_on_messages.md lists them with their reasons. `benchmarks/trl_sft.py record` wrote what TRL trains on.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiers import each_row
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from rove.core.errors import ConfigError
from rove.rendering.renderer import Renderer
from rove.train.config import SFTConfig
from rove.train.message_files import conversation_from_row
from rove.train.sequences import TrainingSequence
from rove.train.sft_data import tokenize

FIXTURE = Path(__file__).parent.parent / "fixtures" / "trl_sft.json"
EQUAL = ["cohere", "cohere2", "llama3"]
BREAKS = ["gemma", "gemma3", "lfm2", "lfm2_v2", "phi3", "phi3_5", "qwen3_instruct_2507"]
"""TRL also trains on the line break after the end of the turn."""


class Case(NamedTuple):
    """A row, what TRL trains on, and what rove trains on."""

    renderer: Renderer
    ids: list[int]
    mask: list[bool]
    sequences: list[TrainingSequence]

    @property
    def sequence(self) -> TrainingSequence:
        [sequence] = self.sequences
        return sequence

    def trained(self, ids: list[int], mask: list[bool]) -> str:
        return self.renderer.decode([id for id, is_trained in zip(ids, mask, strict=True) if is_trained])

    def only_trained_by_trl(self) -> list[str]:
        """Return the texts that only TRL trains on, in the tokens that both have."""
        sequence = self.sequence
        assert sequence.ids == self.ids[: len(sequence.ids)]
        pairs = list(zip(sequence.ids, sequence.mask, self.mask, strict=False))
        assert not [id for id, rove, trl in pairs if rove and not trl]
        return [self.renderer.decode([id]) for id, rove, trl in pairs if trl and not rove]

    def rest(self) -> str:
        """Return the text of TRL's sequence after the end of rove's."""
        return self.renderer.decode(self.ids[len(self.sequence.ids) :])


@cache
def recorded() -> dict[str, Any]:
    return json.loads(FIXTURE.read_text(encoding="utf-8"))


@cache
def renderer_of(name: str) -> Renderer:
    template = recorded()["templates"][name]
    tokenizer: Any = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(recorded()["tokenizer"]),
        eos_token=template["end"],
        bos_token=template["begin"] or None,
        pad_token=template["end"],
    )
    tokenizer.chat_template = template["template"]
    return Renderer(tokenizer, [tokenizer.convert_tokens_to_ids(stop) for stop in template["stops"]])


def cases(name: str, *files: str) -> list[Case]:
    """Return the rows of these files that TRL could prepare."""
    prepared_cases = []
    renderer = renderer_of(name)
    for file in files:
        prepared = recorded()["templates"][name]["files"][file]
        if isinstance(prepared, str):  # an error
            continue
        for number, (row, (ids, spans)) in enumerate(zip(recorded()["rows"][file], prepared, strict=True), start=1):
            conversation = conversation_from_row(f"{file}, row {number}", row)
            loss_on = "all" if "messages" in row else "completion"
            config = SFTConfig(data=file, model="m", loss_on=loss_on)
            [tokenized] = tokenize(renderer, [conversation], config, 10_000)
            mask = [any(start <= index < end for start, end in spans) for index in range(len(ids))]
            prepared_cases.append(Case(renderer, ids, mask, tokenized.sequences))
    return prepared_cases


@pytest.mark.parametrize("name", EQUAL)
def test_tokens_and_mask_are_equal(name: str):
    compared = cases(name, "chat", "system", "reasoning", "completion", "text")
    assert len(compared) == 10
    for case in compared:
        assert (case.sequence.ids, case.sequence.mask) == (case.ids, case.mask)


@each_row("name", BREAKS)
def test_only_the_line_break_after_the_end_of_the_turn_differs(name: str):
    end = "\n<|endoftext|>" if "phi" in name else "\n"
    compared = cases(name, "chat", "system", "reasoning", "completion")
    assert len(compared) >= 7
    for case in compared:
        assert set(case.only_trained_by_trl()) <= {"\n"}
        assert case.rest() == end


def test_qwen2_5_of_trl_also_trains_on_the_line_break_before_the_response():
    for case in cases("qwen2_5", "chat", "system", "tools", "reasoning"):
        assert set(case.only_trained_by_trl()) == {"\n"}
        assert case.rest() == "\n"


@pytest.mark.parametrize("name", ["lfm2_v2", "qwen2_5", "qwen3_instruct_2507"])
def test_tool_calls_and_tools_are_rendered_equally(name: str):
    for case in cases(name, "tools"):
        assert set(case.only_trained_by_trl()) == {"\n"}
        assert "Oslo" in case.trained(case.sequence.ids, case.sequence.mask)


@pytest.mark.parametrize("name", sorted(json.loads(FIXTURE.read_text(encoding="utf-8"))["templates"]))
def test_raw_texts_are_equal(name: str):
    compared = cases(name, "text")
    assert len(compared) == 2
    for case in compared:
        assert (case.sequence.ids, case.sequence.mask) == (case.ids, case.mask)


def test_llama_3_1_has_equal_completions_and_trl_cannot_mask_its_messages():
    assert "not training-compatible" in recorded()["templates"]["llama3_1"]["files"]["chat"]
    for case in cases("llama3_1", "completion"):
        assert (case.sequence.ids, case.sequence.mask) == (case.ids, case.mask)


@pytest.mark.parametrize(("name", "added"), [("qwen3", ""), ("qwen3_5_think", "<think>\n")])
def test_a_template_that_rewrites_turns_gives_each_response_the_context_in_which_it_is_sampled(name: str, added: str):
    """TRL renders the thoughts of all turns, as no model ever sees them, and trains on one sequence."""
    for case in cases(name, "chat", "system", "reasoning"):
        trained = [case.trained(sequence.ids, sequence.mask) for sequence in case.sequences]
        assert "".join(f"{added}{text}\n" for text in trained) == case.trained(case.ids, case.mask)
        first, *later = case.sequences
        assert first.ids == case.ids[: len(first.ids)]
        for sequence in later:
            earlier = case.renderer.decode(sequence.ids[: sequence.mask.index(True)])
            assert earlier.count("<think>") == added.count("<think>")  # only the thought that the prompt opens
            assert "The sum is 5.<|im_end|>" in earlier


def test_a_thought_that_the_prompt_opens_is_not_trained_on():
    """DeepSeek's template opens it in the prompt, and leaves it out of a finished conversation, which TRL trains on."""
    for case in cases("deepseekv3", "chat", "system", "completion"):
        for sequence in case.sequences:
            context = case.renderer.decode(sequence.ids[: sequence.mask.index(True)])
            assert context.endswith("<｜Assistant｜><think>\n")
    [first, *_] = cases("deepseekv3", "reasoning")
    text = "2 + 3 makes 5.\n</think>\n\nThe sum is 5.<｜end▁of▁sentence｜>"
    assert first.trained(first.sequence.ids, first.sequence.mask) == text
    assert "2 + 3 makes 5." not in first.renderer.decode(first.ids)


def test_calls_that_a_template_leaves_out_are_written_as_the_model_writes_them():
    """The first template of LFM2 has no place for calls; TRL trains on an empty response."""
    [case, _] = cases("lfm2", "tools")
    assert "<|tool_call_start|>[weather(city='Oslo')]<|tool_call_end|>" in case.trained(
        case.sequence.ids, case.sequence.mask
    )
    assert "weather(" not in case.trained(case.ids, case.mask)


def test_arguments_as_json_are_rendered_as_an_object():
    renderer = renderer_of("qwen2_5")
    [row, _] = recorded()["rows"]["tools"]
    as_text = json.loads(json.dumps(row))
    as_text["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"city": "Oslo"}'
    config = SFTConfig(data="tools", model="m")
    [from_object, from_text] = tokenize(
        renderer, [conversation_from_row("", each) for each in (row, as_text)], config, 10_000
    )
    assert from_object.sequences == from_text.sequences


def test_glm_4_differs_only_where_its_template_rewrites_a_turn():
    *compared, rewritten = cases("glm4moe", "chat", "system", "reasoning")
    assert len(compared) == 5
    for case in compared:
        assert (case.sequence.ids, case.sequence.mask) == (case.ids, case.mask)
    first, second = rewritten.sequences
    assert "2 + 3 makes 5.</think>" in rewritten.trained(first.ids, first.mask)
    assert second.ids == rewritten.ids  # in the second turn, the context has no thought in TRL either


def test_tools_without_a_known_format_of_calls_are_refused():
    with pytest.raises(
        ConfigError, match="tools, row 1: tools are given, but the model's chat template has no known tool"
    ):
        cases("phi3", "tools")


def test_calls_in_the_tags_of_glm_are_trained_on():
    """As with thoughts, each turn is a separate sequence, because the template has no end of a turn."""
    for case in cases("glm4moe", "tools"):
        first = case.sequences[0]
        assert "<tool_call>weather\n<arg_key>city</arg_key>" in case.trained(first.ids, first.mask)
        assert first.ids[: first.mask.index(True)] == case.ids[: first.mask.index(True)]


def test_a_response_without_reasoning_closes_the_block_that_the_prompt_opens():
    [first, *_] = cases("deepseekv3", "chat")
    assert first.trained(first.sequences[0].ids, first.sequences[0].mask).startswith("\n</think>\n\n")
