"""A report has no keys: neither in the arguments of the environment nor in errors."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from run_folders import make_record, write_run_folder
from toy_envs import rows, scripted_client
from train_folders import write_train_folder

import rove as vf
from rove.runs.run import Run
from rove.viewer.report import markdown, stages_markdown, write_report, write_stages_report

ARGUMENT, VARIABLE, FORMAT = "tea-and-biscuits-41", "from-the-environment-7", "sk-proj-abcdefghijklmnop1234"


class Leaky(vf.SingleTurnEnv):
    """Raises an error that has its keys in the message and in the traceback."""

    async def setup_state(self, state: vf.State, **kwargs: object) -> None:
        raise ValueError(f"login with {ARGUMENT}, {VARIABLE} and {FORMAT} failed")


def test_a_report_masks_keys_in_arguments_and_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SEARCH_API_KEY", VARIABLE)
    settings = {"env": "leaky", "env_args": {"api_key": ARGUMENT, "nested": {"token": ARGUMENT}, "level": 3}}
    run = Run(tmp_path / "run")
    with run:
        run.start("eval", settings, {"env": "leaky"})
        for record in Leaky(dataset=rows(2)).generate_sync(scripted_client("so")):
            run.append_rollout(record)
    page = write_report(Run(tmp_path / "run"), tmp_path / "report.html").read_text()
    texts = page + markdown(Run(tmp_path / "run"))
    assert "login with ***, *** and *** failed" in texts
    for secret in (ARGUMENT, VARIABLE, FORMAT):
        assert secret not in texts


def test_a_report_of_rove_train_masks_keys_in_replies(tmp_path: Path):
    folder = write_train_folder(tmp_path / "mine", solved=59)
    replied = make_record(59, win=0.0, completion=[{"role": "assistant", "content": f"the key is {FORMAT}"}])
    run = folder.evaluation_folder("+ RL", "greedy")
    shutil.rmtree(run)
    write_run_folder(run, [*(make_record(i, win=1.0) for i in range(59)), replied])
    write_stages_report(folder, tmp_path / "report.html")
    texts = (tmp_path / "report.html").read_text() + stages_markdown(folder)
    assert "the key is ***" in texts and FORMAT not in texts
