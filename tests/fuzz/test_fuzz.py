"""Every fuzz target on its kept corpus, and the parts of the fuzzer that run without Atheris."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from rove.core.errors import ConfigError
from tests.fuzz import fuzz
from tests.fuzz.corpora import CORPORA, kept_inputs, write_corpus
from tests.fuzz.mutate import mutated
from tests.fuzz.target import (
    MAX_INPUT_BYTES,
    BadErrorError,
    LargeInputError,
    SlowInputError,
    Target,
    check,
    failure_name,
)
from tests.fuzz.targets import TARGETS

SLOW = ("gguf", "model_files")
"""Targets whose inputs load libraries; their first inputs suffice."""
CHANGED_INPUTS = 200


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_on_its_kept_corpus(name: str):
    inputs = kept_inputs(name)
    assert inputs, f"python -m tests.fuzz.seeds {name}"
    for data in inputs[: 2 if name in SLOW else None]:
        try:
            check(TARGETS[name], data)
        except Exception as error:
            error.add_note(f"input: {data[:500]!r}")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TARGETS if name not in SLOW])
def test_a_target_holds_on_changed_inputs_of_its_kept_corpus(name: str):
    """The same inputs each time, without coverage: `make fuzz` searches further."""
    rng, target, inputs = random.Random(name), TARGETS[name], kept_inputs(name)
    failures: dict[str, Exception] = {}
    for _ in range(CHANGED_INPUTS):
        data = rng.choice(inputs)
        for _ in range(rng.randint(1, 4)):
            data = mutated(data, target.words, MAX_INPUT_BYTES, rng) or data
        try:
            check(target, data)
        except Exception as error:
            error.add_note(f"input: {data[:500]!r}")
            failures.setdefault(failure_name(error), error)
    if failures:
        raise ExceptionGroup(f"{name}: {len(failures)} kinds of failures", list(failures.values()))


def test_every_corpus_belongs_to_a_target():
    assert {file.stem for file in CORPORA.glob("*")} == TARGETS.keys()


def run_error(error: Exception) -> Target:
    def run(data: bytes) -> None:
        raise error

    return Target("t", run, ())


def test_the_property_is_checked(monkeypatch: pytest.MonkeyPatch):
    check(run_error(ConfigError("n is 0; expected 1 or more")), b"")
    with pytest.raises(BadErrorError):
        check(run_error(ConfigError("")), b"")
    with pytest.raises(ZeroDivisionError):
        check(run_error(ZeroDivisionError()), b"")
    monkeypatch.setattr("tests.fuzz.target.MAX_CPU_S", -1.0)
    with pytest.raises(SlowInputError):
        check(Target("t", len, ()), b"")
    monkeypatch.undo()
    monkeypatch.setattr("tests.fuzz.target.MAX_GROWTH_BYTES", -1)
    with pytest.raises(LargeInputError):
        check(Target("t", len, ()), b"")


def test_an_interrupted_campaign_continues_and_its_table_counts_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    started: list[str] = []
    figures = {"executions": 10, "before": 5, "covered": 8, "ended": 0}

    def run_forked(name: str, seconds: int) -> dict[str, int]:
        started.append(name)
        if started == ["a", "b"]:
            raise KeyboardInterrupt
        return figures

    monkeypatch.setattr(fuzz, "BUILD", tmp_path)
    monkeypatch.setattr(fuzz, "PROGRESS", tmp_path / "progress.json")
    monkeypatch.setattr(fuzz, "run_forked", run_forked)
    (tmp_path / "b" / "crashes").mkdir(parents=True)
    fuzz.keep_failure(tmp_path / "b" / "crashes", b"longer", ZeroDivisionError())
    fuzz.keep_failure(tmp_path / "b" / "crashes", b"short", ZeroDivisionError())
    minutes = fuzz.MIN_SECONDS / 60 / 2  # one start for each target
    with pytest.raises(KeyboardInterrupt):
        fuzz.campaign(["a", "b"], minutes)
    fuzz.campaign(["a", "b"], minutes)
    assert started == ["a", "b", "b"]
    table = capsys.readouterr().out.split("\n\n")[-2]
    assert (
        "| all | 20 | | 6 | 1 |" in table
        and (tmp_path / "b" / "crashes" / "ZeroDivisionError-nowhere").read_bytes() == b"short"
    )
    fuzz.campaign(["a", "b"], minutes)  # a new one
    assert started == ["a", "b", "b", "a", "b"]


def test_figures_are_read_from_the_log_of_libfuzzer():
    log = "#3\tINITED cov: 15 ft: 20\n#90\tNEW    cov: 17 ft: 22\n#1000\tDONE   cov: 17 ft: 22\n"
    assert fuzz.figures_of(log) == {"executions": 1000, "before": 15, "covered": 17}
    assert fuzz.figures_of("") == {"executions": 0, "before": 0, "covered": 0}


def test_a_corpus_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tests.fuzz.corpora.CORPORA", tmp_path)
    inputs = [b"", b"a\nb", "é\u2028".encode(), bytes(range(256))]
    write_corpus("t", inputs)
    assert kept_inputs("t") == inputs and kept_inputs("another") == []


def test_mutations_of_json_stay_json_and_no_input_exceeds_the_maximum_size():
    data = json.dumps({"messages": [{"role": "user", "content": "x"}], "n": 1}).encode()
    rng = random.Random(0)
    results = [mutated(data, ("word",), 5_000, rng) for _ in range(500)]
    changed = [result for result in results if result is not None]
    assert max(map(len, changed)) == 5_000
    decoded = 0
    for result in changed:
        try:
            json.loads(result)
            decoded += 1
        except (ValueError, RecursionError):
            continue
    assert decoded > len(changed) // 2
