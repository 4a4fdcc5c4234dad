"""Fine-tune a model on filtered rollouts, then compare it with the scripted policies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rove.core.errors import needs_train_extra
from rove.core.findings import OK, Finding
from rove.runs.run import Run
from rove.stages.arguments import settings_from
from rove.stages.identity import REPEAT_HINT, REPEAT_HINT_IN_PYTHON, Watch, begin, identity_of, noting_interruption
from rove.stages.naming import run_folder
from rove.stages.placement import place_model
from rove.stages.reporter import ConsoleReporter, Reporter
from rove.stages.results import TrainingResult, draw
from rove.utils.event_loop import outside_event_loop

if TYPE_CHECKING:
    from rove.train.config import SFTConfig
    from rove.train.sft_data import SFTData, SFTSource
    from rove.train.worker_group import Ranks

BOOKKEEPING = {"env", "env_args", "final_eval_rollouts"}
"""Settings that may change when an SFT run is resumed, in addition to the settings that may change in every stage."""


def sft(
    model: str | Path | None = None,
    data: SFTSource | None = None,
    config: SFTConfig | None = None,
    *,
    overwrite: bool = False,
    reporter: Reporter | None = None,
    **settings: object,
) -> TrainingResult:
    """Fine-tune a model on rollouts or messages until the validation loss no longer falls, and evaluate the result.

    A run that was stopped continues from its last checkpoint; a complete run is not repeated.

    Example:
        >>> result = rove.sft("models/mine", "runs/teacher", min_reward=1.0, epochs=3)

    Args:
        model: Initial model: a folder, or a name that `rove model list` prints. May be in `config`.
        data: Run folder, file of messages, or a list of conversations (see `rove.train.sft_data`). May be in `config`.
        config: All settings. Default: the defaults of `rove sft`.
        overwrite: Whether to discard an earlier run in the folder.
        reporter: Shows progress. Default: the console or the notebook.
        settings: Single settings, such as `learning_rate=1e-4` or `lora={"rank": 8}`; they override the settings in `config`.

    Raises:
        ConfigError: A setting is unknown, out of range, or contradicts another; or there is no such model.
        RunError: The data or the run folder cannot be used.
        TrainingError: The loss or the gradient was not finite in too many consecutive steps.
    """
    with needs_train_extra():
        from rove.train.config import SFTConfig

    path = data.path if isinstance(data, Run) else data
    # Data in memory have no name; the identity of the run is their content.
    in_memory: SFTSource | None = None
    name: str | None = None
    if isinstance(path, str | Path):
        name = str(path)
    elif path is not None:
        in_memory = path
        name = "in memory"
    arguments = {"model": None if model is None else str(model), "data": name, **settings}
    used = settings_from(SFTConfig, config, arguments)
    return outside_event_loop(
        lambda: run_sft(
            used, reporter or ConsoleReporter(), overwrite, source=in_memory, repeat_hint=REPEAT_HINT_IN_PYTHON
        )
    )


def run_sft(
    config: SFTConfig,
    reporter: Reporter,
    overwrite: bool = False,
    ranks: Ranks | None = None,
    watch: Watch | None = None,
    source: SFTSource | None = None,
    repeat_hint: str = REPEAT_HINT,
) -> TrainingResult:
    """Fine-tune with progress, from the last checkpoint if there is one.

    Args:
        ranks: The training processes. Default: this process alone.
        source: Data in memory. Default: `config.data`.
        repeat_hint: Advice on how to train again, shown if the run is complete.
    """
    from rove.train.initial_model import check_template
    from rove.train.learner import describe_lora
    from rove.train.sft import train_sft
    from rove.train.sft_data import SFTData, check_conversations
    from rove.train.worker_group import SINGLE_PROCESS

    config.check()
    ranks = ranks or SINGLE_PROCESS
    data = SFTData(config.data if source is None else source, config)
    check_template(config, lambda renderer: check_conversations(renderer, data.conversations, config))
    identity = identity_of(config, BOOKKEEPING, data=data.identity)
    run = Run(run_folder(config.run_dir, "sft", config.model, identity=identity))
    with run, noting_interruption(run, reporter, "validate_every", config.validate_every):
        start = begin(
            run, "sft", config, identity, overwrite, reporter, ranks, lambda: warnings_of(config, data), repeat_hint
        )
        if start is None:
            return TrainingResult(run.path / "final", run)
        coverage = describe_lora(config, start.loaded)
        if coverage:
            reporter.note(coverage)
        losses = {"loss": "–", "validation_loss": "–"}
        with reporter.progress("sft", done=start.step) as progress:

            def on_step(step: int, total: int, metrics: Mapping[str, float]) -> None:
                losses.update({name: f"{metrics[name]:.4f}" for name in losses if name in metrics})
                progress(step, f"loss {losses['loss']}  validation {losses['validation_loss']}", total)
                if watch is not None:
                    watch(metrics, total)

            final = train_sft(
                config,
                data,
                start.loaded,
                run,
                on_step,
                on_alert=lambda alert: reporter.note(f"step {alert.step}: {alert}", important=True),
                on_progress=progress.step,
                ranks=ranks,
            )
        draw(run)
        # After the run is complete: an interruption here loses nothing of the training.
        place_model(config, final, data, run, reporter)
    return TrainingResult(final, run)


def warnings_of(config: SFTConfig, data: SFTData) -> list[Finding]:
    """Return warnings about evaluating on training examples."""
    from rove.train.contamination import find_overlaps
    from rove.train.settings_checks import check_held_out

    trained = data.example_keys
    overlaps = find_overlaps(config.evaluation, config.env_dir, trained) if config.evaluation else []
    findings = check_held_out(overlaps, 0, "collect training data with rove eval --train")
    warnings = [finding for finding in findings if finding.severity > OK]
    if len(trained) == 1:
        text = "all conversations are of one example: validation_loss is measured on the training example"
        warnings.insert(0, Finding("held_out", text, remedy="collect rollouts of more examples"))
    return warnings
