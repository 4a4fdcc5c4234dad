"""Run another audit tool on a planted environment; see `peers.py`. This file runs in the tools' own virtual environment.

    python peer_worker.py TOOL SET NAME

The tools audit environments of verifiers v0. The planted environments use only what rove and verifiers v0 have in common, so
each is copied with `import rove as vf` replaced by `import verifiers as vf`; rove's shim provides that module. The parsers stay
rove's, since those of v0 read the first tag of a reply and ignore `extract_fn` in it. Prints JSON: alarms (the tool's names),
strict (whether the tool's own gate fails the environment), note, and CPU-seconds.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
EXAMPLES = 25
"""Examples, as in falsepass."""


AS_V0 = """
def _as_v0(cls):
    respond, set_up = vars(cls).get("env_response"), vars(cls).get("setup_state")
    if respond is not None:
        async def env_response(self, messages, state, **kwargs):
            reply = await respond(self, messages, state, **kwargs)
            return [{"role": "user", "content": reply}] if isinstance(reply, str) else reply or []
        cls.env_response = env_response
    if set_up is not None:
        async def setup_state(self, state, **kwargs):
            return await set_up(self, state, **kwargs) or state
        cls.setup_state = setup_state

for _value in list(globals().values()):
    if isinstance(_value, type) and _value.__module__ == __name__:
        _as_v0(_value)
"""
"""Code that lets methods return what v0 expects: a list of messages, and the state."""
WITH_ROWS = """
_load = load_environment
def load_environment(**kwargs):
    env = _load(**kwargs)
    env.dataset = env.get_dataset()
    return env
"""
"""Code for rewardprobe, which reads the attribute `dataset`."""


def falsepass(name: str, folder: Path) -> dict[str, Any]:
    """Run falsepass with its inferred adapter and its search; its documented gate is `ceiling>0.1 errors>0`."""
    from falsepass import report, runner

    (folder / "env.toml").write_text(f'[env]\nid = "{name}"\nmodule = "{name}"\nsource = "{folder}"\n')
    payload = runner.run(folder, n=EXAMPLES, search_calls=120, out=folder / "out", jobs=1)
    failed = sorted({result["probe"] for result in payload["results"] if not result["passed"]})
    hygiene = {result["variant"] for result in payload["results"] if result["probe"] == "P12" and not result["passed"]}
    errors = ["errors"] if any(result["errors"] for result in payload["results"]) else []
    lint = payload["rewardlint"]
    return {
        "alarms": [*failed, *(f"P12 {variant}" for variant in sorted(hygiene)), *errors],
        "strict": bool(report.gate(payload["results"], ["ceiling>0.1", "errors>0"])),
        "note": json.dumps(lint)[:300] if lint else "",
    }


def gradecheck(name: str, folder: Path) -> dict[str, Any]:
    """Run gradecheck; it fails an environment that was fooled."""
    from gradecheck.runner import run_verifiers

    findings = run_verifiers(name, sample=EXAMPLES).findings
    alarms = [finding.attack for finding in findings if finding.verdict.lower() in ("fooled", "warn")]
    return {"alarms": alarms, "strict": any(finding.verdict.lower() == "fooled" for finding in findings), "note": ""}


def rewardprobe(name: str, folder: Path) -> dict[str, Any]:
    """Run rewardprobe without its model; critical findings fail an environment."""
    from rewardprobe.adapters.verifiers import VerifiersAdapter
    from rewardprobe.probe import Probe

    with (folder / f"{name}.py").open("a") as file:
        file.write(WITH_ROWS)
    env = VerifiersAdapter(str(folder / f"{name}.py"), max_tasks=EXAMPLES).adapt()
    findings = Probe()._run_attacks(env).findings
    alarms = sorted({finding.attack for finding in findings if finding.severity.value != "info"})
    return {"alarms": alarms, "strict": any(finding.severity.value == "critical" for finding in findings), "note": ""}


TOOLS = {"falsepass": falsepass, "gradecheck": gradecheck, "rewardprobe": rewardprobe}


def main() -> None:
    """Run a tool, and print what it found."""
    tool, set_, name = sys.argv[1:]
    out = os.dup(1)
    os.dup2(2, 1)  # what the tools print
    with tempfile.TemporaryDirectory() as folder:
        code = (HERE / set_ / f"{name}.py").read_text()
        code = code.replace("import rove as vf", "import rove\nimport verifiers as vf") + AS_V0
        code = re.sub(r"\bvf\.(\w*Parser)\b", r"rove.\1", code)
        (Path(folder) / f"{name}.py").write_text(code)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
        try:
            outcome = TOOLS[tool](name, Path(folder))
        except Exception as error:  # the tool cannot audit this environment
            outcome = {"alarms": [], "strict": False, "note": f"{type(error).__name__}: {error}"[:300], "failed": True}
    with os.fdopen(out, "w") as file:
        json.dump({**outcome, "cpu_seconds": round(time.process_time(), 1)}, file)
    os._exit(0)  # threads of the tools


if __name__ == "__main__":
    main()
