"""Checkpoints: saving, restoring and recovery from damage."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import tiny_model
from tiers import some_quick

import rove as vf
from rove.core.errors import RunError
from rove.models.load import LoadedModel, load_model
from rove.runs.run import Run
from rove.train.batch import micro_batches
from rove.train.checkpoint import STATE, check_weights, recover, restore_checkpoint, restore_weights, save_checkpoint
from rove.train.config import RLConfig
from rove.train.losses import cross_entropy
from rove.train.rl import train_rl
from rove.train.sequences import TrainingSequence
from rove.train.sharding import check_shards, read_shards, write_shards
from rove.train.trainer import Trainer

CONFIG = RLConfig(
    env="letters",
    model="models/new",
    steps=6,
    batch_size=8,
    rollouts_per_example=2,
    learning_rate=1e-2,
    warmup_steps=2,
    max_tokens=3,
    checkpoint_every=2,
    keep_checkpoints=2,
    threads=1,
)


class Killed(Exception):
    """Simulates `kill -9`."""


def letters(completion: vf.Messages) -> float:
    """Return the fraction of lowercase letters in the assistant messages."""
    text = "".join(m["content"] for m in completion if m["role"] == "assistant")
    return sum("a" <= c <= "z" for c in text) / max(1, len(text))


def train(path: Path, kill_at: int | None = None) -> None:
    def on_step(step: int, metrics: Any) -> None:
        if step == kill_at:
            raise Killed

    rubric = vf.Rubric()
    rubric.add_reward_func(letters, weight=1.0)
    env = vf.SingleTurnEnv(dataset=[{"question": f"say {n}"} for n in range(4)], rubric=rubric)
    with Run(path) as run:
        run.start("rl", {}, {})
        asyncio.run(train_rl(CONFIG, env, tiny_model(), run, on_step))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that was killed at step 5 and has checkpoints of steps 2 and 4."""
    path = tmp_path_factory.mktemp("rl") / "run"
    with pytest.raises(Killed):
        train(path, kill_at=5)
    return path


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def flip_byte(file: Path) -> None:
    """Change one byte in the middle of a file, which is a tensor's value in weights."""
    content = bytearray(file.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    file.write_bytes(content)


def change_line(file: Path, number: int) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    lines[number - 1] = b"\0" * (len(lines[number - 1]) - 1) + b"\n"
    file.write_bytes(b"".join(lines))


class CodeRunner:
    """An object that runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("/nonexistent/ran",))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "trainer.pt is cut off": (lambda run: truncate(run / "checkpoints/4/trainer.pt"), r"trainer\.pt cannot be read"),
    "trainer.pt is empty": (
        lambda run: (run / "checkpoints/4/trainer.pt").write_bytes(b""),
        r"trainer\.pt cannot be read",
    ),
    "trainer.pt is missing": (lambda run: (run / "checkpoints/4/trainer.pt").unlink(), r"it has no trainer\.pt"),
    "trainer.pt holds code": (
        lambda run: torch.save({"optimizer": CodeRunner()}, run / "checkpoints/4/trainer.pt"),
        r"trainer\.pt cannot be read \(Weights only load failed",
    ),
    "trainer.pt holds something else": (
        lambda run: torch.save([1], run / "checkpoints/4/trainer.pt"),
        r"trainer\.pt has no state of an optimizer",
    ),
    "the weights are cut off": (
        lambda run: truncate(run / "checkpoints/4/model.safetensors"),
        r"model\.safetensors cannot be read",
    ),
    "a byte of the weights is flipped": (
        lambda run: flip_byte(run / "checkpoints/4/model.safetensors"),
        r"model\.safetensors changed or went missing since CHECKSUMS was written",
    ),
    "a byte of the optimizer is flipped": (
        lambda run: flip_byte(run / "checkpoints/4/trainer.pt"),
        r"trainer\.pt changed or went missing",
    ),
    "a file of the tokenizer is missing": (
        lambda run: (run / "checkpoints/4/tokenizer.json").unlink(),
        r"tokenizer\.json changed or went missing",
    ),
    "the checksums are damaged": (
        lambda run: (run / "checkpoints/4/CHECKSUMS").write_bytes(b"\xff\xfe"),
        r"CHECKSUMS cannot be read",
    ),
    "the weights are missing": (
        lambda run: (run / "checkpoints/4/model.safetensors").unlink(),
        r"has no \.safetensors file",
    ),
    "progress.json is cut off": (
        lambda run: truncate(run / "checkpoints/4/progress.json"),
        r"progress\.json is damaged",
    ),
    "progress.json is missing": (
        lambda run: (run / "checkpoints/4/progress.json").unlink(),
        r"progress\.json is missing",
    ),
    "progress.json has other types": (
        lambda run: (run / "checkpoints/4/progress.json").write_text('{"step": -1}'),
        r"progress\.json is damaged",
    ),
    "a line of metrics is damaged": (
        lambda run: change_line(run / "metrics.jsonl", 3),
        r"metrics\.jsonl, line 3: not a row",
    ),
    "rollouts are cut off": (lambda run: truncate(run / "rollouts.jsonl"), r"rollouts\.jsonl has [\d,]+ bytes where"),
    "metrics are cut off": (lambda run: truncate(run / "metrics.jsonl"), r"metrics\.jsonl has [\d,]+ bytes where"),
}


@pytest.mark.parametrize("name", some_quick(DAMAGES, 5, broad_every=4))
def test_a_damaged_run_resumes_from_the_previous_checkpoint(
    stopped: Path, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    damage, reason = DAMAGES[name]
    damage(path)
    with caplog.at_level(logging.WARNING, "rove.train.learner"), pytest.raises(Killed):
        train(path, kill_at=3)
    assert [row["step"] for row in Run(path).metrics()] == [1, 2, 3]
    [message] = [entry.getMessage() for entry in caplog.records if entry.name == "rove.train.learner"]
    assert message.startswith(f"checkpoint {path}/checkpoints/4 is damaged: ")
    assert message.endswith("It was renamed to 4.damaged; training resumes after step 2")
    assert re.search(reason, message)
    assert sorted(entry.name for entry in (path / "checkpoints").iterdir()) == ["2", "4.damaged"]


@pytest.mark.broad
def test_a_run_resumed_after_damage_ends_with_the_same_weights(stopped: Path, tmp_path: Path):
    for name in ("whole", "damaged"):
        shutil.copytree(stopped, tmp_path / name)
    truncate(tmp_path / "damaged/checkpoints/4/model.safetensors")
    for name in ("whole", "damaged"):
        train(tmp_path / name)
    copy_weights = [(tmp_path / name / "final/model.safetensors").read_bytes() for name in ("whole", "damaged")]
    assert copy_weights[0] == copy_weights[1]
    assert sorted(entry.name for entry in (tmp_path / "damaged/checkpoints").iterdir()) == ["4", "4.damaged", "6"]


def test_no_file_is_changed_if_no_checkpoint_is_intact(stopped: Path, tmp_path: Path):
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    truncate(path / "checkpoints/2/model.safetensors")
    change_line(path / "metrics.jsonl", 3)
    old_files = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    with pytest.raises(
        RunError, match=r"(?s)no checkpoint of .* is intact:.*step 4: metrics.*step 2: model.*--overwrite"
    ):
        recover(Run(path))
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == old_files


def test_recover_does_not_change_an_intact_run(stopped: Path):
    assert recover(Run(stopped)) == []
    assert [path.name for path in Run(stopped).checkpoints()] == ["4", "2"]


def test_a_checkpoint_damaged_twice_is_renamed_twice(stopped: Path, tmp_path: Path):
    path = tmp_path / "run"
    for count in (1, 2):
        shutil.copytree(stopped, path, dirs_exist_ok=True)
        (path / "checkpoints/4/progress.json").unlink()
        assert len(recover(Run(path))) == 1
        assert len(list((path / "checkpoints").glob("4.damaged*"))) == count


def test_damaged_best_weights_are_an_error(stopped: Path, tmp_path: Path):
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    shutil.copytree(path / "checkpoints/2", path / "checkpoints/best")
    truncate(path / "checkpoints/best/model.safetensors")
    with pytest.raises(
        RunError, match=r"best holds the best weights of this run and is damaged: model\.safetensors cannot"
    ):
        recover(Run(path))


def test_flipped_best_weights_are_an_error(stopped: Path, tmp_path: Path):
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    shutil.copytree(path / "checkpoints/2", path / "checkpoints/best")
    assert recover(Run(path)) == []
    flip_byte(path / "checkpoints/best/model.safetensors")
    with pytest.raises(
        RunError, match=r"best weights of this run and is damaged: model\.safetensors changed or went missing"
    ):
        recover(Run(path))


@pytest.mark.parametrize("file", ["model.safetensors", "trainer.pt"])
def test_a_flipped_byte_makes_an_older_checkpoint_the_newest(file: str, stopped: Path, tmp_path: Path):
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    flip_byte(path / "checkpoints/4" / file)
    [message] = recover(Run(path))
    assert f"checkpoints/4 is damaged: {file} changed or went missing" in message
    assert message.endswith("It was renamed to 4.damaged; training resumes after step 2")


def test_a_checkpoint_of_an_older_version_without_checksums_is_resumed(stopped: Path, tmp_path: Path):
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    for file in path.glob("checkpoints/*/CHECKSUMS"):
        file.unlink()
    assert recover(Run(path)) == []


def test_checksums_are_in_the_format_of_b2sum(stopped: Path):
    lines = (stopped / "checkpoints/4/CHECKSUMS").read_text().splitlines()
    names = [line.partition("  ")[2] for line in lines]
    assert {"model.safetensors", "trainer.pt", "progress.json", "tokenizer.json"} <= set(names)
    assert all(re.fullmatch(r"[0-9a-f]{128}  \S+", line) for line in lines)


def test_damaged_alerts_do_not_prevent_a_run_from_resuming(stopped: Path, tmp_path: Path):
    path = tmp_path / "run"
    shutil.copytree(stopped, path)
    (path / "alerts.jsonl").write_bytes(b'{"step": 1, "text": "x"}\n{"st\n{"step": 3}\n{"text": "y"}\n')
    run = Run(path)
    last = run.last_checkpoint()
    assert last is not None
    run.cut(last[1])
    assert [alert["step"] for alert in run.alerts()] == [1, 3]


def test_a_missing_weight_shard_is_an_error(tmp_path: Path):
    loaded = tiny_model()
    loaded.model.save_pretrained(tmp_path, max_shard_size="20KB")
    check_weights(tmp_path)
    last_shard = sorted(tmp_path.glob("*.safetensors"))[-1]
    last_shard.unlink()
    with pytest.raises(RunError, match=f"{last_shard.name} cannot be read"):
        check_weights(tmp_path)


def test_damaged_weights_are_an_error_that_names_the_file(tmp_path: Path):
    loaded = tiny_model()
    trainer = Trainer(loaded.model, 1e-2)
    save_checkpoint(tmp_path, loaded, trainer)
    truncate(tmp_path / "model.safetensors")
    with pytest.raises(RunError, match=r"model\.safetensors cannot be read"):
        restore_weights(tmp_path, loaded)
    save_checkpoint(tmp_path, loaded, trainer)
    torch.save({"optimizer": {"state": {}, "param_groups": []}}, tmp_path / STATE)
    with pytest.raises(RunError, match=r"trainer\.pt is of another optimizer"):
        restore_checkpoint(tmp_path, loaded, trainer)


# Sharded checkpoints, as written by several processes


@pytest.fixture
def shards(tmp_path: Path) -> tuple[Path, Any]:
    loaded = tiny_model()
    trainer = Trainer(loaded.model, 1e-2)
    write_shards(tmp_path, loaded.model, trainer.optimizer, None)
    return tmp_path, trainer


@pytest.mark.filterwarnings("ignore")
def test_shards_are_checked_and_read(shards: tuple[Path, Any]):
    path, trainer = shards
    check_shards(path)
    with torch.no_grad():
        old_weight = trainer.model.lm_head.weight.clone()
        trainer.model.lm_head.weight.zero_()
    read_shards(path, trainer.model, trainer.optimizer, None)
    assert torch.equal(trainer.model.lm_head.weight, old_weight)


@pytest.mark.filterwarnings("ignore")
def test_damaged_shards_are_rejected(shards: tuple[Path, Any], tmp_path: Path):
    path, trainer = shards
    [part] = (path / "shards").glob("*.distcp")
    truncate(part)
    with pytest.raises(RunError, match=r"shards/__0_0\.distcp has [\d,]+ bytes; expected [\d,]+"):
        check_shards(path)
    metadata = path / "shards/.metadata"
    content = metadata.read_bytes()
    for broken in (b"", content[:100], b"\0" * 50):
        metadata.write_bytes(broken)
        with pytest.raises(RunError, match=r"shards/\.metadata cannot be read"):
            read_shards(path, trainer.model, trainer.optimizer, None)
    target = tmp_path / "elsewhere"
    target.write_bytes(content)
    metadata.unlink()
    metadata.symlink_to(target)
    with pytest.raises(RunError, match="is a symbolic link"):
        check_shards(path)


class FolderCreator:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.filterwarnings("ignore")
def test_code_in_shards_is_never_run(tmp_path: Path):
    """Covers the metadata, which PyTorch unpickles, and plain values, which it loads with `weights_only=False`."""
    ran, path = tmp_path / "ran", tmp_path / "checkpoint"
    loaded = tiny_model()
    trainer = Trainer(loaded.model, 1e-2)
    trainer.optimizer.param_groups[0]["lr"] = FolderCreator(ran)
    write_shards(path, loaded.model, trainer.optimizer, None)
    trainer.optimizer.param_groups[0]["lr"] = 1e-2
    with pytest.raises(RunError, match="shards cannot be read: .*Weights only load failed"):
        read_shards(path, loaded.model, trainer.optimizer, None)
    assert not ran.exists()
    (path / "shards/.metadata").write_bytes(pickle.dumps(FolderCreator(ran)))
    with pytest.raises(RunError, match=r"posix\.mkdir does not belong in a checkpoint"):
        read_shards(path, loaded.model, trainer.optimizer, None)
    assert not ran.exists()


ARCHITECTURES = ["llama", "qwen3", "lfm2"]


def train_steps(loaded: LoadedModel, trainer: Trainer, count: int, start: int = 0) -> None:
    for step in range(start, start + count):
        sequences = [TrainingSequence([step, 7, 8, 9], [False, True, True, True], [0.0] * 4, [0.0, 1.0, 1.0, 1.0])]
        trainer.step(micro_batches(sequences, 100), cross_entropy, 3, lr_scale=1 / (step + 1))


def copy_weights(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in loaded.model.state_dict().items()}


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_resuming_after_two_steps_gives_the_exact_weights_of_four_steps(arch: str, tmp_path: Path):
    loaded = tiny_model(arch)
    trainer = Trainer(loaded.model, 1e-2, weight_decay=0.1)
    train_steps(loaded, trainer, 2)
    save_checkpoint(tmp_path, loaded, trainer)
    train_steps(loaded, trainer, 2, start=2)

    restored = tiny_model(arch, seed=5)  # as in a new process: other weights, a new optimizer
    resumed = Trainer(restored.model, 1e-2, weight_decay=0.1)
    restore_checkpoint(tmp_path, restored, resumed)
    train_steps(restored, resumed, 2, start=2)
    assert_equal(copy_weights(restored), copy_weights(loaded))


def test_weights_alone_do_not_restore_the_optimizer_state(tmp_path: Path):
    loaded = tiny_model()
    trainer = Trainer(loaded.model, 1e-2)
    train_steps(loaded, trainer, 2)
    save_checkpoint(tmp_path, loaded, trainer)
    train_steps(loaded, trainer, 1, start=2)
    restored = tiny_model()
    restore_weights(tmp_path, restored)
    train_steps(restored, Trainer(restored.model, 1e-2), 1, start=2)
    assert not torch.equal(restored.model.lm_head.weight, loaded.model.lm_head.weight)


def test_a_reference_model_is_restored_and_a_missing_one_is_an_error(tmp_path: Path):
    loaded, restored, reference = tiny_model(), tiny_model(), tiny_model(seed=3)
    trainer = Trainer(loaded.model, 1e-2)
    train_steps(loaded, trainer, 1)
    save_checkpoint(tmp_path / "with", loaded, trainer, reference.model)
    save_checkpoint(tmp_path / "without", loaded, trainer)
    restored_reference = tiny_model(seed=4)
    restore_checkpoint(tmp_path / "with", restored, Trainer(restored.model, 1e-2), restored_reference.model)
    assert_equal(copy_weights(restored_reference), copy_weights(reference))
    assert_equal(copy_weights(restored), copy_weights(loaded))
    with pytest.raises(RunError, match="no reference model"):
        restore_checkpoint(tmp_path / "without", restored, Trainer(restored.model, 1e-2), restored_reference.model)


def test_a_checkpoint_can_be_loaded_as_a_model_folder(tmp_path: Path):
    loaded = tiny_model()
    save_checkpoint(tmp_path, loaded, Trainer(loaded.model, 1e-2))
    reloaded = load_model(tmp_path, device="cpu")
    assert_equal(copy_weights(reloaded), copy_weights(loaded))
    assert reloaded.renderer.encode("hello") == loaded.renderer.encode("hello")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_tied_weights_stay_tied(arch: str, tmp_path: Path):
    loaded, restored = tiny_model(arch), tiny_model(arch, seed=1)
    loaded.save(tmp_path)
    restore_weights(tmp_path, restored)
    assert_equal(copy_weights(restored), copy_weights(loaded))
    assert restored.model.lm_head.weight is restored.model.get_input_embeddings().weight


def test_the_optimizer_updates_the_restored_weights(tmp_path: Path):
    loaded = tiny_model()
    trainer = Trainer(loaded.model, 1e-2)
    save_checkpoint(tmp_path, loaded, trainer)
    restore_checkpoint(tmp_path, loaded, trainer)
    weights_before = copy_weights(loaded)
    train_steps(loaded, trainer, 1)
    assert not torch.equal(loaded.model.lm_head.weight, weights_before["lm_head.weight"])


def test_a_folder_without_trainer_state_cannot_be_resumed(tmp_path: Path):
    loaded = tiny_model()
    loaded.save(tmp_path)
    weights_before = copy_weights(loaded)
    with pytest.raises(RunError, match=STATE):
        restore_checkpoint(tmp_path, loaded, Trainer(loaded.model, 1e-2))
    assert_equal(copy_weights(loaded), weights_before)


def test_weights_of_another_model_are_rejected(tmp_path: Path):
    tiny_model("llama").save(tmp_path / "llama")
    with pytest.raises(RunError, match="another model"):
        restore_weights(tmp_path / "llama", tiny_model("qwen3"))
    with pytest.raises(RunError, match="holds no weights"):
        restore_weights(tmp_path / "nothing here", tiny_model())
