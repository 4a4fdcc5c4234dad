"""The fault campaign runs, continues where it was interrupted, and notices a violation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).resolve().parents[2] / "benchmarks" / "campaign"
KINDS = (
    *("kill -9", "torn file", "flipped bit", "disk full", "two writers", "few file descriptors", "clock jump"),
    *("endpoint: status", "endpoint: hang-up", "endpoint: garbage", "death during push"),
)
PLANTED = """
import sys
sys.argv[0] = {script!r}
sys.path.insert(0, {folder!r})
import msgspec, runpy
from rove.runs import run
decode = run.decode_record
def invents(line):
    record = decode(line)
    scores = record.scores and msgspec.structs.replace(record.scores, reward=0.0)
    return msgspec.structs.replace(record, scores=scores)
run.decode_record = invents
runpy.run_path({script!r}, run_name="__main__")
"""

pytestmark = [
    pytest.mark.broad,
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the campaign needs Linux"),
]


def campaign(folder: Path, faults: int, *command: str) -> subprocess.CompletedProcess[str]:
    words = ["--kinds", ",".join(KINDS), "--commands", "eval,hub,import", "--folder", str(folder)]
    command = command or (str(CAMPAIGN / "campaign.py"),)
    return subprocess.run(
        [sys.executable, *command, *words, "--faults", str(faults)], capture_output=True, text=True, check=False
    )


def test_a_campaign_survives_and_continues(tmp_path: Path):
    first = campaign(tmp_path, 8)
    assert first.returncode == 0, first.stdout + first.stderr
    report = tmp_path / "report.jsonl"
    lines = report.read_bytes()
    with report.open("ab") as file:
        file.write(b'{"number": 99, "ki')  # killed while it wrote a line
    second = campaign(tmp_path, 30)
    assert second.returncode == 0, second.stdout + second.stderr
    assert report.read_bytes().startswith(lines)
    trials = [json.loads(line) for line in report.read_bytes().splitlines()[1:]]
    assert [trial["number"] for trial in trials] == list(range(len(trials)))
    assert sum(trial["faults"] for trial in trials) >= 30
    assert " 0 violations" in (tmp_path / "table.md").read_text()
    assert not list((tmp_path / "trials").iterdir())


def test_a_campaign_notices_an_invented_reward(tmp_path: Path):
    code = PLANTED.format(script=str(CAMPAIGN / "campaign.py"), folder=str(CAMPAIGN))
    done = campaign(tmp_path, 2, "-c", code)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "failed or is scored wrongly, with reward 0" in done.stdout
