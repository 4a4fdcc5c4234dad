"""Whether a run has got anywhere, as far as the scatter of its steps tells."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rove.statistics import Estimate, t_quantile

LEAST = 20
"""Steps from which on their scatter says anything."""


def gain(rewards: Sequence[float]) -> Estimate | None:
    """The mean of the last quarter of the steps less that of the first; None of fewer than `LEAST` steps.

    Steps are taken for independent. A trend within a quarter counts as scatter, so the interval is rather too wide.

    Args:
        rewards: mean reward of each step, oldest first.
    """
    part = len(rewards) // 4
    if len(rewards) < LEAST:
        return None
    first, last = rewards[:part], rewards[-part:]
    error = math.sqrt((statistics.variance(first) + statistics.variance(last)) / part)
    risen, reach = statistics.fmean(last) - statistics.fmean(first), t_quantile(0.975, 2 * part - 2) * error
    return Estimate(risen, risen - reach, risen + reach)


def plateau_warning(rewards: Sequence[float]) -> str | None:
    """A sentence where no rise of the reward can be told; else None, also where there are too few steps to tell.

    Args:
        rewards: mean reward of each step, oldest first.
    """
    found = gain(rewards)
    if found is None or found.low > 0.0:
        return None
    part = len(rewards) // 4
    first, last = statistics.fmean(rewards[:part]), statistics.fmean(rewards[-part:])
    fell = found.high < 0.0
    limits = f"[{found.low:+.3f}, {found.high:+.3f}]"
    seen = f"{first:.3f} in the first {part}, {last:.3f} in the last {part}: {found.mean:+.3f} {limits}"
    if fell:
        return f"the reward has fallen in {len(rewards)} steps ({seen}); unless examples got harder, lower the learning rate"
    return (
        f"the reward has not risen that one could tell in {len(rewards)} steps ({seen}). Unless there is no more to gain, more "
        "steps, a larger batch or another learning rate may help; rove doctor looks for other reasons"
    )
