"""What a request of the engine has come to so far."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rove.core.protocols import Generation, OnToken, SamplingParams
from rove.engine.constraints import Constraint
from rove.engine.stop_checker import StopChecker


@dataclass(eq=False)
class Asked:
    """Who asked for a row, and what has been said so far."""

    sampling: SamplingParams
    seed: int
    future: asyncio.Future[Generation]
    on_token: OnToken | None
    ending: StopChecker
    constraint: Constraint | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    """Versions of the weights, and how many tokens each has said, in their order; what was said since the last change is not yet
    here."""

    def said_with(self, version: int) -> None:
        """What was said since the weights last changed, was said with these."""
        said = len(self.ids) - sum(count for _, count in self.spans)
        if said and self.spans and self.spans[-1][0] == version:
            said += self.spans.pop()[1]
        if said:
            self.spans.append((version, said))

    def generation(self, version: int) -> Generation:
        """What was said, once it has ended; `version` are the weights that said the last token."""
        ending = self.ending
        self.said_with(version)
        return Generation(
            self.ids,
            self.logprobs,
            ending.reason or "stop",
            self.spans[0][0],
            top_logprobs=self.top or None,
            text=ending.text if self.sampling.stop else None,
            stopped_by=ending.stopped_by,
            version_spans=self.spans if len(self.spans) > 1 else [],
        )
