from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import msgspec
import pytest
from fakes import make_rollout, tiny_model

import rove as vf
from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from rove.core.records import RolloutRecord
from rove.envs.dataset import example_key
from rove.models.from_scratch import CHAT_TEMPLATE
from rove.rendering.renderer import Renderer
from rove.rendering.template_settings import TemplateSettings
from rove.rollouts.export import RunRows, write_rows
from rove.runs.run import Run
from rove.train.message_files import conversation_from_row
from rove.train.policy_comparison import longest_response
from rove.train.sequences import TrainingSequence
from rove.train.sft import train_sft
from rove.train.sft_data import SFTData, reasoning_notices, split, tokenize
from rove.train.sft_preview import preview_sft
from tests.train.test_sft import learnable_rollouts, settings, train, weights_of

TEMPLATE = (
    "{{ tools | tojson if tools else '' }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def data_run(path: Path, records: list[RolloutRecord]) -> Path:
    """Write rollouts with the keys that a run gives them."""
    with Run(path) as run:
        run.start("eval", {}, {})
        for number, record in enumerate(records):
            key = example_key({"prompt": record.prompt, "answer": record.answer, "info": record.info})
            run.append_rollout(msgspec.structs.replace(record, rollout_index=number, example_key=key))
    return path


def prepared(
    source: Any, renderer: Renderer, **fields: Any
) -> tuple[list[list[TrainingSequence]], list[TrainingSequence]]:
    config = settings(**fields)
    return split(tokenize(renderer, SFTData(source, config).conversations, config, 1024), config)


def write_messages(file: Path, target: Path) -> Path:
    """Write the rows of an export as OpenAI messages."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    message_rows = [
        {"messages": row["prompt"] + row["completion"], "tools": row.get("tools"), "reward": row["reward"]}
        for row in rows
    ]
    target.write_text("".join(json.dumps(row) + "\n" for row in message_rows))
    return target


def test_training_on_a_run_and_on_its_messages_gives_the_same_weights(tmp_path: Path):
    run = data_run(tmp_path / "run", learnable_rollouts(12))
    exported = tmp_path / "exported.jsonl"
    write_rows(RunRows(Run(run)), exported)
    config = settings(epochs=2)
    train(tmp_path / "from run", config, run)
    train(tmp_path / "from messages", config, write_messages(exported, tmp_path / "messages.json"))
    assert weights_of(tmp_path / "from messages") == weights_of(tmp_path / "from run")


class Story(vf.MultiTurnCompletionEnv):
    def env_response(self, messages: str, state: vf.State) -> list[vf.Message]:
        return [vf.UserMessage(" then")]


def test_raw_texts_of_a_run_are_trained_without_the_chat_template(tmp_path: Path):
    renderer = Renderer(tiny_model().renderer.tokenizer, TEMPLATE)
    rows = [{"prompt": text} for text in ("Once", "Twice")]
    client = vf.ScriptedClient(lambda messages, state, rng: " upon")
    env = Story(dataset=rows, rubric=vf.Rubric(), max_turns=2)
    env.evaluate_sync(client, run=tmp_path / "run", num_examples=2)
    run = Run(tmp_path / "run")
    conversations = SFTData(run, settings()).conversations
    texts = [[message["content"] for message in conversation.messages] for conversation in conversations]
    assert texts == [
        [start + continuation, " upon"] for start in ("Once", "Twice") for continuation in ("", " upon then")
    ]
    tokenized = tokenize(renderer, conversations, settings(), 1024)
    assert "<|" not in renderer.decode(tokenized[1].sequences[0].ids).removesuffix(renderer.tokenizer.eos_token)
    assert longest_response(renderer, run.finished()) == sum(tokenized[1].sequences[0].mask)
    write_rows(RunRows(run), tmp_path / "rows.jsonl")
    [first, _] = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert (first["prompt"], first["completion"]) == ("Once", " upon then upon then")
    assert conversation_from_row("row 1", first).is_text


def conversations_with_tools() -> list[RolloutRecord]:
    call = {"id": "x", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    records: list[RolloutRecord] = []
    for number in range(8):
        completion = [
            AssistantMessage(
                None,
                tool_calls=[call],
                sampled_text='<tool_call>{"name":"add", "arguments": {"a":2,"b":3}}</tool_call>',
            ),
            ToolMessage("5", tool_call_id="x"),
            AssistantMessage(f"{number}"),
        ]
        prompt = [SystemMessage("You are X."), UserMessage(f"hello {number // 2}")]
        records.append(make_rollout(prompt=prompt, completion=completion, tools=[tool], reward=number))
    return records


def test_every_source_gives_the_same_sequences_and_the_same_split(tmp_path: Path):
    """Equal sequences in an equal order give equal weights; training on them is tested above."""
    tokenizer: Any = tiny_model().tokenizer
    tokenizer.chat_template = TEMPLATE
    renderer = Renderer(tokenizer)
    run = data_run(tmp_path / "run", conversations_with_tools())
    expected = prepared(run, renderer, min_reward=2.0)
    assert sum(map(len, expected[0])) + len(expected[1]) == 6
    assert '{"name":"add", "arguments": {"a":2,"b":3}}' in renderer.decode(expected[1][0].ids)  # as it was sampled
    exported, table = tmp_path / "exported.jsonl", tmp_path / "exported.parquet"
    write_rows(RunRows(Run(run)), exported)
    write_rows(RunRows(Run(run)), table, "parquet")
    rows = [json.loads(line) for line in exported.read_text().splitlines()]
    sources = [exported, table, str(write_messages(exported, tmp_path / "messages.jsonl")), rows, Run(run)]
    for source in sources:
        assert prepared(source, renderer, min_reward=2.0) == expected
    messages = [row["prompt"] + row["completion"] for row in rows]
    without_tools = [{"messages": each} for each in messages]
    for source in (without_tools, datasets.Dataset.from_list(without_tools), iter(messages)):
        assert prepared(source, renderer) == prepared(messages, renderer)


def test_rows_of_an_example_are_on_one_side_and_an_export_keeps_its_examples_apart(tmp_path: Path):
    config = settings(validation_fraction=0.5)
    prompt = [UserMessage("hello")]
    records = [
        make_rollout(prompt=prompt, completion=[AssistantMessage(word)], answer=word, reward=1.0)
        for word in ("no", "say")
    ]
    exported = tmp_path / "exported.jsonl"
    write_rows(RunRows(Run(data_run(tmp_path / "run", records))), exported)
    rows = [json.loads(line) for line in exported.read_text().splitlines()]
    assert len({*SFTData(rows, config).example_keys}) == 2
    plain = [{"messages": row["prompt"] + row["completion"], "answer": row["answer"]} for row in rows]
    assert len({*SFTData(plain, config).example_keys}) == 1


def test_the_loss_is_on_the_chosen_messages():
    renderer = tiny_model().renderer
    row = {
        "prompt": [UserMessage("a"), AssistantMessage("no"), UserMessage("b")],
        "completion": [AssistantMessage("say"), UserMessage("c"), AssistantMessage("you")],
    }

    def trained(loss_on: str) -> str:
        conversations = [conversation_from_row("row 1", row)]
        [(_, [sequence], _)] = tokenize(renderer, conversations, settings(loss_on=loss_on), 1024)
        return renderer.decode([id for id, is_trained in zip(sequence.ids, sequence.mask, strict=True) if is_trained])

    assert trained("all") == "no<|end|>say<|end|>you<|end|>"
    assert trained("completion") == "say<|end|>you<|end|>"
    assert trained("last") == "you<|end|>"
    with pytest.raises(ConfigError, match="loss_on is 'first'; known: all, completion, last"):
        settings(loss_on="first").check()


def test_long_sequences_are_truncated_at_the_end_and_left_out_without_a_trained_token():
    renderer = tiny_model().renderer
    conversations = [
        conversation_from_row(f"row {n}", [UserMessage("hello " * n), AssistantMessage("world " * 5)])
        for n in (1, 3, 30)
    ]
    whole = tokenize(renderer, conversations, settings(), 1024)
    limit = len(whole[1].sequences[0].ids) - 2
    short, cut, dropped = tokenize(renderer, conversations, settings(max_length=limit), 1024)
    assert tokenize(renderer, conversations, settings(), limit) == [short, cut, dropped]
    assert (short.sequences, short.truncated) == (whole[0].sequences, 0)
    [sequence], [complete] = cut.sequences, whole[1].sequences
    assert (sequence.ids, sequence.mask) == (complete.ids[:limit], complete.mask[:limit])
    assert len(sequence.logprobs) == len(sequence.advantages) == limit
    assert cut.truncated == 2
    assert dropped.sequences == []
    with pytest.raises(ConfigError, match="0 of 3 conversations have tokens to train on within max_length"):
        split(tokenize(renderer, conversations, settings(max_length=2), 1024), settings(max_length=2))


def test_a_token_without_an_embedding_is_an_error_that_names_the_conversation(tmp_path: Path):
    loaded = tiny_model()
    loaded.tokenizer.add_tokens(["<new>"])
    rows = [[UserMessage("hello"), AssistantMessage(text)] for text in ("world", "world", "<new> world")]
    token = len(loaded.tokenizer) - 1
    message = (
        rf"row 3: the conversation has the token {token} \('<new>'\), but the model has embeddings of {token} tokens"
    )
    with pytest.raises(ConfigError, match=message), Run(tmp_path) as run:
        run.start("sft", {}, {})
        train_sft(settings(), rows, loaded, run)
    with pytest.raises(ConfigError, match=message):
        preview_sft(settings(), loaded, rows)


def test_overlong_conversations_are_counted_before_training_and_can_be_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rows = [[UserMessage("hello"), AssistantMessage("world")]] * 3 + [
        [UserMessage("hello"), AssistantMessage("world " * 20)]
    ]
    config = settings(epochs=1, max_length=12, overlong="drop")
    train(tmp_path, config, rows)
    assert "1 of 4 conversations are longer than 12 tokens (max_length): they are left out" in caplog.text
    summary = Run(tmp_path).summary() or {}
    assert summary["overlong_conversations"] == 1 and "truncated_tokens" not in summary
    preview = preview_sft(config, tiny_model(), rows)
    assert preview.dropped == {"are longer than 12 tokens": 1} and preview.truncated_tokens == 0
    with pytest.raises(ConfigError, match="overlong is 'cut'; expected truncate or drop"):
        settings(overlong="cut").check()


def test_a_preview_says_how_much_an_adapter_would_cover():
    rows = [[UserMessage("hello"), AssistantMessage("world")]] * 3
    loaded = tiny_model()
    preview = preview_sft(settings(lora__rank=2, lora__targets=["q_proj"]), loaded, rows)
    assert preview.adapter.startswith("the adapter covers 2 layers with ")
    assert preview_sft(settings(), loaded, rows).adapter == ""


def test_a_preview_describes_the_chat_template():
    rows = [[UserMessage("hello"), AssistantMessage("world")]] * 3
    loaded = tiny_model()
    assert preview_sft(settings(), loaded, rows).template == "tool calls: hermes"
    loaded.tokenizer.chat_template = "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    renderer = Renderer(loaded.tokenizer)
    assert preview_sft(settings(), loaded._replace(renderer=renderer), rows).template.startswith(
        "no tools: it ignores tools"
    )
    loaded.tokenizer.chat_template = CHAT_TEMPLATE.replace("<|assistant|>", "<|assistant|><think>")
    renderer = Renderer(loaded.tokenizer, settings=TemplateSettings(args={"enable_thinking": True}))
    assert preview_sft(settings(), loaded._replace(renderer=renderer), rows).template == (
        "tool calls: hermes; writes <think>; enable_thinking = True"
    )


def test_a_max_length_beyond_the_context_is_an_error():
    conversations = [conversation_from_row("row 1", [UserMessage("a"), AssistantMessage("b")])]
    with pytest.raises(ConfigError, match=r"max_length is 1,025, but the context of the model has 1,024 tokens"):
        tokenize(tiny_model().renderer, conversations, settings(max_length=1025), 1024)


def test_the_summary_counts_truncated_tokens(tmp_path: Path):
    rows = [[UserMessage("hello"), AssistantMessage("world")]] * 3 + [
        [UserMessage("hello"), AssistantMessage("world " * 5)]
    ]
    train(tmp_path, settings(epochs=1, max_length=7), rows)
    assert (Run(tmp_path).summary() or {})["truncated_tokens"] > 0


def test_a_conversation_that_the_template_rejects_is_reported_with_its_place():
    tokenizer: Any = tiny_model().tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}<|end|>{% endfor %}"
    renderer = Renderer(tokenizer)
    row = {"messages": [UserMessage("a"), AssistantMessage("b")], "tools": [{"type": "function"}]}
    conversations = [conversation_from_row("chats.jsonl, line 7", row)]
    with pytest.raises(ConfigError, match="chats.jsonl, line 7: tools are given, but"):
        tokenize(renderer, conversations, settings(), 1024)


def test_min_reward_needs_a_reward_in_every_row():
    rows = [{"messages": [UserMessage("a"), AssistantMessage("b")], "reward": reward} for reward in (1, 2.5, 0.5)]
    assert len(SFTData(rows, settings(min_reward=1.0)).conversations) == 2
    with pytest.raises(
        ConfigError, match=r"row 4: the reward is None; min_reward needs a number in the column 'reward'"
    ):
        _ = SFTData([*rows, {**rows[0], "reward": None}], settings(min_reward=1.0)).conversations


def test_the_identity_is_that_of_the_content(tmp_path: Path):
    rows = [{"messages": [UserMessage(word), AssistantMessage("b")]} for word in ("a", "b")]
    config = settings()
    assert SFTData(rows, config).identity == SFTData([*rows], config).identity != SFTData(rows[::-1], config).identity
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = (SFTData(tmp_path / folder / "a.jsonl", config).identity for folder in ("one", "two"))
    assert first == second
    (tmp_path / "two" / "a.jsonl").write_text("{}")
    assert SFTData(tmp_path / "two" / "a.jsonl", config).identity != first


def test_other_sources_are_refused(tmp_path: Path):
    (tmp_path / "a.txt").write_text("hello")
    with pytest.raises(ConfigError, match="is neither a run folder nor a file that ends in .jsonl"):
        SFTData(tmp_path / "a.txt", settings())
    with pytest.raises(ConfigError, match="expected a list of rows"):
        SFTData({"train": []}, settings())
    with pytest.raises(ConfigError, match="row 1: the row is 'messages'"):
        _ = SFTData(["messages"], settings()).conversations


def test_conversations_that_are_lost_whole_are_named_with_the_flag(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    rows = [[UserMessage("hello"), AssistantMessage("world")]] * 3
    rows += [
        [UserMessage("hello"), AssistantMessage("world " * 20)],
        [UserMessage("hello " * 20), AssistantMessage("x")],
    ]
    train(tmp_path, settings(epochs=1, max_length=12), rows)
    assert "2 of 5 conversations are longer than 12 tokens (max_length): their last" in caplog.text
    assert (
        "not trained on, and 1 of them not at all, because their responses begin later; --overlong drop" in caplog.text
    )


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def test_reasoning_that_the_template_leaves_out_is_counted():
    loaded = tiny_model()
    loaded.tokenizer.chat_template = THINKING
    thought = AssistantMessage("4", reasoning_content="two and two")
    rows = [[UserMessage("2 + 2?"), thought], [UserMessage("1 + 1?"), AssistantMessage("2")]]
    conversations = [conversation_from_row("", row) for row in rows]

    def notices(renderer: Renderer) -> list[str]:
        return reasoning_notices(renderer, tokenize(renderer, conversations, settings(), 1024), settings())

    assert notices(Renderer(loaded.tokenizer)) == []
    off = Renderer(loaded.tokenizer, settings=TemplateSettings(args={"enable_thinking": False}))
    [notice] = notices(off)
    assert notice.startswith("1 of 2 conversations have a reasoning_content that the chat template leaves out")
