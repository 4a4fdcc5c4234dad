"""ReasoningGymEnv: what it makes, how it scores, and that answers run in its workers or nowhere."""

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
from libraries import Lasting, needs_library, shared_host  # noqa: F401  a fixture
from toys import says

import rove as vf
from rove.integrations.environments import reasoning
from rove.integrations.environments.reasoning import ReasoningGymEnv
from rove.integrations.known_defects import warn_of_known_defects

pytestmark = needs_library("reasoning_gym", "rove[reasoning-gym]")


class Families(Lasting, ReasoningGymEnv):
    """Of one host."""


def right(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    return f"So it is <answer>{state['answer']}</answer>"


def answered(env: vf.Environment, *answers: str) -> list[vf.RolloutRecord]:
    """One rollout of the first example per answer."""
    count = {"asked": 0}

    def player(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
        count["asked"] += 1
        return f"<answer>{answers[count['asked'] - 1]}</answer>"

    options = {"num_examples": 1, "rollouts_per_example": len(answers), "max_concurrent": 1}
    records = env.generate_sync(says(player), **options)
    return sorted(records, key=lambda record: record.rollout_index)


def test_a_family() -> None:
    env = Families("leg_counting", num_train_examples=5, num_eval_examples=20)
    train, held_out = env.get_dataset(), env.get_eval_dataset()
    assert (len(train), len(held_out)) == (5, 20)
    assert not {row["question"] for row in train} & {row["question"] for row in held_out}
    assert train[0]["prompt"][0]["role"] == "system" and "<answer>" in train[0]["prompt"][0]["content"]
    summary = env.evaluate_sync(says(right))
    assert (summary["scored"], summary["reward"]["mean"]) == (20, 1.0)
    [wrong, silent] = answered(env, "banana", "")
    assert wrong.reward == silent.reward == 0.0
    assert wrong.scores is not None
    assert {"raw_score", "exact", "unreadable", "num_turns"} == wrong.scores.metrics.keys()


def test_seeds_share_no_tasks_and_a_family_with_known_defects_warns() -> None:
    first, second = (Families("chain_sum", 40, 2, seed=seed).get_dataset() for seed in (1, 2))
    assert not {row["question"] for row in first} & {row["question"] for row in second}
    warn_of_known_defects.cache_clear()
    with pytest.warns(UserWarning, match="'knights_knaves' has known defects"):
        Families("knights_knaves", 2, 2)


@pytest.mark.slow
def test_the_same_seed_makes_the_same_tasks_in_every_process() -> None:
    program = (
        "from rove.core.digest import fingerprint\n"
        "from rove.integrations.environments.reasoning import ReasoningGymEnv\n"
        "names = ['isomorphic_strings', 'ransom_note', 'polynomial_multiplication']\n"
        "env = ReasoningGymEnv(names, num_eval_examples=40, seed=SEED)\n"
        "print(fingerprint({'rows': env.get_eval_dataset()}))\n"
    )

    def said(seed: int, hash_seed: str) -> str:
        command = [sys.executable, "-c", program.replace("SEED", str(seed))]
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    assert said(1, "1") == said(1, "2") != said(2, "1")


def test_many_tasks_need_few_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    env = Families("gcd", num_train_examples=500)
    call = env.workers.call_sync

    def counted(name: str, timeout: float, **arguments: Any) -> Any:
        sizes.append(len(arguments["positions"]))
        return call(name, timeout, **arguments)

    monkeypatch.setattr(env.workers, "call_sync", counted)
    monkeypatch.setattr(reasoning, "CHUNK_S", 60.0)  # of a busy machine
    assert len({row["question"] for row in env.get_dataset()}) > 1
    assert sizes == [16, 32, 64, 128, 256, 4]


def test_a_mixture_has_its_shares_and_its_settings() -> None:
    mixture = [{"name": "gcd", "weight": 3, "config": {"min_numbers": 4, "max_numbers": 4}}, "leg_counting"]
    env = Families(mixture, num_eval_examples=64)
    rows = env.get_eval_dataset()
    gcds = [row for row in rows if row["info"]["family"] == "gcd"]
    assert 36 <= len(gcds) <= 60 and len(gcds) < 64
    assert all(row["question"].count(",") >= 3 for row in gcds)
    assert env.evaluate_sync(says(right))["reward"]["mean"] == 1.0


@pytest.mark.broad
def test_reference_answers_of_tasks_with_tuples_are_correct() -> None:
    env = Families(["arc_agi", "rearc", "graph_color"], num_eval_examples=12)
    records = [record for record in env.generate_sync(says(right)) if record.info["family"] != "graph_color"]
    assert records and {record.reward for record in records} == {1.0}


def test_partial_credit_can_be_disabled() -> None:
    half, none = (Families("count_primes", partial_credit=partial) for partial in (True, False))
    [row] = half.get_eval_dataset(1)
    [paid], [unpaid] = (answered(env, f"it is {row['answer']}, or 7") for env in (half, none))
    assert paid.scores is not None and 0.0 < paid.scores.reward < 1.0
    assert unpaid.scores is not None and unpaid.scores.reward == 0.0
    assert unpaid.scores.metrics["raw_score"] == paid.scores.reward
    assert half.rubric.identity != none.rubric.identity


def test_an_answer_that_the_scorer_cannot_read_is_wrong() -> None:
    [record] = answered(Families("prime_factorization"), "two times three")
    assert record.scores is not None
    assert (record.reward, record.scores.metrics["unreadable"]) == (0.0, 1.0)


@pytest.mark.broad
def test_answers_are_never_run_here(tmp_path: Path) -> None:
    """The library evaluates answers of this family. Where that happens is a worker's business, and lasts for one answer."""
    note = tmp_path / "note"
    write = f"__import__('pathlib').Path('{note}').write_text(str(__import__('os').getpid()))"
    cheat = "setattr(__import__('reasoning_gym').games.n_queens.NQueensDataset, 'score_answer', lambda *a, **k: 1.0)"
    env = Families("n_queens", score_seconds=3.0)
    ran, cheated, later, slow, deadly, last = answered(
        env, write, cheat, "banana", "9**9**9**9", "__import__('os')._exit(0)", "banana"
    )
    assert int(note.read_text()) != os.getpid()
    assert [record.error for record in (ran, cheated, later, last)] == [None] * 4
    assert later.reward == last.reward == 0.0
    for record, told in ((slow, "did not end within 3 s"), (deadly, "its process ended")):
        assert record.scores is None and record.error is not None
        assert (record.error.type, record.error.phase) == ("WorkerError", "scoring")
        assert told in record.error.message


@pytest.mark.slow
def test_every_family_loads_and_runs_no_answer_in_this_process(tmp_path: Path) -> None:
    note = tmp_path / "note"
    write = f"__import__('pathlib').Path({str(note)!r}).open('a').write(str(__import__('os').getpid()) + ' ')"
    workers = Families("gcd").workers
    workers.start()
    families = workers.setup_result["families"]
    specs = [{"name": "chain_sum", "weight": 1, "config": {}}, {"name": "gcd", "weight": 1, "config": {}}]
    right, played = set(), set()
    for family in families:
        config = {"datasets": specs} if family == "composite" else None
        env = Families(family, num_eval_examples=1, config=config, score_seconds=20.0)
        own, ran = (
            env.generate_sync(says(player))[0] for player in (env.policies["oracle"], f"<answer>{write}</answer>")
        )
        assert own.error is None and ran.error is None, (family, own.error, ran.error)
        played.add(family)
        right |= {family} if own.reward == 1.0 else set()
    assert len(played) == len(families) >= 106 and "reasoning_gym" not in sys.modules
    unanswered = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}  # no answer of their own
    assert played - right == unanswered
    assert note.exists() and str(os.getpid()) not in note.read_text().split()


@pytest.mark.broad
def test_workers_end_with_the_run() -> None:
    env = ReasoningGymEnv("gcd", num_eval_examples=3)
    env.evaluate_sync(says(right))
    assert env.workers._server is None
    assert env.evaluate_sync(says(right))["reward"]["mean"] == 1.0


def test_the_random_state_of_this_process_is_unchanged() -> None:
    before = random.getstate()
    Families("word_ladder", num_eval_examples=3).evaluate_sync(says(right))
    assert random.getstate() == before and "reasoning_gym" not in sys.modules


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"gym": "leg_count"}, "did you mean 'leg_counting'"),
        ({"gym": []}, "gym is empty"),
        ({"gym": [{"name": "gcd", "wait": 2}]}, "wait"),
        ({"gym": ["gcd"], "config": {"min_numbers": 2}}, "config is for one family"),
        ({"gym": "gcd", "num_eval_examples": 0}, "num_eval_examples is 0"),
        ({"gym": "gcd", "config": {"numbers": 2}}, "numbers"),
    ],
)
def test_invalid_arguments(arguments: dict, told: str) -> None:
    with pytest.raises(vf.Error, match=told):
        Families(**arguments).get_eval_dataset()


def test_tasks_come_through_json_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("", ".composite", ".factory", ".utils"):  # the library itself is imported by workers alone
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
def test_score_answer() -> None:
    env = Families("gcd", num_eval_examples=1)
    [row] = env.get_eval_dataset()

    async def score() -> list[float | None]:
        return [await env.score_answer(row["info"], answer) for answer in (row["answer"], "banana")]

    assert asyncio.run(score())[0] == 1.0
