"""The trainers of 0.1 on rove's RL trainer: `GRPOTrainer(model, tokenizer, env, args).train()`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from rove.compat.verifiers.messages import Model
from rove.compat.verifiers.release import outdated
from rove.core.config import convert, merge, nested
from rove.core.errors import ConfigError
from rove.runs.run import Run

_SETTINGS = {
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
"""v0's setting → rove's, for settings with the same meaning."""
_LOSSES = {"grpo": "grpo", "bnpo": "dapo", "dr_grpo": "dr_grpo"}
"""v0's loss → rove's. "bnpo" is GRPO with equal weights for all tokens of a batch, as in DAPO."""


class GRPOConfig(Model):
    """Settings of `GRPOTrainer`; `rl_config` converts them to rove's."""

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
    """Settings of `RLTrainer`; the same as those of `GRPOTrainer`."""


def grpo_defaults(run_name: str) -> GRPOConfig:
    """Return the default settings of 0.1.0."""
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
    """Settings of a LoRA adapter; PEFT's class works as well."""

    defaults: ClassVar = {"r": 8, "lora_alpha": 16, "lora_dropout": 0.0, "target_modules": None}


def lora_defaults(r: int = 8, alpha: int = 16) -> LoraConfig:
    """Return the default adapter of 0.1.0."""
    outdated("lora_defaults", "write settings for `rove rl`: lora.rank, lora.alpha, lora.targets")
    return LoraConfig(r=r, lora_alpha=alpha, target_modules=["q_proj", "v_proj", "k_proj", "o_proj"])


def _lora_settings(adapter: Any) -> dict[str, Any]:
    if adapter is None:
        return {}
    targets = adapter.target_modules or []
    if targets == "all-linear":
        targets = []  # PEFT's name for rove's default
    elif isinstance(targets, str):
        targets = [targets]
    return {
        "lora.rank": adapter.r,
        "lora.targets": sorted(targets),  # PEFT stores a set, whose order differs between processes
        "lora.alpha": float(adapter.lora_alpha),
        "lora.dropout": float(adapter.lora_dropout or 0.0),
    }


def rl_config(args: Mapping[str, Any], env_id: str, adapter: Any = None) -> Any:
    """Convert v0's settings to rove's. Settings without a counterpart (devices, vLLM servers, logging) are dropped."""
    from rove.train.config import RLConfig as RoveRLConfig

    settings: dict[str, Any] = {}
    for name, value in args.items():
        if name in _SETTINGS and value is not None:
            settings[_SETTINGS[name]] = value
    loss = args.get("loss_type", "bnpo")
    if loss not in _LOSSES:
        raise ConfigError(f"loss_type is {loss!r}; expected one of {', '.join(_LOSSES)}")
    if "batch_size" not in args:
        settings["batch_size"] = args["per_device_train_batch_size"] * args["gradient_accumulation_steps"]
    settings["loss.kind"] = _LOSSES[loss]
    settings["advantage_estimator"] = "std" if args.get("scale_rewards") else "mean"
    settings["truncated"] = "mask" if args.get("mask_truncated_completions") else "keep"
    # v0 samples any number of batches ahead; rove's trainer at most one.
    settings["max_off_policy_steps"] = min(1, settings.get("max_off_policy_steps", 0))
    # YAML reads 1e-6 as text.
    settings["learning_rate"] = float(settings["learning_rate"])
    if str(args.get("lr_scheduler_type", "")).startswith("constant"):
        settings["final_lr_fraction"] = 1.0
    if args.get("sync_ref_model") and settings.get("loss.kl_penalty"):
        settings["loss.sync_reference_every"] = args["ref_model_sync_steps"]
    values: dict[str, Any] = {"env": env_id or "env", "model": ""}
    for name, value in {**settings, **_lora_settings(adapter)}.items():
        merge(values, nested(name, value))
    return convert(RoveRLConfig, values)


class GRPOTrainer:
    """Trains a model with rove's RL trainer, which writes a run folder.

    Args:
        model: a folder, or a transformers model, which is trained in place.
        processing_class: the model's tokenizer; required unless the model is a folder.
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
        """The run folder; set by `train`."""

    def train(self) -> Path:
        """Train, and return the folder of the final model."""
        from rove.train.rl import train_rl

        loaded = self._loaded()
        config = rl_config(self.args, self.env.env_id, self.peft_config)
        env = self.env.__rove_environment__() if hasattr(self.env, "__rove_environment__") else self.env
        name = self.args.get("run_name") or env.env_id or "env"
        self.run = Run(config.run_dir or Path("runs") / f"{name}--rl")
        with self.run as run:
            run.start("rl", msgspec.to_builtins(config), {"env": env.identity, "model": loaded.name})
            return asyncio.run(train_rl(config, env, loaded, run))

    def _loaded(self) -> Any:
        from rove.models import load

        if isinstance(self.model, (str, Path)):
            return load.load_model(self.model)
        if self.tokenizer is None:
            raise ConfigError(f"{type(self).__name__} needs processing_class=, the model's tokenizer")
        return load.prepare(self.model, self.tokenizer)


class RLTrainer(GRPOTrainer):
    """`GRPOTrainer` under its name since 0.1.8."""


def get_model_and_tokenizer(model_name: str, use_liger: bool = False, model_kwargs: Any = None) -> tuple[Any, Any]:
    """Return a transformers model and its tokenizer, from a folder or the local cache.

    The other arguments select CUDA kernels and have no effect, because rove selects these itself.
    """
    outdated("get_model_and_tokenizer", "load with rove.load_model")
    from rove.models.load import load_model

    loaded = load_model(model_name)
    return loaded.model, loaded.tokenizer


def get_model(model_name: str, use_liger: bool = False, model_kwargs: Any = None) -> Any:
    """Return the model of `get_model_and_tokenizer`."""
    return get_model_and_tokenizer(model_name, use_liger, model_kwargs)[0]


def get_tokenizer(model_name: str) -> Any:
    """Return the tokenizer of `get_model_and_tokenizer`."""
    return get_model_and_tokenizer(model_name)[1]
