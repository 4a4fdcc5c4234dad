"""A hub for tests of its pages: a few environments with results, and one of somebody who means harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from hubs import add

from rove.hub.package.manifest import Argument, Needs, PolicyScores, Source
from rove.hub.server.store import Store, read_run
from rove.hub.server.tokens import Access

EVIL = "<b onmouseover=1>\"'&</b></script><script>window.pwned = 1</script>"
"""For texts that the hub takes as they are."""
QUIET = "</dl></main><b id='pwned'>\"'&amp;</b>"
"""For those where it refuses the worst."""
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
HOSTILE = f"""# {EVIL}

<script>window.pwned = 2</script> <img src=https://evil.example/x onerror="window.pwned = 3">

<style>body {{ display: none }}</style><iframe src="https://evil.example"></iframe>

[a](javascript:window.pwned=4) [b](data:text/html,<script>window.pwned=5</script>) [c](//evil.example) [d](vbscript:x)
[e](JaVaScRiPt:window.pwned=6) [f](https://evil.example/"onclick="window.pwned=7) <javascript:window.pwned=8>
![x](https://evil.example/a.png "t") ![y](javascript:window.pwned=9) [![z](//evil.example/z.png)](file:///etc/passwd)

[ref]: javascript:window.pwned=10
[ref] <form action="https://evil.example"><input name=q></form> <base href="https://evil.example/">
<meta http-equiv=refresh content=0>

| <b onclick=1> | {EVIL} |
|:--|--:|
| [x](javascript:1) | \u202egnp |

```"><script>window.pwned=11</script>
</code></pre><script>window.pwned=12</script>
```
"""


def estimate(mean: float, half_width: float) -> dict[str, float]:
    """A mean with its interval."""
    return {"mean": mean, "low": mean - half_width, "high": mean + half_width}


def summary(mean: float, half_width: float = 0.03, scored: int = 400) -> dict[str, Any]:
    """What an evaluation came to."""
    functions = {"correct": (mean - 0.2, 1.0), "format": (1.0, 0.2), "length": (12.5, 0.0)}
    told = {name: {**estimate(value, half_width), "weight": weight} for name, (value, weight) in functions.items()}
    chances = {"pass@k": {"1": estimate(mean / 2, 0.05)}, "pass^k": {"1": {"mean": mean / 2}}}
    counts = {"rollouts": scored + 2, "scored": scored, "failed": 2, "examples": scored // 4, "prompt_tokens": 123456}
    ends = {"stops": {"answered": scored}, "errors": {"InfraError": 2}, "completion_tokens": 7890}
    return {**counts, **ends, **chances, "reward": estimate(mean, half_width), "functions": told}


def rollout(reward: float, said: str) -> dict[str, Any]:
    """A rollout as it is pushed."""
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}
    return {
        "prompt": [
            {"role": "system", "content": "Answer with a number."},
            {"role": "user", "content": "What is 1 + 1?"},
        ],
        "completion": [
            {"role": "assistant", "content": f"<think>Let me see.</think>{said}", "tool_calls": [call]},
            {"role": "tool", "content": "2", "tool_call_id": "1"},
            {"role": "assistant", "content": said},
        ],
        "answer": "2",
        "info": {"level": 1},
        "scores": {"reward": reward, "rewards": {"correct": reward}, "weights": {"correct": 1.0}},
        "stop_condition": "answered",
        "is_truncated": False,
    }


def push(
    store: Store, version: str, model: str, told: Any, owner: str = "acme", name: str = "my-sums", **more: Any
) -> str:
    """Keep results; returns their id."""
    run = read_run(msgspec.json.encode({"schema": 1, "model": model, "summary": told, **more}))
    store.add_run(owner, name, version, run)
    return run.id


def made_hub(folder: Path) -> Store:
    """The hub: acme/my-sums with results, one for verifiers, a hostile one, a private one. To be closed."""
    store = Store(folder)
    for owner in ("acme", "zeta"):
        store.add_owner(owner)
    told: dict[str, Any] = {
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
        add(store, version=version, readme=README, **told)
    store.yank("acme", "my-sums", "1.0", "the answers were wrong")
    push(store, "1.0", "lab/old", summary(0.3))
    examples = [rollout(0.0, "3"), rollout(1.0, "2")]
    push(store, "1.1", "lab/small", summary(0.71), examples=examples[:1], settings={"temperature": 1.0})
    push(store, "1.1", "lab/large", summary(1.05), examples=examples, settings={"max_tokens": 64}, sha256="f" * 64)
    push(store, "1.1", "odd", {"reward": 1})
    add(store, "zeta", "chess", description="Play chess.", tags=["game"], compatibility="verifiers v0", licence="MIT")
    evil = {"description": QUIET, "tags": ["game"], "licence": QUIET, "authors": [QUIET], "metrics": [QUIET]}
    evil |= {
        "policies": {QUIET: PolicyScores(reward=1.0, n=1)},
        "arguments": [Argument(name=QUIET, type=QUIET, default=QUIET)],
    }
    add(store, "zeta", "evil", readme=HOSTILE, **evil, tools=[QUIET], data_sources=[QUIET])
    store.yank("zeta", "evil", "1.0", QUIET)
    hostile = rollout(1.0, EVIL)
    hostile |= {"answer": EVIL, "info": {EVIL: EVIL}, "stop_condition": EVIL}
    hostile["scores"] = {"reward": 1.0, "rewards": {EVIL: 1.0}, "weights": {}, "extras": {EVIL: EVIL}}
    hostile["prompt"] = [
        {"role": EVIL, "name": EVIL, "content": [EVIL, {"type": EVIL}, {"type": "text", "text": EVIL}]}
    ]
    figures = summary(0.5) | {
        "functions": {EVIL: {"mean": 1.0, "weight": 1.0}},
        "stops": {EVIL: 1},
        "errors": {EVIL: 1},
    }
    more = {"examples": [hostile, EVIL, {"prompt": [EVIL]}], "settings": {EVIL: EVIL}, "sha256": EVIL}
    push(store, "1.0", QUIET, figures, "zeta", "evil", **more)
    store.set_private("acme", "secret", True, Access("acme", ("admin",)))
    add(store, name="secret", tags=["hidden"])
    push(store, "1.0", "hidden-model", summary(0.5), name="secret")
    return store
