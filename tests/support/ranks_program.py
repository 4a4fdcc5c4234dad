"""Train a few steps in one process or, with torchrun, in several; tests/train/test_worker_group.py compares the results.

ranks_program.py JOB.json   # see `Job`
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch
from fakes import tiny_model
from flat_settings import with_tables

from rove.core.config import convert
from rove.train.config import RLConfig
from rove.train.learner import Learner, add_lora
from rove.train.losses import cross_entropy
from rove.train.rl import objective_of
from rove.train.sequences import TrainingSequence
from rove.train.sharding import full_tensor
from rove.train.trainer import frozen_logprobs
from rove.train.worker_group import join_process_group


class Job(msgspec.Struct):
    out: str
    """File to which the first process writes the results."""
    arch: str = "llama"
    steps: tuple[int, int] = (0, 6)
    restore: str | None = None
    save: str | None = None
    replace_weights: tuple[int, str] | None = None
    """A step, and the folder whose weights replace those of the run after this step."""
    config: dict[str, Any] = {}


def ragged_sequences(count: int, seed: int = 0) -> list[TrainingSequence]:
    """Return sequences of many lengths, some of which have the same beginning."""
    rng, sequences = random.Random(seed), []
    begin = [rng.randrange(320) for _ in range(12)]
    for _ in range(count):
        ids = begin[: rng.randrange(12)] + [rng.randrange(320) for _ in range(rng.randrange(3, 30))]
        mask = [False] + [rng.random() < 0.4 for _ in ids[1:]]
        logprobs = [rng.uniform(-8, -3) if m else 0.0 for m in mask]
        sequences.append(TrainingSequence(ids, mask, logprobs, [rng.uniform(-1, 1) if m else 0.0 for m in mask]))
    return sequences


def settings(**fields: Any) -> RLConfig:
    defaults = {"env": "x", "model": "y", "micro_batch_tokens": 200, "threads": 1, "learning_rate": 1e-3}
    return convert(
        RLConfig, with_tables(defaults | {"loss__kl_penalty": 0.01, "loss__sync_reference_every": 2} | fields)
    )


def run(job: Job) -> None:
    """Take the steps; write the first gradient, the metrics of the last step, and the weights."""
    ranks, config = join_process_group(), settings(**job.config)
    is_same_base = job.restore is None or config.lora.rank  # an adapter's checkpoints do not contain its base
    loaded = add_lora(config, tiny_model(job.arch, seed=0 if is_same_base else 7))
    learner = Learner(config, objective_of(config), loaded, ranks)
    if job.restore is not None:
        learner.restore(Path(job.restore))
    samples, measured = ragged_sequences(24), {}
    gradient = _gradient(learner, samples) if job.restore is None else {}
    for step in range(*job.steps):
        measured = learner.update(step, random.Random(step).sample(samples, 16), 1.0)
        if step % 2:
            learner.update_reference()
        if job.replace_weights is not None and step == job.replace_weights[0]:
            learner.return_to(Path(job.replace_weights[1]))
    if job.save is not None:
        learner.save(Path(job.save))
    loss = learner.trainer.mean_loss(learner._batches(samples), cross_entropy)
    learner.gather()
    if ranks.is_first:
        weights = {name: p.detach() for name, p in learner.loaded.model.named_parameters()}
        torch.save({"gradient": gradient, "weights": weights, "measured": measured, "loss": loss}, job.out)


def _gradient(learner: Learner, samples: list[TrainingSequence]) -> dict[str, torch.Tensor]:
    learner.trainer.optimizer.zero_grad()
    learner.trainer.accumulate(_batches(learner, samples), learner.objective.loss, 100.0, 0.01)
    parameters = learner.trainer.model.named_parameters()
    return {name: full_tensor(p.grad).clone() for name, p in parameters if p.grad is not None}


def _batches(learner: Learner, samples: list[TrainingSequence]) -> Any:
    batches = learner._batches(samples)
    return [batch._replace(reference=frozen_logprobs(learner.reference, batch)) for batch in batches]


if __name__ == "__main__":
    run(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Job))
