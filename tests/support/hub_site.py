"""A hub for tests of its pages: some environments with results, and one with hostile content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from hubs import add

from rove.hub.package.manifest import Argument, Needs, PolicyScores, Source
from rove.hub.server.store import Store, read_run
from rove.hub.server.tokens import Access

SCRIPT_MARKUP = "<b onmouseover=1>\"'&</b></script><script>window.pwned = 1</script>"
"""A script, for fields whose texts the hub stores unchecked."""
PLAIN_MARKUP = "</dl></main><b id='pwned'>\"'&amp;</b>"
"""Markup without a script, for fields in which the hub refuses scripts."""
README = """# Sums

Add **two numbers**; see [the paper](https://example.org/paper?a=1&b=2) or [the code](my_sums.py).

| op | answer |
|:---|---:|
| `1 + 1` | 2 |

![a plot](https://evil.example/plot.png)

```python
env = rove.load_environment("my-sums")
```

- one
- two ~~three~~
"""
HOSTILE = f"""# {SCRIPT_MARKUP}

<script>window.pwned = 2</script> <img src=https://evil.example/x onerror="window.pwned = 3">

<style>body {{ display: none }}</style><iframe src="https://evil.example"></iframe>

[a](javascript:window.pwned=4) [b](data:text/html,<script>window.pwned=5</script>) [c](//evil.example) [d](vbscript:x)
[e](JaVaScRiPt:window.pwned=6) [f](https://evil.example/"onclick="window.pwned=7) <javascript:window.pwned=8>
![x](https://evil.example/a.png "t") ![y](javascript:window.pwned=9) [![z](//evil.example/z.png)](file:///etc/passwd)

[ref]: javascript:window.pwned=10
[ref] <form action="https://evil.example"><input name=q></form> <base href="https://evil.example/">
<meta http-equiv=refresh content=0>

| <b onclick=1> | {SCRIPT_MARKUP} |
|:--|--:|
| [x](javascript:1) | \u202egnp |

```"><script>window.pwned=11</script>
</code></pre><script>window.pwned=12</script>
```
"""


def estimate(mean: float, half_width: float) -> dict[str, float]:
    """Return a mean with its interval."""
    return {"mean": mean, "low": mean - half_width, "high": mean + half_width}


def summary(mean: float, half_width: float = 0.03, scored: int = 400) -> dict[str, Any]:
    """Return the summary of an evaluation."""
    functions = {"correct": (mean - 0.2, 1.0), "format": (1.0, 0.2), "length": (12.5, 0.0)}
    function_scores = {
        name: {**estimate(value, half_width), "weight": weight} for name, (value, weight) in functions.items()
    }
    chances = {"pass@k": {"1": estimate(mean / 2, 0.05)}, "pass^k": {"1": {"mean": mean / 2}}}
    counts = {"rollouts": scored + 2, "scored": scored, "failed": 2, "examples": scored // 4, "prompt_tokens": 123456}
    ends = {"stops": {"answered": scored}, "errors": {"InfraError": 2}, "completion_tokens": 7890}
    return {**counts, **ends, **chances, "reward": estimate(mean, half_width), "functions": function_scores}


def rollout(reward: float, answer: str) -> dict[str, Any]:
    """Return a rollout in the form in which it is pushed."""
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}
    return {
        "prompt": [
            {"role": "system", "content": "Answer with a number."},
            {"role": "user", "content": "What is 1 + 1?"},
        ],
        "completion": [
            {"role": "assistant", "content": f"<think>Let me see.</think>{answer}", "tool_calls": [call]},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
            {"role": "assistant", "content": answer},
        ],
        "answer": "2",
        "info": {"level": 1},
        "scores": {"reward": reward, "rewards": {"correct": reward}, "weights": {"correct": 1.0}},
        "stop_condition": "answered",
        "is_truncated": False,
    }


def add_results(
    store: Store, version: str, model: str, figures: Any, owner: str = "acme", name: str = "my-sums", **fields: Any
) -> str:
    """Store the results of a run and return their id."""
    run = read_run(msgspec.json.encode({"schema": 1, "model": model, "summary": figures, **fields}))
    store.add_run(owner, name, version, run)
    return run.id


def create_example_hub(folder: Path) -> Store:
    """Create a hub with a public environment with results, one for verifiers, a hostile one and a private one; close it."""
    store = Store(folder)
    for owner in ("acme", "zeta"):
        store.add_owner(owner)
    metadata: dict[str, Any] = {
        "description": "Add two numbers that have many digits, with a tool or without.",
        "tags": ["math", "tools"],
        "licence": "MIT",
        "authors": ["Ada <ada@example.org>"],
        "reward_range": (0.0, 1.2),
        "metrics": ["length"],
        "tools": ["add"],
        "policies": {"oracle": PolicyScores(reward=1.2, n=5), "noise": PolicyScores(reward=0.1, n=5)},
        "seeds": [0],
        "needs": Needs(network=True, secrets=["SUMS_KEY"]),
        "data_sources": ["acme/numbers"],
        "arguments": [Argument(name="num_examples", type="int", default="100"), Argument(name="level")],
        "source": Source(repository="https://example.org/acme/sums", commit="a" * 40, builder="hatchling 1.27"),
        "rove": "0.1.0",
    }
    for version in ("1.0", "1.1"):
        add(store, version=version, readme=README, **metadata)
    store.yank("acme", "my-sums", "1.0", "the answers were wrong")
    add_results(store, "1.0", "lab/old", summary(0.3))
    examples = [rollout(0.0, "3"), rollout(1.0, "2")]
    add_results(store, "1.1", "lab/small", summary(0.71), examples=examples[:1], settings={"temperature": 1.0})
    add_results(
        store, "1.1", "lab/large", summary(1.05), examples=examples, settings={"max_tokens": 64}, sha256="f" * 64
    )
    add_results(store, "1.1", "odd", {"reward": 1})
    add(store, "zeta", "chess", description="Play chess.", tags=["game"], compatibility="verifiers v0", licence="MIT")
    evil = {
        "description": PLAIN_MARKUP,
        "tags": ["game"],
        "licence": PLAIN_MARKUP,
        "authors": [PLAIN_MARKUP],
        "metrics": [PLAIN_MARKUP],
    }
    evil |= {
        "policies": {PLAIN_MARKUP: PolicyScores(reward=1.0, n=1)},
        "arguments": [Argument(name=PLAIN_MARKUP, type=PLAIN_MARKUP, default=PLAIN_MARKUP)],
    }
    add(store, "zeta", "evil", readme=HOSTILE, **evil, tools=[PLAIN_MARKUP], data_sources=[PLAIN_MARKUP])
    store.yank("zeta", "evil", "1.0", PLAIN_MARKUP)
    hostile = rollout(1.0, SCRIPT_MARKUP)
    hostile |= {"answer": SCRIPT_MARKUP, "info": {SCRIPT_MARKUP: SCRIPT_MARKUP}, "stop_condition": SCRIPT_MARKUP}
    hostile["scores"] = {
        "reward": 1.0,
        "rewards": {SCRIPT_MARKUP: 1.0},
        "weights": {},
        "extras": {SCRIPT_MARKUP: SCRIPT_MARKUP},
    }
    hostile["prompt"] = [
        {
            "role": SCRIPT_MARKUP,
            "name": SCRIPT_MARKUP,
            "content": [SCRIPT_MARKUP, {"type": SCRIPT_MARKUP}, {"type": "text", "text": SCRIPT_MARKUP}],
        }
    ]
    figures = summary(0.5) | {
        "functions": {SCRIPT_MARKUP: {"mean": 1.0, "weight": 1.0}},
        "stops": {SCRIPT_MARKUP: 1},
        "errors": {SCRIPT_MARKUP: 1},
    }
    fields = {
        "examples": [hostile, SCRIPT_MARKUP, {"prompt": [SCRIPT_MARKUP]}],
        "settings": {SCRIPT_MARKUP: SCRIPT_MARKUP},
        "sha256": SCRIPT_MARKUP,
    }
    add_results(store, "1.0", PLAIN_MARKUP, figures, "zeta", "evil", **fields)
    store.set_private("acme", "secret", True, Access("acme", ("admin",)))
    add(store, name="secret", tags=["hidden"])
    add_results(store, "1.0", "hidden-model", summary(0.5), name="secret")
    return store
