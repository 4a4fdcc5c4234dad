"""Test ReasoningGymEnv: tasks, scores, and that code in answers runs only in worker processes."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from libraries import SharedHostMixin, requires_library, shared_host  # noqa: F401  a fixture
from toy_envs import scripted_client

import rove as vf
from rove.integrations.environments import reasoning
from rove.integrations.environments.reasoning import ReasoningGymEnv
from rove.integrations.known_defects import warn_of_known_defects

pytestmark = requires_library("reasoning_gym", "rove[reasoning-gym]")


class SharedHostReasoningGym(SharedHostMixin, ReasoningGymEnv):
    """A ReasoningGymEnv whose workers share one fork server."""


def answer_correctly(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    return f"So it is <answer>{state['answer']}</answer>"


def sample_answers(env: vf.Environment, *answers: str) -> list[vf.RolloutRecord]:
    """Return one rollout of the first example for each answer."""
    count = {"asked": 0}

    def policy(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
        count["asked"] += 1
        return f"<answer>{answers[count['asked'] - 1]}</answer>"

    options = {"num_examples": 1, "rollouts_per_example": len(answers), "max_concurrent": 1}
    records = env.generate_sync(scripted_client(policy), **options)
    return sorted(records, key=lambda record: record.rollout_index)


def test_a_family_has_disjoint_splits_and_is_scored() -> None:
    env = SharedHostReasoningGym("leg_counting", num_train_examples=5, num_eval_examples=20)
    train, held_out = env.get_dataset(), env.get_eval_dataset()
    assert (len(train), len(held_out)) == (5, 20)
    assert not {row["question"] for row in train} & {row["question"] for row in held_out}
    assert train[0]["prompt"][0]["role"] == "system" and "<answer>" in train[0]["prompt"][0]["content"]
    summary = env.evaluate_sync(scripted_client(answer_correctly))
    assert (summary.scored, summary.reward.mean) == (20, 1.0)
    [wrong, empty] = sample_answers(env, "banana", "")
    assert wrong.reward == empty.reward == 0.0
    assert wrong.scores is not None
    assert {"raw_score", "exact", "unreadable", "num_turns"} == wrong.scores.metrics.keys()


def test_seeds_share_no_tasks_and_a_family_with_known_defects_warns() -> None:
    first, second = (SharedHostReasoningGym("chain_sum", 40, 2, seed=seed).get_dataset() for seed in (1, 2))
    assert not {row["question"] for row in first} & {row["question"] for row in second}
    warn_of_known_defects.cache_clear()
    with pytest.warns(UserWarning, match="'knights_knaves' has a known defect"):
        SharedHostReasoningGym("knights_knaves", 2, 2)


@pytest.mark.slow
def test_the_same_seed_makes_the_same_tasks_in_every_process() -> None:
    program = (
        "from rove.core.digest import fingerprint\n"
        "from rove.integrations.environments.reasoning import ReasoningGymEnv\n"
        "names = ['isomorphic_strings', 'ransom_note', 'polynomial_multiplication']\n"
        "env = ReasoningGymEnv(names, num_eval_examples=40, seed=SEED)\n"
        "print(fingerprint({'rows': env.get_eval_dataset()}))\n"
    )

    def tasks_digest(seed: int, hash_seed: str) -> str:
        command = [sys.executable, "-c", program.replace("SEED", str(seed))]
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    assert tasks_digest(1, "1") == tasks_digest(1, "2") != tasks_digest(2, "1")


def test_many_tasks_are_created_in_few_worker_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    env = SharedHostReasoningGym("gcd", num_train_examples=500)
    call = env.workers.call_sync

    def count_positions(name: str, timeout: float, **arguments: Any) -> Any:
        sizes.append(len(arguments["positions"]))
        return call(name, timeout, **arguments)

    monkeypatch.setattr(env.workers, "call_sync", count_positions)
    monkeypatch.setattr(reasoning, "CHUNK_S", 60.0)  # a slow chunk on a busy machine does not change the sizes
    assert len({row["question"] for row in env.get_dataset()}) > 1
    assert sizes == [16, 32, 64, 128, 256, 4]


def test_a_mixture_follows_its_weights_and_configs() -> None:
    mixture = [{"name": "gcd", "weight": 3, "config": {"min_numbers": 4, "max_numbers": 4}}, "leg_counting"]
    env = SharedHostReasoningGym(mixture, num_eval_examples=64)
    rows = env.get_eval_dataset()
    gcds = [row for row in rows if row["info"]["family"] == "gcd"]
    assert 36 <= len(gcds) <= 60 and len(gcds) < 64
    assert all(row["question"].count(",") >= 3 for row in gcds)
    assert env.evaluate_sync(scripted_client(answer_correctly)).reward.mean == 1.0


@pytest.mark.slow
def test_reference_answers_of_tasks_with_tuples_are_correct() -> None:
    env = SharedHostReasoningGym(["arc_agi", "rearc", "graph_color"], num_eval_examples=12)
    records = [
        record
        for record in env.generate_sync(scripted_client(answer_correctly))
        if record.info["family"] != "graph_color"
    ]
    assert records and {record.reward for record in records} == {1.0}


def test_partial_credit_can_be_disabled() -> None:
    partial_env, strict_env = (
        SharedHostReasoningGym("count_primes", partial_credit=partial) for partial in (True, False)
    )
    [row] = partial_env.get_eval_dataset(1)
    [partial_record], [strict_record] = (
        sample_answers(env, f"it is {row['answer']}, or 7") for env in (partial_env, strict_env)
    )
    assert partial_record.scores is not None and 0.0 < partial_record.scores.reward < 1.0
    assert strict_record.scores is not None and strict_record.scores.reward == 0.0
    assert strict_record.scores.metrics["raw_score"] == partial_record.scores.reward
    assert partial_env.rubric.identity != strict_env.rubric.identity


def test_an_answer_that_the_scorer_cannot_read_is_wrong() -> None:
    [record] = sample_answers(SharedHostReasoningGym("prime_factorization"), "two times three")
    assert record.scores is not None
    assert (record.reward, record.scores.metrics["unreadable"]) == (0.0, 1.0)


@pytest.mark.broad
def test_code_in_answers_never_runs_in_this_process(tmp_path: Path) -> None:
    """reasoning-gym evaluates answers of this family as code: this happens in a worker, without effect on later answers."""
    marker = tmp_path / "note"
    write = f"__import__('pathlib').Path('{marker}').write_text(str(__import__('os').getpid()))"
    cheat = "setattr(__import__('reasoning_gym').games.n_queens.NQueensDataset, 'score_answer', lambda *a, **k: 1.0)"
    env = SharedHostReasoningGym("n_queens", score_seconds=3.0)
    wrote, cheated, later, slow, exiting, last = sample_answers(
        env, write, cheat, "banana", "9**9**9**9", "__import__('os')._exit(0)", "banana"
    )
    assert int(marker.read_text()) != os.getpid()
    assert [record.error for record in (wrote, cheated, later, last)] == [None] * 4
    assert later.reward == last.reward == 0.0
    for record, message in ((slow, "did not end within 3 s"), (exiting, "its process ended")):
        assert record.scores is None and record.error is not None
        assert (record.error.type, record.error.phase) == ("WorkerError", "scoring")
        assert message in record.error.message


@pytest.mark.slow
def test_every_family_loads_and_runs_no_answer_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Another test of the session may have imported it.
    monkeypatch.delitem(sys.modules, "reasoning_gym", raising=False)
    marker = tmp_path / "note"
    write = f"__import__('pathlib').Path({str(marker)!r}).open('a').write(str(__import__('os').getpid()) + ' ')"
    workers = SharedHostReasoningGym("gcd").workers
    workers.start()
    families = workers.setup_result["families"]
    specs = [{"name": "chain_sum", "weight": 1, "config": {}}, {"name": "gcd", "weight": 1, "config": {}}]
    solved, sampled = set(), set()
    for family in families:
        config = {"datasets": specs} if family == "composite" else None
        env = SharedHostReasoningGym(family, num_eval_examples=1, config=config, score_seconds=20.0)
        oracle_record, code_record = (
            env.generate_sync(scripted_client(player))[0]
            for player in (env.policies["oracle"], f"<answer>{write}</answer>")
        )
        assert oracle_record.error is None and code_record.error is None, (
            family,
            oracle_record.error,
            code_record.error,
        )
        sampled.add(family)
        solved |= {family} if oracle_record.reward == 1.0 else set()
    assert len(sampled) == len(families) >= 106 and "reasoning_gym" not in sys.modules
    unanswered = {
        "boxnet",
        "graph_color",
        "propositional_logic",
        "rubiks_cube",
        "rush_hour",
    }  # have no reference answers
    assert sampled - solved == unanswered
    assert marker.exists() and str(os.getpid()) not in marker.read_text().split()


@pytest.mark.slow
def test_workers_end_with_the_run() -> None:
    env = ReasoningGymEnv("gcd", num_eval_examples=3)
    env.evaluate_sync(scripted_client(answer_correctly))
    assert env.workers._server is None
    assert env.evaluate_sync(scripted_client(answer_correctly)).reward.mean == 1.0


def test_the_random_state_of_this_process_is_unchanged() -> None:
    random_state_before = random.getstate()
    SharedHostReasoningGym("word_ladder", num_eval_examples=3).evaluate_sync(scripted_client(answer_correctly))
    assert random.getstate() == random_state_before and "reasoning_gym" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gym": "leg_count"}, "did you mean 'leg_counting'"),
        ({"gym": []}, "gym is empty"),
        ({"gym": [{"name": "gcd", "wait": 2}]}, "wait"),
        ({"gym": ["gcd"], "config": {"min_numbers": 2}}, "config is for one family"),
        ({"gym": "gcd", "num_eval_examples": 0}, "num_eval_examples is 0"),
        ({"gym": "gcd", "config": {"numbers": 2}}, "numbers"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(vf.Error, match=message):
        SharedHostReasoningGym(**arguments).get_eval_dataset()


def test_tasks_are_unchanged_by_encoding_and_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", ".composite", ".factory", ".utils"):  # only workers import the real library
        stub: Any = ModuleType(f"reasoning_gym{name}")
        stub.DatasetSpec = stub.DATASETS = stub.SYSTEM_PROMPTS = None
        monkeypatch.setitem(sys.modules, stub.__name__, stub)
    module = "rove.integrations.environments.reasoning_worker"
    monkeypatch.delitem(sys.modules, module, raising=False)
    worker = importlib.import_module(module)
    encode, decode = worker.encode, worker.decode
    monkeypatch.delitem(sys.modules, module)
    task = {"a": (1, [2, (3.5, None)]), "b": {1: "x", (2, 3): {"(tuple)": True}}, "c": "é", "d": Fraction(2, 3)}
    assert decode(encode(task)) == task
    with pytest.raises(TypeError, match="set"):
        encode({"a": {1}})


@pytest.mark.broad
def test_score_answer_scores_a_single_answer() -> None:
    env = SharedHostReasoningGym("gcd", num_eval_examples=1)
    [row] = env.get_eval_dataset()

    async def score() -> list[float | None]:
        return [await env.score_answer(row["info"], answer) for answer in (row["answer"], "banana")]

    assert asyncio.run(score())[0] == 1.0
