"""Settings from files and flags: precedence and error messages."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.config import convert, load, merge, read_toml
from rove.core.errors import ConfigError
from rove.runs.run import Run


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    env: str
    folder: str | None = None
    steps: int = 10
    rate: float = 1.0
    limit: int | None = None
    save: bool = True
    overwrite: bool = False
    tags: list[str] = []
    env_args: dict[str, Any] = {}


def read(*words: str, bare: str = "env", **named: Any) -> Settings:
    """Return the settings of a command line of these words and named flags."""
    return load(Settings, named, words, bare)


def write_settings(folder: Path, name: str, **values: Any) -> str:
    path = folder / name
    path.write_text(tomli_w.dumps(values))
    return str(path)


# Flags


@each_row(
    ("words", "expected"),
    [
        (["--steps", "3"], {"steps": 3}),
        (["--steps=3"], {"steps": 3}),
        (["--limit", "-1"], {"limit": -1}),
        (["--rate", "-1e-3"], {"rate": -1e-3}),
        (["--rate", "2"], {"rate": 2.0}),
        (["--limit", "null"], {"limit": None}),
        (["--tags", '["a", "b"]'], {"tags": ["a", "b"]}),
        (["--env_args", '{"a": 1}'], {"env_args": {"a": 1}}),
        (["--env_args.a.b", "1", "--env-args.a.c=x"], {"env_args": {"a": {"b": 1, "c": "x"}}}),
        (["--env_args.max-turns", "4"], {"env_args": {"max_turns": 4}}),
        (["--env_args.flag", "--steps", "3"], {"env_args": {"flag": True}, "steps": 3}),
        (["--env_args.no", "@x"], None),
        (["--env_args.path=@x"], {"env_args": {"path": "@x"}}),
        (["--folder", "2024"], {"folder": "2024"}),
        (["--folder=a=b"], {"folder": "a=b"}),
    ],
)
def test_a_flag_sets_its_setting(words: list[str], expected: dict[str, Any] | None):
    if expected is None:
        with pytest.raises(ConfigError, match="settings file x does not exist"):
            read("game", *words)
    else:
        assert read("game", *words) == Settings(env="game", **expected)


@each_row(
    ("words", "save", "overwrite"),
    [
        ([], True, False),
        (["--overwrite"], True, True),
        (["--no-overwrite"], True, False),
        (["--no-save", "--overwrite"], False, True),
        (["--no_save", "--steps", "10"], False, False),
        (["--save", "false"], False, False),
        (["--overwrite=true", "--save=false"], False, True),
        (["--overwrite", "--no-overwrite"], True, False),
    ],
)
def test_boolean_flags(words: list[str], save: bool, overwrite: bool):
    assert read("game", *words) == Settings(env="game", save=save, overwrite=overwrite)


def test_a_boolean_flag_does_not_consume_the_next_word():
    assert read("--overwrite", "game") == Settings(env="game", overwrite=True)
    assert read("--no-save", "game") == Settings(env="game", save=False)


@pytest.mark.broad
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "steps": st.integers(-(2**53), 2**53),
            "rate": st.floats(allow_nan=False, allow_infinity=False),
            "limit": st.none() | st.integers(0, 9),
            "save": st.booleans(),
            "tags": st.lists(st.text(max_size=4), max_size=3),
            "env_args": st.dictionaries(st.text(max_size=4), st.booleans() | st.integers(-9, 9) | st.text(max_size=4)),
        },
    )
)
def test_any_settings_can_be_written_as_flags(values: dict[str, Any]):
    joined = [f"--{key}={json.dumps(value)}" for key, value in values.items()]
    separate = [word for key, value in values.items() for word in (f"--{key}", json.dumps(value))]
    assert read("game", *joined) == read("game", *separate) == Settings(env="game", **values)


@given(st.text())
def test_the_value_of_a_text_setting_is_not_parsed(text: str):
    assert read("game", f"--folder={text}").folder == text


@given(st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True), min_size=1, max_size=4), st.integers())
def test_a_dotted_key_sets_one_nested_value(keys: list[str], value: int):
    expected: Any = value
    for key in reversed(keys):
        expected = {key: expected}
    assert read("game", f"--env_args.{'.'.join(keys)}={value}").env_args == expected


# Files and precedence


def test_later_words_override_earlier_ones_and_named_flags_override_all(tmp_path: Path):
    first_file, second_file = (
        write_settings(tmp_path, "one.toml", steps=1, rate=0.1),
        write_settings(tmp_path, "two.toml", steps=2),
    )
    assert read("game", "@", first_file, "@", second_file) == Settings(env="game", steps=2, rate=0.1)
    assert read("game", f"@{second_file}", f"@{first_file}").steps == 1
    assert read("game", "@", first_file, "--steps", "3").steps == 3
    assert read("game", "--steps", "3", "@", first_file).steps == 1
    assert read("game", "@", first_file, "--steps", "3", steps=4).steps == 4
    assert read("game", "@", first_file, steps=None).steps == 1


def test_tables_are_merged_and_lists_replaced_whole(tmp_path: Path):
    first_file = write_settings(tmp_path, "one.toml", tags=["a", "b"], env_args={"seed": 1, "deep": {"x": 1, "y": 1}})
    second_file = write_settings(tmp_path, "two.toml", tags=["c"], env_args={"deep": {"y": 2}})
    read_back = read("game", "@", first_file, "@", second_file, "--env_args.deep.z", "3", env_args={"seed": 9})
    assert read_back == Settings(env="game", tags=["c"], env_args={"seed": 9, "deep": {"x": 1, "y": 2, "z": 3}})


def test_the_positional_argument_overrides_files_in_any_position(tmp_path: Path):
    settings = write_settings(tmp_path, "settings.toml", env="theirs", steps=1)
    assert read("@", settings) == Settings(env="theirs", steps=1)
    assert read("@", settings, "mine") == read("mine", "@", settings) == Settings(env="mine", steps=1)
    assert read("--steps", "2", "mine", "--overwrite") == Settings(env="mine", steps=2, overwrite=True)
    assert read("2048").env == "2048"


def test_the_config_of_a_run_folder_can_be_loaded(tmp_path: Path):
    config_before = read("game", "--steps", "7", "--env_args.seed", "3")
    with Run(tmp_path / "run") as run:
        run.start("eval", msgspec.to_builtins(config_before), {"env": "game"})
    config = str(tmp_path / "run" / "config.toml")
    assert read("@", config) == config_before
    assert read("@", config, "--steps", "8", "--env_args.more", "1") == Settings(
        env="game", steps=8, env_args={"seed": 3, "more": 1}
    )


def test_a_config_table_of_a_settings_file_is_an_unknown_setting(tmp_path: Path):
    with pytest.raises(ConfigError, match="unknown setting 'config'"):
        read("game", "@", write_settings(tmp_path, "settings.toml", config={"steps": 1}))
    with pytest.raises(ConfigError, match="unknown setting 'kind'"):  # not the file of a run
        read("game", "@", write_settings(tmp_path, "settings.toml", kind="a", identity="b", config="c"))


# Errors


@each_row(
    ("words", "message"),
    [
        (["--stepz", "3"], "unknown setting 'stepz'; did you mean 'steps'?"),
        (["--env-arg.seed", "3"], "unknown setting 'env_arg'; did you mean 'env_args'?"),
        (["--no-sav"], "unknown setting 'sav'; did you mean 'save'?"),
        (
            ["--qqq", "1"],
            "unknown setting 'qqq'; known: env, env_args, folder, limit, overwrite, rate, save, steps, tags",
        ),
        (["--steps", "many"], "steps is 'many'; expected an integer"),
        (["--steps", "1.5"], "steps is 1.5; expected an integer"),
        (["--tags", "[1]"], "tags[0] is 1: expected `str`, got `int`"),
        (["--env_args", "3"], "env_args is 3: expected `object`, got `int`"),
        (["--steps.x", "3"], "steps is {'x': 3}; expected an integer"),
        (["--save", "3"], "unexpected argument '3'; pass settings as --key value or @ file.toml"),
        (["more"], "unexpected argument 'more'; pass settings as --key value or @ file.toml"),
        (["@"], "expected a file after @"),
        (["@", "none.toml"], "settings file none.toml does not exist"),
    ],
)
def test_invalid_words_are_refused_with_a_message(words: list[str], message: str):
    with pytest.raises(ConfigError) as caught:
        read("game", *words)
    assert str(caught.value) == message


def test_flags_of_the_command_are_suggested_for_misspelled_words():
    with pytest.raises(ConfigError, match="unknown setting 'jsn'; did you mean 'json'?"):
        load(Settings, {}, ["--jsn"], flags=["json"])


def test_unknown_keys_of_a_file_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="unknown setting 'stepz'; did you mean 'steps'?"):
        read("game", "@", write_settings(tmp_path, "settings.toml", stepz=3))


def test_missing_settings_are_named():
    with pytest.raises(
        ConfigError, match=r"missing setting: env; pass ENV, or a file that contains it: @ settings\.toml"
    ):
        read("--steps", "3")


def test_an_unexpected_positional_argument_is_refused():
    with pytest.raises(ConfigError, match="unexpected argument 'game'"):
        read("game", bare="")


@pytest.mark.parametrize("content", [b"steps = ", b"\xff\xfe", b"a = " + 5_000 * b"[", b"a = " + 5_000 * b"9"])
def test_invalid_toml_is_refused_with_the_file_name(tmp_path: Path, content: bytes):
    path = tmp_path / "settings.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"settings file {path}: "):
        read("game", "@", str(path))


def test_a_key_of_many_parts_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """Python's parser would take minutes."""
    (tmp_path / "a.toml").write_text("a." * 200_000 + "a = 1\n")
    with pytest.raises(ConfigError, match="has 200,000 dots; expected at most 10,000"):
        read_toml(tmp_path / "a.toml")


def test_a_folder_is_no_settings_file(tmp_path: Path):
    with pytest.raises(ConfigError, match=f"settings file {tmp_path}: it is a folder"):
        read("game", "@", str(tmp_path))


# Merging


tables = st.recursive(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 3) | st.lists(st.integers(0, 3), max_size=2), max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner | st.integers(0, 3), max_size=3),
    max_leaves=6,
)


def leaves(table: dict[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Return every value that is not a table, and every empty table, by its path."""
    values: dict[tuple[str, ...], Any] = {}
    for key, value in table.items():
        values |= leaves(value, (*path, key)) if isinstance(value, dict) and value else {(*path, key): value}
    return values


def paths(table: dict[str, Any]) -> set[tuple[str, ...]]:
    """Return the paths of all values and nested tables."""
    return {path[: i + 1] for path in leaves(table) for i in range(len(path))}


@given(tables, tables)
def test_merge_takes_the_overriding_values_and_keeps_the_rest(base: dict[str, Any], over: dict[str, Any]):
    merged = leaves(merge(copy.deepcopy(base), over))
    for path, value in leaves(over).items():
        if value != {}:  # an empty table does not override a table
            assert merged[path] == value
    for path, value in leaves(base).items():
        replaced = any(path[: i + 1] in leaves(over) for i in range(len(path))) or path in paths(over)
        if not replaced:
            assert merged[path] == value


@given(tables, tables, tables)
def test_merge_does_not_modify_the_overriding_tables(base: dict[str, Any], over: dict[str, Any], last: dict[str, Any]):
    copies = copy.deepcopy((over, last))
    merged = merge(merge(base, over), last)
    assert (over, last) == copies
    assert merge(copy.deepcopy(merged), last) == merged


class Part(msgspec.Struct, forbid_unknown_fields=True):
    every: int = 1


class Whole(msgspec.Struct, forbid_unknown_fields=True):
    parts: list[Part] = []
    part: Part | None = None
    named: dict[str, Part] = {}
    words: list[str] = []


@each_row(
    ("values", "message"),
    [
        ({"parts": [{}, {"evry": 1}]}, "parts[1] has the unknown setting 'evry'; did you mean 'every'?"),
        ({"part": {"evry": 1}}, "part has the unknown setting 'evry'; did you mean 'every'?"),
        ({"part": {"every": "x"}}, "part.every is 'x'; expected an integer"),
        ({"parts": {"every": 1}}, "parts is {'every': 1}: expected `array`, got `object`: write [[parts]]"),
        ({"parts": "x"}, "parts is 'x': expected `array`, got `str`"),
        ({"words": "--x"}, "words is '--x': expected `array`, got `str`: write '[\"--x\"]'"),
        ({"named": {"a": {"every": None}}}, "named.a.every is None; expected an integer"),
    ],
)
def test_errors_inside_tables_name_the_setting(values: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        convert(Whole, values)
    assert str(caught.value) == message


def test_a_list_given_as_flags_is_refused_with_the_json_form():
    """`--vllm.args --enforce-eager` is a flag without a value, followed by an unknown flag."""

    class Outer(msgspec.Struct):
        inner: Whole = msgspec.field(default_factory=Whole)

    with pytest.raises(ConfigError, match=r"--inner.words expects a JSON list: --inner.words '\[\"--eager\"\]'"):
        load(Outer, {}, ["--inner.words", "--eager"])
    with pytest.raises(ConfigError, match="JSON list: --tags"):
        read("toy", "--tags")


def test_a_command_flag_in_a_file_is_refused():
    with pytest.raises(ConfigError, match="'dry_run' is a flag of the command, not a setting; pass --dry-run"):
        convert(Whole, {"dry_run": True}, {"dry_run"})


def test_convert_names_all_missing_settings():
    class TwoRequired(msgspec.Struct, kw_only=True):
        env: str
        model: str
        seed: int = 0

    with pytest.raises(ConfigError, match="missing settings: env, model"):
        convert(TwoRequired, {"seed": 1})


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    kind: str = "cispo"
    targets: list[str] = []
    shuffle: bool = False


class WithTables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    loss: Table = Table()
    evaluation: list[Table] = []


def test_settings_of_tables_have_dotted_flags():
    words = ["--loss.kind", "3", "--loss.shuffle", "@", "x.toml"]
    with pytest.raises(ConfigError, match="x.toml"):
        load(WithTables, {}, words)
    assert load(WithTables, {"loss.kind": "gspo"}, ["--loss.shuffle"]).loss == Table(kind="gspo", shuffle=True)
    assert load(WithTables, {}, ["--loss.kind", "3", "--no-loss.shuffle"]).loss == Table(kind="3")
