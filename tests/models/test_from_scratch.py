from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import TEXTS
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiers import each_row
from transformers import AutoModelForCausalLM, AutoTokenizer

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, ToolMessage, UserMessage
from rove.models.from_scratch import CHAT_TEMPLATE, RECALL_LAYERS, new_model, train_tokenizer
from rove.models.load import LoadedModel, load_model
from rove.rendering.renderer import Renderer
from rove.rendering.tool_calls import Call, calls_of, format_of

TOKENIZER = train_tokenizer(TEXTS, 400)
CONVERSATION = [
    {"role": "user", "content": "0 1 2"},
    {"role": "assistant", "content": "<move>4</move>"},
    {"role": "user", "content": "no"},
]


@pytest.fixture(scope="module", params=["llama", "qwen3", "lfm2"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Path]:
    loaded = new_model(TEXTS, request.param, "tiny", vocab_size=400)
    path = tmp_path_factory.mktemp("models") / request.param
    loaded.save_final(path)
    return loaded, path


def logits_of(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits


def test_transformers_can_load_a_saved_model(saved: tuple[LoadedModel, Path]):
    original, path = saved
    model = AutoModelForCausalLM.from_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert "rove" not in (path / "config.json").read_text()
    ids = tokenizer.apply_chat_template(CONVERSATION, add_generation_prompt=True, return_dict=False)
    assert ids == original.renderer.prompt_ids(CONVERSATION)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|end|>", "<|pad|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    torch.testing.assert_close(logits_of(model, ids), logits_of(original.model, ids), rtol=1e-4, atol=1e-5)


def test_a_saved_model_loads_with_the_same_renderer_and_weights(saved: tuple[LoadedModel, Path]):
    original, path = saved
    reloaded = load_model(path, device="cpu")
    assert reloaded.renderer.stop_ids == original.renderer.stop_ids == {original.tokenizer.eos_token_id}
    assert reloaded.renderer.prompt_ids(CONVERSATION) == original.renderer.prompt_ids(CONVERSATION)
    reloaded_weights = reloaded.model.state_dict()
    assert all(torch.equal(reloaded_weights[name], tensor) for name, tensor in original.model.state_dict().items())


def test_an_untrained_model_has_high_entropy(saved: tuple[LoadedModel, Path]):
    loaded, _ = saved
    logprobs = logits_of(loaded.model, loaded.renderer.prompt_ids(CONVERSATION)).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    assert entropy.min() > 0.85 * torch.tensor(float(len(loaded.tokenizer))).log()


def test_weights_depend_only_on_the_seed():
    torch.manual_seed(1)
    first = new_model(TEXTS, vocab_size=300, seed=5)
    torch.manual_seed(2)
    rng_state_before = torch.get_rng_state()
    second, third = new_model(TEXTS, vocab_size=300, seed=5), new_model(TEXTS, vocab_size=300, seed=6)
    assert torch.equal(rng_state_before, torch.get_rng_state())  # the global random state does not change
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    assert not torch.equal(first.model.lm_head.weight, third.model.lm_head.weight)


@settings(deadline=None, max_examples=300)
@given(st.text())
def test_the_tokenizer_encodes_any_text_without_loss(text: str):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) == text


@each_row(
    "piece",
    [
        "<move>",
        "</move>",
        "<think>",
        "</think>",
        *"012345678",
        *(f" {n}" for n in range(9)),
        " X",
        " O",
        "<|user|>",
        "<|end|>",
    ],
)
def test_tags_and_digits_are_single_tokens(piece: str):
    assert len(TOKENIZER.encode(piece, add_special_tokens=False)) == 1


TEMPLATE_WITHOUT_TOOLS = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""A template that gives the same text if there are no tools."""
MESSAGES = st.builds(
    dict, role=st.sampled_from(["system", "user", "assistant", "tool"]), content=st.text("ab\n<>{} ") | st.text()
)


@settings(deadline=None, max_examples=200)
@given(st.lists(MESSAGES, min_size=1, max_size=5), st.booleans())
def test_without_tools_the_template_writes_only_messages(messages: list[Any], prompt: bool):
    plain = TOKENIZER.apply_chat_template(
        messages, chat_template=TEMPLATE_WITHOUT_TOOLS, add_generation_prompt=prompt, tokenize=False
    )
    assert Renderer(TOKENIZER).text(messages, generation_prompt=prompt) == plain
    assert Renderer(TOKENIZER).text(messages, [], prompt) == plain


def test_without_tools_tool_support_does_not_change_training_tokens():
    tokenizer = train_tokenizer(TEXTS, 400)
    tokenizer.chat_template = TEMPLATE_WITHOUT_TOOLS
    messages = [*CONVERSATION, {"role": "assistant", "content": "4"}]
    assert Renderer(TOKENIZER).training_branches(messages) == Renderer(tokenizer).training_branches(messages)


CALLS = [Call("weather", {"city": "Rome", "days": [1, None]}), Call("weather", {"city": 'Ålesund "N"'})]


def test_tool_markup_has_whole_word_tokens_if_the_texts_contain_tool_calls():
    def tokens_of_prompt(texts: list[str]) -> list[str]:
        renderer = Renderer(train_tokenizer(texts))
        text = renderer.text([{"role": "user", "content": "hi"}], [{"type": "function", "function": {"name": "hi"}}])
        return [renderer.decode([token]) for token in renderer.encode(text)]

    assert {"Functions", " that", "<tools>", "<tool_call>"} <= set(
        tokens_of_prompt(['<tool_call>\n{"name": "hi"}\n</tool_call>'])
    )
    assert not {"Functions", " that", "<tools>", "<tool_call>"} & set(tokens_of_prompt(["hi"]))


@pytest.mark.parametrize("preface", [None, "Let me see."])
@pytest.mark.parametrize("count", [1, 2])
def test_tools_and_calls_use_the_hermes_format(count: int, preface: str | None):
    call_format = format_of(CHAT_TEMPLATE)
    assert call_format is not None and call_format.name == "hermes"
    renderer = Renderer(TOKENIZER)
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    question = UserMessage("hi")
    prompt = renderer.text([question], [tool])
    assert '"name": "weather"' in prompt and prompt.endswith("<|user|>hi<|end|><|assistant|>")
    text = (f"{preface}\n" if preface else "") + call_format.write(CALLS[:count])
    sampled = renderer.message(text, [tool])
    assert (calls_of(sampled), sampled.content) == (CALLS[:count], preface)
    received = AssistantMessage(
        sampled.content, tool_calls=sampled.tool_calls
    )  # without the sampled text, as from other clients
    for message in (sampled, received):
        messages = [question, message, ToolMessage("sunny", sampled.tool_calls[0]["id"])]
        assert renderer.text(messages, [tool]) == f"{prompt}{text}<|end|><|tool|>sunny<|end|><|assistant|>"


def test_digits_are_not_merged_with_adjacent_characters():
    ids = TOKENIZER.encode("<move>4</move>", add_special_tokens=False)
    assert ids == [i for piece in ("<move>", "4", "</move>") for i in TOKENIZER.encode(piece, add_special_tokens=False)]
    assert len(TOKENIZER.encode("0123", add_special_tokens=False)) == 4


def test_vocab_size_is_an_upper_bound_but_all_bytes_are_included():
    assert len(train_tokenizer(TEXTS, 280)) == 280
    assert len(train_tokenizer(["a"], 10)) == 262


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"arch": "lama"}, "did you mean 'llama'"),
        ({"arch": "gpt"}, "known: lfm2, llama, qwen3"),
        ({"size": "huge"}, "known: small, tiny"),
    ],
)
def test_unknown_names_are_rejected_with_suggestions(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        new_model(TEXTS, **arguments)


def test_a_folder_without_a_model_is_an_error_that_suggests_a_folder(tmp_path: Path, saved: tuple[LoadedModel, Path]):
    loaded, _ = saved
    loaded.save(tmp_path / "final")
    with pytest.raises(ConfigError, match=r"did you mean .*final"):
        load_model(tmp_path)


def test_rare_words_are_tokenized_as_letters():
    texts = [f"how often is e in {word}" for word in ("hotel", "ocean", "howl", "tree", "seen") * 6]
    tokenizer = train_tokenizer([*texts, "how often is e in hows"])
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("how often is e in hows", add_special_tokens=False)]
    assert pieces == ["how", " often", " is", " e", " in", " ", "h", "o", "w", "s"]


def test_numbers_are_tokenized_as_digits():
    tokenizer = train_tokenizer(["37 + 58 is 95 or 4"] * 3)
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("37 + 58 is 95 or 4", add_special_tokens=False)]
    assert pieces == ["3", "7", " +", " ", "5", "8", " is", " ", "9", "5", " or", " 4"]


@pytest.mark.slow
def test_the_vocabulary_is_the_same_in_every_process():
    texts = ["a red fox and a blue owl"] * 3
    code = f"from rove.models.from_scratch import *; print(train_tokenizer({texts!r}).get_vocab())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # this process has a random one
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ast.literal_eval(done.stdout) == train_tokenizer(texts).get_vocab()


def test_layers_that_can_recall_get_random_embeddings():
    first, second = (new_model(TEXTS, "lfm2", init="recall", seed=seed).model for seed in (0, 1))
    stored = load_file(RECALL_LAYERS["lfm2", "tiny"])
    embeddings = {"model.embed_tokens.weight", "lm_head.weight"}
    assert set(stored) == set(first.state_dict()) - embeddings
    for name, weight in stored.items():
        assert torch.equal(first.state_dict()[name], weight.float())
        assert torch.equal(second.state_dict()[name], weight.float())
    assert not torch.equal(first.model.embed_tokens.weight, second.model.embed_tokens.weight)


def test_there_are_no_recall_layers_for_other_models():
    with pytest.raises(ConfigError, match="there are such layers for arch lfm2 with size tiny"):
        new_model(TEXTS, "llama", init="recall")
