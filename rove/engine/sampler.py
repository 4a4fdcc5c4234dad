"""Choosing the next tokens of a batch whose rows ask for different things.

What happens to a row's logits, in this order (vLLM's), each only where the row asks for it:

1. the grammar of a structured output, `min_tokens` and `logit_bias`: tokens that must not come get −∞, others their bias;
2. repetition, frequency and presence penalties (`rove.engine.sampler`);
3. the temperature;
4. min-p, top-k, top-p (`rove.engine.sampler.keep_likely`).

The token is drawn from the outcome, and the log-probabilities reported are of the outcome, all four included: they are those
that the token was drawn with, which is what importance weights of off-policy training need (vLLM calls this
`processed_logprobs`). Training that computes its own from temperature alone therefore has to sample by temperature alone, as
rove's does. Greedy rows take the likeliest token after step 2, and report log-probabilities at temperature 1.

Axes: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from rove.core.errors import ConfigError
from rove.core.protocols import SamplingParams
from rove.engine.constraints import Constraint
from rove.engine.stop_checker import end_token_ids

MIN_TEMPERATURE = 1e-5
"""Temperatures above 0 count as this at least: below, logits divided by them overflow, and nothing is left to chance."""
MAX_CUMSUM_VOCAB = 8192
"""Up to this vocabulary, CPUs draw from cumulative sums of all probabilities; above, from sums of blocks first."""
BLOCK_TOKENS = 512

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical right shift of int64 (torch's is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def uniforms(seeds: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """One number in [0, 1) per row, a function of its seed [B] and position [B] (int64) alone (splitmix64)."""
    x = seeds + (position + 1) * _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    x = x ^ _shift_right(x, 31)
    return _shift_right(x, 11).double() * 2.0**-53


def apply_temperature(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Logits [B, V] over temperature [B], in fp32; greedy rows (0) as at temperature 1."""
    divisor = torch.where(temperature == 0, 1.0, temperature.clamp_min(MIN_TEMPERATURE))
    return logits.float() / divisor[:, None]


def sample_ids(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """One id per row [B]: where the row's number in [0, 1) falls in its cumulative distribution [B, V].

    The probabilities of a row need not sum to exactly 1; an id of probability 0 is never drawn.
    """
    vocab = probabilities.shape[1]
    if probabilities.is_cuda or vocab <= MAX_CUMSUM_VOCAB:
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        return _falls_in(cumulative, uniform[:, None] * cumulative[:, -1:])[:, 0]
    # First a block, then an id inside it. fp64 over the whole vocabulary takes 14 times as long as fp32, and fp32 rounds
    # sums near 1 by about as much as a rare token has.
    sums = _block_sums(probabilities).double()
    cumulative = sums.cumsum(-1)
    target = uniform[:, None] * cumulative[:, -1:]
    block = _falls_in(cumulative, target)
    size = sums.gather(1, block)
    share = (target - (cumulative.gather(1, block) - size)) / size
    ids = block * BLOCK_TOKENS + torch.arange(BLOCK_TOKENS, device=probabilities.device)
    inside = (probabilities.gather(1, ids.clamp_max(vocab - 1)).double() * (ids < vocab)).cumsum(-1)
    return ids.gather(1, _falls_in(inside, share * inside[:, -1:]))[:, 0].clamp_max_(vocab - 1)


def _falls_in(cumulative: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the index [B, 1] at which each cumulative sum [B, N] first exceeds the target [B, 1]."""
    total = cumulative[:, -1:]
    below = torch.nextafter(total, torch.zeros_like(total))  # a target rounded up to the total would be behind the last
    found = torch.searchsorted(cumulative, target.minimum(below), right=True)
    return found.clamp_max_(cumulative.shape[1] - 1)  # only reached if there are NaNs


def _block_sums(probabilities: torch.Tensor) -> torch.Tensor:
    """Return the sums of each `BLOCK` successive probabilities [B, V]; the last block may be shorter."""
    whole = probabilities.shape[1] // BLOCK_TOKENS * BLOCK_TOKENS
    sums = probabilities[:, :whole].unflatten(1, (-1, BLOCK_TOKENS)).sum(-1)
    rest = probabilities[:, whole:]
    return torch.cat([sums, rest.sum(-1, keepdim=True)], 1) if rest.shape[1] else sums


def filter_unlikely(
    probabilities: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """The distributions [F, V] without their unlikely tokens, normalised again.

    In the order of vLLM: tokens less likely than `min_p` times the likeliest go first, then those that are not among the
    `top_k` likeliest, then those that are not needed for the likeliest to reach `top_p` of what is left. Tokens as likely
    as one that stays, stay too: which of them come first is an accident of their ids. The likeliest always stays.

    Args:
        probabilities: [F, V].
        top_k: [F] int64, 1 to V (V: off).
        top_p: [F], above 0 to 1 (off).
        min_p: [F], 0 (off) to 1.
    """
    ordered = _ascending(probabilities)
    vocab = ordered.shape[1]
    least = torch.maximum(ordered[:, -1:] * min_p[:, None], ordered.gather(1, (vocab - top_k)[:, None]))
    mass = ordered.cumsum(-1)
    count = torch.searchsorted(ordered, least)  # of tokens less likely than that
    gone = mass.gather(1, (count - 1).clamp_min_(0)) * (count > 0)
    unneeded = gone + (mass[:, -1:] - gone) * (1 - top_p[:, None])
    first = torch.searchsorted(mass, unneeded, right=True).clamp_max_(vocab - 1)
    least = ordered.gather(1, first)
    kept = probabilities * (probabilities >= least)
    return kept / kept.sum(-1, keepdim=True)


def _ascending(values: torch.Tensor) -> torch.Tensor:
    if values.device.type == "cpu":  # torch's own sort takes thirty times as long as numpy's here
        return torch.from_numpy(np.sort(values.numpy(), axis=-1))
    return values.sort(-1).values


def top_tokens(probabilities: torch.Tensor, counts: list[int]) -> list[list[tuple[int, float]]]:
    """The likeliest ids of each row [B, V] with their log-probabilities, likeliest first.

    Args:
        probabilities: [B, V].
        counts: how many of each row; fewer are returned where fewer have a probability above 0.
    """
    values, ids = probabilities.topk(min(max(counts, default=0), probabilities.shape[1]))
    rows = zip(ids.tolist(), values.log().tolist(), counts, strict=True)
    return [
        [(id, logprob) for id, logprob in zip(ids[:count], logprobs[:count]) if logprob > -float("inf")]
        for ids, logprobs, count in rows
    ]


def score_tokens(
    logits: torch.Tensor, ids: torch.Tensor, top: int = 0
) -> tuple[list[float], list[list[tuple[int, float]]]]:
    """What a model makes of given tokens, such as those of a prompt.

    Args:
        logits: [N, V], those that came before each token.
        ids: [N].
        top: how many of the likeliest ids to name in the place of each.

    Returns:
        log-probabilities of the ids at temperature 1, and the likeliest ids (see `alternatives`).
    """
    logprobs = logits.float().log_softmax(-1)
    return logprobs.gather(1, ids[:, None])[:, 0].tolist(), top_tokens(logprobs.exp(), [top] * len(ids))


class Penalties:
    """How often each row has had each token, and what that takes off its logits.

    The repetition penalty (Keskar et al. 2019, arXiv 1909.05858) is over prompt and answer, as transformers and vLLM have
    it; presence and frequency penalties are over the answer alone, as OpenAI's and vLLM's. It holds 5 bytes for each entry
    of the vocabulary of each of its rows.

    Args:
        vocab: entries of the vocabulary.
        device: where logits are.
    """

    def __init__(self, vocab: int, device: torch.device | str = "cpu"):
        self._counts = torch.zeros(0, vocab, device=device)  # of the answer
        self._seen = torch.zeros(0, vocab, dtype=torch.bool, device=device)  # by prompt or answer
        self._weights = torch.zeros(3, 0, device=device)  # repetition, presence, frequency

    def add(self, rows: Sequence[tuple[SamplingParams, Sequence[int], Sequence[int]]]) -> None:
        """More rows: how they sample, their prompt, and what there is of their answer."""
        counts = self._counts.new_zeros(len(rows), self._counts.shape[1])
        had = self._seen.new_zeros(counts.shape)
        for i, (_, prompt, answer) in enumerate(rows):
            said = torch.tensor([*answer], dtype=torch.long, device=counts.device)
            counts[i].index_add_(0, said, torch.ones_like(said, dtype=counts.dtype))
            had[i, torch.tensor([*prompt, *answer], dtype=torch.long, device=counts.device)] = True
        weights = [
            (
                1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty,
                sampling.presence_penalty or 0.0,
                sampling.frequency_penalty or 0.0,
            )
            for sampling, _, _ in rows
        ]
        self._counts = torch.cat([self._counts, counts])
        self._seen = torch.cat([self._seen, had])
        self._weights = torch.cat([self._weights, self._weights.new_tensor(weights).reshape(-1, 3).T], 1)

    def keep(self, order: Sequence[int]) -> None:
        """Go on with these rows, in this order."""
        index = torch.tensor(order, dtype=torch.long, device=self._counts.device)
        self._counts, self._seen, self._weights = self._counts[index], self._seen[index], self._weights[:, index]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """The penalised logits [P, V]."""
        repetition, presence, frequency = self._weights[:, :, None]
        # Above 0 divided, else multiplied: the smaller of the two for a penalty above 1, the larger for one below. Asking
        # each logit for its sign takes torch.where ten times as long.
        side = torch.where(repetition < 1, -1.0, 1.0)
        repeated = torch.minimum(logits * (side / repetition), logits * (side * repetition)) * side
        logits = torch.where(self._seen, repeated, logits)
        logits = torch.addcmul(logits, frequency, self._counts, value=-1)
        return torch.addcmul(logits, presence, self._counts.clamp_max(1), value=-1)

    def count(self, ids: torch.Tensor) -> None:
        """Each row's answer has one more token [P]."""
        rows = torch.arange(len(ids), device=ids.device)
        self._counts[rows, ids] += 1
        self._seen[rows, ids] = True


def has_penalty(sampling: SamplingParams) -> bool:
    """Whether any penalty is on."""
    return bool(sampling.repetition_penalty not in (None, 1) or sampling.presence_penalty or sampling.frequency_penalty)


class SamplerRow(NamedTuple):
    """One answer under way, as a sampler needs to know it."""

    sampling: SamplingParams
    seed: int
    """Of its own random stream, any integer."""
    prompt: Sequence[int]
    answer: Sequence[int] = ()
    """Tokens that it has already, such as those from before it was set aside."""
    constraint: Constraint | None = None
    """Of a structured output, which has seen `answer`."""


class SampledTokens(NamedTuple):
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
        rows: Sequence[SamplerRow] = (),
    ):
        device = torch.device(device)
        self.vocab = vocab
        self.stop_ids = frozenset(stop_ids)
        self.device = torch.device("cpu") if device.type == "mps" else device  # MPS has no float64
        self._needs: list[_RowOptions | None] = []
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
    def add(self, rows: Sequence[SamplerRow]) -> None:
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
        self._needs += [_RowOptions.of(row, self.vocab, self.stop_ids) for row in rows]
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
    def step(self, logits: torch.Tensor) -> SampledTokens:
        """The next token of every row.

        Args:
            logits: [B, V], of any float type, in the order of the rows. Not changed.
        """
        plan = self._plan = self._plan or _Plan(self._needs, self._greedy, self.device)
        scores = apply_temperature(self._edited(logits.to(self.device), plan), self._temperature)
        probabilities = scores.softmax(-1)
        if len(plan.filtered):
            probabilities[plan.filtered] = filter_unlikely(probabilities[plan.filtered], *plan.filters)
        ids = self._chosen(scores, probabilities, plan)
        logprobs = probabilities.gather(1, ids[:, None])[:, 0].log()
        top = top_tokens(probabilities[plan.top_rows], plan.top_counts) if plan.top_counts else []
        self._position = self._position + 1
        if len(plan.penalised):
            self._penalties.count(ids[plan.penalised])
        if plan.constrained:
            drawn = ids.tolist()
            for i, constraint in plan.constrained:
                constraint.advance(drawn[i])
        rows = dict(zip(plan.top_rows, top, strict=True))
        return SampledTokens(ids.to(logits.device), logprobs.to(logits.device), rows)

    def _edited(self, logits: torch.Tensor, plan: _Plan) -> torch.Tensor:
        """The logits after steps 1 and 2."""
        if not plan.edits:
            return logits
        scores = logits.to(torch.float32, copy=True)
        for i, constraint in plan.constrained:
            scores[i].masked_fill_(~constraint.mask(self.vocab).to(self.device), -torch.inf)
        if len(plan.min_tokens):
            row, token, least = plan.min_tokens.unbind(1)
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
            return sample_ids(probabilities, uniforms(self._seeds, self._position))
        ids = torch.empty_like(self._seeds)
        ids[plan.greedy] = scores[plan.greedy].argmax(-1)
        random = uniforms(self._seeds[plan.drawn], self._position[plan.drawn])
        ids[plan.drawn] = sample_ids(probabilities[plan.drawn], random)
        return ids


class _RowOptions(NamedTuple):
    """What a row asks for beyond a temperature; worked out once, when it joins."""

    filters: tuple[int, float, float] | None
    """top_k, top_p, min_p."""
    penalties: bool
    min_tokens: list[tuple[int, int]]
    """Tokens, and how many others must come before them."""
    biases: list[tuple[int, float]]
    top: int
    constraint: Constraint | None

    @classmethod
    def of(cls, row: SamplerRow, vocab: int, stop_ids: frozenset[int]) -> _RowOptions | None:
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

    def __init__(self, needs: Sequence[_RowOptions | None], greedy: Sequence[bool], device: torch.device):
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
        self.min_tokens = long([(i, token, least) for i, need in rows for token, least in need.min_tokens], 3)
        self.biased = long([(i, token) for i, need in rows for token, _ in need.biases], 2)
        self.biases = real([bias for _, need in rows for _, bias in need.biases])
        self.constrained = [(i, need.constraint) for i, need in rows if need.constraint is not None]
        self.top_rows = [i for i, need in rows if need.top]
        self.top_counts = [need.top for _, need in rows if need.top]
        self.edits = bool(len(self.penalised) or len(self.min_tokens) or len(self.biased) or self.constrained)
