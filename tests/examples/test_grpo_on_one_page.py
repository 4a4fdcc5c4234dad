"""The example `grpo_on_one_page.py` plays rove's game, and computes rove's gradient and learning curve."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import rove as vf
from rove.core.config import convert
from rove.core.protocols import Request, Response
from rove.core.records import RolloutRecord, StepTokens, Usage
from rove.engine.client import EngineClient
from rove.models.from_scratch import new_model
from rove.models.load import LoadedModel, load_model
from rove.rollouts.evaluate import conversation_texts
from rove.runs.run import Run
from rove.train.batch import can_pack, count_trained_tokens, micro_batches
from rove.train.collect import training_sequences, weigh
from rove.train.config import RLConfig
from rove.train.learner import Learner
from rove.train.rl import objective_of, train_rl
from rove.train.sequences import sequences_from_record

search_path = [*sys.path]
import grpo_on_one_page as example  # noqa: E402

sys.path[:] = search_path  # the example adds the folder of its game

ROOT = Path(__file__).resolve().parents[2]
SHORT_SAMPLING = {"max_tokens": 6}
"""Sampling arguments of short answers."""


def tictactoe(num_examples: int, **options: Any) -> vf.Environment:
    return vf.load_environment("tictactoe", ROOT / "environments", num_examples=num_examples, **options)


@pytest.fixture(scope="module")
def untrained() -> LoadedModel:
    """A model with random weights and a tokenizer of the game."""
    env = tictactoe(16)
    games = env.generate_sync(vf.ScriptedClient(env.policies["teacher"], "teacher"), num_examples=16)
    return new_model(conversation_texts(games), seed=3)


class PolicyWithTokens:
    """A scripted policy whose answers have tokens, as those of a model do."""

    max_concurrent = 8

    def __init__(self, env: vf.Environment, policy: str, loaded: LoadedModel):
        self.policy = vf.ScriptedClient(env.policies[policy], policy)
        self.renderer = loaded.renderer

    async def respond(self, request: Request) -> Response:
        answer = (await self.policy.respond(request)).message
        prompt_ids = self.renderer.prompt_ids(request.messages, request.previous)
        completion_ids = [*self.renderer.encode(answer.content), *self.renderer.stop_ids]
        tokens = StepTokens(prompt_ids, completion_ids, [-0.5] * len(completion_ids))
        return Response(answer, Usage(len(prompt_ids), len(completion_ids)), tokens=tokens)

    async def close(self) -> None: ...


def add_answers(game: example.Game, record: RolloutRecord) -> None:
    """Give the example's game the answers of a rollout."""
    for step in record.steps:
        assert not game.is_over and step.tokens is not None
        game.add_answer(step.tokens.completion_ids, step.tokens.logprobs)


@pytest.mark.parametrize("policy", ["random", "teacher", "model"])
def test_the_game_equals_that_of_rove(untrained: LoadedModel, policy: str) -> None:
    env = tictactoe(4)
    # The answers of the untrained model are invalid, and they are cut off after a few tokens.
    client: Any = EngineClient.from_model(untrained)
    if policy != "model":
        client = PolicyWithTokens(env, policy, untrained)
    rows = env.get_dataset()
    for record in env.generate_sync(
        client, num_examples=4, rollouts_per_example=1, train=True, sampling_args=SHORT_SAMPLING
    ):
        game = example.Game(rows[record.example_id], untrained.tokenizer)
        add_answers(game, record)
        assert game.is_over
        [sequence] = sequences_from_record(record, 1.0)
        assert game.ids == sequence.ids
        assert game.mask == sequence.mask
        assert game.logprobs == sequence.logprobs
        assert game.reward() == pytest.approx(record.reward)


def test_the_sampled_log_probabilities_are_those_of_the_loss(
    untrained: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = plain_copy(untrained, tmp_path)
    monkeypatch.setattr(example, "MAX_TURNS", 3)
    games = [example.Game(row, tokenizer) for row in tictactoe(4).get_dataset()]
    torch.manual_seed(0)
    example.sample_games(model, games, temperature=1.3, max_tokens=5)
    for game in games:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([game.ids])).logits[0, :-1] / 1.3
        logprobs = logits.log_softmax(1).gather(1, torch.tensor(game.ids[1:])[:, None])[:, 0]
        mask = torch.tensor(game.mask[1:])
        torch.testing.assert_close(torch.tensor(game.logprobs[1:])[mask], logprobs[mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("loss", "scale", "is_clipped"), [("cispo", 0.01, False), ("grpo", 1.0, True)])
def test_the_gradient_equals_that_of_rove(
    untrained: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, scale: float, is_clipped: bool
) -> None:
    env = tictactoe(3, max_turns=2)
    monkeypatch.setattr(example, "MAX_TURNS", 2)
    sampled = env.generate_sync(
        EngineClient.from_model(untrained),
        num_examples=3,
        rollouts_per_example=4,
        train=True,
        sampling_args={**SHORT_SAMPLING, "temperature": 1.2},
    )
    # The untrained model never wins, so the rewards are made up. Those of the second group are equal.
    rewards = [0.3, 1.2, 0.0, 0.7, 0.5, 0.5, 0.5, 0.5, 1.2, 1.2, -0.1, 0.2]
    records = [with_reward(record, scale * reward) for record, reward in zip(sampled, rewards, strict=True)]
    # Rollouts of different lengths show how the loss combines tokens.
    records[1::2] = [msgspec.structs.replace(record, steps=record.steps[:1]) for record in records[1::2]]
    expected = gradient_of_rove(records, untrained, {"kind": loss})
    assert (norm_of(expected) > 0.999) == is_clipped

    def sample_games(model: Any, games: list[example.Game], *options: Any) -> None:
        for game, record in zip(games, records, strict=True):
            add_answers(game, record)
            monkeypatch.setattr(game, "reward", lambda record=record: record.reward)

    monkeypatch.setattr(example, "sample_games", sample_games)
    model, tokenizer = plain_copy(untrained, tmp_path)
    example.train(
        model,
        tokenizer,
        env.get_dataset(),
        steps=1,
        num_groups=3,
        group_size=4,
        learning_rate=0.0,
        temperature=1.2,
    )
    assert difference({name: weights.grad for name, weights in model.named_parameters()}, expected) < 1e-5


def with_reward(record: RolloutRecord, reward: float) -> RolloutRecord:
    assert record.scores is not None
    return msgspec.structs.replace(record, scores=msgspec.structs.replace(record.scores, reward=reward))


def gradient_of_rove(records: list[RolloutRecord], loaded: LoadedModel, loss: dict[str, Any]) -> dict[str, Any]:
    """Return the gradient of one step of `rove rl` on these rollouts, clipped to the norm 1."""
    config = convert(RLConfig, {"env": "tictactoe", "model": "", "loss": loss, "micro_batch_tokens": 256})
    rollouts, _ = training_sequences(records)
    sequences = weigh(rollouts, config.aggregation, config.aggregation_constant)
    learner = Learner(config, objective_of(config), loaded)
    batches = micro_batches(sequences, config.micro_batch_tokens, pack=can_pack(loaded.model))
    learner.trainer.accumulate(batches, learner.objective.loss, count_trained_tokens(sequences))
    torch.nn.utils.clip_grad_norm_(loaded.model.parameters(), config.max_grad_norm)
    gradient = {name: weights.grad.clone() for name, weights in loaded.model.named_parameters()}
    loaded.model.zero_grad()
    return gradient


def difference(gradient: dict[str, Any], expected: dict[str, Any]) -> float:
    """Return the largest difference of two gradients, relative to the norm of the expected one."""
    assert gradient.keys() == expected.keys()
    return max((gradient[name] - expected[name]).abs().max().item() for name in expected) / norm_of(expected)


def norm_of(gradient: dict[str, Any]) -> float:
    return torch.cat([values.flatten() for values in gradient.values()]).norm().item()


def plain_copy(loaded: LoadedModel, folder: Path) -> tuple[Any, Any]:
    """Return the model and the tokenizer as transformers alone loads them."""
    loaded.save_final(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(folder / "model")


STEPS, GROUPS = 20, 8
ROVE_SEEDS = range(3)
SMALLER = {"14000": "1500", '{"num_examples": 14000}': '{"num_examples": 1500}', "1000": "8"}
"""What the test replaces in the commands of the page."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the commands of the page ran up to SFT, with less data."""
    folder = tmp_path_factory.mktemp("one_page")
    for command in page_commands()[:3]:
        run(command, folder)
    return folder


def page_commands() -> list[list[str]]:
    text = (ROOT / "docs/grpo_on_one_page.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```bash\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    assert block in (example.__doc__ or "").replace("\n    ", "\n") + "\n"
    return [[SMALLER.get(word, word) for word in shlex.split(line)] for line in block.splitlines()]


def run(command: list[str], folder: Path) -> None:
    """Run a command of the page, `rove …` or `python examples/…`."""
    program = ["-m", "rove", *command[1:]] if command[0] == "rove" else [str(ROOT / command[1]), *command[2:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_the_commands_of_the_page(folder: Path) -> None:
    sample, evaluate = page_commands()[3:]
    run([*sample, "--steps", "2", "--num-groups", "2"], folder)
    run(evaluate, folder)
    assert load_model(folder / "models/grpo").model.config.vocab_size > 0


@pytest.mark.slow
def test_the_curve_is_within_roves_spread(folder: Path) -> None:
    """In each quarter of the run, the example's mean reward is where another seed of rove is expected (3 sigma)."""
    rove_curves = torch.tensor([curve_of_rove(folder, seed) for seed in ROVE_SEEDS]).view(len(ROVE_SEEDS), 4, -1)
    model = AutoModelForCausalLM.from_pretrained(folder / "runs/sft/final", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder / "runs/sft/final")
    rows = tictactoe(STEPS * GROUPS, num_groups=GROUPS).get_dataset()
    curve = torch.tensor(example.train(model, tokenizer, rows, STEPS, GROUPS, max_tokens=16)).view(4, -1)

    quarters, mean = rove_curves.mean(dim=2), rove_curves.mean(dim=(0, 2))
    spread = quarters.var(dim=0).mean().sqrt()  # of one seed's quarter; the four quarters have about the same
    distance = (curve.mean(dim=1) - mean) / (spread * (1 + 1 / len(ROVE_SEEDS)) ** 0.5)
    print(f"rove {mean.tolist()} ± {spread:.3f}; example {curve.mean(dim=1).tolist()}; distances {distance.tolist()}")
    assert distance.abs().max() < 3


def curve_of_rove(folder: Path, seed: int) -> list[float]:
    """Return the mean reward of each step of `rove rl` with the example's settings."""
    settings = {"env": "tictactoe", "steps": STEPS, "batch_size": 8 * GROUPS, "max_tokens": 16, "threads": 1}
    config = convert(RLConfig, {**settings, "model": str(folder / "runs/sft/final"), "seed": seed})
    env = tictactoe(STEPS * GROUPS, num_groups=GROUPS)
    with Run(folder / f"runs/rl{seed}") as run:
        run.start("rl", settings, {})
        asyncio.run(train_rl(config, env, load_model(config.model, "cpu"), run))
        return [row["reward/mean"] for row in run.metrics()]
