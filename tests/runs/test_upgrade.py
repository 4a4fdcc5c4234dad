"""Run folders written at commit 89bc243, before names changed: evaluations, an SFT run and an interrupted RL run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import Rove, in_this_process
from safetensors.torch import load_file

from rove.runs.run import Run
from rove.runs.serialization import decode_record
from rove.runs.upgrade import upgrade_line
from rove.viewer.run_store import RunStore

OLD = Path(__file__).parents[1] / "fixtures" / "runs_at_89bc243"
RL = (
    "rl letters --env-dir envs -m model --steps 6 --batch-size 16 -r 8 -t 12 --learning-rate 0.003 --warmup-steps 0 "
    "--final-lr-fraction 1 --checkpoint-every 2 --threads 1 --log-token-stats 2 --seed 3 --run-dir"
)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "old"))


@pytest.fixture
def rove(old: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_this_process(old, monkeypatch, capsys)


def test_old_records_are_read_under_the_new_names():
    [judged] = [json.loads(line) for line in (OLD / "judged/rollouts.jsonl").read_bytes().splitlines()][:1]
    record = decode_record(json.dumps(judged).encode())
    assert [len(steps) for steps in record.model_roles.values()] == [len(judged["seats"]["judge"])]
    game = (OLD / "eval/rollouts.jsonl").read_bytes().splitlines()[0]
    assert decode_record(game).renderings.keys() == {int(key) for key in json.loads(game)["record"]["boards"]}
    assert upgrade_line(upgrade_line(game)) == upgrade_line(game)


@pytest.mark.parametrize("line", [b'{"seats": 1', b'{"seats":[]}', b'{"record":3,"seats":{}}', b"[]"])
def test_damaged_lines_are_left_to_the_decoder(line: bytes):
    assert upgrade_line(line) == line


@pytest.mark.parametrize("name", ["eval", "judged", "letters", "sft", "rl"])
def test_old_runs_are_shown_reported_and_exported(rove: Rove, old: Path, name: str):
    assert RunStore(old).run_summary(name)["name"] == name
    assert "# " in rove("report", name, "--markdown").out
    if name != "sft":
        rows = rove("export", name, "-o", "rows.jsonl")
        assert rows.status == 0 and (old / "rows.jsonl").stat().st_size
    assert Run(name).config()["kind"] in ("eval", "sft", "rl")


def test_old_runs_are_compared(rove: Rove, old: Path):
    shutil.copytree("judged", "again")
    assert json.loads(rove("compare", "judged", "again", "--json").out)["paired"] is True


def test_an_old_rl_run_resumes_to_the_weights_of_an_uninterrupted_run(rove: Rove, old: Path):
    resumed, uninterrupted = rove(*RL.split(), "rl"), rove(*RL.split(), "whole")
    assert (resumed.status, uninterrupted.status) == (0, 0), resumed.err + uninterrupted.err
    weights, expected = (load_file(old / name / "final/model.safetensors") for name in ("rl", "whole"))
    for name, tensor in expected.items():  # equal bit for bit only on the kind of processor that wrote the old run
        assert torch.allclose(weights[name], tensor, rtol=1e-4, atol=1e-6), name
    assert [row["step"] for row in Run("rl").metrics()] == [1, 2, 3, 4, 5, 6]
