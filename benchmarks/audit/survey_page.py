"""The page of `survey.py`: what was found, and whether it is a defect or the nature of the task."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rove.audit.replies import blind_replies
from rove.utils.markdown import cell

Result = dict[str, Any]
BLIND = set(blind_replies(str, ["a", "b", "c"], []))
FREQUENT = {name for name in BLIND if "frequent" in name or "then an answer" in name} | {
    "most frequent answer",
    "a random row's answer",
}
JUNK = {"format with a dot", "yes and no", "all letters", "all numbers", "echo in the answer", "unsure", "praise"}
"""Replies without an attempt at an answer, most of them in the place of the answer."""
INACTIVE = ("nothing", "no action", "form without an action", "give up")
"""Policies in games that make no move. An echo makes one if the game shows its moves in brackets."""
PASSIVE = {*INACTIVE, "plain", "<answer>", "boxed", "unsure"}
"""The same, with the empty forms of answers."""
SOURCES = ("reasoning-gym", "TextArena", "rove", "v0 packages")
FEW_ANSWERS = 12
"""Different answers in 60 rows up to which a task is a choice."""


def verdict(finding: dict[str, Any]) -> str:
    """Return "defect", or why a finding is the nature of the task."""
    check, severity, text = finding["id"], finding["severity"], finding["text"]
    if check == "blind-reply" and "rows have the same answer" in text:
        return "few different answers"
    if check == "monotonicity" and severity == "low":
        return "a tolerance, or an answer in a sentence"
    if check == "hedging" and severity == "low":
        return "partial credit for parts of a long answer"
    if check == "data-overlap":
        return "few tasks, or tasks from one template" if severity != "info" else "one dataset for both"
    if check == "blind-game":
        is_inactive = any(f"policy '{name}'" in text for name in INACTIVE)
        return "defect" if is_inactive else "a game of chance, or a weak opponent"
    if check == "load" and ("too much time" in text or "after 'rewards'" in text):
        return "slow generator"
    if check == "seed-shift":
        return "see above"
    if check == "reward-statistics" and ("rollouts of all policies" in text or "the highest reward of" in text):
        return "no policy here does the task"
    return "defect"


def best(result: Result, names: set[str]) -> tuple[float, str]:
    """Return the highest mean reward of some policies, and its name."""
    rewards = [(rate[0], name) for name, rate in result.get("rewards", {}).items() if name in names]
    return max(rewards, default=(0.0, "–"))


def page(results: Sequence[Result], facts: dict[str, Any]) -> str:
    """Return the page.

    Args:
        results: Lines of `survey.py`.
        facts: See `row_facts.py`.
    """
    by_source = {source: [result for result in results if result["source"] == source] for source in SOURCES}
    seconds = sum(result.get("cpu_seconds", 0.0) for result in results) + facts["cpu_seconds"]
    today = datetime.datetime.now(datetime.UTC)
    installed = [f"{name} {importlib.metadata.version(name)}" for name in ("rove", "reasoning-gym", "textarena")]
    lines = [
        "# Audit of existing environments",
        "",
        f"`python benchmarks/audit/survey.py` wrote this page on {today:%Y-%m-%d} with {', '.join(installed)}, "
        f"and Python {platform.python_version()}. The audits used {seconds / 60:.1f} CPU-minutes in total. "
        "A finding is a **defect** if the environment rewards a reply that it should not reward, if it does not reward a reply "
        "that it should reward, or if a reply breaks the grader. "
        "Other findings are due to the nature of the task, and the tables give the reason. "
        "To see the severity and the evidence of each finding, run `rove audit` ([audit.md](audit.md)).",
        "",
        "| source | environments | with a defect | other findings only | no findings | not audited |",
        "|---|---|---|---|---|---|",
    ]
    for source, source_results in by_source.items():
        lines.append(f"| {source} | {len(source_results)} | {' | '.join(map(str, counts(source_results)))} |")
    lines += [
        "",
        *common_defects(by_source),
        "",
        "## reasoning-gym",
        "",
        *reasoning_gym(by_source["reasoning-gym"], facts),
    ]
    lines += ["", "## TextArena", "", *text_arena(by_source["TextArena"])]
    for source, title in (("rove", "rove's own environments"), ("v0 packages", "verifiers v0 packages in the tests")):
        lines += ["", f"## {title}", "", *findings_table(by_source[source])]
    packages = {file.stem for file in (Path(__file__).parents[2] / "tests" / "compat_packages").glob("*.py")}
    if missing := sorted(packages - {result["name"] for result in by_source["v0 packages"]}):
        count = f"{len(missing)} {'has' if len(missing) == 1 else 'have'}"
        lines += ["", f"Of {len(packages)} packages, {count} not been audited yet ({names(missing)})."]
    lines += ["", "## Checks that did not run because the time budget was used up", ""]
    for result in results:
        if late := [name for name, reason in result.get("skipped", {}).items() if "time budget" in reason]:
            lines.append(f"- {result['source']}, {result['name']}: {names(late)}")
    return "\n".join(lines) + "\n"


def counts(results: Sequence[Result]) -> tuple[int, int, int, int]:
    """Return how many environments have a defect, other findings only, no findings, and could not be audited."""
    kinds: Counter[str] = Counter()
    for result in results:
        verdicts = [verdict(finding) for finding in result.get("findings", [])]
        kind = (
            "failed" if result.get("error") else "defect" if "defect" in verdicts else "other" if verdicts else "none"
        )
        kinds[kind] += 1
    return kinds["defect"], kinds["other"], kinds["none"], kinds["failed"]


def common_defects(by_source: dict[str, list[Result]]) -> Iterator[str]:
    """Yield a table of defects by check and source."""
    yield "The table shows, for each check, how many environments have a defect:"
    yield ""
    defects = {
        source: Counter(
            check
            for result in source_results
            for check in {finding["id"] for finding in result.get("findings", []) if verdict(finding) == "defect"}
        )
        for source, source_results in by_source.items()
    }
    yield f"| check | {' | '.join(defects)} |"
    yield f"|---|{'---|' * len(defects)}"
    for check in sorted({check for check_counts in defects.values() for check in check_counts}):
        yield f"| `{check}` | {' | '.join(str(check_counts[check]) for check_counts in defects.values())} |"


def reasoning_gym(results: Sequence[Result], facts: dict[str, Any]) -> Iterator[str]:
    """Yield the comparison with the scan, and a table of the families."""
    rows = facts["families"]
    shared = [row["shared"] for row in rows.values() if "shared" in row]
    changed = {name: row["json"] for name, row in rows.items() if row.get("json")}
    own_rewards = {
        result["name"]: result["rewards"]["right answer"][0]
        for result in results
        if "right answer" in result.get("rewards", {})
    }
    not_full = sorted(name for name, reward in own_rewards.items() if reward < 0.999)
    without = sorted(
        result["name"] for result in results if result.get("rewards") and result["name"] not in own_rewards
    )
    paying = [result for result in results if best(result, BLIND | FREQUENT)[0] >= 0.4]
    choices = [result for result in paying if rows.get(result["name"], {}).get("answers", 99) <= FEW_ANSWERS]
    junk = [result for result in results if best(result, JUNK)[0] > 0.01]
    retracted = [result for result in results if result.get("rewards", {}).get("retraction", (0.0,))[0] >= 0.5]
    raising = sorted(result["name"] for result in results if has(result, "grader-robustness"))
    running = sorted(result["name"] for result in results if has(result, "execution"))
    yield (
        "reasoning-gym seeds the row at `index` with `seed + index`. Therefore, in "
        f"{sum(share > 0.9 for share in shared)} of {len(shared)} families, more than 90% of 60 rows are the same for seeds 1 "
        "and 2, except that they are shifted by one place. "
        "Validate on a seed that differs from the training seed by more than the number of rows. "
        "`rove.ReasoningGymEnv` derives distant seeds for training and evaluation."
    )
    missing = sorted(set(rows) - {result["name"] for result in results})
    if missing:
        yield ""
        yield (
            f"Of {len(rows)} families, {len(missing)} have not been audited yet ({names(missing)}). "
            "Repeat the command to continue."
        )
    yield ""
    yield (
        "The table compares this page with a manual scan of the same version "
        "(28 policies that never see the answer, 138 CPU-seconds):"
    )
    yield ""
    yield "| families that … | manual scan | this page | details |"
    yield "|---|---|---|---|"
    yield f"| were examined | 104 | {len(results)} | |"
    yield (
        "| give a reward of 0.40 or more to a policy that never sees the answer | 14, half of which have few possible answers | "
        f"{len(paying)}, of which {len(choices)} have at most {FEW_ANSWERS} different answers | "
        f"{names(result['name'] for result in paying)} |"
    )
    any_paid = [result for result in results if best(result, BLIND | FREQUENT)[0] > 0.01]
    yield (
        f"| give a reward above 0.01 to junk | 59 | {len(any_paid)} | {len(junk)} of them reward junk that contains no answer of "
        f"another row ({', '.join(sorted(JUNK))}); there is no record of which replies the manual scan counted |"
    )
    yield f"| do not give the full reward to their own answer | 5 | {len(not_full)} | {names(not_full)} |"
    yield f"| have no answer of their own | counted in the row above | {len(without)} | {names(without)} |"
    yield (
        f'| give a reward of 0.5 or more to "ANSWER or maybe not" | 21 | {len(retracted)} | '
        f"{names(result['name'] for result in retracted)} |"
    )
    yield (
        f"| have a grader that raises an exception or hangs | 3 | {len(raising)} | {names(raising)}; "
        "only this page's checks include deep nesting, powers, and replies of 100 kB |"
    )
    yield f"| execute a reply as code | – | {len(running)} | {names(running)} |"
    yield f"| have rows that change when they are written as JSON and read again | 2 | {len(changed)} | {names(changed)} |"
    yield ""
    yield "| family | answers in 60 rows | right answer | best reply without the answer | defects | nature of the task |"
    yield "|---|---|---|---|---|---|"
    for result in results:
        reward, name = best(result, BLIND | FREQUENT)
        right = f"{own_rewards[result['name']]:.2f}" if result["name"] in own_rewards else "–"
        different = rows.get(result["name"], {}).get("answers", "–")
        paid = f"{reward:.2f} ({name})" if reward > 0 else "0"
        yield f"| {result['name']} | {different} | {right} | {cell(paid)} | {' | '.join(columns(result))} |"


def text_arena(results: Sequence[Result]) -> Iterator[str]:
    """Yield a table of the games."""
    rates = [{name: rate[0] for name, rate in result.get("rewards", {}).items()} for result in results]
    blind = [
        rewards
        for rewards in rates
        if max((rewards[name] for name in rewards if not name.startswith("policy ")), default=0) > 0
    ]
    passive = [
        result["name"]
        for result, rewards in zip(results, rates, strict=True)
        if any(rewards.get(name, 0) > 0 for name in PASSIVE)
    ]
    yield (
        "The opponent moves at random. Each policy plays six games of up to 40 turns. "
        f"Of {len(results)} games, {len(blind)} reward a policy that ignores what the game shows, and {len(passive)} reward a "
        f"reply without a move ({names(passive)}). In the manual scan of 17 games, the corresponding numbers were 9 "
        "and 2. With a random opponent and only six games, the reward of a blind policy is often luck. The table shows the best "
        "of about forty such policies."
    )
    yield ""
    yield "| game | random moves | nothing | best blind policy | defects | nature of the game |"
    yield "|---|---|---|---|---|---|"
    for result in results:
        rewards = {name: rate[0] for name, rate in result.get("rewards", {}).items()}
        blind_rewards = {name: reward for name, reward in rewards.items() if not name.startswith("policy ")}
        name = max(blind_rewards, key=lambda key: blind_rewards[key], default="–")
        cells = [f"{rewards[key]:.2f}" if key in rewards else "–" for key in ("policy random", "nothing")]
        cells.append(cell(f"{blind_rewards.get(name, 0):.2f} ({name})"))
        yield f"| {result['name']} | {' | '.join([*cells, *columns(result)])} |"


def findings_table(results: Sequence[Result]) -> Iterator[str]:
    """Yield a table of all findings."""
    yield "| environment | CPU-s | defects | other findings |"
    yield "|---|---|---|---|"
    for result in results:
        yield f"| {result['name']} | {result.get('cpu_seconds', 0):g} | {' | '.join(columns(result, True))} |"


def columns(result: Result, with_text: bool = False) -> tuple[str, str]:
    """Return a result's defects and other findings."""
    if result.get("error"):
        return cell(f"not audited: {result['error']}"), ""
    defects, other_findings = [], []
    for finding in result["findings"]:
        kind = verdict(finding)
        text = f"`{finding['id']}` ({finding['severity']})"
        text += f": {finding['text']}" if with_text or kind == "defect" else ""
        (defects if kind == "defect" else other_findings).append(
            text if kind == "defect" else f"{text}: {kind}" if not with_text else text
        )
    return cell("; ".join(defects)[:600]), cell("; ".join(other_findings)[:600])


def has(result: Result, check: str) -> bool:
    """Return whether a check found something."""
    return any(finding["id"] == check for finding in result.get("findings", []))


def names(items: Any) -> str:
    """Return names as a text."""
    return ", ".join(items) or "–"
