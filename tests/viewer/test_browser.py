"""Test the viewer's pages in a browser: complete, live, killed and damaged runs, keyboard, contrast, hostile content."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import NARROW, WIDE, Tab, accessibility_violations, chromium, serve_command, serve_viewer
from commands import write_environment
from run_folders import edit_line, make_record, make_scores, write_run_folder

from rove.core.records import StepTokens, TrajectoryStep
from rove.rollouts.export import RunRows
from rove.runs.run import Run
from rove.runs.serialization import encode_record
from tests.cli.test_play_roles import HAGGLE

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EVIL = '<script>window.pwned = 1</script><img src="https://evil.example/x" onerror="window.pwned = 2">\x1b[31m\u202egnp'
RECORD_HITS = """
window.told = [];
const note = () => window.told.push(document.querySelector(".hits").innerText);
new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true });
"""
PAGE_PATHS = {
    "runs": "",
    "matrix": "?view=matrix",
    "columns": "?column=setting.temperature&column=metric.win&group=env&base=teacher",
    "overview": "run?run=trained",
    "training overview": "run?run=rl",
    "settings": "settings?run=rl&with=sft",
    "reasons": "rollouts?run=trained&why=1",
    "rollouts": "rollouts?run=rl",
    "rollout": "rollout?run=rl&line=1",
    "group": "rollout?run=rl&line=1&tab=group",
    "tokens": "rollout?run=rl&line=1&tab=tokens",
    "raw": "rollout?run=rl&line=1&tab=raw",
    "training": "training?run=rl",
    "overlay": "training?run=rl&run=sft",
    "compare": "compare?a=teacher&b=trained",
    "pair": "compare?a=teacher&b=trained&left=0&right=0",
    "nothing": "nothing",
}


def make_step(number: int, wins: list[float]) -> tuple[list[Any], dict[str, float]]:
    """Return the rollouts and the metrics of a training step."""
    records = []
    for i, win in enumerate(wins):
        completion = [
            {"role": "assistant", "content": f"<think>so</think>{i}"},
            {"role": "user", "content": " X O 2\n 3 4 5\n 6 7 8"},
        ]
        call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 3}'}}
        completion += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "3", "tool_call_id": "1"},
        ]
        turn = TrajectoryStep([], completion[:1], seconds=0.2, tokens=StepTokens([5, 6, 7], [8, 9], [-0.02, -3.0]))
        records.append(make_record(i // 4, i % 4, win, step=number, completion=completion, steps=[turn]))
    rewards = [rollout.reward for rollout in records]
    metrics = {
        "reward/mean": sum(rewards) / len(rewards),
        "entropy/all/mean": 1.0 / number,
        "optim/grad_norm": 0.1,
        "length/mean": 2.0,
    }
    metrics |= {"groups/all": 2.0, "groups/zero_spread": 0.0, "ratio/mean": 1.0, "tokens": 16.0, "time/sampling": 0.5}
    return records, {"step": number, **metrics, "eval/held/reward/mean": 0.1 * number}


def append_step(run: Run, number: int) -> None:
    records, metrics = make_step(number, [1.0, 0.0, 0.0, 1.0, 0.5, 0.0, 1.0, 1.0])
    for rollout in records:
        run.append_rollout(rollout)
    run.append_metrics(metrics)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create two complete evaluations of tic-tac-toe, a complete RL run and an SFT run."""
    runs = tmp_path_factory.mktemp("folder") / "runs"
    shutil.copytree(ROOT / "docs/example_runs/teacher", runs / "teacher")
    shutil.copytree(ROOT / "docs/example_runs/rl", runs / "trained")
    with write_run_folder(runs / "rl", [], kind="rl", env="tictactoe", steps=3) as run:
        for number in (1, 2, 3):
            append_step(run, number)
        run.append_alert({"step": 2, "id": "entropy_collapse", "text": "entropy collapse: the model hardly explores"})
        run.finish({})
    with write_run_folder(runs / "sft", [], kind="sft", data="runs/teacher") as run:
        for number in (1, 2, 3):
            run.append_metrics({"step": number, "loss": 1.0 / number, "entropy/all/mean": 2.0 / number})
    return runs


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def url(runs: Path) -> Iterator[str]:
    with serve_viewer(runs) as url:
        yield url


@pytest.fixture
def tab(browser: Any, url: str) -> Iterator[Tab]:
    tab = Tab(browser, url)
    yield tab
    tab.context.close()
    assert tab.page_errors == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_fits_is_accessible_and_loads_nothing_external(
    browser: Any, url: str, size: tuple[int, int], scheme: str
):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install axe-playwright-python"
    )
    tab = Tab(browser, url, size, scheme)
    violations_by_page = {}
    for name, path in PAGE_PATHS.items():
        page = tab.open(path)
        assert tab.overflow <= 0, f"{name} is {tab.overflow} pixels too wide"
        assert "Error" not in page.locator("main").inner_text(), name
        options = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}
        violations_by_page[name] = [
            f"{violation['id']}: {[node['html'][:200] for node in violation['nodes'][:3]]}"
            for violation in axe.Axe().run(page, options=options).response["violations"]
        ]
    assert not any(violations_by_page.values()), violations_by_page
    assert tab.page_errors == []
    tab.context.close()


def test_rollouts_are_filtered_by_bars_and_sorted(tab: Tab):
    page = tab.open("rollouts?run=trained")
    tab.wait("120 rollouts")
    page.get_by_role("button", name="lost 1: 4").click()
    tab.wait("4 rollouts")
    assert "is.score.lost=1" in page.url
    page.get_by_role("button", name="remove filter lost = 1").click()
    tab.wait("120 rollouts")
    page.get_by_role("button", name="Failing first").click()
    page.locator("tr[data-place='0'] .pill.r1", has_text="0.2").wait_for()
    assert "sort=reward" in page.url
    page.get_by_role("button", name="turns", exact=True).click()
    page.wait_for_url("**sort=turns&order=down")  # sorts by most turns first


def test_a_rollout_page_shows_its_board_scores_and_tool_calls(tab: Tab):
    page = tab.open("rollout?run=trained&line=0")
    assert page.get_by_role("heading", name="Example 0, rollout 0").is_visible()
    assert page.locator("#message-9").get_by_role("img", name="board: X, O, O; O, X, X; O, X, O").is_visible()
    replay = page.get_by_role("region", name="Replay")
    replay.get_by_label("State").fill("0")
    replay.get_by_text("1 of 5").wait_for()
    replay.get_by_role("button", name="Play").click()
    replay.get_by_text("5 of 5").wait_for()
    assert "the environment sent a final response" in page.locator("aside").inner_text()
    assert [cell.inner_text() for cell in page.locator("table.scores tr").nth(1).locator("td").all()] == [
        "win",
        "0.5",
        "× 1",
        "0.5",
    ]
    assert "model 0.45 s" in page.locator("aside").inner_text()
    page = tab.open("rollout?run=rl&line=0")
    page.locator(".call summary").click()
    call = page.locator("#message-3 .call").inner_text()
    assert "tool call look" in call and '"at": 3' in call and call.endswith("tool 1\n3")


def test_each_tool_call_is_followed_by_its_result(browser: Any, tmp_path: Path):
    def call(call_id: str, city: str) -> dict[str, Any]:
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": "weather", "arguments": f'{{"city": "{city}"}}'},
        }

    completion = [
        {"role": "assistant", "content": "Both.", "tool_calls": [call("a", "Oslo"), call("b", "Rome")]},
        {"role": "tool", "content": "31 degrees", "tool_call_id": "b"},
        {"role": "tool", "content": "4 degrees", "tool_call_id": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call("a", "Lima")]},
        {"role": "tool", "content": "of no call", "tool_call_id": "x"},
    ]
    records = [
        make_record(0, 0, completion=completion),
        make_record(0, 1, completion=[*completion[:2], *completion[3:]]),
    ]
    for name in ("calls", "again"):
        write_run_folder(tmp_path / "runs" / name, records)
    with serve_viewer(tmp_path / "runs") as url:
        tab = Tab(browser, url)
        page = tab.open("rollout?run=calls&line=0")
        calls = [tool_call.inner_text() for tool_call in page.locator(".call").all()]
        assert [("Oslo" in tool_call, "4 degrees" in tool_call) for tool_call in calls[:2]] == [
            (True, True),
            (False, False),
        ]
        assert "Rome" in calls[1] and "31 degrees" in calls[1]
        assert "Lima" in calls[2] and calls[2].endswith("no result")
        # the prompt, two turns and a result without a call
        assert page.locator("section[aria-label=Chat] > article").count() == 4
        assert page.locator("#message-2").inner_text().endswith("31 degrees")  # anchor of the result's message
        page = tab.open("rollout?run=calls&line=0&tab=group")
        assert page.locator("section.member").nth(1).locator(".call").nth(0).inner_text().endswith("no result")
        page = tab.open("compare?a=calls&b=again&left=0&right=1")
        assert page.locator("#pair section.member").first.locator(".call").nth(1).inner_text().endswith("31 degrees")
        assert accessibility_violations(page) == [] and tab.page_errors == [] and tab.overflow <= 0


def test_a_rollout_is_copied_as_a_request_and_as_a_test_case(tab: Tab):
    page = tab.open("rollout?run=trained&line=0")
    page.get_by_role("button", name="Copy as curl").click()
    page.locator("summary", has_text="text to copy").click()
    tab.wait('curl "$BASE_URL/chat/completions"')
    page.get_by_role("button", name="Copy test case").click()
    tab.wait('"replies": [')


def test_the_url_of_a_training_page_has_its_range_of_steps(tab: Tab):
    page = tab.open("training?run=rl")
    box = page.locator('.curves[data-key="reward"] .u-over').bounding_box()
    positions = [box["x"] + box["width"] * share for share in (0.5, 0.9)]
    page.mouse.move(positions[0], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(positions[1], box["y"] + 50, steps=4)
    page.mouse.up()
    page.wait_for_url("**steps=2.0..2.8")
    page.get_by_label("log scale").check()
    page.wait_for_url("**log=1*")
    assert "steps=2.0..2.8" in page.url  # other settings of the page do not remove the range

    page.goto("about:blank")
    page = tab.open("training?run=rl&steps=2.5..3")
    over = page.locator('.curves[data-key="reward"] .u-over')
    over.hover(position={"x": 3, "y": 50})
    # without the range it would be step 1
    assert "step 3" in page.locator("figure", has=over).locator("output").inner_text()
    over.dblclick(position={"x": 3, "y": 50})
    page.wait_for_function("() => !location.hash.includes('steps=')")
    page.get_by_role("link", name="step 2").click()  # in the alert
    page.locator("details.sample[open]", has_text="What did it say at step 2?").locator("article").first.wait_for()
    for broken in ("steps=x", "steps=1..Infinity", "steps=3..1"):
        assert tab.open(f"training?run=rl&{broken}").locator(".curves canvas").count() > 3


def test_group_members_show_their_first_difference(tab: Tab):
    page = tab.open("rollout?run=rl&line=1&tab=group")
    assert page.locator("section.member").count() == 4
    assert page.locator("section.member").nth(1).locator("mark").inner_text() == "1"
    assert "the reference" in page.locator("section.member").first.inner_text()


def test_tokens_are_colored_by_probability_and_loss_mask(tab: Tab):
    page = tab.open("rollout?run=rl&line=0&tab=tokens")
    tokens = page.locator("pre.tokens .token")
    assert [token.get_attribute("class") for token in tokens.all()] == ["token given"] * 3 + ["token p0", "token p4"]
    assert "probability 0.9802" in tokens.nth(3).get_attribute("title")
    page.get_by_label("Color by").select_option("loss mask")
    page.locator("pre.tokens .token.trained").first.wait_for()
    assert page.locator("pre.tokens .token.trained").count() == 2


def test_tokens_show_the_policy_version_that_sampled_them(browser: Any, tmp_path: Path):
    spans = [(3, 1), (4, 1), (5, 1)]
    turns = [StepTokens([5], [8, 9, 7], [-0.1] * 3, 3, spans), StepTokens([5, 8, 9, 7, 6], [4], [-0.1], 5)]
    steps = [TrajectoryStep([], [{"role": "assistant", "content": "x"}], seconds=0.1, tokens=turn) for turn in turns]
    write_run_folder(
        tmp_path / "runs/async", [make_record(0, 0, step=6, steps=steps), make_record(0, 1, step=6)], kind="rl"
    )
    with serve_viewer(tmp_path / "runs") as url:
        tab = Tab(browser, url)
        page = tab.open("rollout?run=async&line=0&tab=tokens&color=version")
        assert page.get_by_role("heading", name="Turn 1 versions 3–5").is_visible()
        assert page.get_by_role("heading", name="Turn 2 version 5").is_visible()
        sampled = page.locator("pre.tokens .token:not(.given)")
        assert [token.get_attribute("class") for token in sampled.all()] == [
            "token p2",
            "token p1",
            "token p0",
            "token p0",
        ]
        titles = [str(token.get_attribute("title")).rpartition("; ")[2] for token in sampled.all()]
        assert titles == [f"policy version {version}" for version in (3, 4, 5, 5)]
        assert page.locator(".tokenkey .token").all_inner_texts() == ["version 3", "version 4", "version 5"]
        assert page.locator(".title").inner_text().count("versions 3–5 of the weights") == 1
        page = tab.open("rollout?run=async&line=0")
        page.locator("summary", has_text="2 turns in").click()
        assert "versions 3–5" in page.locator("aside").inner_text()
        assert accessibility_violations(tab.open("rollout?run=async&line=0&tab=tokens&color=version")) == []
        assert tab.page_errors == [] and tab.overflow <= 0


def test_several_runs_share_a_chart_for_each_metric(browser: Any, tmp_path: Path):
    for number, name in enumerate(("one", "two")):
        with write_run_folder(tmp_path / f"runs/{name}", [], kind="rl") as run:
            for step in (1, 2, 3):
                metrics = {"metrics/won": 0.1 * step, "metrics/lost": 0.2, "metrics/num_turns": 4.0 + number}
                held_out = {"eval/held/reward/mean": 0.5} if step == 3 else {}
                run.append_metrics({"step": step, "reward/mean": 0.5, **metrics, **held_out})
    with serve_viewer(tmp_path / "runs") as url:
        tab = Tab(browser, url)
        page = tab.open("training?run=one&run=two")
        page.locator('.curves[data-key="metrics: won"] canvas').wait_for()
        charts = [str(chart.get_attribute("data-key")) for chart in page.locator(".curves").all()]
        held = "held-out reward: held"
        assert charts == ["reward", "metrics: lost", "metrics: won", "metrics above 1: num_turns", held]
        for chart in page.locator("figure", has=page.locator(".curves")).all():
            assert chart.locator(".legend li").all_inner_texts() == ["one", "two"]
            assert [key.get_attribute("class") for key in chart.locator(".key").all()] == ["key c0", "key c1"]
        page.get_by_role("button", name="two").first.click()
        page.locator('button[aria-pressed="false"]', has_text="two").first.wait_for()
        page = tab.open("training?run=one")
        page.locator('.curves[data-key="metrics"]').wait_for()
        assert [str(chart.get_attribute("data-key")) for chart in page.locator(".curves").all()] == [
            "reward",
            "metrics",
            "metrics above 1",
            "held-out reward",
        ]
        assert accessibility_violations(page) == [] and tab.page_errors == [] and tab.overflow <= 0


def test_rollouts_and_training_pages_work_with_the_keyboard(tab: Tab):
    page = tab.open("rollouts?run=trained")
    page.locator('[data-key="row 0"]').focus()
    page.keyboard.press("ArrowDown")
    page.locator('[data-key="row 1"]:focus').wait_for()
    page.keyboard.press("k")
    page.locator('[data-key="row 0"]:focus').wait_for()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Example 0, rollout 0").wait_for()
    page.keyboard.press("j")
    page.get_by_role("heading", name="Example 1, rollout 0").wait_for()
    page.keyboard.press("k")
    page.get_by_role("heading", name="Example 0, rollout 0").wait_for()
    page.keyboard.press("Escape")
    tab.wait("120 rollouts")
    page = tab.open("training?run=rl")
    page.locator('.curves[data-key="reward"]').focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert (
        "step 2"
        in page.locator("figure", has=page.locator('.curves[data-key="reward"]')).locator("output").inner_text()
    )
    page.keyboard.press("Enter")
    tab.wait("What did it say at step 2?")
    assert "step=2" in page.url
    page.get_by_role("link", name="all of this step").click()
    tab.wait("8 rollouts")
    assert "is.step=2" in page.url


def test_the_focus_is_kept_when_a_page_is_rendered_again(tab: Tab):
    page = tab.open("")
    page.get_by_label("Filter").press_sequentially("train", delay=30)
    page.locator("tbody tr").nth(1).wait_for(state="detached")
    assert page.evaluate("document.activeElement.dataset.key") == "filter"
    assert page.locator("tbody tr").count() == 1 and "trained" in page.locator("tbody").inner_text()


def test_selected_runs_and_their_rollouts_are_compared(tab: Tab):
    page = tab.open("")
    page.get_by_label("pick teacher").check()
    page.get_by_label("pick trained").check()
    page.get_by_role("link", name="Compare").click()
    tab.wait("trained is better than teacher")
    page.locator("table.movers a").first.click()
    page.locator("#pair section.member").nth(1).wait_for()
    assert page.locator("#pair .board").count() > 4


def test_a_search_shows_its_hits(tab: Tab):
    page = tab.open("rollouts?run=trained")
    page.get_by_label("Text").fill("you LOSE")
    page.get_by_role("button", name="Search").click()
    page.locator(".hits li").nth(3).wait_for()
    assert page.locator(".hits mark").first.inner_text() == "You lose"
    tab.wait("4 rollouts in")
    page.locator(".hits a").first.click()
    page.get_by_role("heading", name="Example").wait_for()


def test_new_steps_and_rollouts_appear_while_a_run_continues(browser: Any, tmp_path: Path):
    with (
        write_run_folder(tmp_path / "runs/live", [], kind="rl", steps=9) as run,
        serve_viewer(tmp_path / "runs") as url,
    ):
        run.start("rl", {"env": "quiz", "model": "m", "steps": 9}, {})
        append_step(run, 1)
        tab = Tab(browser, url)
        page = tab.open("training?run=live")
        assert page.locator("#steps").inner_text() == "1 step" and page.locator(".status").inner_text() == "running"
        page.evaluate("window.stays = 1")
        append_step(run, 2)
        append_step(run, 3)
        page.locator("#steps", has_text="3 steps").wait_for()
        assert page.locator('.curves[data-key="reward"]').get_attribute("data-points") == "3"
        assert page.evaluate("window.stays") == 1
        rollouts_tab = Tab(browser, url)
        rollouts_tab.open("rollouts?run=live")
        rollouts_tab.wait("24 rollouts")
        append_step(run, 4)
        rollouts_tab.wait("32 rollouts")
        run.close()
        page.locator(".status", has_text="stopped").wait_for()
        assert tab.page_errors == rollouts_tab.page_errors == []


def test_a_run_that_was_killed_while_writing_a_line_is_shown(browser: Any, tmp_path: Path):
    run = write_run_folder(tmp_path / "runs/killed", [make_record(0, i) for i in range(3)])
    with (run.path / "rollouts.jsonl").open("ab") as file:
        file.write(encode_record(make_record(0, 3))[:100])
    with serve_viewer(tmp_path / "runs") as url:
        tab = Tab(browser, url)
        page = tab.open("rollouts?run=killed")
        tab.wait("3 rollouts")
        tab.wait("the last line is incomplete (100 B)")
        assert page.locator(".status").first.inner_text() == "stopped"
        assert tab.page_errors == []


def test_unreadable_lines_are_shown_with_their_errors(browser: Any, tmp_path: Path):
    run = write_run_folder(tmp_path / "runs/odd", [make_record(0, i) for i in range(3)])
    with (run.path / "rollouts.jsonl").open("ab") as file:
        file.write(
            b'{"record": garbage\xff\n'
            + edit_line(encode_record(make_record()), b'"schema_version":2', b'"schema_version":8')
            + b"\n"
        )
    with serve_viewer(tmp_path / "runs") as url:
        tab = Tab(browser, url)
        page = tab.open("rollouts?run=odd")
        page.locator(".unreadable summary", has_text="2 lines of rollouts.jsonl cannot be read").click()
        text = page.locator(".unreadable").inner_text()
        assert "line 4" in text and "garbage" in text
        assert "this rollout has schema 8; this version of rove reads up to 2. Upgrade rove" in text
        page = tab.open("")
        assert "2 unreadable lines" in page.locator("tbody").inner_text()
        assert tab.page_errors == []


def test_hostile_content_is_shown_as_text(browser: Any, tmp_path: Path):
    call = {"id": EVIL, "type": "function", "function": {"name": EVIL, "arguments": EVIL}}
    completion = [
        {
            "role": "assistant",
            "content": f"<think>{EVIL}</think>{EVIL}",
            "tool_calls": [call, EVIL],
            "reasoning_content": EVIL,
        },
        {"role": EVIL, "content": [{"type": "text", "text": EVIL}, {"type": EVIL}, EVIL], "name": EVIL},
        {"role": "user", "content": "x" * 5_000_000},
    ]
    hostile = make_record(
        0,
        0,
        completion=completion,
        stop_condition=EVIL,
        scores=make_scores(1.0, **{EVIL: 1.0}),
        example_key=EVIL,
        info={EVIL: EVIL},
    )
    with write_run_folder(
        tmp_path / "runs/evil", [hostile, make_record(0, 1, example_key=EVIL)], env=EVIL, model=EVIL, kind="rl"
    ) as run:
        run.append_metrics({"step": 1, "reward/mean": 0.5, f"metrics/{EVIL}": 1.0, f"eval/{EVIL}/reward/mean": 1.0})
        run.append_alert({"step": 1, "id": EVIL, "text": EVIL})
    with serve_viewer(tmp_path / "runs") as url:
        tab = Tab(browser, url)
        rollout = "rollout?run=evil&line=0"
        for path in (
            "",
            "rollouts?run=evil",
            rollout,
            f"{rollout}&tab=group",
            f"{rollout}&tab=raw",
            "training?run=evil",
            "compare?a=evil&b=evil",
        ):
            page = tab.open(path)
            assert page.evaluate("window.pwned") is None
            assert page.evaluate("document.querySelectorAll('script, img, iframe').length") == 1, path
            assert tab.overflow <= 0, path
        text = tab.open(rollout).locator("main").inner_text()
        assert text.count("window.pwned = 1") >= 8
        assert tab.page_errors == []


def test_a_rollout_of_200_turns_is_shown(browser: Any, tmp_path: Path):
    completion = [
        {"role": role, "content": f"turn {i} of {role}"} for i in range(200) for role in ("assistant", "user")
    ]
    steps = [TrajectoryStep([], [], seconds=0.01) for _ in range(200)]
    write_run_folder(tmp_path / "runs/long", [make_record(0, 0, completion=completion, steps=steps)])
    with serve_viewer(tmp_path / "runs") as url:
        tab = Tab(browser, url)
        page = tab.open("rollout?run=long&line=0")
        assert page.locator("article.message").count() == 401
        assert "After 200 turns" in page.locator("aside").inner_text()
        assert tab.page_errors == [] and tab.overflow <= 0


def test_100_000_rollouts_are_shown_in_one_table(browser: Any, tmp_path: Path):
    run = write_run_folder(tmp_path / "runs/large", [])
    line = edit_line(encode_record(make_record(77777, 6, 0.5)), b"", b"") + b"\n"
    with (run.path / "rollouts.jsonl").open("wb") as file:
        for i in range(100_000):
            file.write(
                line.replace(b"77777", b"%d" % (i // 8)).replace(b'"rollout_index":6', b'"rollout_index":%d' % (i % 8))
            )
    with serve_viewer(tmp_path / "runs") as url:
        tab = Tab(browser, url)
        page = tab.open("run?run=large")
        tab.wait("100,000 · 100%")  # the page updates its counts until the whole run is read
        page = tab.open("rollouts?run=large")
        tab.wait("100,000 rollouts")
        assert page.locator("table.rollouts tbody tr[data-place]").count() < 60
        page.locator(".long").evaluate("(box) => box.scrollTo(0, box.scrollHeight)")
        page.locator("tr[data-place='99999'] a", has_text="12,499 · 7").wait_for()
        assert page.locator("table.rollouts tbody tr[data-place]").count() < 60
        page = tab.open("rollouts?run=large&offset=50000")
        page.locator("tr[data-place='50000'] a", has_text="6,250 · 0").wait_for()
        page.evaluate(RECORD_HITS)
        page.get_by_label("Text").fill(
            "questio[n] 0"
        )  # a search with a pattern takes longer than the 0.2 s between reports
        page.get_by_label("regular expression").check()
        page.get_by_role("button", name="Search").click()
        page.wait_for_function(
            "() => window.told.some((text) => /^8 rollouts in \\d+ MB$/m.test(text) && !/so far/.test(text))"
        )
        partial_reports = page.evaluate("window.told.filter((text) => /^8 rollouts in .* so far/m.test(text)).length")
        # hits and progress are shown while the rest is read
        assert partial_reports >= 1, page.evaluate("window.told")
        assert tab.page_errors == []


def test_a_game_is_played_with_mouse_and_keyboard_and_saved(browser: Any, tmp_path: Path):
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed: pip install axe-playwright-python"
    )
    with serve_command(
        tmp_path, "play", "tictactoe", "-m", "scripted:optimal", "--web", "--seed", "1", "--run-dir", "kept"
    ) as url:
        tab = Tab(browser, url, NARROW)
        page = tab.page
        page.goto(url)
        squares, over = page.locator(".large .board button"), page.get_by_role("button", name="Save this game")
        squares.first.wait_for()
        assert (
            axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa"]}).violations_count == 0 and tab.overflow <= 0
        )
        for turn in range(5):
            squares.or_(over).first.wait_for()
            if over.is_visible():
                break
            free = squares.count()
            if turn % 2:
                page.locator('[data-key^="move "]').first.press("Enter")
            else:
                squares.last.click()
            squares.nth(free - 1).wait_for(state="detached")
        over.click()
        tab.wait("saved in kept")
        assert (
            "the model is told: You win." in page.locator(".verdict").inner_text()
            or "Draw." in page.locator(".verdict").inner_text()
        )
        page.get_by_role("button", name="Play again").click()
        squares.or_(page.get_by_text("is responding")).first.wait_for()
        assert tab.page_errors == []
    [row] = RunRows(Run(tmp_path / "kept"))
    assert row["reward"] >= 0.7 and row["completion"][0]["role"] == "assistant"


def test_a_person_plays_a_named_model_role(browser: Any, tmp_path: Path):
    write_environment(tmp_path / "mine", "haggle", HAGGLE)
    arguments = ("play", "haggle", "--env-dir", "mine", "-m", "scripted:buyer", "--web", "--run-dir", "kept")
    with serve_command(tmp_path, *arguments, "--model-role", "seller") as url:
        tab = Tab(browser, url, NARROW)
        page = tab.page
        page.goto(url)
        for offer, answer in (("10?", "Never."), ("20?", "Sold.")):
            page.locator(".role").get_by_text(f"The buyer says: {offer}").wait_for()
            assert page.locator(".verdict").inner_text() == "Your turn as seller"
            assert page.evaluate("document.activeElement.dataset.key") == "answer role"  # the field has the focus
            assert accessibility_violations(page) == [] and tab.overflow <= 0
            page.keyboard.type(answer)
            page.get_by_role("button", name="Answer").press("Enter")
            page.locator(".role").get_by_text(f"The buyer says: {offer}").wait_for(state="detached")
        page.get_by_role("button", name="Save this game").click()
        tab.wait("saved in kept")
        assert (
            page.locator('[data-key="role"] option').all_inner_texts()[0]
            == "you as seller, scripted:buyer as the model"
        )
        assert tab.page_errors == []
    [game] = Run(tmp_path / "kept").rollouts()
    assert game.reward == 1.0
    with serve_viewer(tmp_path) as url:
        tab = Tab(browser, url)
        tab.open("rollout?run=kept&line=0").locator("summary", has_text="role seller").click()
        tab.wait("Never.")
        assert tab.page_errors == []
