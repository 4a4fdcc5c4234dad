"""The commands of docs/models.md, with the real model."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docs.test_docs import ROVE, blocks, commands, run, start_server

pytestmark = [pytest.mark.real, pytest.mark.slow]
ENVIRONMENT = {"NO_PROXY": "*", "PATH": f"{ROVE.parent}:{os.environ['PATH']}"}


def test_every_command_of_the_models_page_works(folder: Path, tmp_path: Path):
    answers = []
    with ExitStack() as stack:
        for block in blocks("docs/models.md", "bash"):
            if not block.startswith("rove serve"):
                for command in commands(block):
                    run(command, tmp_path)
                continue
            serve, request = block.replace("\\\n", " ").strip().splitlines()
            start_server(serve, tmp_path, stack, "serving smollm2-135m", **ENVIRONMENT)
            done = subprocess.run(
                ["bash", "-c", request], cwd=tmp_path, env=os.environ | ENVIRONMENT, capture_output=True, check=True
            )
            answers.append(json.loads(done.stdout)["choices"][0]["message"]["content"])
    assert len(answers) == 1 and "Paris" in answers[0]
