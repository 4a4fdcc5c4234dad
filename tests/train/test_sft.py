from __future__ import annotations

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from fakes import make_rollout, tiny_model
from flat_settings import with_tables
from tiers import each_row, first_quick

from rove.core.config import convert
from rove.core.errors import ConfigError
from rove.core.messages import AssistantMessage, UserMessage
from rove.core.records import RolloutRecord, TrajectoryStep
from rove.models.load import LoadedModel, load_model
from rove.runs.run import Run
from rove.stages.sft import warnings_of
from rove.train.config import SFTConfig
from rove.train.conversations import Conversation, conversations_of
from rove.train.learner import Learner
from rove.train.sequences import TrainingSequence, sequences_from_messages
from rove.train.sft import train_sft
from rove.train.sft_data import SFTData, SFTSource, split, tokenize
from rove.train.trainer import TrainingError

WORDS = ["no", "you", "say", "hello", "world", "X", "O", "Any"]


def record(question: str, answer: str, **fields: Any) -> RolloutRecord:
    completion = [AssistantMessage(answer), UserMessage("You win.")]
    return make_rollout(prompt=[UserMessage(question)], completion=completion, **fields)


def learnable_rollouts(count: int = 40) -> list[RolloutRecord]:
    """Return rollouts whose responses follow from the prompts."""
    return [record(f" {n % 9}", f"<move>{n % 9}</move>") for n in range(count)]


def random_rollouts(count: int = 40) -> list[RolloutRecord]:
    """Return rollouts whose responses can only be memorized."""
    rng = random.Random(0)
    return [record(" ".join(rng.choices(WORDS, k=3)), " ".join(rng.choices(WORDS, k=3))) for _ in range(count)]


def settings(**fields: Any) -> SFTConfig:
    defaults: dict[str, Any] = {
        "data": "runs/data",
        "model": "models/new",
        "batch_size": 8,
        "epochs": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "validation_fraction": 0.2,
        "validate_every": 4,
        "threads": 1,
    }
    return convert(SFTConfig, with_tables({**defaults, **fields}))


class Killed(Exception):
    """Simulates `kill -9`."""


def train(
    path: Path,
    config: SFTConfig,
    data: SFTSource,
    kill_at: int | None = None,
    weights_by_step: dict[int, Any] | None = None,
) -> LoadedModel:
    """Train like a new process: with a new model and a run folder that may exist."""
    loaded = tiny_model()

    def on_step(step: int, total: int, metrics: Any) -> None:
        if weights_by_step is not None:
            weights_by_step[step] = {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}
        if step == kill_at:
            raise Killed

    with Run(path) as run:
        run.start("sft", {}, {})
        train_sft(config, data, loaded, run, on_step)
    return loaded


def weights_of(path: Path) -> bytes:
    return (path / "final" / "model.safetensors").read_bytes()


def without_times(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in m.items() if not k.startswith("time/")} for m in Run(path).metrics()]


@pytest.mark.broad
def test_the_loss_falls_and_the_responses_are_learned(tmp_path: Path):
    loaded = train(tmp_path, settings(epochs=15), learnable_rollouts())
    metrics = Run(tmp_path).metrics()
    assert metrics[-1]["loss"] < 0.1 * metrics[0]["loss"]
    assert [m["step"] for m in metrics] == list(range(1, len(metrics) + 1))
    prompt = loaded.renderer.prompt_ids([UserMessage(" 7")])
    answer = loaded.renderer.encode("<move>7</move><|end|>")
    with torch.inference_mode():
        logits = loaded.model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    assert logits.argmax(-1).tolist() == answer


@pytest.mark.broad
def test_early_stopping_keeps_the_weights_with_the_lowest_validation_loss(tmp_path: Path):
    weights_by_step: dict[int, Any] = {}
    config = settings(epochs=100, patience=3, validate_every=2)
    loaded = train(tmp_path, config, random_rollouts(), weights_by_step=weights_by_step)
    losses = {m["step"]: m["validation_loss"] for m in Run(tmp_path).metrics() if "validation_loss" in m}
    best = min(losses, key=lambda step: losses[step])
    assert 0 < best < max(losses) == best + config.patience * config.validate_every < 400
    assert losses[max(losses)] > losses[best]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["best_step"], summary["validation_loss"], summary["steps"]) == (best, losses[best], max(losses))
    final = load_model(tmp_path / "final", device="cpu").model.state_dict()
    for name, tensor in loaded.model.state_dict().items():
        assert torch.equal(tensor, weights_by_step[best][name])
        assert torch.equal(final[name], tensor)
    assert not torch.equal(final["lm_head.weight"], weights_by_step[max(losses)]["lm_head.weight"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sft")
    train(path, settings(), learnable_rollouts())
    return path


@pytest.mark.parametrize("kills", first_quick([[1], [4], [5], [8, 9, 11], [16]]))
def test_a_killed_run_ends_with_exactly_the_same_weights(uninterrupted: Path, tmp_path: Path, kills: list[int]):
    for kill_at in kills:
        with pytest.raises(Killed):
            train(tmp_path, settings(), learnable_rollouts(), kill_at)
        assert not (tmp_path / "final").exists()
    train(tmp_path, settings(), learnable_rollouts())
    assert weights_of(tmp_path) == weights_of(uninterrupted)
    assert without_times(tmp_path) == without_times(uninterrupted)
    assert (tmp_path / "summary.json").read_bytes() == (uninterrupted / "summary.json").read_bytes()


@pytest.mark.parametrize("kill_at", [3, 4])
def test_a_kill_while_a_checkpoint_is_written_does_not_change_the_result(
    uninterrupted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int
):
    save, written = Run.save_checkpoint, []

    def save_checkpoint(self: Run, name: str, write: Any, progress: Any = None) -> Path:
        written.append(name)
        if len(written) == kill_at:
            raise Killed
        return save(self, name, write, progress)

    monkeypatch.setattr(Run, "save_checkpoint", save_checkpoint)
    with pytest.raises(Killed):
        train(tmp_path, settings(), learnable_rollouts())
    assert written == ["4", "best", "8", "best"][:kill_at]
    monkeypatch.undo()
    train(tmp_path, settings(), learnable_rollouts())
    assert weights_of(tmp_path) == weights_of(uninterrupted)


def test_a_validation_loss_that_is_never_finite_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Learner, "mean_loss", lambda self, samples: math.nan)
    with pytest.raises(TrainingError, match="validation_loss was not a finite number in any of 2 steps"):
        train(tmp_path, settings(epochs=1, batch_size=16), learnable_rollouts())


def test_a_finished_run_is_not_changed(uninterrupted: Path):
    weights, metrics = weights_of(uninterrupted), Run(uninterrupted).metrics()
    train(uninterrupted, settings(), learnable_rollouts())
    assert (weights_of(uninterrupted), Run(uninterrupted).metrics()) == (weights, metrics)


def test_only_the_newest_checkpoint_and_the_best_are_kept(uninterrupted: Path):
    assert sorted(p.name for p in (uninterrupted / "checkpoints").iterdir()) == ["16", "best"]


def test_the_learning_rate_warms_up_and_decays(uninterrupted: Path):
    rates = [m["optim/lr"] for m in Run(uninterrupted).metrics()]
    assert rates[0] < rates[1] > rates[2]
    assert rates[1:] == sorted(rates[1:], reverse=True)


def test_a_warm_up_that_is_longer_than_the_training_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    train(tmp_path, settings(epochs=1, batch_size=16, warmup_steps=20), random_rollouts())
    assert "2 steps, 20 of warm-up: the learning rate never reaches 0.01; lower warmup_steps" in caplog.text


def test_every_conversation_is_used_at_most_once_per_epoch():
    from rove.train.sft import _batch

    config = settings(batch_size=4)
    training = [sequences_from_messages(tiny_model().renderer, [*r.prompt, *r.completion]) for r in random_rollouts(14)]
    epochs = [
        [id(conversation) for step in range(3 * e, 3 * e + 3) for conversation in _batch(config, step, training)]
        for e in range(2)
    ]
    for epoch in epochs:
        assert len(set(epoch)) == 12  # 14 conversations give three batches of four; the two unused ones change by epoch
    assert epochs[0] != epochs[1]


def test_failed_empty_and_low_reward_rollouts_are_excluded():
    records = [
        record("a", "1", reward=1.0),
        record("b", "2", reward=0.5),
        record("c", "3", reward=None),
        make_rollout(prompt=[UserMessage("d")], reward=1.0),
        record("e", "5", reward=0.9),
    ]

    def questions(**fields: Any) -> list[Any]:
        return [c.messages[0]["content"] for c in SFTData(records, settings(**fields)).conversations]

    assert questions(min_reward=0.9) == ["a", "e"]
    assert questions(max_examples=2) == ["a", "b"]
    with pytest.raises(
        ConfigError, match=r"1 of 5 .* are left; 2 have a reward below 1\.0; 1 were not scored; 1 have no response"
    ):
        questions(min_reward=1.0)


@pytest.mark.parametrize("fraction", [0.01, 0.5, 0.99])
def test_the_split_has_training_and_validation_data_for_any_fraction(fraction: float):
    renderer = tiny_model().renderer
    for count in (2, 5):
        for keys in ("aaaaa", "abcde", "abbbb"):
            conversations = [
                Conversation([*r.prompt, *r.completion], example_key=k)
                for r, k in zip(random_rollouts(count), keys, strict=False)
            ]
            config = settings(validation_fraction=fraction)
            training, held_out = split(tokenize(renderer, conversations, config, 1024), config)
            assert len(training) >= 1 and len(held_out) >= 1
            all_ids = sorted(sequences_from_messages(renderer, c.messages)[0].ids for c in conversations)
            assert sorted([s.ids for c in training for s in c] + [s.ids for s in held_out]) == all_ids


@pytest.mark.parametrize("seed", range(3))
def test_no_example_is_in_both_training_and_validation_data(seed: int):
    renderer = tiny_model().renderer
    records = [record(f"question {i}", str(j), example_key=str(i)) for i in range(10) for j in range(4)]
    config = settings(validation_fraction=0.3, seed=seed)
    training, held_out = split(tokenize(renderer, SFTData(records, config).conversations, config, 1024), config)
    assert (len(training), len(held_out)) == (28, 12)

    def questions(samples: list[TrainingSequence]) -> set[str]:
        return {re.findall("question [0-9]", renderer.decode(sequence.ids))[0] for sequence in samples}

    assert not questions([sequence for conversation in training for sequence in conversation]) & questions(held_out)
    assert len(questions(held_out)) == 3


def test_rollouts_of_a_single_example_cause_a_warning(tmp_path: Path):
    for name, keys in (("one", "aa"), ("two", "ab")):
        with Run(tmp_path / name) as run:
            run.start("eval", {}, {})
            for index, key in enumerate(keys):
                run.append_rollout(record("a", "b", example_key=key, example_id=index, rollout_index=index))
    assert (
        "all conversations are of one example" in warnings_of(settings(), SFTData(tmp_path / "one", settings()))[0].text
    )
    assert warnings_of(settings(), SFTData(tmp_path / "two", settings())) == []


@each_row(
    "wrong",
    [{"epochs": 0}, {"batch_size": 0}, {"patience": 0}, {"validation_fraction": 0.0}, {"validation_fraction": 1.0}],
)
def test_invalid_settings_are_rejected(wrong: dict[str, Any]):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        settings(**wrong).check()


def step(prompt: list[Any], reply: str, tools: Any = None) -> TrajectoryStep:
    return TrajectoryStep(list(prompt), [AssistantMessage(reply)], tools=tools)


def test_a_rollout_with_alternating_turns_is_one_conversation():
    first = step([UserMessage("a")], "1")
    second = step([*first.prompt, *first.completion, UserMessage("b")], "2")
    completion = [*first.completion, UserMessage("b"), *second.completion, UserMessage("bye")]
    rollout = make_rollout(
        prompt=first.prompt, completion=completion, steps=[first, second], tools=[{"type": "function"}]
    )
    assert conversations_of(rollout) == [
        Conversation([UserMessage("a"), *completion], [{"type": "function"}], None, "a", 1)
    ]


@pytest.mark.parametrize("key", ["a", "a#2", "a@5"])
def test_repeated_and_asynchronous_rollouts_of_an_example_have_its_key(key: str):
    rollout = msgspec.structs.replace(record("a", "1"), example_key=key)
    assert [conversation.example_key for conversation in conversations_of(rollout)] == ["a"]


def test_a_conversation_whose_tools_changed_has_those_of_its_last_request():
    first = step([UserMessage("a")], "1", tools=[])
    rollout = make_rollout(
        prompt=first.prompt, completion=first.completion, steps=[first], tools=[{"type": "function"}]
    )
    assert [conversation.tools for conversation in conversations_of(rollout)] == [None]


def test_an_agents_conversations_are_trained_as_the_model_saw_them():
    first = step([UserMessage("system words"), UserMessage("a")], "1")
    helper = step([UserMessage("help")], "yes", tools=[])
    second = step([*first.prompt, *first.completion, AssistantMessage("put in its mouth"), UserMessage("b")], "2")
    rewritten = step([UserMessage("all in all: 1, 2")], "3")
    completion = [AssistantMessage("2"), AssistantMessage("the agent's answer")]
    steps = [first, helper, second, rewritten]
    rollout = make_rollout(prompt=[UserMessage("a")], completion=completion, steps=steps, tools=[{"type": "function"}])
    main, helper_conversation, rewritten_conversation = conversations_of(rollout)
    assert main == Conversation([*second.prompt, *second.completion], [{"type": "function"}], frozenset({2, 5}), "a", 0)
    assert helper_conversation == Conversation([*helper.prompt, *helper.completion], None, frozenset({1}), "a", 0)
    assert rewritten_conversation.sampled_messages == frozenset({1})
    renderer = tiny_model().renderer
    [sequence] = sequences_from_messages(renderer, main.messages, None, main.sampled_messages)
    assert renderer.decode([i for i, m in zip(sequence.ids, sequence.mask, strict=True) if m]) == "1<|end|>2<|end|>"
