"""Ends of turns: the token that the model samples there, found in the template, and the ids of conversations that continue."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import TEXTS, bpe_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers
from transformers import PreTrainedTokenizerFast

from rove.core.protocols import Token
from rove.core.records import StepTokens
from rove.rendering.renderer import Renderer
from rove.rendering.streaming import IncrementalDetokenizer

PHI3 = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GEMMA = (
    "{% for m in messages %}{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
LLAMA3 = (
    "{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
COHERE2 = (
    "{% for m in messages %}<|START_OF_TURN_TOKEN|>{% if m['role'] == 'user' %}<|USER_TOKEN|>{{ m['content'] }}{% else %}"
    "<|CHATBOT_TOKEN|><|START_RESPONSE|>{{ m['content'] }}<|END_RESPONSE|>{% endif %}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_RESPONSE|>{% endif %}"
)
COHERE2_TOKENS = [
    "END_OF_TURN_TOKEN",
    "START_OF_TURN_TOKEN",
    "USER_TOKEN",
    "CHATBOT_TOKEN",
    "START_RESPONSE",
    "END_RESPONSE",
]
GLM4 = (
    "[gMASK]<sop>{% for m in messages %}{% set role = 'observation' if m['role'] == 'tool' else m['role'] %}"
    "{{ '<|' + role + '|>\n' + m['content'] }}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m['role'] == 'user' %}{{ '[INST]' + m['content'] + '[/INST]' }}{% else %}"
    "{{ m['content'] + '</s>' }}{% endif %}{% endfor %}"
)
SHAPES: dict[str, tuple[str, list[str], list[str], str]] = {
    "phi3": (PHI3, ["<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"], [], "<|end|>"),
    "phi3 with its generation_config": (
        PHI3,
        ["<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"],
        ["<|assistant|>", "<|end|>"],
        "<|end|>",
    ),
    "chatml of a base model": (CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], [], "<|im_end|>"),
    "chatml": (CHATML, ["<|im_end|>", "<|im_start|>"], [], "<|im_end|>"),
    "gemma": (GEMMA, ["<eos>", "<start_of_turn>", "<end_of_turn>"], [], "<end_of_turn>"),
    "llama3": (LLAMA3, ["<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], [], "<|eot_id|>"),
    "cohere2": (
        COHERE2,
        [f"<|{name}|>" for name in COHERE2_TOKENS],
        [],
        "<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    ),
    "glm4": (
        GLM4,
        ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>"],
        ["<|user|>", "<|observation|>"],
        "<|user|>",
    ),
    "mistral": (MISTRAL, ["</s>", "[INST]", "[/INST]"], [], "</s>"),
}
"""Name → template, its added tokens (the end-of-sequence token first), ends in `generation_config.json`, and what the model
samples after its text."""
CHAT = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "world"},
    {"role": "user", "content": "and"},
    {"role": "assistant", "content": "so on"},
]


def renderer_of(name: str) -> Renderer:
    template, tokens, ends, _ = SHAPES[name]
    tokenizer: Any = bpe_tokenizer()
    tokenizer.add_special_tokens({"eos_token": tokens[0], "additional_special_tokens": tokens[1:]})
    tokenizer.chat_template = template
    return Renderer(tokenizer, tokenizer.convert_tokens_to_ids(ends))


@pytest.mark.parametrize("name", SHAPES)
def test_a_turn_is_trained_up_to_the_token_that_ends_it(name: str):
    renderer, end = renderer_of(name), SHAPES[name][-1]
    [(ids, mask)] = renderer.training_branches(CHAT)
    trained = [token for token, is_trained in zip(ids, mask, strict=True) if is_trained]
    assert renderer.decode(trained) == f"world{end}so on{end}"
    assert trained[-1] in renderer.stop_ids
    rendered = renderer.text(CHAT, generation_prompt=False)
    assert (rendered + end).startswith(renderer.decode(ids))


@pytest.mark.parametrize("name", SHAPES)
def test_a_sampled_turn_is_continued_and_its_end_is_not_part_of_the_text(name: str):
    renderer, end = renderer_of(name), SHAPES[name][-1]
    completion = renderer.encode(f"world{end}")
    step = StepTokens(renderer.prompt_ids(CHAT[:1]), completion, [0.0] * len(completion))
    message = renderer.read(completion)
    assert message.content == "world"
    streamed: list[str] = []
    detokenizer = IncrementalDetokenizer(renderer, streamed.append)
    for id in completion:
        detokenizer(Token(id, 0.0))
    assert "".join(streamed) == "world"
    ids = renderer.prompt_ids([CHAT[0], message, CHAT[2]], step)
    assert ids[: len(step.ids)] == step.ids
    [(trained_ids, _)] = renderer.training_branches(CHAT)
    assert trained_ids[: len(ids)] == ids


def test_line_breaks_that_are_added_tokens_end_no_turn():
    tokenizer: Any = bpe_tokenizer()
    tokenizer.add_special_tokens({"eos_token": "<eos>", "additional_special_tokens": SHAPES["gemma"][1][1:]})
    tokenizer.add_tokens([AddedToken("\n", normalized=False), AddedToken("\n\n", normalized=False)])
    tokenizer.chat_template = GEMMA
    renderer = Renderer(tokenizer)
    assert renderer.stop_ids == set(tokenizer.convert_tokens_to_ids(["<eos>", "<end_of_turn>"]))
    [(ids, mask)] = renderer.training_branches([CHAT[0], {"role": "assistant", "content": "a\nb"}])
    assert renderer.decode(ids[mask.index(True) :]) == "a\nb<end_of_turn>"


def test_known_ends_stay_the_only_ones():
    tokenizer: Any = renderer_of("phi3").tokenizer
    ends = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|end|>"])
    assert Renderer(tokenizer, [ends[1]]).stop_ids == set(ends)
    assert Renderer(tokenizer).stop_ids == set(ends)


def test_a_call_of_glm_ends_with_the_token_that_opens_its_result():
    renderer = renderer_of("glm4")
    call = {"id": "0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling = {"role": "assistant", "content": "world", "tool_calls": [call]}
    messages = [CHAT[0], calling, {"role": "tool", "content": "found", "tool_call_id": "0"}, CHAT[3]]
    [(ids, _)] = renderer.training_branches(messages)
    assert renderer.decode(ids).endswith("world<|observation|>\nfound<|assistant|>\nso on<|user|>")


def swallowing_tokenizer() -> Any:
    """Return a tokenizer as Phi-3's: it writes a space before each text, and its tokens swallow the spaces after them."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.train_from_iterator([*TEXTS, "hello world and so on\n"], trainers.BpeTrainer(vocab_size=320))
    tokens = ["<|user|>", "<|assistant|>", "<|end|>"]
    tokenizer.add_special_tokens([AddedToken(token, rstrip=True, normalized=False) for token in tokens])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", chat_template=PHI3)


@pytest.mark.parametrize("is_cut", [False, True])
def test_conversations_continue_where_tokens_swallow_line_breaks(is_cut: bool):
    renderer = Renderer(swallowing_tokenizer())
    prompt = renderer.prompt_ids(CHAT[:1])
    whole = renderer.encode(renderer.text(CHAT, generation_prompt=False))
    assert renderer.decode(prompt) != renderer.text(CHAT[:1])
    completion = whole[len(prompt) : whole.index(renderer.encode("<|end|>")[0], len(prompt)) + 1]
    if is_cut:
        completion = completion[:-1]
    step = StepTokens(prompt, completion, [0.0] * len(completion))
    ids = renderer.prompt_ids([CHAT[0], renderer.read(completion), CHAT[2]], step)
    assert ids[: len(step.ids)] == step.ids
    assert ids == whole[: len(ids)]
    edited = renderer.prompt_ids([CHAT[0], {"role": "assistant", "content": "hello"}, CHAT[2]], step)
    assert edited[: len(step.ids)] != step.ids


def test_conversations_are_trained_as_one_sequence_where_tokens_swallow_line_breaks():
    renderer = Renderer(swallowing_tokenizer())
    [(ids, mask)] = renderer.training_branches(CHAT)
    whole = renderer.encode(renderer.text(CHAT, generation_prompt=False))
    assert [*ids, renderer.tokenizer.eos_token_id] == whole
    ends = renderer.encode("<|end|>")
    assert [is_trained for id, is_trained in zip(ids, mask, strict=True) if id in ends] == [False, True, False, True]


def test_an_answer_that_the_template_rewrites_ends_as_the_others_do():
    opened = CHATML.replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n")
    tokenizer: Any = renderer_of("chatml of a base model").tokenizer
    tokenizer.chat_template = opened.replace("m['content']", "m['content'].split('</think>')[-1].lstrip()")
    [(ids, mask)] = Renderer(tokenizer).training_branches(CHAT[:2])
    assert tokenizer.decode(ids[mask.index(True) :]) == "\n</think>\n\nworld<|im_end|>"
