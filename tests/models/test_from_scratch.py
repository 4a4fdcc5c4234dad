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
from transformers import AutoModelForCausalLM, AutoTokenizer

from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, ToolMessage, UserMessage
from rove.models.from_scratch import CHAT_TEMPLATE, new_model, save_new_model, train_tokenizer
from rove.models.load import LoadedModel, load_model
from rove.rendering.renderer import Renderer
from rove.rendering.tool_calls import Call, calls_of, format_of

TOKENIZER = train_tokenizer(TEXTS, 400)
TALK = [
    {"role": "user", "content": "0 1 2"},
    {"role": "assistant", "content": "<move>4</move>"},
    {"role": "user", "content": "no"},
]


@pytest.fixture(scope="module", params=["llama", "qwen3", "lfm2"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[LoadedModel, Path]:
    made = new_model(TEXTS, request.param, "tiny", vocab_size=400)
    path = tmp_path_factory.mktemp("models") / request.param
    save_new_model(path, made)
    return made, path


def logits_of(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits


def test_a_saved_model_is_an_ordinary_hugging_face_folder(saved: tuple[LoadedModel, Path]):
    made, path = saved
    model = AutoModelForCausalLM.from_pretrained(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert "rove" not in (path / "config.json").read_text()
    ids = tokenizer.apply_chat_template(TALK, add_generation_prompt=True, return_dict=False)
    assert ids == made.renderer.prompt_ids(TALK)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|end|>", "<|pad|>")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    torch.testing.assert_close(logits_of(model, ids), logits_of(made.model, ids), rtol=1e-4, atol=1e-5)


def test_a_saved_model_loads_with_the_same_renderer_and_weights(saved: tuple[LoadedModel, Path]):
    made, path = saved
    again = load_model(path, device="cpu")
    assert again.renderer.stop_ids == made.renderer.stop_ids == {made.tokenizer.eos_token_id}
    assert again.renderer.prompt_ids(TALK) == made.renderer.prompt_ids(TALK)
    theirs = again.model.state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in made.model.state_dict().items())


def test_an_untrained_model_knows_nothing(saved: tuple[LoadedModel, Path]):
    made, _ = saved
    logprobs = logits_of(made.model, made.renderer.prompt_ids(TALK)).log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    assert entropy.min() > 0.85 * torch.tensor(float(len(made.tokenizer))).log()


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    first = new_model(TEXTS, vocab_size=300, seed=5)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second, other = new_model(TEXTS, vocab_size=300, seed=5), new_model(TEXTS, vocab_size=300, seed=6)
    assert torch.equal(before, torch.get_rng_state())  # the global stream is left alone
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    assert not torch.equal(first.model.lm_head.weight, other.model.lm_head.weight)


@settings(deadline=None, max_examples=300)
@given(st.text())
def test_the_tokenizer_can_spell_anything(text: str):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    assert TOKENIZER.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize(
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


PLAIN = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""What the template writes where there are no tools."""
SPOKEN = st.builds(
    dict, role=st.sampled_from(["system", "user", "assistant", "tool"]), content=st.text("ab\n<>{} ") | st.text()
)


@settings(deadline=None, max_examples=200)
@given(st.lists(SPOKEN, min_size=1, max_size=5), st.booleans())
def test_without_tools_the_template_writes_messages_and_nothing_else(messages: list[Any], prompt: bool):
    plain = TOKENIZER.apply_chat_template(messages, chat_template=PLAIN, add_generation_prompt=prompt, tokenize=False)
    assert Renderer(TOKENIZER).text(messages, generation_prompt=prompt) == plain
    assert Renderer(TOKENIZER).text(messages, [], prompt) == plain


def test_without_tools_what_is_trained_is_what_it_was():
    before = train_tokenizer(TEXTS, 400)
    before.chat_template = PLAIN
    talk = [*TALK, {"role": "assistant", "content": "4"}]
    assert Renderer(TOKENIZER).training_branches(talk) == Renderer(before).training_branches(talk)


CALLS = [Call("weather", {"city": "Rome", "days": [1, None]}), Call("weather", {"city": 'Ålesund "N"'})]


def test_what_stands_around_tools_is_in_whole_words_where_tools_are_called():
    def words(texts: list[str]) -> list[str]:
        renderer = Renderer(train_tokenizer(texts))
        shown = renderer.text([{"role": "user", "content": "hi"}], [{"type": "function", "function": {"name": "hi"}}])
        return [renderer.decode([token]) for token in renderer.encode(shown)]

    assert {"Functions", " that", "<tools>", "<tool_call>"} <= set(words(['<tool_call>\n{"name": "hi"}\n</tool_call>']))
    assert not {"Functions", " that", "<tools>", "<tool_call>"} & set(words(["hi"]))


@pytest.mark.parametrize("beside", [None, "Let me see."])
@pytest.mark.parametrize("count", [1, 2])
def test_tools_are_shown_and_calls_written_as_hermes_models_do(count: int, beside: str | None):
    how = format_of(CHAT_TEMPLATE)
    assert how is not None and how.name == "hermes"
    renderer = Renderer(TOKENIZER)
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    asked = UserMessage("hi")
    prompt = renderer.text([asked], [tool])
    assert '"name": "weather"' in prompt and prompt.endswith("<|user|>hi<|end|><|assistant|>")
    written = (f"{beside}\n" if beside else "") + how.write(CALLS[:count])
    said = renderer.message(written, [tool])
    assert (calls_of(said), said.content) == (CALLS[:count], beside)
    told = AssistantMessage(said.content, tool_calls=said.tool_calls)  # as others send it: without what was sampled
    for message in (said, told):
        messages = [asked, message, ToolMessage("sunny", said.tool_calls[0]["id"])]
        assert renderer.text(messages, [tool]) == f"{prompt}{written}<|end|><|tool|>sunny<|end|><|assistant|>"


def test_digits_never_merge_with_their_neighbours():
    whole = TOKENIZER.encode("<move>4</move>", add_special_tokens=False)
    assert whole == [
        i for piece in ("<move>", "4", "</move>") for i in TOKENIZER.encode(piece, add_special_tokens=False)
    ]
    assert len(TOKENIZER.encode("0123", add_special_tokens=False)) == 4


def test_vocab_size_is_an_upper_bound_that_always_leaves_room_for_bytes():
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
def test_unknown_names_are_refused_with_help(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        new_model(TEXTS, **arguments)


def test_an_existing_folder_is_never_written_over(saved: tuple[LoadedModel, Path], tmp_path: Path):
    made, path = saved
    with pytest.raises(ConfigError, match="not empty"):
        save_new_model(path, made)
    save_new_model(tmp_path, made)  # an empty folder is fine
    assert (tmp_path / "config.json").exists()


def test_a_folder_without_a_model_says_where_one_is(tmp_path: Path, saved: tuple[LoadedModel, Path]):
    made, _ = saved
    made.save(tmp_path / "final")
    with pytest.raises(ConfigError, match=r"did you mean .*final"):
        load_model(tmp_path)


def test_a_tokenizer_without_a_chat_template_is_refused(tmp_path: Path, saved: tuple[LoadedModel, Path]):
    made, _ = saved
    made.save(tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="no chat template"):
        load_model(tmp_path)


def test_words_of_few_texts_are_spelled():
    texts = [f"how often is e in {word}" for word in ("hotel", "ocean", "howl", "tree", "seen") * 6]
    tokenizer = train_tokenizer([*texts, "how often is e in hows"])
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("how often is e in hows", add_special_tokens=False)]
    assert pieces == ["how", " often", " is", " e", " in", " ", "h", "o", "w", "s"]


def test_numbers_are_spelled_in_digits():
    tokenizer = train_tokenizer(["37 + 58 is 95 or 4"] * 3)
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("37 + 58 is 95 or 4", add_special_tokens=False)]
    assert pieces == ["3", "7", " +", " ", "5", "8", " is", " ", "9", "5", " or", " 4"]


def test_the_vocabulary_is_the_same_in_every_process():
    code = (
        "from rove.models.from_scratch import *; print(train_tokenizer(['a red fox and a blue owl'] * 3).get_vocab())"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert {tuple(sorted(ast.literal_eval(text).items())) for text in made} == {
        tuple(sorted(train_tokenizer(["a red fox and a blue owl"] * 3).get_vocab().items()))
    }
