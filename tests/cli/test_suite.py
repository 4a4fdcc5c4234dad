"""`rove eval` with several evaluations in one file, with an environment's defaults, and with --dry-run."""

from __future__ import annotations

import copy
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from commands import CompletedCommand, Rove, in_process_rove, rollout_lines, write_environment
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.cli.suite import steps_to_complete
from rove.core.config import load
from rove.core.errors import ConfigError
from rove.envs.loading import environment_defaults
from rove.runs.run import Run
from rove.stages.evaluation import EvalConfig
from rove.stages.suite import as_words, expand

GAME = ("tictactoe", "-m", "scripted:teacher", "-n", "2", "-r", "1")

FRAGILE = """
import rove as vf

def right(completion, answer):
    return float(completion[-1].content == answer)

def knows(messages, state, rng):
    return state["answer"]

def fails(messages, state, rng):
    raise vf.InfraError("gone")

def load_environment(num_examples: int = 4, broken: bool = False):
    def rows():
        if broken:
            raise OSError("disk on fire")
        return [{"question": f"{i}?", "answer": str(i)} for i in range(num_examples)]
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric([right]), policies={"knows": knows, "fails": fails})
"""


@pytest.fixture
def rove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Rove:
    return in_process_rove(tmp_path, monkeypatch, capsys)


def suite(text: str) -> None:
    Path("suite.toml").write_text(text)


def settings_of(done: CompletedCommand) -> list[dict[str, Any]]:
    """Return the settings of every evaluation that --dry-run printed."""
    assert done.status == 0, done.err
    content = tomllib.loads(done.out)
    return content.get("eval", [content])


# Expansion of sweeps

names = st.sampled_from(["temperature", "seed", "env_args.a", "env_args.b", "env_args.deep.c", "limits.max_turns"])
values = st.integers(0, 9) | st.booleans() | st.text(max_size=2) | st.lists(st.integers(0, 3), max_size=2)
axes = st.dictionaries(names, st.lists(values, min_size=1, max_size=3, unique_by=repr), max_size=4)
plain = st.dictionaries(names, st.integers(10, 19), max_size=3)


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split(".")
        table = tree
        for key in above:
            table = table.setdefault(key, {})
        table[last] = value
    return tree


def nested_value(values: dict[str, Any], name: str) -> Any:
    for key in name.split("."):
        values = values[key]
    return values


@given(shared=plain, table_settings=plain, sweep=axes, dotted=st.booleans())
def test_a_sweep_gives_every_combination_once_over_the_shared_settings(shared, table_settings, sweep, dotted):
    content = {**nested(shared), "eval": [{**nested(table_settings), "sweep": sweep if dotted else nested(sweep)}]}
    content_before = copy.deepcopy(content)
    points = list(expand(content))
    assert content == content_before
    assert len(points) == math.prod(len(tried) for tried in sweep.values())
    distinct = {repr([nested_value(settings, name) for name in sweep]) for _, _, settings in points}
    assert len(distinct) == len(points)
    for table, point, settings in points:
        assert table == "[[eval]] 1"
        assert all(f"{name} = {nested_value(settings, name)!r}" in point for name in sweep)
        for name, value in {**shared, **table_settings}.items():
            if name not in sweep:
                assert nested_value(settings, name) == value
        assert "sweep" not in settings


@given(shared=axes, table_settings=plain, overriding=axes)
def test_a_top_level_sweep_applies_to_every_table_unless_overridden(shared, table_settings, overriding):
    content = {"sweep": shared, "eval": [nested(table_settings), {"sweep": overriding}], "ablation": [{}]}
    points = list(expand(content))
    unset = {name: tried for name, tried in shared.items() if name not in table_settings}
    sizes = [
        math.prod(len(tried) for tried in varying.values()) for varying in (unset, {**shared, **overriding}, shared)
    ]
    tables = [table for table, _, _ in points]
    assert tables == ["[[eval]] 1"] * sizes[0] + ["[[eval]] 2"] * sizes[1] + ["[[ablation]] 1"] * sizes[2]
    assert all(
        nested_value(settings, name) == value
        for _, _, settings in points[: sizes[0]]
        for name, value in table_settings.items()
    )


def test_the_last_name_varies_fastest():
    points = [point for _, _, point in expand({"sweep": {"seed": [1, 2], "env_args": {"a": [3, 4]}}})]
    assert points == [{"seed": i, "env_args": {"a": j}} for i in (1, 2) for j in (3, 4)]


def test_a_sweep_can_vary_whole_tables():
    content = {"env_args": {"a": 1}, "eval": [{"sweep": {"env_args": [{"b": 2}, {"a": 3}]}}]}
    assert [settings["env_args"] for _, _, settings in expand(content)] == [{"a": 1, "b": 2}, {"a": 3}]


@each_row(
    ("content", "message"),
    [
        ({"eval": {"model": "x"}}, r"'eval' is \{'model': 'x'\}; expected tables: \[\[eval\]\]"),
        ({"ablation": [1]}, r"'ablation' is \[1\]; expected tables"),
        ({"sweep": 3}, r"\[sweep\] is 3; expected a table of lists"),
        ({"eval": [{}, {"sweep": [1]}]}, r"\[\[eval\]\] 2, sweep is \[1\]; expected a table of lists"),
        (
            {"eval": [{"sweep": {"seed": 1}}]},
            r"\[\[eval\]\] 1, sweep: 'seed' is 1; expected a list of the values to try",
        ),
        ({"sweep": {"env_args": {"a": []}}}, r"\[sweep\]: 'env_args.a' is \[\]; expected a list"),
    ],
)
def test_invalid_suites_are_refused(content, message):
    with pytest.raises(ConfigError, match=message):
        list(expand(content))


texts = st.text(max_size=5)
given_settings = st.fixed_dictionaries(
    {"env": texts, "model": texts},
    optional={
        "run_dir": texts,
        "save": st.booleans(),
        "seed": st.integers(0, 9),
        "device": st.sampled_from(["auto", "cpu", "cuda:1"]),
        "temperature": st.floats(0, 2),
        "env_args": st.dictionaries(texts, texts | st.integers(0, 9) | st.lists(texts, max_size=2), max_size=3),
        "sampling_args": st.dictionaries(texts, st.booleans(), max_size=2),
    },
)


@given(given_settings)
def test_settings_survive_conversion_to_flags(values):
    assert load(EvalConfig, {}, as_words(values)) == load(EvalConfig, values)


# Several evaluations in one file

MANY = """
env = "tictactoe"
num_examples = 3
rollouts_per_example = 2

[[eval]]
model = "scripted:teacher"
[eval.sweep]
temperature = [0, 0.5]
"env_args.max_turns" = [2, 8]

[[eval]]
model = "scripted:optimal"

[[ablation]]
env = "reverse_text"
model = "scripted:oracle"
num_examples = 2
"""


@pytest.mark.broad
def test_every_table_is_an_evaluation_with_its_own_folder(rove: Rove):
    suite(MANY)
    done = rove("eval", "@", "suite.toml", "--json")
    assert done.status == 0
    rows = json.loads(done.out)
    assert [(row["env"], row["model"], row["scored"]) for row in rows] == [
        *[("tictactoe", "scripted:teacher", 6)] * 4,
        ("tictactoe", "scripted:optimal", 6),
        ("reverse_text", "scripted:oracle", 4),
    ]
    assert [row["settings"].get("env_args.max_turns") for row in rows] == [2, 8, 2, 8, None, None]
    assert [row["settings"].get("temperature") for row in rows] == [0, 0, 0.5, 0.5, None, None]
    assert len({row["run"] for row in rows}) == 6
    for row in rows:
        stored = Run(row["run"]).summary()
        assert stored is not None
        assert stored["reward"] == row["reward"]
    assert "6/6 reverse_text · scripted:oracle" in done.err


@pytest.mark.broad
def test_repeating_a_suite_runs_only_missing_rollouts(rove: Rove):
    suite(MANY)
    first = json.loads(rove("eval", "@", "suite.toml", "--json").out)
    first_lines = [rollout_lines(row["run"]) for row in first]
    assert json.loads(rove("eval", "@suite.toml", "--json").out) == first
    assert [rollout_lines(row["run"]) for row in first] == first_lines
    file = Path(first[2]["run"], "rollouts.jsonl")
    file.write_bytes(b"".join(first_lines[2][:4]))
    second_payload = json.loads(rove("eval", "@", "suite.toml", "--json").out)
    assert len(rollout_lines(first[2]["run"])) == 6
    for row in (*first, *second_payload):
        row.pop("latency")
    assert second_payload == first


def test_text_output_is_one_table(rove: Rove):
    suite(MANY)
    done = rove("eval", "@", "suite.toml")
    assert (done.status, done.err) == (0, "")
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in done.out.splitlines() if "│" in line]
    first, second, folded, third = rows[:4]
    assert first[:5] == ["tictactoe", "scripted:teacher", "num_examples=3", "6", "0.200 –*"]
    assert first[5:] == ["0", "0"]
    assert [second[2], folded[2], third[2]] == ["env_args.max_", "turns=2", "temperature=0.0"]
    assert rows[-1][:5] == ["reverse_text", "scripted:oracle", "num_examples=2", "4", "1.200 –*"]
    assert "rove compare runs/tictactoe--scripted-teacher--" in done.out
    assert "failed" in done.out
    assert max(map(len, done.out.splitlines())) <= 200


@pytest.mark.broad
def test_flags_apply_to_all_evaluations_and_override_their_settings(rove: Rove):
    suite(MANY)
    printed_settings = settings_of(rove("eval", "--dry-run", "-T", "1.5", "@", "suite.toml", "--num_examples", "1"))
    assert [values["temperature"] for values in printed_settings] == [1.5] * 4
    assert [values["num_examples"] for values in printed_settings] == [1] * 4
    assert [values["env_args"] for values in printed_settings] == [{"max_turns": 2}, {"max_turns": 8}, {}, {}]
    suite('model = "scripted:random"\n[[eval]]\nenv = "tictactoe"\n[eval.sweep]\nseed = [1, 2]')
    named = settings_of(rove("eval", "--dry-run", "double_check", "-m", "scripted:oracle", "@", "suite.toml"))
    assert [(values["env"], values["model"], values["seed"]) for values in named] == [
        ("double_check", "scripted:oracle", 1),
        ("double_check", "scripted:oracle", 2),
    ]


@pytest.mark.broad
def test_later_files_override_earlier_ones(rove: Rove):
    suite(MANY)
    Path("more.toml").write_text("num_examples = 7\nseed = 3\n")
    below = settings_of(rove("eval", "@", "more.toml", "@", "suite.toml", "--dry-run"))
    assert [(values["num_examples"], values["seed"]) for values in below] == [(3, 3)] * 5 + [(2, 3)]
    above = settings_of(rove("eval", "@", "suite.toml", "@", "more.toml", "--dry-run"))
    assert [(values["num_examples"], values["seed"]) for values in above] == [(7, 3)] * 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[eval]]\nmodle = "x"', "suite.toml, [[eval]] 1: unknown setting 'modle'; did you mean 'model'?"),
        (
            "[[eval]]\n[eval.sweep]\ntemprature = [0.1, 1]",
            "[[eval]] 1 (temprature = 0.1): unknown setting 'temprature'",
        ),
        ("[[eval]]\n[[eval]]\nseed = 'x'", "suite.toml, [[eval]] 2: seed is 'x'; expected an integer, 0 or more"),
        (
            "[[eval]]\n[[eval]]\nnum_examples = 0",
            "suite.toml, [[eval]] 2: num_examples is 0; expected an integer, 1 or more",
        ),
        ("[[eval]]\n[[eval]]\nenv = 'tictactoo'", "suite.toml, [[eval]] 2: no environment 'tictactoo'"),
        ("[[eval]]\n[[eval]]\nenv_args = {sed = 1}", "suite.toml, [[eval]] 2: environment 'tictactoe' has no argument"),
        (
            "[[eval]]\n[[eval]]\nmodel = 'scripted:tea'",
            "suite.toml, [[eval]] 2: environment 'tictactoe' has no scripted",
        ),
        ("[[eval]]\n[[eval]]\nsampling_args.top_p = 'x'", "suite.toml, [[eval]] 2: top_p is 'x'"),
        ("[[eval]]\n[eval.sweep]\nseed = 1", "suite.toml, [[eval]] 1, sweep: 'seed' is 1; expected a list"),
        (
            "[[eval]]\n[[eval]]",
            "suite.toml, [[eval]] 1 and suite.toml, [[eval]] 2 would share one run folder (what differs: n",
        ),
        (
            "[sweep]\nnum_examples = [1, 2]",
            "suite.toml, [sweep] (num_examples = 1) and suite.toml, [sweep] (num_examples = 2) would share one run folder "
            "(what differs: num_examples); omit one, or give each its own run_dir",
        ),
        (
            'run_dir = "runs/x"\n[[eval]]\nseed = 1\n[[eval]]\nrun_dir = "runs/y/../x"',
            "would share the run folder runs/y/../x (what differs: run_dir, seed)",
        ),
    ],
)
def test_errors_name_their_table_before_anything_is_run(rove: Rove, text: str, message: str):
    top = 'env = "tictactoe"\nmodel = "scripted:random"\n'
    suite(top + text)
    done = rove("eval", "@", "suite.toml")
    assert (done.status, done.out) == (2, "")
    assert message in done.err.replace("differs: seed, run_dir", "differs: run_dir, seed")
    assert not Path("runs").exists()


@pytest.mark.broad
def test_unsaved_evaluations_cannot_share_a_folder(rove: Rove):
    suite("[sweep]\nnum_examples = [1, 2]")
    rows = json.loads(rove("eval", *GAME[:3], "-r", "1", "@", "suite.toml", "--no-save", "--json").out)
    assert [(row["scored"], row["run"]) for row in rows] == [(1, None), (2, None)]


def test_two_files_with_several_evaluations_are_refused(rove: Rove):
    suite(MANY)
    Path("other.toml").write_text(MANY)
    done = rove("eval", "@", "suite.toml", "@", "other.toml")
    assert done.status == 2
    assert "suite.toml and other.toml both contain several evaluations" in done.err
    assert "expected a file after @" in rove("eval", *GAME, "@").err


@pytest.mark.broad
def test_a_failed_evaluation_does_not_stop_the_others(rove: Rove, tmp_path: Path):
    write_environment(tmp_path / "environments", "fragile", FRAGILE)
    suite("""
env = "fragile"
num_examples = 4
rollouts_per_example = 1
max_errors = 1
max_concurrent = 1
[[eval]]
model = "scripted:fails"
[[eval]]
model = "scripted:knows"
env_args.broken = true
[[eval]]
model = "scripted:knows"
run_dir = "taken"
[[eval]]
model = "scripted:knows"
""")
    Path("taken").mkdir()
    Path("taken", "mine.txt").touch()
    done = rove("eval", "@", "suite.toml", "--json")
    assert done.status == 1
    failed, broken, taken, fine = json.loads(done.out)
    assert failed["error"].startswith("TooManyErrorsError: 2 of 2 rollouts failed, more than max_errors = 1 allows")
    assert (broken["error"], broken["place"]) == ("OSError: disk on fire", "suite.toml, [[eval]] 2")
    assert taken["error"].startswith("RunError: taken is not a run folder and not empty")
    assert (fine["scored"], fine["failed"]) == (4, 0)
    assert 'raise OSError("disk on fire")' in done.err  # the environment's author needs the traceback
    repeated = rove("eval", "@", "suite.toml")
    assert repeated.status == 1
    assert "3 of 4 evaluations did not finish:" in repeated.out
    assert "  suite.toml, [[eval]] 3: RunError: taken is not a run folder" in repeated.out
    assert repeated.out.count(" stopped│") == 3


@pytest.mark.broad
def test_an_evaluation_without_scored_rollouts_is_a_failure(rove: Rove, tmp_path: Path):
    write_environment(tmp_path / "environments", "fragile", FRAGILE)
    suite('env = "fragile"\n[sweep]\nmodel = ["scripted:fails", "scripted:knows"]')
    done = rove("eval", "@", "suite.toml", "--json")
    assert done.status == 1
    assert [(row["scored"], row["failed"]) for row in json.loads(done.out)] == [(0, 12), (12, 0)]


# --dry-run


def test_dry_run_prints_settings_and_runs_nothing(rove: Rove):
    done = rove("eval", *GAME, "-T", "0.5", "--env_args.max_turns", "3", "--dry-run")
    assert done.status == 0
    [values] = settings_of(done)
    assert (values["env"], values["temperature"], values["env_args"]) == ("tictactoe", 0.5, {"max_turns": 3})
    assert set(values) <= set(EvalConfig.__struct_fields__)
    assert (
        json.loads(rove("eval", *GAME, "-T", "0.5", "--env_args.max_turns", "3", "--dry-run", "--json").out) == values
    )
    assert "has no argument 'sed'" in rove("eval", *GAME, "-a", '{"sed": 1}', "--dry-run").err
    assert not Path("runs").exists()


@pytest.mark.broad
@pytest.mark.parametrize("words", [GAME, ("@", "suite.toml")])
def test_printed_settings_are_equivalent_to_the_command(rove: Rove, words: tuple[str, ...]):
    suite(MANY)
    shown_run = rove("eval", *words, "--dry-run")
    Path("shown.toml").write_text(shown_run.out)
    assert settings_of(rove("eval", "@", "shown.toml", "--dry-run")) == settings_of(shown_run)
    if words != GAME:
        assert "# suite.toml, [[eval]] 1 (temperature = 0, env_args.max_turns = 2)\n[[eval]]\n" in shown_run.out


# Defaults of an environment


def with_defaults(**table: Any) -> Path:
    write_environment(Path("environments"), "fragile", FRAGILE)
    file = Path("environments/fragile/pyproject.toml")
    file.write_text(tomli_w.dumps({"project": {"version": "1"}, "tool": {"rove": {"eval": table}}}))
    return file


def test_files_and_flags_override_an_environments_defaults(rove: Rove):
    file = with_defaults(
        num_examples=3, rollouts_per_example=1, temperature=0.7, sampling_args={"top_p": 0.5, "stop": ["x"]}
    )
    words = ("eval", "fragile", "-m", "scripted:knows", "--dry-run")
    plain = rove(*words)
    [values] = settings_of(plain)
    assert (values["num_examples"], values["rollouts_per_example"], values["temperature"]) == (3, 1, 0.7)
    assert values["sampling_args"] == {"top_p": 0.5, "stop": ["x"]}
    origin = f"# from {file.resolve()}, [tool.rove.eval]: "
    assert origin + "num_examples, rollouts_per_example, temperature, sampling_args\n" in plain.out
    Path("mine.toml").write_text("num_examples = 2\nsampling_args.top_p = 0.9\n")
    mixed = rove(*words, "@", "mine.toml", "-T", "0.1", "-r", "1")
    [values] = settings_of(mixed)
    assert (values["num_examples"], values["temperature"]) == (2, 0.1)
    assert values["sampling_args"] == {"top_p": 0.9, "stop": ["x"]}
    assert origin + "sampling_args\n" in mixed.out
    summary = json.loads(rove("eval", "fragile", "-m", "scripted:knows", "--json").out)
    assert summary["rollouts"] == 3


def test_an_environments_defaults_apply_in_a_suite(rove: Rove):
    with_defaults(num_examples=3, temperature=0.7)
    suite(
        'model = "scripted:knows"\n[[eval]]\nenv = "fragile"\n[[eval]]\nenv = "fragile"\ntemperature = 0\n'
        '[[eval]]\nenv = "tictactoe"\nmodel = "scripted:random"'
    )
    printed_settings = settings_of(rove("eval", "@", "suite.toml", "--dry-run"))
    assert [(values["num_examples"], values.get("temperature")) for values in printed_settings] == [
        (3, 0.7),
        (3, 0.0),
        (5, None),
    ]


def test_a_resumed_run_uses_its_original_settings(rove: Rove):
    write_environment(Path("environments"), "fragile", FRAGILE)
    first = json.loads(rove("eval", "fragile", "-m", "scripted:knows", "--json").out)
    pyproject = Path("environments/fragile/pyproject.toml")
    pyproject.write_text("[tool.rove.eval]\ntemperature = 0.5\nnum_examples = 1\n")
    [values] = settings_of(rove("eval", "--resume", first["run"], "--dry-run"))
    assert "temperature" not in values
    assert values["num_examples"] == 5


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (("--overwrite",), "--overwrite"),
        (("--run-dir", "other"), "--run-dir"),
        (("--run_dir", "other"), "--run-dir"),
        (("--no-save",), "--no-save"),
    ],
)
def test_a_resumed_run_is_neither_deleted_nor_started_elsewhere(rove: Rove, words: tuple[str, ...], option: str):
    run = Path("runs/first")
    assert rove("eval", "tictactoe", "-m", "scripted:random", "-n", "1", "-r", "1", "--run-dir", str(run)).status == 0
    rollouts = (run / "rollouts.jsonl").read_bytes()
    done = rove("eval", "--resume", str(run), *words)
    assert (done.status, done.out) == (2, "")
    assert f"--resume and {option} exclude each other: --resume continues the run in runs/first" in done.err
    assert (run / "rollouts.jsonl").read_bytes() == rollouts and not Path("other").exists()
    assert rove("eval", "--resume", str(run), "-n", "2").status == 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"num_exampels": 3}, "[tool.rove.eval]: unknown setting 'num_exampels'; did you mean 'num_examples'?"),
        ({"base_url": "http://elsewhere"}, "[tool.rove.eval]: unknown setting 'base_url'; known: "),
        ({"num_examples": "many"}, "[tool.rove.eval]: num_examples is 'many'; expected an integer"),
        ({"num_examples": 0}, "[tool.rove.eval]: num_examples is 0; expected an integer, 1 or more"),
    ],
)
def test_invalid_defaults_are_refused_with_the_file_name(rove: Rove, table: dict[str, Any], message: str):
    file = with_defaults(**table)
    done = rove("eval", "fragile", "-m", "scripted:knows")
    assert done.status == 2
    assert f"{file.resolve()}, {message}" in done.err
    assert not Path("runs").exists()


def test_defaults_come_from_the_pyproject_next_to_the_module(rove: Rove, tmp_path: Path):
    write_environment(tmp_path / "mine", "bare", FRAGILE)
    assert environment_defaults("bare", "mine") == (tmp_path / "mine/bare/pyproject.toml", {})
    (tmp_path / "mine/bare/pyproject.toml").write_text("[project]\nname = 'bare'\n")
    assert environment_defaults("bare", "mine")[1] == {}
    (tmp_path / "mine/bare/pyproject.toml").write_text("[tool.rove.eval]\nseed = 3\n")
    assert environment_defaults("someone/bare@1.0", "mine")[1] == {"seed": 3}
    (tmp_path / "mine/bare/pyproject.toml").write_text("[tool.rove]\neval = 3\n")
    with pytest.raises(ConfigError, match=r"pyproject.toml: 'eval' is 3; expected the table \[tool.rove.eval\]"):
        environment_defaults("bare", "mine")
    with pytest.raises(ConfigError, match="no environment 'none'"):
        environment_defaults("none")


@pytest.mark.parametrize(
    ("summary", "beginnings"),
    [
        ({"errors": {}}, []),
        ({"errors": {"reward right: KeyError": 2}}, ["fix the environment's code (reward right: KeyError)"]),
        ({"errors": {"reward right: Error": 2}}, ["fix the environment's code"]),
        ({"errors": {"model: ConfigError": 2}}, []),
        ({"errors": {"model: InfraError": 1, "stop: TypeError": 1}}, ["fix the", "repeat the command"]),
        ({"errors": {}, "not_run": 3}, ["repeat the command"]),
    ],
)
def test_a_repetition_is_suggested_only_where_it_may_help(summary: dict[str, Any], beginnings: list[str]):
    steps = steps_to_complete([summary])
    assert len(steps) == len(beginnings)
    assert all(step.startswith(beginning) for step, beginning in zip(steps, beginnings, strict=True))
