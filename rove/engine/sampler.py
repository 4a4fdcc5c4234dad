"""Choosing the next tokens of a batch whose rows ask for different things.

What happens to a row's logits, in this order (vLLM's), each only where the row asks for it:

1. the grammar of a structured output, `min_tokens` and `logit_bias`: tokens that must not come get −∞, others their bias;
2. repetition, frequency and presence penalties (`rove.engine.penalties`);
3. the temperature;
4. min-p, top-k, top-p (`rove.engine.draw.keep_likely`).

The token is drawn from the outcome, and the log-probabilities reported are of the outcome, all four included: they are those
that the token was drawn with, which is what importance weights of off-policy training need (vLLM calls this
`processed_logprobs`). Training that computes its own from temperature alone therefore has to sample by temperature alone, as
rove's does. Greedy rows take the likeliest token after step 2, and report log-probabilities at temperature 1.

Axes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from rove.core.errors import ConfigError
from rove.core.protocols import SamplingParams
from rove.engine.constraints import Constraint
from rove.engine.draw import alternatives, draw, keep_likely, temper, uniforms
from rove.engine.penalties import Penalties, has_penalty
from rove.engine.stop_checker import end_token_ids


class Row(NamedTuple):
    """One answer under way, as a sampler needs to know it."""

    sampling: SamplingParams
    seed: int
    """Of its own random stream, any integer."""
    prompt: Sequence[int]
    answer: Sequence[int] = ()
    """Tokens that it has already, such as those from before it was set aside."""
    constraint: Constraint | None = None
    """Of a structured output, which has seen `answer`."""


class Step(NamedTuple):
    """The next token of every row."""

    ids: torch.Tensor
    """[B] int64."""
    logprobs: torch.Tensor
    """[B] fp32, under the distribution that it was drawn from. NaN: the row's logits were no numbers."""
    top: dict[int, list[tuple[int, float]]]
    """Row → likeliest ids and their log-probabilities, likeliest first, for rows that ask for some."""


class Sampler:
    """Draws the next tokens of rows that come and go.

    A row's token depends on its own logits, seed and position alone, whatever else is in the batch.

    Args:
        vocab: entries of the model's logits.
        stop_ids: the model's own end tokens; `min_tokens` keeps them away.
        device: where logits are.
        rows: the first ones.
    """

    def __init__(
        self,
        vocab: int,
        stop_ids: Sequence[int] = (),
        device: torch.device | str = "cpu",
        rows: Sequence[Row] = (),
    ):
        device = torch.device(device)
        self.vocab = vocab
        self.stop_ids = frozenset(stop_ids)
        self.device = torch.device("cpu") if device.type == "mps" else device  # MPS has no float64
        self._needs: list[_Needs | None] = []
        self._greedy: list[bool] = []
        self._temperature = torch.zeros(0, device=self.device)
        self._seeds = torch.zeros(0, dtype=torch.long, device=self.device)
        self._position = torch.zeros(0, dtype=torch.long, device=self.device)
        self._penalties = Penalties(vocab, self.device)
        self._plan: _Plan | None = None
        self.add(rows)

    def __len__(self) -> int:
        return len(self._needs)

    @torch.inference_mode()
    def add(self, rows: Sequence[Row]) -> None:
        """More rows, after those there are.

        Raises:
            ConfigError: a bias is for a token that the model does not have; none of the rows has joined.
        """
        for row in rows:
            unknown = [token for token in row.sampling.logit_bias or {} if token >= self.vocab]
            if unknown:
                raise ConfigError(f"logit_bias is for the tokens {unknown}; expected ids below {self.vocab}")
        temperature = [1.0 if row.sampling.temperature is None else row.sampling.temperature for row in rows]
        seeds = [row.seed % (1 << 63) for row in rows]  # what an int64 holds
        self._needs += [_Needs.of(row, self.vocab, self.stop_ids) for row in rows]
        self._greedy += [t == 0 for t in temperature]
        self._temperature = torch.cat([self._temperature, self._temperature.new_tensor(temperature)])
        self._seeds = torch.cat([self._seeds, self._seeds.new_tensor(seeds)])
        self._position = torch.cat([self._position, self._position.new_tensor([len(row.answer) for row in rows])])
        self._penalties.add([row[:1] + row[2:4] for row in rows if has_penalty(row.sampling)])
        self._plan = None

    @torch.inference_mode()
    def keep(self, order: Sequence[int]) -> None:
        """Go on with these rows, in this order; the others are gone."""
        penalised = (i for i, needs in enumerate(self._needs) if needs is not None and needs.penalties)
        slots = {i: slot for slot, i in enumerate(penalised)}
        if slots:
            self._penalties.keep([slots[i] for i in order if i in slots])
        index = torch.tensor(order, dtype=torch.long, device=self.device)
        self._temperature, self._seeds, self._position = (
            x[index] for x in (self._temperature, self._seeds, self._position)
        )
        self._needs = [self._needs[i] for i in order]
        self._greedy = [self._greedy[i] for i in order]
        self._plan = None

    @torch.inference_mode()
    def step(self, logits: torch.Tensor) -> Step:
        """The next token of every row.

        Args:
            logits: [B, V], of any float type, in the order of the rows. Not changed.
        """
        plan = self._plan = self._plan or _Plan(self._needs, self._greedy, self.device)
        scores = temper(self._edited(logits.to(self.device), plan), self._temperature)
        probabilities = scores.softmax(-1)
        if len(plan.filtered):
            probabilities[plan.filtered] = keep_likely(probabilities[plan.filtered], *plan.filters)
        ids = self._chosen(scores, probabilities, plan)
        logprobs = probabilities.gather(1, ids[:, None])[:, 0].log()
        top = alternatives(probabilities[plan.asked], plan.top_counts) if plan.top_counts else []
        self._position = self._position + 1
        if len(plan.penalised):
            self._penalties.count(ids[plan.penalised])
        if plan.constrained:
            drawn = ids.tolist()
            for i, constraint in plan.constrained:
                constraint.advance(drawn[i])
        rows = dict(zip(plan.asked, top, strict=True))
        return Step(ids.to(logits.device), logprobs.to(logits.device), rows)

    def _edited(self, logits: torch.Tensor, plan: _Plan) -> torch.Tensor:
        """The logits after steps 1 and 2."""
        if not plan.edits:
            return logits
        scores = logits.to(torch.float32, copy=True)
        for i, constraint in plan.constrained:
            scores[i].masked_fill_(~constraint.mask(self.vocab).to(self.device), -torch.inf)
        if len(plan.late):
            row, token, least = plan.late.unbind(1)
            scores[row, token] = scores[row, token].where(self._position[row] >= least, -torch.inf)
        if len(plan.biased):
            scores.index_put_(tuple(plan.biased.unbind(1)), plan.biases, accumulate=True)
        if len(plan.penalised):
            scores[plan.penalised] = self._penalties.apply(scores[plan.penalised])
        return scores

    def _chosen(self, scores: torch.Tensor, probabilities: torch.Tensor, plan: _Plan) -> torch.Tensor:
        if not len(plan.drawn):
            return scores.argmax(-1)
        if not len(plan.greedy):
            return draw(probabilities, uniforms(self._seeds, self._position))
        ids = torch.empty_like(self._seeds)
        ids[plan.greedy] = scores[plan.greedy].argmax(-1)
        random = uniforms(self._seeds[plan.drawn], self._position[plan.drawn])
        ids[plan.drawn] = draw(probabilities[plan.drawn], random)
        return ids


class _Needs(NamedTuple):
    """What a row asks for beyond a temperature; worked out once, when it joins."""

    filters: tuple[int, float, float] | None
    """top_k, top_p, min_p."""
    penalties: bool
    late: list[tuple[int, int]]
    """Tokens, and how many others must come before them."""
    biases: list[tuple[int, float]]
    top: int
    constraint: Constraint | None

    @classmethod
    def of(cls, row: Row, vocab: int, stop_ids: frozenset[int]) -> _Needs | None:
        """The needs of a row; None = there are none."""
        asked = row.sampling
        top_k = min(asked.top_k or 0, vocab)
        filters = (top_k if top_k > 0 else vocab, 1.0 if asked.top_p is None else asked.top_p, asked.min_p or 0.0)
        least = asked.min_tokens or 0
        ends = sorted(end_token_ids(asked, stop_ids)) if least > len(row.answer) else []
        needs = cls(
            filters=None if filters == (vocab, 1, 0) or asked.temperature == 0 else filters,
            penalties=has_penalty(asked),
            late=[(token, least) for token in ends if token < vocab],
            biases=list((asked.logit_bias or {}).items()),
            top=min(asked.logprobs or 0, vocab),
            constraint=row.constraint,
        )
        return needs if any(needs) or needs.constraint is not None else None


class _Plan:
    """Which rows need what, as indices; the same from step to step while the rows are the same."""

    def __init__(self, needs: Sequence[_Needs | None], greedy: Sequence[bool], device: torch.device):
        def long(values: Sequence[object], width: int = 0) -> torch.Tensor:
            made = torch.tensor(values, dtype=torch.long, device=device)
            return made.reshape(-1, width) if width else made

        def real(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        self.greedy = long([i for i, chosen in enumerate(greedy) if chosen])
        self.drawn = long([i for i, chosen in enumerate(greedy) if not chosen])
        rows = [(i, need) for i, need in enumerate(needs) if need is not None]
        filters = [(i, need.filters) for i, need in rows if need.filters]
        self.filtered = long([i for i, _ in filters])
        self.filters = (
            long([k for _, (k, _, _) in filters]),
            real([p for _, (_, p, _) in filters]),
            real([least for _, (_, _, least) in filters]),
        )
        self.penalised = long([i for i, need in rows if need.penalties])
        self.late = long([(i, token, least) for i, need in rows for token, least in need.late], 3)
        self.biased = long([(i, token) for i, need in rows for token, _ in need.biases], 2)
        self.biases = real([bias for _, need in rows for _, bias in need.biases])
        self.constrained = [(i, need.constraint) for i, need in rows if need.constraint is not None]
        self.asked = [i for i, need in rows if need.top]
        self.top_counts = [need.top for _, need in rows if need.top]
        self.edits = bool(len(self.penalised) or len(self.late) or len(self.biased) or self.constrained)
