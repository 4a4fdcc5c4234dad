"""The identity of a training run, with which runs are started or resumed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from rove.core.digest import check_saved_model, digest_model, fingerprint
from rove.core.findings import Finding
from rove.core.plain import JsonMapping, JsonObject
from rove.envs.loading import environment_version
from rove.models.pretrained import model_path
from rove.remote.loading import without_isolation
from rove.runs.run import Run
from rove.stages.clients import show_device
from rove.stages.reporter import Reporter
from rove.stages.results import CURVES, draw

if TYPE_CHECKING:
    from rove.models.load import LoadedModel
    from rove.train.config import TrainingConfig
    from rove.train.worker_group import Ranks

REPEAT_HINT = "; --overwrite to train again"
"""Hint that a command appends to the message about a complete run."""
REPEAT_HINT_IN_PYTHON = "; overwrite=True trains again"
Watch = Callable[[Mapping[str, float], int], None]
"""Called after each step with its metrics and the maximum number of steps."""

BOOKKEEPING = {
    "trust_remote_code",
    "device",
    "threads",
    "micro_batch_tokens",
    "activation_checkpointing",
    "env_dir",
    "run_dir",
    "loggers",
    "alerts",
}
"""Settings of every stage that may change when a run is resumed: except for rounding, they do not change the trained model."""


def identity_of(config: TrainingConfig, bookkeeping: set[str], **further: object) -> JsonObject:
    """Return the identity of a training run: the model, the environments, and the settings that must not change.

    Args:
        bookkeeping: Further settings of this stage that may change; see `BOOKKEEPING`.
        further: Further parts of the identity.
    """
    from rove.models.templates import read_template

    settings = without_isolation(msgspec.to_builtins(config))
    may_change = BOOKKEEPING | bookkeeping
    identity = {name: value for name, value in settings.items() if name not in may_change}
    if config.chat_template is not None:  # by content, like the model
        identity["chat_template"] = fingerprint({"source": read_template(config.chat_template)})
    evaluated = [environment_version(held_out.env, config.env_dir, held_out.env_args) for held_out in config.evaluation]
    # By content, so that a model trained again under the same name is another run.
    model = digest_model(model_path(config.model))
    return {**identity, "model": model, **further, "evaluated": evaluated}


class Start(NamedTuple):
    """The point from which a training run starts or continues."""

    loaded: LoadedModel
    """The initial model."""
    step: int
    """Number of steps that an earlier process finished."""


def begin(
    run: Run,
    kind: str,
    config: TrainingConfig,
    identity: JsonMapping,
    overwrite: bool,
    reporter: Reporter,
    ranks: Ranks,
    warnings: Callable[[], Iterable[Finding]],
    repeat_hint: str = REPEAT_HINT,
) -> Start | None:
    """Start or resume a run; return where it starts, or None if the run is complete.

    Args:
        run: The run folder, locked by this process.
        kind: "sft" or "rl".
        warnings: Function that returns the warnings of a new run.
        repeat_hint: Advice on how to train again, shown if the run is complete.
    """
    from rove.models.device import choose_device
    from rove.models.load import check_model
    from rove.train.checkpoint import recover
    from rove.train.initial_model import load_initial

    check_model(config.model)  # before the run folder is created
    choose_device(config.device)
    settings_file = shlex.quote(str(run.path / "config.toml"))
    run.resume_command = f"rove {kind} @ {settings_file} --run-dir {shlex.quote(str(run.path))}"
    run.start(kind, msgspec.to_builtins(config), identity, overwrite)
    if run.summary() is not None:
        check_saved_model(run.path / "final")
        if not (run.path / CURVES).exists():
            draw(run)
        reporter.note(f"{run.path} is complete{repeat_hint}")
        ranks.broadcast_continue(False)  # the other processes wait for the decision of this one
        return None
    # Before the last checkpoint is read, which may be a damaged one.
    for warning in recover(run):
        reporter.warning(warning)
    last = run.last_checkpoint()
    step = 0 if last is None else last[1].step
    if last is not None:
        reporter.note(f"continuing {run.path} after step {step}")
    else:
        for warning in warnings():
            reporter.warning(str(warning))
    device = config.device if ranks.size == 1 else ranks.device
    # First, because loading takes seconds.
    show_device(device, reporter)
    with reporter.working(f"loading {config.model}"):
        loaded = load_initial(config, device)
    ranks.broadcast_continue()
    if ranks.size > 1:
        reporter.note(f"training in {ranks.size} processes")
    return Start(loaded, step)


@contextmanager
def noting_interruption(run: Run, reporter: Reporter, setting: str, steps: int) -> Generator[None]:
    """Return a context that reports after Ctrl-C from which step the training run will continue.

    Args:
        setting: Name of the setting for the steps between checkpoints.
        steps: Value of this setting.
    """
    try:
        yield
    except KeyboardInterrupt:
        last = run.last_checkpoint()
        if run.summary() is not None:
            text = f"interrupted; the training in {run.path} is complete and will not be repeated"
        elif last is not None:
            step = last[1].step
            text = (
                f"interrupted; the same call or command continues after step {step}, the last checkpoint in {run.path}"
            )
        else:
            text = (
                f"interrupted before the first checkpoint ({setting} is {steps} steps): nothing was saved, and "
                "the same call or command begins again at step 1"
            )
        reporter.note(text, important=True)
        raise
