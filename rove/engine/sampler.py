"""Choose the next tokens of a batch whose rows have different sampling parameters.

Processing order of a row's logits (vLLM's order), each step only if the row uses it:

1. the grammar of a structured output, `min_tokens` and `logit_bias`: forbidden tokens get −∞, other tokens get their bias;
2. repetition, frequency and presence penalties;
3. temperature;
4. min-p, top-k, top-p (`filter_unlikely`).

Tokens are drawn from the resulting distribution, and the reported log-probabilities are from it as well: off-policy training
needs the probabilities with which tokens were actually drawn (vLLM's `processed_logprobs`). A trainer that recomputes
log-probabilities from the temperature alone must therefore sample with the temperature alone, as rove's trainer does. Greedy rows
take the most likely token after step 2 and report log-probabilities at temperature 1.

Axes: B rows, V vocabulary, F rows with a filter, P rows with a penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from rove.core.errors import ConfigError
from rove.core.protocols import SamplingParams
from rove.engine.constraints import Constraint
from rove.engine.stop_checker import end_token_ids
from rove.models.kernels import pointers, run_rows, softmax_kernels

MIN_TEMPERATURE = 1e-5
"""Smaller positive temperatures are raised to this value: logits divided by them overflow."""
LARGE_VOCABULARY = 8192
"""With at least this many tokens in the vocabulary, sampling on a CPU uses a C kernel if there is a C compiler."""

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift int64 right and fill with zeros; torch fills with the sign."""
    mask = (1 << (64 - bits)) - 1
    return (x >> bits) & mask


def uniforms(seeds: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
    """Return a number in [0, 1) per row, which depends only on the row's seed [B] and position [B] (int64).

    It is splitmix64 (Steele et al. 2014): stateless, so a token does not depend on other rows of the batch.
    """
    x = seeds + (position + 1) * _GOLDEN
    x = (x ^ _shift_right(x, 30)) * _MIX_1
    x = (x ^ _shift_right(x, 27)) * _MIX_2
    x = x ^ _shift_right(x, 31)
    return _shift_right(x, 11).double() * 2.0**-53


def apply_temperature(logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return logits [B, V] / temperature [B] in fp32; for greedy rows (temperature 0), the temperature is 1."""
    divisor = torch.where(temperature == 0, 1.0, temperature.clamp_min(MIN_TEMPERATURE))
    return logits.float() / divisor[:, None]


def sample_ids(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return a token id per row [B] by inverse transform sampling: the token at which `uniform` [B] falls in the cumulative
    distribution [B, V].

    Rows of `probabilities` need not sum to exactly 1; an id of probability 0 is never drawn.
    """
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # A target that rounds up to the total would select no token.
    below_total = torch.nextafter(total, torch.zeros_like(total))
    target = (uniform[:, None] * total).minimum(below_total)
    ids = torch.searchsorted(cumulative, target, right=True)[:, 0]
    return ids.clamp_max_(cumulative.shape[1] - 1)  # only for NaN


def filter_unlikely(
    probabilities: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """Return the distributions [F, V] without unlikely tokens, renormalized.

    The order is vLLM's. First, tokens less likely than `min_p` times the most likely token are dropped; then, tokens outside of
    the `top_k`; then, tokens that are not needed to reach `top_p` of the remaining mass. Tokens exactly as likely as a kept
    token are also kept, so that the result does not depend on token ids. The most likely token is always kept.

    Args:
        top_k: [F] int64, 1 to V (V: off).
        top_p: [F], above 0 to 1 (off).
        min_p: [F], 0 (off) to 1.
    """
    ordered = _ascending(probabilities)
    vocab = ordered.shape[1]
    # min-p and top-k are applied one after the other, so a token must reach both thresholds.
    min_p_threshold = ordered[:, -1:] * min_p[:, None]
    top_k_threshold = ordered.gather(1, (vocab - top_k)[:, None])
    threshold = torch.maximum(min_p_threshold, top_k_threshold)
    # top-p: of the mass that these leave, the part 1 − top_p of the least likely tokens is not needed.
    mass = ordered.cumsum(-1)
    num_dropped = torch.searchsorted(ordered, threshold)
    dropped_mass = mass.gather(1, (num_dropped - 1).clamp_min_(0)) * (num_dropped > 0)
    unneeded_mass = dropped_mass + (mass[:, -1:] - dropped_mass) * (1 - top_p[:, None])
    first_likely = torch.searchsorted(mass, unneeded_mass, right=True).clamp_max_(vocab - 1)
    threshold = ordered.gather(1, first_likely)
    likely = probabilities * (probabilities >= threshold)
    return likely / likely.sum(-1, keepdim=True)


def _ascending(values: torch.Tensor) -> torch.Tensor:
    if values.device.type == "cpu":  # numpy's sort is thirty times as fast as torch's here
        return torch.from_numpy(np.sort(values.numpy(), axis=-1))
    return values.sort(-1).values


def top_tokens(probabilities: torch.Tensor, counts: list[int]) -> list[list[tuple[int, float]]]:
    """Return the most likely ids of each row [B, V] with their log-probabilities, most likely first.

    Args:
        counts: Number of ids per row; ids of probability 0 are left out.
    """
    most_ids = min(max(counts, default=0), probabilities.shape[1])
    values, ids = probabilities.topk(most_ids)
    rows = []
    for row_ids, logprobs, count in zip(ids.tolist(), values.log().tolist(), counts, strict=True):
        likely = zip(row_ids[:count], logprobs[:count])
        rows.append([(id, logprob) for id, logprob in likely if logprob > -float("inf")])
    return rows


def score_tokens(
    logits: torch.Tensor, ids: torch.Tensor, top: int = 0
) -> tuple[list[float], list[list[tuple[int, float]]]]:
    """Score given tokens, such as those of a prompt.

    Args:
        logits: [N, V] before each token.

    Returns:
        Log-probabilities of the ids at temperature 1, and the most likely ids before each token (see `top_tokens`).
    """
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(1, ids[:, None])[:, 0]
    return chosen.tolist(), top_tokens(logprobs.exp(), [top] * len(ids))


class Penalties:
    """Token counts per row, and the resulting penalties.

    The repetition penalty (Keskar et al. 2019, arXiv 1909.05858) counts prompt and completion, as in transformers and vLLM;
    presence and frequency penalties count the completion only, as in OpenAI's API and vLLM. Memory: 5 bytes per vocabulary entry
    and row.
    """

    def __init__(self, vocab: int, device: torch.device | str = "cpu"):
        self._counts = torch.zeros(0, vocab, device=device)
        """[P, V] number of occurrences of each token in the completion."""
        self._occurs = torch.zeros(0, vocab, dtype=torch.bool, device=device)
        """[P, V] whether each token occurs in the prompt or the completion."""
        self._weights = torch.zeros(3, 0, device=device)
        """[3, P] repetition, presence and frequency penalty."""

    def add(self, rows: Sequence[tuple[SamplingParams, Sequence[int], Sequence[int]]]) -> None:
        """Append rows: sampling parameters, prompt, and the tokens sampled so far."""
        counts = self._counts.new_zeros(len(rows), self._counts.shape[1])
        occurs = self._occurs.new_zeros(counts.shape)
        weights: list[tuple[float, float, float]] = []
        for i, (sampling, prompt, answer) in enumerate(rows):
            tokens = torch.tensor([*answer], dtype=torch.long, device=counts.device)
            counts[i].index_add_(0, tokens, torch.ones_like(tokens, dtype=counts.dtype))
            occurs[i, torch.tensor([*prompt, *answer], dtype=torch.long, device=counts.device)] = True
            repetition = 1.0 if sampling.repetition_penalty is None else sampling.repetition_penalty
            weights.append((repetition, sampling.presence_penalty or 0.0, sampling.frequency_penalty or 0.0))
        self._counts = torch.cat([self._counts, counts])
        self._occurs = torch.cat([self._occurs, occurs])
        new_weights = self._weights.new_tensor(weights).reshape(-1, 3).T
        self._weights = torch.cat([self._weights, new_weights], 1)

    def keep(self, order: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        index = torch.tensor(order, dtype=torch.long, device=self._counts.device)
        self._counts, self._occurs, self._weights = self._counts[index], self._occurs[index], self._weights[:, index]

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the penalized logits [P, V]."""
        repetition, presence, frequency = self._weights[:, :, None]
        # Positive logits are divided by the penalty, negative ones multiplied. For a penalty above 1 that is the smaller of
        # the two results, below 1 the larger one; minimum is ten times as fast as torch.where on the sign.
        sign = torch.where(repetition < 1, -1.0, 1.0)
        repeated = torch.minimum(logits * (sign / repetition), logits * (sign * repetition)) * sign
        logits = torch.where(self._occurs, repeated, logits)
        logits = torch.addcmul(logits, frequency, self._counts, value=-1)
        return torch.addcmul(logits, presence, self._counts.clamp_max(1), value=-1)

    def count(self, ids: torch.Tensor) -> None:
        """Append a token [P] to each row's completion."""
        rows = torch.arange(len(ids), device=ids.device)
        self._counts[rows, ids] += 1
        self._occurs[rows, ids] = True


def has_penalty(sampling: SamplingParams) -> bool:
    """Return whether any penalty is on."""
    if sampling.repetition_penalty not in (None, 1):
        return True
    return bool(sampling.presence_penalty) or bool(sampling.frequency_penalty)


class SamplerRow(NamedTuple):
    """The parts of a running request that the sampler needs."""

    sampling: SamplingParams
    seed: int
    """Seed of the request's random stream, any integer."""
    prompt: Sequence[int]
    answer: Sequence[int] = ()
    """Tokens sampled so far, for example before a preemption."""
    constraint: Constraint | None = None
    """State of the request's grammar, which has already consumed `answer`."""


class SampledTokens(NamedTuple):
    """The next token of every row."""

    ids: torch.Tensor
    """[B] int64."""
    logprobs: torch.Tensor
    """[B] fp32, under the distribution from which the token was drawn. NaN means that the logits were not finite."""
    top: dict[int, list[tuple[int, float]]]
    """Row → most likely ids with log-probabilities, most likely first, for rows that request them."""


class Sampler:
    """Samples the next tokens of rows that join and leave.

    A row's token depends only on its own logits, seed and position, not on other rows.
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
        self._options: list[_RowOptions | None] = []
        self._greedy: list[bool] = []
        self._temperature = torch.zeros(0, device=self.device)
        self._seeds = torch.zeros(0, dtype=torch.long, device=self.device)
        self._position = torch.zeros(0, dtype=torch.long, device=self.device)
        self._penalties = Penalties(vocab, self.device)
        self._plan: _Plan | None = None
        self.add(rows)

    def __len__(self) -> int:
        return len(self._options)

    @torch.inference_mode()
    def add(self, rows: Sequence[SamplerRow]) -> None:
        """Append rows."""
        for row in rows:
            unknown = [token for token in row.sampling.logit_bias or {} if token >= self.vocab]
            if unknown:
                raise ConfigError(f"logit_bias is for the tokens {unknown}; expected ids below {self.vocab}")
        temperatures = [1.0 if row.sampling.temperature is None else row.sampling.temperature for row in rows]
        seeds = [row.seed % (1 << 63) for row in rows]  # an int64 holds no larger ones
        # A preempted row returns with tokens: it draws from where its random stream was.
        positions = [len(row.answer) for row in rows]
        penalized = [row for row in rows if has_penalty(row.sampling)]
        self._options += [_RowOptions.of(row, self.vocab, self.stop_ids) for row in rows]
        self._greedy += [temperature == 0 for temperature in temperatures]
        self._temperature = torch.cat([self._temperature, self._temperature.new_tensor(temperatures)])
        self._seeds = torch.cat([self._seeds, self._seeds.new_tensor(seeds)])
        self._position = torch.cat([self._position, self._position.new_tensor(positions)])
        self._penalties.add([(row.sampling, row.prompt, row.answer) for row in penalized])
        self._plan = None

    @torch.inference_mode()
    def keep(self, order: Sequence[int]) -> None:
        """Keep these rows, in this order."""
        penalty_rows: dict[int, int] = {}
        for i, options in enumerate(self._options):
            if options is not None and options.penalties:
                penalty_rows[i] = len(penalty_rows)
        if penalty_rows:
            self._penalties.keep([penalty_rows[i] for i in order if i in penalty_rows])
        index = torch.tensor(order, dtype=torch.long, device=self.device)
        self._temperature = self._temperature[index]
        self._seeds = self._seeds[index]
        self._position = self._position[index]
        self._options = [self._options[i] for i in order]
        self._greedy = [self._greedy[i] for i in order]
        self._plan = None

    @torch.inference_mode()
    def step(self, logits: torch.Tensor) -> SampledTokens:
        """Return the next token of every row.

        Args:
            logits: [B, V], of any float type, in the order of the rows. Not changed.
        """
        plan = self._plan = self._plan or _Plan(self._options, self._greedy, self.device)
        scores = self._edited(logits.to(self.device), plan)
        if len(plan.filtered):
            scores = self._filtered(scores, plan)
        ids, logprobs = self._drawn(scores, plan)
        top = {}
        if plan.top_counts:
            probabilities = self._probabilities(scores, plan.top_rows)
            top = dict(zip(plan.top_rows, top_tokens(probabilities, plan.top_counts), strict=True))
        self._position = self._position + 1
        if len(plan.penalized):
            self._penalties.count(ids[plan.penalized])
        if plan.constrained:
            drawn = ids.tolist()
            for i, constraint in plan.constrained:
                constraint.advance(drawn[i])
        return SampledTokens(ids.to(logits.device), logprobs.to(logits.device), top)

    def _edited(self, logits: torch.Tensor, plan: _Plan) -> torch.Tensor:
        """Return the logits after processing steps 1 and 2."""
        if not plan.edits:
            return logits
        scores = logits.to(torch.float32, copy=True)
        for i, constraint in plan.constrained:
            allowed = constraint.mask(self.vocab).to(self.device)
            scores[i].masked_fill_(~allowed, -torch.inf)
        if len(plan.min_tokens):
            row, token, least = plan.min_tokens.unbind(1)
            scores[row, token] = scores[row, token].where(self._position[row] >= least, -torch.inf)
        if len(plan.biased):
            scores.index_put_(tuple(plan.biased.unbind(1)), plan.biases, accumulate=True)
        if len(plan.penalized):
            scores[plan.penalized] = self._penalties.apply(scores[plan.penalized])
        return scores

    def _probabilities(self, scores: torch.Tensor, rows: Sequence[int] | torch.Tensor) -> torch.Tensor:
        """Return the distributions [n, V] of some rows."""
        return apply_temperature(scores[rows], self._temperature[rows]).softmax(-1)

    def _filtered(self, scores: torch.Tensor, plan: _Plan) -> torch.Tensor:
        """Return the logits with −∞ for the tokens that processing step 4 drops."""
        likely = filter_unlikely(self._probabilities(scores, plan.filtered), *plan.filters)
        scores = scores.to(torch.float32, copy=True)
        scores[plan.filtered] = scores[plan.filtered].masked_fill(likely == 0, -torch.inf)
        return scores

    def _drawn(self, scores: torch.Tensor, plan: _Plan) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a token of each row and its log-probability, both [B]."""
        uniform = uniforms(self._seeds, self._position)
        is_large = self.vocab >= LARGE_VOCABULARY and scores.device.type == "cpu"
        library: Any = softmax_kernels(scores.dtype) if is_large else None
        if library is not None:
            temperature = self._temperature.clamp_min(MIN_TEMPERATURE).where(self._temperature != 0, 0.0)
            ids, logprobs = torch.empty_like(self._seeds), torch.empty_like(temperature)
            scores = scores.contiguous()
            arguments = pointers(scores, temperature, uniform, ids, logprobs)
            run_rows(len(ids), partial(library.sample, *arguments, self.vocab))
            return ids, logprobs
        scores = apply_temperature(scores, self._temperature)
        probabilities = scores.softmax(-1)
        ids = sample_ids(probabilities, uniform) if len(plan.drawn) else scores.argmax(-1)
        if len(plan.drawn) and len(plan.greedy):
            ids[plan.greedy] = scores[plan.greedy].argmax(-1)
        return ids, probabilities.gather(1, ids[:, None])[:, 0].log()


class _RowOptions(NamedTuple):
    """Options of a row except its temperature, computed once when the row joins."""

    filters: tuple[int, float, float] | None
    """top_k, top_p, min_p."""
    penalties: bool
    min_tokens: list[tuple[int, int]]
    """Pairs (token, number of tokens that must come before it)."""
    biases: list[tuple[int, float]]
    top: int
    constraint: Constraint | None

    @classmethod
    def of(cls, row: SamplerRow, vocab: int, stop_ids: frozenset[int]) -> _RowOptions | None:
        """Return the options of a row; None if it has none."""
        params = row.sampling
        top_k = min(params.top_k or 0, vocab)
        top_p = 1.0 if params.top_p is None else params.top_p
        filters = (top_k if top_k > 0 else vocab, top_p, params.min_p or 0.0)
        min_tokens = params.min_tokens or 0
        end_tokens = sorted(end_token_ids(params, stop_ids)) if min_tokens > len(row.answer) else []
        options = cls(
            filters=None if filters == (vocab, 1, 0) or params.temperature == 0 else filters,
            penalties=has_penalty(params),
            min_tokens=[(token, min_tokens) for token in end_tokens if token < vocab],
            biases=list((params.logit_bias or {}).items()),
            top=min(params.logprobs or 0, vocab),
            constraint=row.constraint,
        )
        return options if any(options) else None


class _Plan:
    """Row indices by option; reused from step to step while the rows are the same."""

    def __init__(self, options: Sequence[_RowOptions | None], greedy: Sequence[bool], device: torch.device):
        def long(values: Sequence[object], width: int = 0) -> torch.Tensor:
            tensor = torch.tensor(values, dtype=torch.long, device=device)
            return tensor.reshape(-1, width) if width else tensor

        def real(values: Sequence[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32, device=device)

        self.greedy = long([i for i, is_greedy in enumerate(greedy) if is_greedy])
        self.drawn = long([i for i, is_greedy in enumerate(greedy) if not is_greedy])
        rows = [(i, row) for i, row in enumerate(options) if row is not None]
        filters = [(i, *row.filters) for i, row in rows if row.filters]
        self.filtered = long([i for i, _, _, _ in filters])
        self.filters = (
            long([top_k for _, top_k, _, _ in filters]),
            real([top_p for _, _, top_p, _ in filters]),
            real([min_p for _, _, _, min_p in filters]),
        )
        self.penalized = long([i for i, row in rows if row.penalties])
        min_tokens: list[tuple[int, int, int]] = []
        biased: list[tuple[int, int]] = []
        biases: list[float] = []
        for i, row in rows:
            min_tokens += [(i, token, least) for token, least in row.min_tokens]
            biased += [(i, token) for token, _ in row.biases]
            biases += [bias for _, bias in row.biases]
        self.min_tokens = long(min_tokens, 3)
        self.biased = long(biased, 2)
        self.biases = real(biases)
        self.constrained = [(i, row.constraint) for i, row in rows if row.constraint is not None]
        self.top_rows = [i for i, row in rows if row.top]
        self.top_counts = [row.top for _, row in rows if row.top]
        self.edits = bool(self.constrained or min_tokens or biased) or len(self.penalized) > 0
