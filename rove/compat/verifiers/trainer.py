"""The trainers of 0.1 and their settings, as rove's RL trainer: `GRPOTrainer(model, tokenizer, env, args).train()`."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from rove.compat.verifiers.mode import outdated
from rove.compat.verifiers.models import Model
from rove.core.config import merge, nested
from rove.core.errors import ConfigError
from rove.runs.run import Run

_RENAMED = {
    "learning_rate": "learning_rate",
    "max_steps": "steps",
    "warmup_steps": "warmup_steps",
    "num_iterations": "num_iterations",
    "num_generations": "rollouts_per_example",
    "rollouts_per_example": "rollouts_per_example",
    "batch_size": "batch_size",
    "max_completion_length": "max_tokens",
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "max_grad_norm": "max_grad_norm",
    "weight_decay": "weight_decay",
    "beta": "loss.kl_penalty",
    "epsilon": "loss.clip_low",
    "epsilon_high": "loss.clip_high",
    "num_batches_ahead": "max_off_policy_steps",
    "gradient_checkpointing": "activation_checkpointing",
    "save_steps": "checkpoint_every",
    "seed": "seed",
    "output_dir": "run_dir",
}
"""Their setting → ours, where the value means the same."""
_LOSSES = {"grpo": "grpo", "bnpo": "dapo", "dr_grpo": "dr_grpo"}
"""Their loss → ours: "bnpo" is GRPO with tokens of a batch weighed alike, as DAPO has it."""


class GRPOConfig(Model):
    """Settings of `GRPOTrainer`. What rove's trainer has, or finds by itself, is taken from them; see `rl_config`."""

    defaults: ClassVar = {
        "output_dir": None,
        "learning_rate": 1e-6,
        "max_steps": 500,
        "warmup_steps": 10,
        "num_iterations": 1,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_generations": 8,
        "max_completion_length": 512,
        "temperature": 1.0,
        "max_grad_norm": 1.0,
        "beta": 0.001,
        "epsilon": 0.2,
        "scale_rewards": False,
        "loss_type": "bnpo",
        "mask_truncated_completions": True,
        "sync_ref_model": False,
        "ref_model_sync_steps": 100,
        "num_batches_ahead": 1,
    }


class RLConfig(GRPOConfig):
    """Settings of `RLTrainer`, as of `GRPOTrainer`."""


def grpo_defaults(run_name: str) -> GRPOConfig:
    """The settings that 0.1.0 began with."""
    outdated("grpo_defaults", "write settings for `rove rl`: docs/settings.md")
    return GRPOConfig(
        run_name=run_name,
        output_dir=f"outputs/{run_name}",
        num_iterations=2,
        max_grad_norm=0.001,
        max_prompt_length=1024,
        max_completion_length=2048,
        gradient_accumulation_steps=4,
        gradient_checkpointing=True,
        lr_scheduler_type="constant_with_warmup",
    )


class LoraConfig(Model):
    """Of an adapter that is trained instead of the model; one of PEFT's does as well."""

    defaults: ClassVar = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": None}


def lora_defaults(r: int = 8, alpha: int = 16) -> LoraConfig:
    """The adapter that 0.1.0 began with."""
    outdated("lora_defaults", "write settings for `rove rl`: lora.rank, lora.alpha, lora.targets")
    return LoraConfig(r=r, lora_alpha=alpha, target_modules=["q_proj", "v_proj", "k_proj", "o_proj"])


def _lora(adapter: Any) -> dict[str, Any]:
    """rove's settings for an adapter."""
    if adapter is None:
        return {}
    targets = adapter.target_modules or []
    targets = [] if targets == "all-linear" else [targets] if isinstance(targets, str) else sorted(targets)
    named = {"lora.alpha": float(adapter.lora_alpha), "lora.dropout": float(adapter.lora_dropout or 0.0)}
    return {"lora.rank": adapter.r, "lora.targets": targets, **named}


def rl_config(args: Mapping[str, Any], env_id: str, adapter: Any = None) -> Any:
    """rove's settings for theirs.

    What has no counterpart, since rove does it otherwise (devices, vLLM servers, logging), is left out.

    Args:
        adapter: a `LoraConfig`.

    Raises:
        ConfigError: a loss that is not known.
    """
    kind = importlib.import_module("rove.train.config").RLConfig
    ours = {_RENAMED[name]: value for name, value in args.items() if name in _RENAMED and value is not None}
    loss = args.get("loss_type", "bnpo")
    if loss not in _LOSSES:
        raise ConfigError(f"loss_type is {loss!r}; expected one of {', '.join(_LOSSES)}")
    if "batch_size" not in args:
        ours["batch_size"] = args["per_device_train_batch_size"] * args["gradient_accumulation_steps"]
    ours["loss.kind"] = _LOSSES[loss]
    ours["advantage_estimator"] = "std" if args.get("scale_rewards") else "mean"
    ours["truncated"] = "mask" if args.get("mask_truncated_completions") else "keep"
    ours["max_off_policy_steps"] = min(1, ours.get("max_off_policy_steps", 0))
    ours["learning_rate"] = float(ours["learning_rate"])
    if str(args.get("lr_scheduler_type", "")).startswith("constant"):
        ours["final_lr_fraction"] = 1.0
    if args.get("sync_ref_model") and ours.get("loss.kl_penalty"):
        ours["loss.sync_reference_every"] = args["ref_model_sync_steps"]
    if ours.get("run_dir") is None:
        ours.pop("run_dir", None)
    values: dict[str, Any] = {"env": env_id or "env", "model": ""}
    for name, value in {**ours, **_lora(adapter)}.items():
        merge(values, nested(name, value))
    return msgspec.convert(values, kind)


class GRPOTrainer:
    """Trains a model in an environment, by rove's RL trainer; what it writes is a run folder.

    Args:
        model: a folder, or a transformers model, which is trained in place.
        processing_class: its tokenizer; needed where the model is no folder.
        env: of rove.compat, or of rove.
        args: a `GRPOConfig`.
        peft_config: of a LoRA adapter, which is trained instead of the model.
    """

    def __init__(
        self,
        model: Any,
        processing_class: Any = None,
        env: Any = None,
        args: Any = None,
        peft_config: Any = None,
        **ignored: Any,
    ):
        outdated(type(self).__name__, "train with `rove rl`, or rove.train.rl.train_rl")
        if env is None:
            raise ConfigError(f"{type(self).__name__} needs env=, an environment")
        self.model = model
        self.tokenizer = processing_class
        self.env = env
        self.args = args if args is not None else GRPOConfig()
        self.peft_config = peft_config
        self.run: Run | None = None
        """The run folder, after `train`."""

    def train(self) -> Path:
        """Train; returns the folder of the final model."""
        train_rl = importlib.import_module("rove.train.rl").train_rl
        loaded = self._loaded()
        config = rl_config(self.args, self.env.env_id, self.peft_config)
        env = self.env.__rove_environment__() if hasattr(self.env, "__rove_environment__") else self.env
        self.run = Run(config.run_dir or Path("runs") / f"{self.args.get('run_name') or env.env_id or 'env'}--rl")
        with self.run as run:
            run.start("rl", msgspec.to_builtins(config), {"env": env.identity, "model": loaded.name})
            return asyncio.run(train_rl(config, env, loaded, run))

    def _loaded(self) -> Any:
        load = importlib.import_module("rove.models.load")
        if isinstance(self.model, (str, Path)):
            return load.load_model(self.model)
        if self.tokenizer is None:
            raise ConfigError(f"{type(self).__name__} needs processing_class=, the model's tokenizer")
        return load.prepare(self.model, self.tokenizer)


class RLTrainer(GRPOTrainer):
    """`GRPOTrainer` under the name it had from 0.1.8."""


def get_model_and_tokenizer(model_name: str, use_liger: bool = False, model_kwargs: Any = None) -> tuple[Any, Any]:
    """A transformers model and its tokenizer, from a folder or the local cache. The other arguments are of CUDA kernels that
    rove chooses by itself."""
    outdated("get_model_and_tokenizer", "load with rove.load_model")
    loaded = importlib.import_module("rove.models.load").load_model(model_name)
    return loaded.model, loaded.tokenizer


def get_model(model_name: str, use_liger: bool = False, model_kwargs: Any = None) -> Any:
    """The model of `get_model_and_tokenizer`."""
    return get_model_and_tokenizer(model_name, use_liger, model_kwargs)[0]


def get_tokenizer(model_name: str) -> Any:
    """The tokenizer of `get_model_and_tokenizer`."""
    return get_model_and_tokenizer(model_name)[1]
