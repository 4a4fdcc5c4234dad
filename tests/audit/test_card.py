"""The card of an environment, as Markdown and as JSON."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from commands import in_process_rove, write_environment
from train_folders import write_train_folder

from rove.audit.card import Card, card_markdown, make_card, read_card
from rove.audit.findings import Report
from rove.core.errors import ConfigError
from rove.core.findings import Finding, Severity
from rove.runs.train_folder import COMPLETE, RECIPE

QUIZ = """
import rove as vf

def load_environment():
    def correct(completion, answer):
        return float(completion[-1]["content"] == answer)

    rows = [{"question": f"{n} + 7?", "answer": str(n + 7)} for n in range(1000, 1030)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([correct]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_environment(tmp_path / "environments", "quiz", QUIZ)
    return tmp_path / "environments"


def report(folder: Path) -> Report:
    return Report(
        env="quiz",
        env_dir=str(folder),
        num_examples=60,
        findings=[Finding(id="length", severity=Severity.MEDIUM, text="long replies earn more | *much* more")],
        checks=["length", "hedging", "determinism"],
        skipped={"hedging": "the time budget was used up"},
        rewards={"right answer": (1.0, 0.94, 1.0), "another row's answer": (0.02, 0.0, 0.08), "nothing": (0, 0, 0)},
        floor="another row's answer",
        contacted=[],
        rollouts=2000,
        cpu_seconds=30.0,
    )


def rows_of(page: str) -> dict[str, str]:
    """Return the table of properties."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1] for cells in lines if len(cells) == 2}


def test_the_card_of_an_audit(folder: Path) -> None:
    card = make_card(report(folder))
    page = card_markdown(card)
    rows = rows_of(page)
    assert page.startswith("## Audit of `quiz#")
    assert (rows["loads offline"], rows["deterministic rewards"], rows["findings"]) == ("yes", "yes", "1 medium")
    assert (rows["floor"], rows["ceiling"]) == (
        "0.020 [0.000, 0.080] (another row's answer)",
        "1.000 [0.940, 1.000] (right answer)",
    )
    assert (rows["learnability"], rows["not checked"]) == ("not measured", "hedging")
    assert rows["CPU-seconds per 1,000 rollouts"] == "15"
    assert r"| long replies earn more │ \*much\* more |" in page
    assert read_card(msgspec.json.encode(card)) == card
    accepted = msgspec.structs.replace(card.findings[0], accepted="meant")
    rows = rows_of(card_markdown(msgspec.structs.replace(card, findings=[accepted], not_applicable=["paid-calls"])))
    assert (rows["findings"], rows["not applicable"]) == ("1 accepted", "paid-calls")


def test_the_number_of_examples_is_that_of_the_largest_variance(folder: Path) -> None:
    """(z₀.₉₇₅ + z₀.₈₀)² · 2 · 0.25 / 0.05² for rewards between 0 and 1."""
    assert make_card(report(folder)).needed_examples == 1570


def test_unmeasured_properties_are_stated(folder: Path) -> None:
    bare = msgspec.structs.replace(report(folder), rewards={}, floor="", contacted=None, checks=["length"], rollouts=0)
    rows = rows_of(card_markdown(make_card(bare)))
    names = ("loads offline", "deterministic rewards", "floor", "ceiling", "examples to see a difference of 0.05")
    assert {rows[name] for name in (*names, "CPU-seconds per 1,000 rollouts")} == {"not measured"}


def test_contacted_hosts_and_changing_rewards_are_shown(folder: Path) -> None:
    findings = [Finding(id="determinism", text="rewards differ")]
    changed = msgspec.structs.replace(report(folder), contacted=["example.org"], findings=findings)
    rows = rows_of(card_markdown(make_card(changed)))
    assert (rows["loads offline"], rows["deterministic rewards"]) == ("no, contacts example.org", "no")


def test_learnability_comes_from_a_finished_training(folder: Path, tmp_path: Path) -> None:
    training = write_train_folder(tmp_path / "training")
    (training.path / RECIPE).write_text('env = "environments/quiz"\n[model]\nsize = "tiny"\n')
    card = make_card(report(folder), tmp_path / "training")
    assert [(model.stage, model.condition) for model in card.models] == [
        ("base", "greedy"),
        ("+ SFT", "greedy"),
        ("+ RL", "greedy"),
    ]
    assert card.models[2].mean == 1.15
    page = card_markdown(card)
    assert r"`rove train` began with a new model \(size tiny\) and took 2.0 minutes." in page
    assert "| + RL | greedy | 1.150 [1.047, 1.192] | 15 |" in page


def test_a_training_of_another_environment_or_an_unfinished_one_is_an_error(folder: Path, tmp_path: Path) -> None:
    write_train_folder(tmp_path / "training")
    with pytest.raises(ConfigError, match="a training in the environment 'quiz'; expected one in 'sums'"):
        make_card(msgspec.structs.replace(report(folder), env="sums"), tmp_path / "training")
    (tmp_path / "training" / COMPLETE).unlink()
    with pytest.raises(ConfigError, match="is not the folder of a finished rove train"):
        make_card(report(folder), tmp_path / "training")


@pytest.mark.parametrize(
    "content", [b"", b"[]", b'{"environment": 3}', b'{"findings": [{"id": "nothing", "text": "x"}]}']
)
def test_a_file_that_is_no_card(content: bytes) -> None:
    assert read_card(content) is None


def test_the_command(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rove = in_process_rove(tmp_path, monkeypatch, capsys)
    write_train_folder(tmp_path / "training")
    options = ("audit", "quiz", "--only", "data-overlap", "-n", "10", "--trained", "training")
    assert rove(*options, "--card", "card.md", "--card", "card.json").status == 0
    card = read_card(Path("card.json").read_bytes())
    assert isinstance(card, Card) and card.contacted == [] and len(card.models) == 3
    assert card.floor is not None and card.ceiling is not None and card.ceiling.reward[0] == 1.0
    assert Path("card.md").read_text() == card_markdown(card)
    for words, message in (
        ((*options, "--card", "card.txt"), "--card card.txt: expected a file name that ends in .md or .json"),
        (options, "add --card FILE"),
        (("audit", "quiz", "--card", "c.md", "--trained", "nothing"), "is not the folder of a finished rove train"),
        (("audit", "--compare", "quiz", "quiz", "--card", "c.md"), "remove it or --compare"),
    ):
        done = rove(*words)
        assert done.status == 2 and message in done.err
