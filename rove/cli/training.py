"""What `rove sft` and `rove rl` share: starting or resuming a run, and drawing its curves."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from rove.cli.common import CURVES, print_warnings, working
from rove.core.digest import digest_model
from rove.envs.loading import environment_version
from rove.models.pretrained import model_path
from rove.remote.loading import without_isolation
from rove.runs.run import Run

if TYPE_CHECKING:
    from rove.models.load import LoadedModel
    from rove.train.config import RLConfig, SFTConfig
    from rove.train.worker_group import Ranks


def identity_of(config: RLConfig | SFTConfig, bookkeeping: set[str], **more: Any) -> dict[str, Any]:
    """Return what identifies a training run: all settings except `bookkeeping`, the model and the environments."""
    identity = {k: v for k, v in without_isolation(msgspec.to_builtins(config)).items() if k not in bookkeeping}
    evaluated = [environment_version(held_out.env, config.env_dir) for held_out in config.evaluation]
    return {**identity, "model": digest_model(model_path(config.model)), **more, "evaluated": evaluated}


def begin(
    run: Run,
    kind: str,
    config: RLConfig | SFTConfig,
    identity: Mapping[str, Any],
    overwrite: bool,
    console: Console,
    ranks: Ranks,
    warnings: Callable[[], Sequence[str]],
) -> LoadedModel | None:
    """Start or resume a run; return the initial model, or None if the run is complete.

    Args:
        run: The run folder, locked by this process.
        kind: "sft" or "rl".
        warnings: Returns the warnings of a new run.
    """
    from rove.models.load import check_model, load_model
    from rove.train.checkpoint import recover

    check_model(config.model)  # before the run folder is created
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
    with working(console, f"loading {config.model}"):
        loaded = load_model(config.model, trust_remote_code=config.trust_remote_code)
    ranks.broadcast_continue()
    if ranks.size > 1:
        console.print(f"training in {ranks.size} processes")
    return loaded


def draw(run: Run) -> None:
    """Draw the curves of a run into its folder."""
    from rove.cli.plots import plot_run

    plot_run(run.metrics(), run.path / CURVES, str(run.path))
