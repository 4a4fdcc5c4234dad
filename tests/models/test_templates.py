"""Chat templates by name or file, their variables, the end of a turn, and what a trained model keeps of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import bpe_tokenizer, tiny_model
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from rove.core.errors import ConfigError
from rove.models.from_scratch import END
from rove.models.load import LoadedModel, load_model, load_tokenizer, prepare
from rove.models.templates import end_of_turn, read_args, template_variables, use_template
from rove.rendering.template_settings import OWN_TEMPLATE, TemplateSettings
from rove.train.config import LoRAConfig, SFTConfig
from rove.train.learner import add_lora

MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]
THINKING = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}none {% endif %}{% endif %}"
)


def saved_base(folder: Path, template: str | None = None) -> Path:
    """Save a tiny model without a chat template, or with this one."""
    model = tiny_model()
    model.tokenizer.chat_template = template
    model.save(folder)
    return folder


def text_of(loaded: LoadedModel, count: int = 1, **variables: Any) -> str:
    return loaded.renderer.text(MESSAGES[:count], template_kwargs=variables)


@pytest.mark.parametrize(
    ("source", "variables"),
    [
        ("{{ messages }}{% if enable_thinking is defined and not enable_thinking %}x{% endif %}", {"enable_thinking"}),
        ("{% if effort is not defined %}{% set effort = 'low' %}{% endif %}{{ effort }}", {"effort"}),
        ("{% set thinking = thinking if thinking is defined else true %}{{ thinking }}", {"thinking"}),
        ("{% for m in messages %}{% if m %}{% set text = m %}{% endif %}{{ text }}{% endfor %}", set()),
        ("{% macro f(thinking) %}{{ thinking }}{% endmacro %}{{ f(1) }}{{ thinking }}", {"thinking"}),
        ("{% for m in messages %}{% set text = m %}{{ text }}{% endfor %}{% if text %}x{% endif %}", {"text"}),
        ("{% for m in messages %}{% set text = m %}{% endfor %}{% macro f(text) %}{{ text }}{% endmacro %}", set()),
        ("{% for text in text %}{{ text }}{% endfor %}", {"text"}),
        ("{% if messages %}{% set text %}x{% endset %}{% endif %}{{ text }}", set()),
        ("{% macro f(x) %}{{ x }}{{ date_string }}{% endmacro %}{{ f(1) }}{{ strftime_now('%d') }}", {"date_string"}),
    ],
)
def test_the_variables_of_a_template_are_those_that_it_does_not_set_before(source: str, variables: set[str]):
    assert template_variables(source) - {"messages"} == variables


def test_a_variable_of_the_settings_counts_in_every_conversation_unless_the_request_has_it(tmp_path: Path):
    saved_base(tmp_path, THINKING)
    loaded = load_model(tmp_path, "cpu", template_args={"enable_thinking": False})
    assert text_of(loaded) == "<|user|>Hi<|end|><|assistant|>none "
    assert text_of(loaded, enable_thinking=True) == "<|user|>Hi<|end|><|assistant|>"
    ids, mask = loaded.renderer.training_branches(MESSAGES)[0]
    prompt_ids = loaded.renderer.prompt_ids(MESSAGES[:1])
    assert ids[: mask.index(True)] == prompt_ids


@pytest.mark.parametrize("name", ["enable_thinkin", "messages", "tools", "eos_token"])
def test_a_variable_that_the_template_does_not_mention_is_an_error_that_lists_the_others(tmp_path: Path, name: str):
    saved_base(tmp_path, THINKING)
    with pytest.raises(ConfigError, match=rf"has '{name}', .* does not mention; it has: enable_thinking$"):
        load_model(tmp_path, "cpu", template_args={name: False})


def test_a_base_model_reads_texts_and_needs_a_template_for_messages(tmp_path: Path):
    loaded = load_model(saved_base(tmp_path), "cpu")
    assert loaded.renderer.text_ids("Hi") == loaded.tokenizer.encode("Hi", add_special_tokens=False)
    with pytest.raises(ConfigError, match=r'--chat-template .*"chatml".*message_type="completion"'):
        text_of(loaded)
    with pytest.raises(ConfigError, match="no chat template"):
        load_model(tmp_path, "cpu", template_args={"enable_thinking": False})


def test_chatml_ends_a_turn_with_the_end_token_of_a_tokenizer_without_its_own(tmp_path: Path):
    loaded = load_model(saved_base(tmp_path), "cpu", chat_template="chatml")
    assert text_of(loaded) == f"<|im_start|>user\nHi{END}\n<|im_start|>assistant\n"
    ids, mask = loaded.renderer.training_branches(MESSAGES)[0]
    trained = [id for id, is_trained in zip(ids, mask, strict=True) if is_trained]
    assert loaded.renderer.decode(trained) == f"Yes{END}"
    assert trained[-1] in loaded.renderer.stop_ids
    # Two turns are one sequence: the second prompt extends the first answer.
    assert len(loaded.renderer.training_branches([*MESSAGES, *MESSAGES])) == 1


def test_chatml_with_its_own_tokens_stops_at_them_and_the_saved_model_does_too(tmp_path: Path):
    model = tiny_model()
    end = model.tokenizer.pad_token_id  # a token of the vocabulary under another name
    path = tmp_path / "base"
    saved_base(path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        text = (path / file).read_text().replace(model.tokenizer.pad_token, "<|im_end|>")
        (path / file).write_text(text)
    loaded = load_model(path, "cpu", chat_template="chatml")
    eos = loaded.tokenizer.eos_token_id
    assert text_of(loaded, count=2).endswith("Yes<|im_end|>\n<|im_start|>assistant\n")
    assert loaded.renderer.stop_ids == {eos, end} and end != eos
    loaded.save_final(tmp_path / "final")
    reloaded = load_model(tmp_path / "final", "cpu")
    assert (text_of(reloaded), reloaded.renderer.stop_ids) == (text_of(loaded), {eos, end})
    assert set(json.loads((tmp_path / "final/generation_config.json").read_text())["eos_token_id"]) == {eos, end}


def test_the_saved_model_stops_at_the_end_that_its_own_template_writes(tmp_path: Path):
    model = tiny_model()
    eos, end = model.tokenizer.eos_token_id, model.tokenizer.pad_token_id
    saved_base(tmp_path / "base", THINKING.replace("<|end|>", model.tokenizer.pad_token))
    loaded = load_model(tmp_path / "base", "cpu")
    assert loaded.renderer.stop_ids == {eos, end}
    loaded.save_final(tmp_path / "final")
    assert json.loads((tmp_path / "final/generation_config.json").read_text())["eos_token_id"] == [eos, end]


@pytest.mark.parametrize("ending", [END, "\n"])
def test_a_model_that_already_stops_at_the_end_of_its_turns_is_saved_as_it_was(tmp_path: Path, ending: str):
    saved_base(tmp_path / "base", THINKING.replace("<|end|>", ending))
    load_model(tmp_path / "base", "cpu").save_final(tmp_path / "final")
    file = "generation_config.json"
    assert (tmp_path / "final" / file).read_bytes() == (tmp_path / "base" / file).read_bytes()


@pytest.mark.parametrize("is_own", [True, False])
def test_of_two_closing_tokens_the_last_one_ends_a_turn(is_own: bool):
    tokens = ["<|first|>", "<|last|>"]
    model = tiny_model()
    model.tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    template = THINKING.replace("<|end|>", "".join(tokens))
    tokenizer = model.tokenizer
    tokenizer.chat_template = template
    settings = OWN_TEMPLATE if is_own else TemplateSettings(template)
    prepared = prepare(model.model, tokenizer, settings)
    last = tokenizer.convert_tokens_to_ids("<|last|>")
    assert prepared.renderer.stop_ids == {tokenizer.eos_token_id, last}
    assert prepared.model.generation_config.eos_token_id == [tokenizer.eos_token_id, last]


def test_chatml_begins_with_the_token_that_the_tokenizer_adds_to_texts():
    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<unk>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    words.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    use_template(tokenizer, "base", "chatml", {})
    text = tokenizer.apply_chat_template(MESSAGES, tokenize=False)
    assert text == "<s><|im_start|>user\nHi</s>\n<|im_start|>assistant\nYes</s>\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "{% for m in messages %}{{ m.content }}<|stop|>\n{% endfor %}",
            "ends the model's turn with '<|stop|>'.*eos_token",
        ),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "leaves out the messages of the assistant"),
        ("{% for m in messages %}", "is not a Jinja template"),
        ("{{ raise_exception('no') }}", "cannot render a question and an answer"),
    ],
)
def test_a_template_file_that_cannot_be_used_is_an_error(tmp_path: Path, source: str, message: str):
    saved_base(tmp_path / "base")
    (tmp_path / "t.jinja").write_text(source)
    with pytest.raises(ConfigError, match=message.replace("|", r"\|")):
        load_model(tmp_path / "base", "cpu", chat_template=str(tmp_path / "t.jinja"))
    with pytest.raises(ConfigError, match="expected 'chatml', or the path of a Jinja file"):
        load_model(tmp_path / "base", "cpu", chat_template="chatlm")


def test_a_template_without_an_end_of_the_turn_leaves_the_end_of_sequence_token():
    tokenizer = bpe_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert end_of_turn(tokenizer, TemplateSettings(tokenizer.chat_template)) is None


@pytest.mark.parametrize("rank", [0, 2])
def test_a_trained_model_or_adapter_keeps_template_and_variables(tmp_path: Path, rank: int):
    base = saved_base(tmp_path / "base")
    (tmp_path / "t.jinja").write_text(THINKING)
    settings: dict[str, Any] = {"chat_template": str(tmp_path / "t.jinja"), "template_args": {"enable_thinking": False}}
    loaded = load_model(base, "cpu", **settings)
    config = SFTConfig(data="", model=str(base), lora=LoRAConfig(rank=rank), **settings)
    trained = add_lora(config, loaded) if rank else loaded
    trained.save_final(tmp_path / "final")
    reloaded = load_model(tmp_path / "final", "cpu")
    assert text_of(reloaded) == text_of(loaded) == "<|user|>Hi<|end|><|assistant|>none "
    assert reloaded.renderer.stop_ids == loaded.renderer.stop_ids
    on = load_model(tmp_path / "final", "cpu", template_args={"enable_thinking": True})
    assert text_of(on) == "<|user|>Hi<|end|><|assistant|>"
    # Another template has other variables.
    with_chatml = load_model(tmp_path / "final", "cpu", chat_template="chatml")
    assert with_chatml.renderer.settings.args == {}


def test_a_model_of_the_hugging_face_cache_keeps_its_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    snapshot = tmp_path / "models--owner--name/snapshots/1234"
    saved_base(snapshot, THINKING)
    load_model(snapshot, "cpu", template_args={"enable_thinking": False}).save(snapshot)
    (tmp_path / "models--owner--name/refs").mkdir()
    (tmp_path / "models--owner--name/refs/main").write_text("1234")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    tokenizer, settings = load_tokenizer("owner/name", False, None, {})
    assert tokenizer.chat_template == THINKING and settings.args == {"enable_thinking": False}


def test_a_model_without_settings_is_saved_as_before(tmp_path: Path):
    tiny_model().save_final(tmp_path)
    assert not (tmp_path / "template_args.json").exists()


def test_a_damaged_file_of_variables_is_an_error(tmp_path: Path):
    (tmp_path / "template_args.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"template_args\.json cannot be read"):
        read_args(tmp_path)
