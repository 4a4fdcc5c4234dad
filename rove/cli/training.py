"""What `rove sft` and `rove rl` have in common: a run is begun, or gone on with, and its curves are drawn."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from rove.cli.common import CURVES, print_warnings
from rove.cli.live import working
from rove.core.digest import digest_model
from rove.envs.loading import environment_version
from rove.remote.loading import without_isolation
from rove.runs.run import Run

if TYPE_CHECKING:
    from rove.models.load import LoadedModel
    from rove.train.config import RLConfig, SFTConfig
    from rove.train.worker_group import Ranks


def identity_of(config: RLConfig | SFTConfig, bookkeeping: set[str], **more: Any) -> dict[str, Any]:
    """What makes a training run the one that it is: settings but those of `bookkeeping`, model and environments."""
    identity = {k: v for k, v in without_isolation(msgspec.to_builtins(config)).items() if k not in bookkeeping}
    evaluated = [environment_version(held_out.env, config.env_dir) for held_out in config.evaluation]
    return {**identity, "model": digest_model(config.model), **more, "evaluated": evaluated}


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
    """The model that training starts from, in a run that is begun or gone on with; None where it is complete.

    Args:
        run: its folder, which is ours.
        kind: "sft" or "rl".
        warnings: of a run that begins, told where it does.
    """
    from rove.models.load import check_model, load_model
    from rove.train.recovery import recover

    check_model(config.model)  # before there is a run folder
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
        console.print(f"{ranks.size} processes train together")
    return loaded


def draw(run: Run) -> None:
    """Draw the run's curves, into its folder."""
    from rove.cli.plots import plot_run

    plot_run(run.metrics(), run.path / CURVES, str(run.path))
