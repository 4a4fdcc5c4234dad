"""What `rove sft` and `rove rl` share: starting or resuming a run, and drawing its curves."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from rove.cli.clients import print_device
from rove.cli.common import CURVES, print_warnings, working
from rove.core.digest import digest_model
from rove.envs.loading import environment_version
from rove.models.pretrained import model_path
from rove.remote.loading import without_isolation
from rove.runs.metrics import panels, with_derived
from rove.runs.run import Run

if TYPE_CHECKING:
    from rove.models.load import LoadedModel
    from rove.train.config import RLConfig, SFTConfig
    from rove.train.worker_group import Ranks

Watch = Callable[[Mapping[str, float], int], None]
"""Called after each step with its metrics and the maximum number of steps."""


def plot_run(metrics: Sequence[Mapping[str, float]], path: Path, title: str) -> Path:
    """Draw all charts of a run and write the PNG."""
    from matplotlib.figure import Figure  # part of the extra `train`

    rows = [with_derived(row) for row in metrics]
    charts = panels(rows)
    height = (len(charts) + 2) // 3
    figure = Figure(figsize=(15, 3.4 * height))
    axes = figure.subplots(height, 3, squeeze=False)
    for axis in axes.flat[len(charts) :]:
        axis.axis("off")
    for axis, chart in zip(axes.flat, charts, strict=False):
        for metric, label in chart["curves"].items():
            points = [(row["step"], row[metric]) for row in rows if metric in row]
            axis.plot(*zip(*points, strict=True), label=label, linewidth=1.2)
        axis.set_title(chart["title"])
        axis.grid(alpha=0.3)
        if len(chart["curves"]) > 1:
            axis.legend(fontsize=8)
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=90)
    return path


def identity_of(config: RLConfig | SFTConfig, bookkeeping: set[str], **more: Any) -> dict[str, Any]:
    """Return what identifies a training run: all settings except `bookkeeping`, the model and the environments."""
    identity = {k: v for k, v in without_isolation(msgspec.to_builtins(config)).items() if k not in bookkeeping}
    evaluated = [environment_version(held_out.env, config.env_dir, held_out.env_args) for held_out in config.evaluation]
    return {**identity, "model": digest_model(model_path(config.model)), **more, "evaluated": evaluated}


def begin(
    run: Run,
    kind: str,
    config: RLConfig | SFTConfig,
    identity: Mapping[str, Any],
    overwrite: bool,
    console: Console,
    ranks: Ranks,
    warnings: Callable[[], Iterable[str]],
) -> LoadedModel | None:
    """Start or resume a run; return the initial model, or None if the run is complete.

    Args:
        run: The run folder, locked by this process.
        kind: "sft" or "rl".
        warnings: Returns the warnings of a new run.
    """
    from rove.models.device import choose_device
    from rove.models.load import check_model, load_model
    from rove.train.checkpoint import recover

    check_model(config.model)  # before the run folder is created
    choose_device(config.device)
    run.resume_command = (
        f"rove {kind} @ {shlex.quote(str(run.path / 'config.toml'))} --run-dir {shlex.quote(str(run.path))}"
    )
    run.start(kind, msgspec.to_builtins(config), identity, overwrite)
    if run.summary() is not None:
        if not (run.path / CURVES).exists():
            draw(run)
        console.print(f"{run.path} is complete; --overwrite to train again")
        ranks.broadcast_continue(False)
        return None
    print_warnings(console, recover(run))
    last = run.last_checkpoint()
    if last is not None:
        console.print(f"continuing {run.path} after step {last[1].step}")
    else:
        print_warnings(console, warnings())
    device = config.device if ranks.size == 1 else ranks.device
    print_device(device, console)
    with working(console, f"loading {config.model}"):
        loaded = load_model(config.model, device, trust_remote_code=config.trust_remote_code)
    ranks.broadcast_continue()
    if ranks.size > 1:
        console.print(f"training in {ranks.size} processes")
    return loaded


def draw(run: Run) -> None:
    """Draw the curves of a run into its folder."""
    plot_run(run.metrics(), run.path / CURVES, str(run.path))
