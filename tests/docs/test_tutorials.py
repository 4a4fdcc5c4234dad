"""Every tutorial, guide and environment README runs from top to bottom and prints the shown output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pages import ROOT, Page, blocks, matches, run_page
from tiers import each_row

from rove.envs.loading import example_environments

SMALL_SFT = {"--epochs 4": "--epochs 1 --final-eval-rollouts 8"}
EXAMPLE_COUNTS = {"math_python": 40, "needle": 20, "sums": 56}
"""Evaluated examples in the READMEs of environments with few examples or with a sandbox."""
PAGES = {
    page.path: page
    for page in (
        Page("docs/first_hour/1_evaluate.md"),
        Page("docs/tutorials/1_game.md"),
        Page("docs/tutorials/2_tools.md"),
        Page(
            "docs/tutorials/3_sft.md",
            smaller=SMALL_SFT | {"-n 500": "-n 16"},
            needs=("docs/tutorials/1_game.md",),
        ),
        Page(
            "docs/tutorials/4_rl.md",
            smaller=SMALL_SFT
            | {
                "-n 500": "-n 16",
                "steps = 60": "steps = 2",
                "batch_size = 256": "batch_size = 64",
                "num_examples = 200\n": "num_examples = 8\n",
                "--steps 20": "--steps 1",
            },
            needs=("docs/tutorials/1_game.md",),
        ),
        Page(
            "docs/tutorials/5_pretrained.md",
            smaller={
                "rove model get smollm2-135m": "rove model new --env short_sentences -o tiny",
                "smollm2-135m": "tiny",
                "steps = 12": "steps = 1",
                "batch_size = 64": "batch_size = 16",
                "max_tokens = 40": "max_tokens = 8",
                "-n 100": "-n 4",
                "-t 40": "-t 8",
            },
        ),
        Page("docs/tutorials/6_scale.md"),
        Page("docs/tutorials/7_reward_hole.md"),
        Page(
            "docs/guides/migrate_from_verifiers_v0.md",
            smaller={
                "--epochs 3": "--epochs 1 --final-eval-rollouts 8",
                "--steps 40": "--steps 1 --batch-size 16",
                "-n 200": "-n 8",
            },
        ),
        Page("docs/guides/migrate_from_verifiers_v1.md"),
        Page(
            "docs/guides/migrate_from_trl.md",
            smaller={
                "rove model get smollm2-135m": "rove model new --env add -o tiny",
                "smollm2-135m": "tiny",
                "steps = 50": "steps = 1",
                "batch_size = 64": "batch_size = 16",
                "--epochs 2": "--epochs 1 --final-eval-rollouts 8",
            },
        ),
        Page("docs/guides/migrate_from_inspect.md"),
        Page("docs/guides/evaluate_an_endpoint.md"),
        Page("docs/guides/compare_two_models.md"),
        Page("docs/guides/resume.md"),
        Page("docs/guides/budget.md"),
        Page("docs/guides/judges.md"),
        Page("docs/guides/export_data.md"),
        Page("docs/guides/other_trainers.md"),
        Page("docs/guides/train_on_messages.md"),
        Page("docs/guides/share_an_environment.md"),
        Page("docs/guides/play.md"),
        Page("docs/guides/debug_a_reward.md"),
        Page("docs/guides/choose_hyperparameters.md"),
        Page("docs/guides/reward_does_not_rise.md", smaller={"--batch-size 64": "--batch-size 16 --groups 2"}),
        Page("docs/guides/memory.md"),
        *(
            Page(f"environments/{name}/README.md", smaller={f"-n {count} ": "-n 4 "})
            for name in example_environments()
            for count in [EXAMPLE_COUNTS.get(name, 200)]
        ),
    )
}
FIRST_HOUR = [
    Page("docs/first_hour/2_environment.md"),
    Page("docs/first_hour/3_audit.md"),
    Page(
        "docs/first_hour/4_train.md",
        smaller={"rove train roman": "rove train roman --smoke", '"roman")': '"roman", smoke=True)'},
    ),
    Page(
        "docs/first_hour/5_compare.md",
        smaller={"train-roman-seed0": "train-roman-seed0-smoke", "-n 200": "-n 8", "--filter 'reward > 1' ": ""},
    ),
]
"""Pages that use each other's files; `test_python` runs the last page, "Stage by stage"."""
QUICK = {"environments/double_check/README.md"}
"""Pages that every test run executes; the others, which start more processes, are for `make test-broad` and `make test-slow`."""
SLOW = {
    "docs/guides/choose_hyperparameters.md",
    "docs/guides/debug_a_reward.md",
    "docs/guides/judges.md",
    "docs/guides/memory.md",
    "docs/guides/migrate_from_trl.md",
    "docs/guides/migrate_from_verifiers_v0.md",
    "docs/guides/other_trainers.md",
    "docs/guides/reward_does_not_rise.md",
    "docs/guides/share_an_environment.md",
    "docs/guides/train_on_messages.md",
    "docs/tutorials/3_sft.md",
    "docs/tutorials/4_rl.md",
    "docs/tutorials/5_pretrained.md",
    "docs/tutorials/6_scale.md",
    "docs/tutorials/7_reward_hole.md",
    *(f"environments/{name}/README.md" for name in example_environments() if name not in ("tictactoe", "sql_agent")),
} - QUICK
"""Pages whose test takes long, and READMEs with the same kinds of commands as those of other environments."""
EXISTING_PAGES = sorted(
    file.relative_to(ROOT).as_posix()
    for pattern in ("docs/first_hour/*.md", "docs/tutorials/*.md", "docs/guides/*.md", "environments/*/README.md")
    for file in ROOT.glob(pattern)
)
SANDBOXED = {"environments/math_python/README.md", "environments/needle/README.md"}
"""Pages whose code is not run on machines without a sandbox."""


def tier(path: str) -> list[pytest.MarkDecorator]:
    """Return the mark of a page's test: none, broad or slow."""
    return [] if path in QUICK else [pytest.mark.slow if path in SLOW else pytest.mark.broad]


@pytest.mark.parametrize("path", [pytest.param(path, marks=tier(path)) for path in PAGES])
def test_a_page_runs_and_prints_the_shown_output(path: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if path in SANDBOXED:
        request.getfixturevalue("contained")
    run_page(PAGES[path], tmp_path)


@pytest.mark.slow
def test_the_first_hour_runs_page_after_page(tmp_path: Path) -> None:
    for page in FIRST_HOUR:
        run_page(page, tmp_path)


def test_every_page_is_run() -> None:
    first_hour = [page.path for page in FIRST_HOUR]
    assert sorted([*PAGES, *first_hour, "docs/first_hour/6_stages.md"]) == EXISTING_PAGES


def test_the_first_hour_has_at_most_six_pages_and_8000_words() -> None:
    pages = [path for path in EXISTING_PAGES if "/first_hour/" in path]
    assert len(pages) <= 6
    assert sum(len((ROOT / path).read_text(encoding="utf-8").split()) for path in pages) <= 8000


@pytest.mark.parametrize("path", [path for path in EXISTING_PAGES if "/guides/" not in path and "README" not in path])
def test_a_tutorial_states_its_goal_and_the_next_page(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    title, goal, *_ = text.split("\n\n")
    assert title.startswith("# ")
    assert "you can" in goal
    assert text.rstrip().splitlines()[-1].startswith("**Next:** [")
    assert blocks(text)[0][0] in ("bash", "python")


@pytest.mark.parametrize("path", [path for path in EXISTING_PAGES if "/guides/" in path])
def test_a_guide_states_its_goal(path: str) -> None:
    title, goal, *_ = (ROOT / path).read_text(encoding="utf-8").split("\n\n")
    assert title.startswith("# ")
    assert goal.startswith("After reading this page, you can ")


@pytest.mark.parametrize("path", EXISTING_PAGES)
def test_relative_links_lead_to_existing_files(path: str) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / path).parent.joinpath(link).exists()] == []


@each_row(
    ("excerpt", "printed", "same"),
    [
        ("a\nb", "a\nb\n", True),
        ("b", "a\nb\n", True),
        ("a\nc", "a\nb\nc\n", False),
        ("a\n…\nc", "a\nb\nc\n", True),
        ("a  ", "a\n", True),
        ("1.0", "1x0\n", False),
        ("c\n…\na", "a\nb\nc\n", False),
    ],
)
def test_shown_lines_are_found_in_order(excerpt: str, printed: str, same: bool) -> None:
    assert matches(excerpt, printed) == same
