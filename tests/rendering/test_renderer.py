from __future__ import annotations

from typing import Any

import pytest
from fakes import TEXTS, bpe_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from rove.core.errors import ConfigError
from rove.core.records import StepTokens
from rove.rendering.renderer import CACHE_SIZE, MAX_CACHED_LENGTH, Renderer

TOKENIZER: Any = bpe_tokenizer()
END = TOKENIZER.eos_token_id
RENDERER = Renderer(TOKENIZER)
CHATML = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
"""Writes a line break after the end-of-turn token; the model never samples this line break."""
STRIP_REASONING = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Removes the reasoning from earlier responses, as Qwen3's template does."""


def renderer_with(template: str) -> Renderer:
    tokenizer: Any = bpe_tokenizer()
    tokenizer.chat_template = template
    return Renderer(tokenizer)


RENDERERS = {"rove": RENDERER, "chatml": renderer_with(CHATML), "forgetful": renderer_with(STRIP_REASONING)}

texts = st.text(max_size=12) | st.sampled_from(
    ["", " ", "hello world", "<move>4</move>", "é€😀", "<think>x</think>y", "\n"]
)
sampled = st.lists(st.integers(0, len(TOKENIZER) - 1).filter(lambda i: i != END), max_size=8)
"""Arbitrary token ids: invalid UTF-8, role tokens in the middle, tokenizations that the tokenizer never produces."""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def step(prompt: list[int], completion: list[int]) -> StepTokens:
    return StepTokens(prompt, completion, [0.0] * len(completion))


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(texts, sampled, st.booleans()), min_size=2, max_size=4), st.sampled_from(["rove", "chatml"]))
def test_a_prompt_starts_with_the_tokens_of_the_previous_turn(turns: list[tuple[str, list[int], bool]], name: str):
    renderer = RENDERERS[name]
    messages: list[dict[str, Any]] = []
    previous = None
    for user_text, completion, ended in turns:
        messages.append(user(user_text))
        prompt = renderer.prompt_ids(messages, previous)
        if previous is not None:
            assert prompt[: len(previous.ids)] == previous.ids
            assert len(prompt) > len(previous.ids)
        # For any sampled tokens, the prompt decodes to exactly the text that the template renders.
        assert renderer.decode(prompt) == renderer.decode(renderer.prompt_ids(messages))
        previous = step(prompt, [*completion, END] if ended else completion or [5])
        messages.append(renderer.read(previous.completion_ids))


def test_the_next_prompt_keeps_sampled_tokens_and_appends_the_template_text():
    letter_ids = [RENDERER.encode(letter)[0] for letter in "hello"]
    assert letter_ids != RENDERER.encode("hello")
    first = step(RENDERER.prompt_ids([user("4")]), [*letter_ids, END])
    messages = [user("4"), RENDERER.read(first.completion_ids), user("no")]
    assert messages[1]["content"] == "hello"
    assert RENDERER.prompt_ids(messages, first) == first.ids + RENDERER.encode("<|user|>no<|end|><|assistant|>")


def test_the_template_ends_a_truncated_response():
    first = step(RENDERER.prompt_ids([user("4")]), RENDERER.encode("you say"))
    messages = [user("4"), RENDERER.read(first.completion_ids), user("no")]
    assert RENDERER.prompt_ids(messages, first) == first.ids + RENDERER.encode("<|end|><|user|>no<|end|><|assistant|>")


def test_a_template_that_rewrites_history_starts_a_new_branch():
    renderer = RENDERERS["forgetful"]
    first = step(renderer.prompt_ids([user("4")]), renderer.encode("<think>Any square</think>4<|end|>"))
    messages = [user("4"), renderer.read(first.completion_ids), user("no")]
    prompt = renderer.prompt_ids(messages, first)
    assert renderer.decode(prompt) == "<|user|>4<|end|><|assistant|>4<|end|><|user|>no<|end|><|assistant|>"
    assert prompt == renderer.prompt_ids(messages)


@pytest.mark.parametrize(
    "edit",
    [lambda m: m[1:], lambda m: [m[0], {**m[1], "content": "4"}, m[2]], lambda m: [user("5"), *m[1:]], lambda m: m[:1]],
)
def test_an_edited_history_starts_a_new_branch(edit: Any):
    first = step(RENDERER.prompt_ids([user("4")]), [*(RENDERER.encode(c)[0] for c in "say"), END])
    messages = edit([user("4"), RENDERER.read(first.completion_ids), user("no")])
    assert RENDERER.prompt_ids(messages, first) == RENDERER.encode(RENDERER.text(messages))


@settings(deadline=None)
@given(st.text(), st.booleans())
def test_read_inverts_encode(text: str, ended: bool):
    message = RENDERER.read(RENDERER.encode(text) + [END] * ended)
    assert message == {"role": "assistant", "content": text}


def test_read_removes_only_one_end_of_turn_token_at_the_end():
    assert RENDERER.read([END]).content == ""
    assert RENDERER.read([]).content == ""
    assert RENDERER.read([END, END]).content == "<|end|>"
    user_token = TOKENIZER.encode("<|user|>", add_special_tokens=False)[0]
    assert RENDERER.read([user_token]).content == "<|user|>"
    assert Renderer(TOKENIZER, [user_token]).read([user_token]).content == ""


def test_stop_ids_always_include_the_end_of_sequence_token():
    assert Renderer(TOKENIZER, [7]).stop_ids == {7, END}


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.sampled_from(sorted(RENDERERS)), st.booleans())
def test_training_branches_equal_those_of_sampling_turn_by_turn(
    turns: list[tuple[str, str]], name: str, continued: bool
):
    renderer = RENDERERS[name]
    messages: list[dict[str, Any]] = []
    expected: list[tuple[list[int], list[bool]]] = []
    previous = None
    for user_text, answer in turns:
        messages.append(user(user_text))
        prompt = renderer.prompt_ids(messages, previous)
        completion = [*renderer.encode(answer), END]
        if previous is None or prompt[: len(previous.ids)] != previous.ids:
            expected.append(([], []))
        ids, mask = expected[-1]
        mask += [False] * (len(prompt) - len(ids)) + [True] * len(completion)
        ids[:] = prompt + completion
        previous = step(prompt, completion)
        messages.append({"role": "assistant", "content": answer})
    assert renderer.training_branches([*messages, user("bye")] if continued else messages) == expected


def test_only_assistant_text_and_end_of_turn_are_trained():
    messages = [
        {"role": "system", "content": "You are X."},
        user("0 1"),
        {"role": "assistant", "content": "<move>4</move>"},
        user("no"),
        {"role": "assistant", "content": "<move>5</move>"},
        user("You win."),
    ]
    [(ids, mask)] = RENDERERS["chatml"].training_branches(messages)
    untrained_and_trained = [
        RENDERER.decode([i for i, m in zip(ids, mask, strict=True) if m == kind]) for kind in (False, True)
    ]
    assert (
        untrained_and_trained[0]
        == "<|system|>\nYou are X.<|end|>\n<|user|>\n0 1<|end|>\n<|assistant|>\n\n<|user|>\nno<|end|>\n<|assistant|>\n"
    )
    assert untrained_and_trained[1] == "<move>4</move><|end|><move>5</move><|end|>"


def test_a_history_rewriting_template_gives_each_response_its_own_branch():
    renderer = RENDERERS["forgetful"]
    messages = [
        user("a"),
        {"role": "assistant", "content": "<think>p</think>1"},
        user("b"),
        {"role": "assistant", "content": "<think>q</think>2"},
    ]
    branches = renderer.training_branches(messages)
    trained = [renderer.decode([i for i, m in zip(ids, mask, strict=True) if m]) for ids, mask in branches]
    assert trained == ["<think>p</think>1<|end|>", "<think>q</think>2<|end|>"]
    assert renderer.decode(branches[1][0]).startswith("<|user|>a<|end|><|assistant|>1<|end|>")


def test_a_conversation_without_a_response_has_no_training_branches():
    assert RENDERER.training_branches([user("hello")]) == []


def test_a_template_without_end_of_turn_uses_the_eos_token_of_the_tokenizer():
    tokenizer: Any = bpe_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m['content'] }}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    [(ids, mask)] = Renderer(tokenizer, [0, 7, 200]).training_branches(
        [user("a"), {"role": "assistant", "content": "b"}]
    )
    assert [i for i, m in zip(ids, mask, strict=True) if m] == [
        *tokenizer.encode("b", add_special_tokens=False),
        tokenizer.eos_token_id,
    ]


# Raw texts


def renderer_with_bos(token: str) -> Renderer:
    """Return a renderer whose tokenizer starts every text with this token."""
    tokenizer: Any = bpe_tokenizer()
    tokenizer.bos_token = token
    start = TemplateProcessing(single=f"{token} $A", special_tokens=[(token, tokenizer.bos_token_id)])
    tokenizer.backend_tokenizer.post_processor = start
    return Renderer(tokenizer)


def of_pieces() -> Renderer:
    """Return a renderer whose tokenizer marks word starts and drops the first mark when decoding."""
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # pyright: ignore[reportAttributeAccessIssue]
    pieces.decoder = decoders.Metaspace(prepend_scheme="always")  # pyright: ignore[reportAttributeAccessIssue]
    pieces.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=320, special_tokens=["<|end|>"]))
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=pieces, eos_token="<|end|>")
    return Renderer(tokenizer)


RENDERER_WITH_BOS = renderer_with_bos("<|user|>")


@settings(deadline=None, max_examples=150)
@given(texts, st.lists(st.tuples(sampled, st.booleans(), texts), min_size=1, max_size=4), st.booleans())
def test_a_continued_raw_text_keeps_its_sampled_tokens(
    text: str, turns: list[tuple[list[int], bool, str]], begins: bool
):
    renderer = RENDERER_WITH_BOS if begins else RENDERER
    previous = None
    for completion, ended, continuation in turns:
        prompt = renderer.text_ids(text, previous)
        assert renderer.decode(prompt) == "<|user|>" * begins + text
        if previous is not None:
            previous_ids = previous.ids[:-1] if previous.ids[-1] == END else previous.ids
            assert prompt[: len(previous_ids)] == previous_ids
        previous = step(prompt, completion + [END] * ended or [5])
        answer = renderer.read_text(prompt, previous.completion_ids)
        assert answer == renderer.read(previous.completion_ids)
        text += answer["content"] + continuation
        if "\ufffd" in answer["content"]:  # the following bytes may complete a partial character
            return


def test_a_sampled_end_token_is_not_part_of_the_raw_text():
    first = step(RENDERER.text_ids("hello"), [*RENDERER.encode(" world"), END])
    assert RENDERER.read_text(first.prompt_ids, first.completion_ids).content == " world"
    assert RENDERER.text_ids("hello world, no", first) == first.ids[:-1] + RENDERER.encode(", no")


def test_an_edited_raw_text_is_tokenized_from_scratch():
    letter_ids = [RENDERER.encode(letter)[0] for letter in "hello"]
    first = step(RENDERER.text_ids("4"), letter_ids)
    assert RENDERER.text_ids("4hello", first) == first.ids
    assert RENDERER.text_ids("5hello", first) == RENDERER.encode("5hello") != [*RENDERER.encode("5"), *letter_ids]


def test_a_raw_text_starts_with_the_bos_token_of_its_tokenizer():
    [bos] = RENDERER_WITH_BOS.encode("<|user|>")
    assert RENDERER.text_ids("") == []
    assert RENDERER_WITH_BOS.text_ids("") == [bos]
    assert RENDERER_WITH_BOS.text_ids("hello") == [bos, *RENDERER.encode("hello")]
    first = step([bos, *RENDERER.encode("hello")], RENDERER.encode("say"))
    assert RENDERER_WITH_BOS.text_ids("hellosay no", first) == first.ids + RENDERER.encode(" no")


def test_a_continuation_keeps_its_leading_space():
    renderer = of_pieces()
    prompt, completion = renderer.encode("hello"), renderer.encode(" world")
    assert renderer.read(completion).content == "world"
    assert renderer.read_text(prompt, completion).content == " world"
    assert (
        renderer.text_ids("hello world, no", step(prompt, completion))[: len(prompt + completion)]
        == prompt + completion
    )


def prepending_renderer(scheme: str) -> Renderer:
    """Return a renderer whose tokenizer writes a space before a text ("first") or also after special tokens ("always")."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=320, special_tokens=["<|end|>"]))
    template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|end|>\n' }}{% endfor %}"
    fast: Any = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=template)
    return Renderer(fast)


@pytest.mark.parametrize("scheme", ["first", "always"])
def test_a_continued_raw_text_gets_no_additional_space(scheme: str):
    renderer = prepending_renderer(scheme)
    text, previous = "hello", None
    for continuation in (" you say", "no", "\nX"):
        prompt = renderer.text_ids(text, previous)
        assert renderer.decode(prompt) == text
        previous = step(prompt, renderer.continuation_ids(text, " world"))
        text += renderer.read_text(prompt, previous.completion_ids)["content"] + continuation
    assert text == "hello world you say worldno world\nX"
    assert renderer.decode(renderer.text_ids(text, previous)) == text


def test_a_continued_conversation_gets_no_additional_space():
    renderer = prepending_renderer("first")
    messages = [user("hello"), {"role": "assistant", "content": "world"}, user("no")]
    prompt = renderer.prompt_ids(messages[:1])
    completion = renderer.continuation_ids(renderer.text(messages[:1]), "assistant: world<|end|>")
    whole = renderer.encode(renderer.text(messages))
    assert renderer.prompt_ids(messages, step(prompt, completion)) == whole
    [(ids, _)] = renderer.training_branches([*messages, {"role": "assistant", "content": "you"}])
    assert ids[: len(whole)] == whole


@pytest.mark.parametrize("calls", [[], None])
def test_templates_see_no_empty_tool_calls(calls: list[Any] | None):
    renderer = renderer_with("{% for m in messages %}{{ 'calls' if 'tool_calls' in m else m['content'] }}{% endfor %}")
    assert renderer.text([user("a"), {"role": "assistant", "content": "b", "tool_calls": calls}]) == "ab"


def test_a_raw_text_needs_no_chat_template():
    tokenizer: Any = bpe_tokenizer()
    tokenizer.chat_template = None
    assert Renderer(tokenizer).text_ids("hello") == RENDERER.encode("hello")


def test_messages_are_converted_to_roles_and_texts_that_templates_support():
    parts = [{"type": "text", "text": "be "}, "kind"]
    text = RENDERER.text([{"role": "developer", "content": parts}, {"role": "assistant", "content": None}])
    assert text == RENDERER.text([{"role": "system", "content": "be kind"}, {"role": "assistant", "content": ""}])
    renderer = renderer_with(CHATML + "{# developer #}")
    assert "<|developer|>\nhi" in renderer.text([{"role": "developer", "content": "hi"}])


def test_render_errors_explain_the_cause():
    image_part = {"type": "image_url", "image_url": {"url": "a"}}
    with pytest.raises(ConfigError, match=r"'image_url'.*expected 'text'"):
        RENDERER.text([{"role": "user", "content": [image_part]}])
    with pytest.raises(ConfigError, match=r"roles user: .*take turns"):
        renderer_with("{{ raise_exception('take turns') }}").text([user("a")])
    tokenizer: Any = bpe_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="no chat template"):
        Renderer(tokenizer).text([user("a")])


def test_cached_texts_and_ids_equal_fresh_ones():
    renderer, messages = renderer_with(CHATML), [user("a"), {"role": "assistant", "content": "b"}, user("c")]
    for _ in range(2):
        for generation_prompt in (True, False):
            fresh = renderer_with(CHATML).text(messages, generation_prompt=generation_prompt)
            assert renderer.text(messages, generation_prompt=generation_prompt) == fresh
    ids = renderer.encode("a b")
    ids.append(7)  # must not change the cached list
    assert renderer.encode("a b") == ids[:-1]
    assert renderer.decode(ids[:-1]) == renderer.decode(ids[:-1]) == "a b"


def test_the_caches_of_a_renderer_are_bounded():
    renderer = renderer_with(CHATML)
    for i in range(CACHE_SIZE + 5):
        renderer.text([user(str(i))])
        renderer.decode(renderer.encode(str(i)))
    long = "x" * (MAX_CACHED_LENGTH + 1)
    assert renderer.text([user(long)]) == renderer_with(CHATML).text([user(long)])
    assert renderer.decode(renderer.encode(long)) == long
    caches = renderer._texts, renderer._encoded, renderer._decoded
    assert [len(cache) for cache in caches] == [CACHE_SIZE] * 3
    assert renderer.encode("0") == RENDERER.encode("0")


def test_a_template_with_the_current_time_is_not_cached():
    renderer = renderer_with("{{ strftime_now('%d') }}{{ messages[0]['content'] }}")
    renderer.text([user("a")])
    assert not renderer._texts


def byte_fallback_tokenizer() -> Any:
    """Return a tokenizer as SentencePiece makes them: words, and 256 bytes for everything else."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": 256, "é": 257, "<unk>": 258}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


BYTE_FALLBACK = Renderer(byte_fallback_tokenizer())


@pytest.mark.parametrize("renderer", [RENDERER, BYTE_FALLBACK], ids=["byte-level", "byte fallback"])
@given(text=st.text(max_size=12) | st.sampled_from(["é€😀\ufffd", "a 😀\n"]))
def test_the_bytes_of_all_tokens_are_the_text(renderer: Renderer, text: str):
    ids = renderer.encode(text)
    assert b"".join(renderer.token_bytes(id) for id in ids) == text.encode()
