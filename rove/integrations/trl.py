"""rove environments in TRL (1.16 or later): rollouts for `GRPOTrainer`, and reward functions of TRL as a rubric.

TRL generates the tokens, and rove runs the environment: its turns, tools, opponents, limits, and rewards.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rove.core.digest import derive_seed
from rove.core.errors import ConfigError, Error
from rove.core.model_roles import RoleClients
from rove.core.plain import Row
from rove.core.protocols import Generation, Limits, OnToken, SamplingParams
from rove.core.records import RolloutRecord, Scores
from rove.core.state import State, bookkeeping, completion_of, prompt_of
from rove.engine.client import EngineClient
from rove.envs.environment import Environment
from rove.envs.loading import load_environment
from rove.integrations import require_library, text_messages
from rove.integrations.stepwise import LibraryEngine, check_sampling_args
from rove.models.load import context_of
from rove.rendering.renderer import Renderer
from rove.rollouts.run_rollouts import run_rollouts
from rove.rubrics import Rubric
from rove.train.sequences import TrainingSequence, sequences_from_record
from rove.utils.event_loop import outside_event_loop, run_async
from rove.utils.functions import function_name, maybe_await

if TYPE_CHECKING:
    from datasets import Dataset  # pyright: ignore[reportMissingImports]

ROW = "rove_row"
"""Key of a prompt's last message: the position of the row. TRL passes only the prompts to a `rollout_func`."""
TRL_COLUMNS = "trl_columns"
"""Key of a row's columns as reward functions get them. Default: the row itself, in which rove converts `answer` and `info`."""
NOT_SUPPORTED = ("stop", "stop_token_ids", "response_format", "structured_outputs", "logit_bias", "min_tokens")
"""Sampling parameters of an environment that TRL's generation cannot apply to single requests."""
READY_PASSES = 8
"""Passes of the event loop after which all rollouts that are ready have sent their requests."""


class Rollouts:
    """Rollouts of a rove environment for TRL's `GRPOTrainer`.

    TRL's own generation samples the tokens: transformers, or vLLM (colocated, or a server for one training process). The
    prompt of every turn extends the tokens of the turns before it; no text is tokenized again. The mask (`env_mask`) is 1 on
    sampled tokens. Log-probabilities are those of TRL, which has them with vLLM only.

    Example:
        >>> rollouts = Rollouts("tictactoe", max_tokens=16)
        >>> trainer = GRPOTrainer(
        ...     "models/tiny",
        ...     args=GRPOConfig("runs/trl", max_completion_length=128),
        ...     train_dataset=rollouts.dataset,
        ...     rollout_func=rollouts,
        ...     reward_funcs=rollouts.reward,
        ... )

    A failed rollout has no reward: TRL then leaves it out of the mean of its group, and does not train on it. Of a rollout
    with several branches (see `rove.sequences_from_record`), TRL can train on one, the branch with the most sampled tokens.

    Args:
        env: An environment, its name, or the path of its file. Names are looked up in `environments/` of the current folder.
        env_args: Arguments of `load_environment`, if `env` is a name.
        num_examples: Maximum number of training rows; -1 = all.
        num_eval_examples: Maximum number of evaluation rows; -1 = all.
        max_tokens: Maximum tokens of a turn. Default: TRL's `max_completion_length`, which also limits the whole rollout.
        limits: Limits of a rollout.
        model_roles: Clients by role that replace the environment's clients.
        renderer: Renders messages. Default: the chat template of TRL's tokenizer.

    Raises:
        ConfigError: The environment has prompts that are raw texts, or needs sampling parameters that TRL does not have.
    """

    def __init__(
        self,
        env: Environment | str,
        env_args: Mapping[str, object] | None = None,
        *,
        num_examples: int = -1,
        num_eval_examples: int = -1,
        max_tokens: int | None = None,
        limits: Limits | Mapping[str, float] | None = None,
        model_roles: RoleClients | None = None,
        renderer: Renderer | None = None,
    ):
        arguments: dict[str, Any] = dict(env_args or {})
        self.env: Environment = load_environment(env, **arguments) if isinstance(env, str) else env
        name = self.env.env_id or type(self.env).__name__
        if self.env.message_type == "completion":
            raise ConfigError(f"'{name}' has message_type 'completion'; expected an environment with chat messages")
        check_sampling_args(self.env, name, "TRL's generation", NOT_SUPPORTED)
        self._train_rows: list[Row] = self.env.get_dataset(num_examples)
        self.rows = [*self._train_rows, *self.env.get_eval_dataset(num_eval_examples)]
        self.max_tokens = max_tokens or SamplingParams.from_args(self.env.sampling_args).max_tokens
        self.limits = limits or Limits()
        self.model_roles = model_roles
        self.renderer = renderer
        self.records: list[RolloutRecord] = []
        """The rollouts of the last generation, in the order of TRL's prompts."""

    @property
    def dataset(self) -> Dataset:
        """The training rows, as TRL's `train_dataset`."""
        return self._dataset(0, len(self._train_rows))

    @property
    def eval_dataset(self) -> Dataset:
        """The evaluation rows, as TRL's `eval_dataset`."""
        return self._dataset(len(self._train_rows), len(self.rows))

    def _dataset(self, start: int, end: int) -> Dataset:
        require_library("datasets", "hf", "Rollouts")
        from datasets import Dataset  # pyright: ignore[reportMissingImports]

        rows: list[dict[str, object]] = []
        for position in range(start, end):
            messages = text_messages(self.rows[position]["prompt"])
            rows.append({"prompt": [{**message, ROW: position} for message in messages]})
        return Dataset.from_list(rows)

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, Any]:
        """Run a rollout per prompt; see `rollout_func` of TRL's `GRPOTrainer`."""
        positions = [self._position(prompt) for prompt in prompts]
        engine = _TrainerEngine(trainer, len(prompts))
        renderer = self.renderer or Renderer(trainer.processing_class, trainer.eos_token_ids)
        # TRL repeats a prompt for each member of its group; the members are run together, so that their seeds differ.
        counts = Counter(positions)
        groups = self._run(EngineClient(engine, renderer), counts)
        self.records = [groups[position].pop(0) for position in positions]
        # Such an error, such as a lack of memory, would repeat in every step of a training run that learns nothing.
        if engine.error is not None and all(record.error is not None for record in self.records):
            raise engine.error
        # TRL computes logits of all tokens, for which a prompt that was too long must be cut.
        max_prompt = engine.context - 1
        first_prompts = [self._first_prompt_ids(renderer, record)[:max_prompt] for record in self.records]
        tokens = [
            _Tokens.of(record, prompt_ids, trainer.max_completion_length, trainer.eos_token_ids[0])
            for record, prompt_ids in zip(self.records, first_prompts, strict=True)
        ]
        for record in self.records:
            _remove_nan(record)
        return {
            "prompt_ids": [item.prompt_ids for item in tokens],
            "completion_ids": [item.completion_ids for item in tokens],
            "logprobs": [item.logprobs for item in tokens] if engine.has_logprobs else None,
            "env_mask": [item.mask for item in tokens],
            "rove_reward": [record.reward for record in self.records],
            "rove_metrics": [_metrics(record) for record in self.records],
        }

    def reward(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        rove_reward: Sequence[float | None],
        rove_metrics: Sequence[Mapping[str, float]],
        log_metric: Callable[[str, float], None] | None = None,
        **other_columns: object,
    ) -> list[float | None]:
        """Return the rewards of the rollouts, None for failed ones, and log rewards and metrics of the rubric's functions."""
        values: dict[str, list[float]] = {}
        for metrics in rove_metrics:
            for name, value in metrics.items():
                values.setdefault(name, []).append(value)
        for name, of_rollouts in values.items():
            if log_metric is not None:
                log_metric(f"rove/{name}", math.fsum(of_rollouts) / len(of_rollouts))
        return list(rove_reward)

    def _position(self, prompt: Any) -> int:
        position = prompt[-1].get(ROW) if isinstance(prompt, list) and isinstance(prompt[-1], Mapping) else None
        if not isinstance(position, int) or not 0 <= position < len(self.rows):
            raise ConfigError(
                "a prompt of TRL's dataset is not a row of this environment; pass rollouts.dataset as train_dataset, and "
                "rollouts.eval_dataset as eval_dataset"
            )
        return position

    def _run(self, client: EngineClient[Any], counts: Mapping[int, int]) -> dict[int, list[RolloutRecord]]:
        """Return the rollouts of each row, by its position."""
        trainer = client.engine.trainer
        sampling = {"temperature": trainer.temperature, "max_tokens": self.max_tokens or trainer.max_completion_length}
        seed = derive_seed(trainer.args.seed, trainer.state.global_step)

        async def run_group(position: int) -> list[RolloutRecord]:
            return await run_rollouts(
                self.env,
                [self.rows[position]],
                client,
                rollouts_per_example=counts[position],
                sampling_args=sampling,
                limits=self.limits,
                model_roles=self.model_roles,
                max_concurrent=counts[position],
                seed=seed,
                for_training=True,
            )

        async def run_groups() -> dict[int, list[RolloutRecord]]:
            async with self.env.used_in_run():  # the groups share its servers and worker processes
                groups = await asyncio.gather(*map(run_group, counts))
            return dict(zip(counts, groups, strict=True))

        return outside_event_loop(lambda: run_async(run_groups()))

    def _first_prompt_ids(self, renderer: Renderer, record: RolloutRecord) -> list[int]:
        """Return the tokens of the first prompt, also of a rollout that failed before its first turn."""
        if record.steps and record.steps[0].tokens is not None:
            return record.steps[0].tokens.prompt_ids
        return renderer.prompt_ids(record.prompt, None, record.tools)


def _remove_nan(record: RolloutRecord) -> None:
    """Replace log-probabilities that vLLM could not compute by 0. TRL takes NaN, but a record with NaN cannot be read again."""
    for step in record.steps:
        if step.tokens is not None:
            logprobs = step.tokens.logprobs
            logprobs[:] = [0.0 if math.isnan(value) else value for value in logprobs]


class _Tokens:
    """The tokens of a rollout as TRL takes them."""

    def __init__(self, prompt_ids: list[int], completion_ids: list[int], mask: list[int], logprobs: list[float]):
        self.prompt_ids = prompt_ids
        self.completion_ids = completion_ids
        self.mask = mask
        self.logprobs = logprobs

    @classmethod
    def of(cls, record: RolloutRecord, prompt_ids: list[int], limit: int, end_id: int) -> _Tokens:
        """Return the tokens of the branch with the most sampled tokens; of a failed rollout, a token that is not trained.

        A rollout whose first prompt was too long did not fail, but has no sampled tokens either.
        """
        sequences = [] if record.error is not None else sequences_from_record(record)
        sequences = [sequence for sequence in sequences if any(sequence.mask)]
        if not sequences:
            return cls(prompt_ids, [end_id], [0], [0.0])
        sequence: TrainingSequence = max(sequences, key=lambda sequence: sum(sequence.mask))
        start = sequence.mask.index(True)
        end = start + limit
        return cls(
            sequence.ids[:start],
            sequence.ids[start:end],
            [int(sampled) for sampled in sequence.mask[start:end]],
            sequence.logprobs[start:end],
        )


def _metrics(record: RolloutRecord) -> dict[str, float]:
    if record.scores is None:
        return {"failed": 1.0}
    return {"failed": 0.0, **record.scores.rewards, **record.scores.metrics}


class _TrainerEngine(LibraryEngine):
    """TRL's generation as an inference engine: the requests of all rollouts that are ready are one batch."""

    def __init__(self, trainer: Any, max_batch: int):
        num_processes = trainer.accelerator.num_processes
        is_sharded = trainer._dist.is_fsdp or trainer._dist.is_zero3
        if num_processes > 1 and (trainer.use_vllm or is_sharded):
            # All processes must call TRL's generation equally often, but their rollouts have different numbers of turns.
            method = "generates with vLLM" if trainer.use_vllm else "shards the model (FSDP or ZeRO-3)"
            raise ConfigError(
                f"TRL {method} in {num_processes} processes, which rove's rollouts do not support; train in one process, or "
                "set use_vllm=False and keep the whole model in each process (DDP, ZeRO-1, or ZeRO-2)"
            )
        self.trainer = trainer
        self.max_batch = max_batch
        self.context = context_of(trainer.accelerator.unwrap_model(trainer.model))
        if trainer.use_vllm:
            self.context = min(self.context, _vllm_context(trainer))
        self.policy_version = int(trainer.state.global_step)
        self.has_logprobs = bool(trainer.use_vllm)
        self.error: Exception | None = None
        """The last error of TRL's generation."""
        self._requests: list[tuple[list[int], int, asyncio.Future[Generation]]] = []
        self._batches: asyncio.Task[None] | None = None

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        seed: int = 0,
        on_token: OnToken | None = None,
        adapter: str | None = None,
    ) -> Generation:
        """Sample a continuation of `prompt_ids` with TRL's sampling parameters."""
        # A prompt that is too long would fail the whole batch.
        remaining_context = self.remaining_context(prompt_ids)
        limit = min(remaining_context, sampling.max_tokens or self.trainer.max_completion_length)
        generation: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._requests.append((list(prompt_ids), limit, generation))
        if self._batches is None or self._batches.done():
            self._batches = asyncio.create_task(self._run_batches())
        return await generation

    async def _run_batches(self) -> None:
        while self._requests:
            # One batch of all rollouts takes about as long as a batch of one, so it waits until no further request arrives.
            count = 0
            while count != len(self._requests):
                count = len(self._requests)
                for _ in range(READY_PASSES):
                    await asyncio.sleep(0)
            requests, self._requests = self._requests, []
            try:
                generations = self._generate(
                    [prompt_ids for prompt_ids, _, _ in requests], [limit for _, limit, _ in requests]
                )
            except Exception as error:
                self.error = error
                # Raised here, the error would end this task, and the rollouts would wait for ever.
                for _, _, future in requests:
                    if not future.done():  # a rollout at its time limit has canceled its request
                        future.set_exception(error)
                continue
            for (_, _, future), generation in zip(requests, generations, strict=True):
                if not future.done():
                    future.set_result(generation)

    def _generate(self, prompts: list[list[int]], limits: list[int]) -> list[Generation]:
        trainer = self.trainer
        if trainer.use_vllm:
            completions, logprobs = trainer._generate_single_turn(prompts, None, {}, 1)
        else:
            config = trainer.generation_config
            max_new_tokens = config.max_new_tokens
            # Positions beyond the context do not exist, and the batch is padded to its longest prompt.
            config.max_new_tokens = min(max(limits), self.context - max(map(len, prompts)))
            try:
                completions, logprobs = trainer._generate_single_turn(prompts, None, {}, 1)
            finally:
                config.max_new_tokens = max_new_tokens
        generations: list[Generation] = []
        for number, (completion, limit) in enumerate(zip(completions, limits, strict=True)):
            ids = list(completion[:limit])
            of_completion = logprobs[number][:limit] if logprobs is not None else [0.0] * len(ids)
            values = [math.nan if value is None else float(value) for value in of_completion]
            finish_reason = "stop" if ids and ids[-1] in trainer.eos_token_ids else "length"
            generations.append(Generation(ids, values, finish_reason, self.policy_version))
        return generations


def _vllm_context(trainer: Any) -> int:
    """Return the maximum tokens of prompt and completion in vLLM, which can be less than the model's."""
    generation = trainer.vllm_generation
    if trainer.vllm_mode == "colocate":
        return generation.llm.llm_engine.model_config.max_model_len
    return generation.vllm_client.get_server_info()["model_config"]["max_model_len"]


_returned_values: ContextVar[list[float | None]] = ContextVar("returned_values")
"""What the functions have returned for the rollout that is being scored."""


class _TRLRubric(Rubric):
    """Reward functions of TRL, which may return None."""

    async def score_rollout(self, state: State) -> Scores:
        """Return the scores; see `Rubric.score_rollout`.

        Raises:
            Error: All functions returned None.
        """
        values: list[float | None] = []
        _returned_values.set(values)
        scores = await super().score_rollout(state)
        if values and all(value is None for value in values):
            raise Error("every reward function of TRL returned None, so the rollout has no reward")
        return scores


def rubric_from_trl(
    reward_funcs: Callable[..., Any] | Iterable[Callable[..., Any]], weights: Sequence[float] | None = None
) -> Rubric:
    """Return a rubric with reward functions that are written for TRL.

    Each function is called with one rollout: `prompts`, `completions`, `completion_ids`, and the columns of the row are lists
    of length 1. A function that returns None does not count; if all of them do, the rollout fails.

    Example:
        >>> env = rove.SingleTurnEnv(dataset=rows, rubric=rubric_from_trl([accuracy_reward, format_reward], [1.0, 0.2]))

    Args:
        reward_funcs: One function or several.
        weights: Weight of each function. Default: 1.
    """
    functions = list(reward_funcs) if isinstance(reward_funcs, Iterable) else [reward_funcs]
    if weights is not None and len(weights) != len(functions):
        raise ConfigError(f"{len(weights)} weights for {len(functions)} reward functions; expected one per function")
    rubric = _TRLRubric()
    for number, function in enumerate(functions):
        weight = 1.0 if weights is None else weights[number]
        name = function_name(function)
        rubric.add_reward_func(_as_reward_func(function, name), weight=weight, name=name)
    return rubric


def _as_reward_func(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    parameters = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    async def reward(state: State) -> float:
        row = bookkeeping(state).input or {}
        columns = {column: [value] for column, value in row.get(TRL_COLUMNS, row).items()}
        columns.pop("prompt", None)
        columns.pop("completion", None)
        completion_ids: list[int] = []
        for step in bookkeeping(state).trajectory:
            if step.tokens is not None:
                completion_ids += step.tokens.completion_ids
        available: dict[str, Any] = {
            **columns,
            "prompts": [prompt_of(state)],
            "completions": [completion_of(state)],
            "completion_ids": [completion_ids],
            "trainer_state": None,
            "log_extra": _ignore,
            "log_metric": _ignore,
        }
        arguments = available
        if not takes_all:
            arguments = {key: value for key, value in available.items() if key in parameters}
        values = list(await maybe_await(function(**arguments)))
        if len(values) != 1:
            raise Error(f"reward function '{name}' returned {len(values)} rewards for one rollout; expected one")
        _returned_values.get([]).append(values[0])
        return 0.0 if values[0] is None else float(values[0])

    # The identity of a run contains the source of TRL's function, which `inspect` finds here.
    setattr(reward, "__wrapped__", function)  # noqa: B010  pyright knows no such attribute of functions
    signature = inspect.Signature([inspect.Parameter("state", inspect.Parameter.POSITIONAL_OR_KEYWORD)])
    setattr(reward, "__signature__", signature)  # noqa: B010
    return reward


def _ignore(*_: object) -> None:
    """Ignore what a reward function logs."""
