"""`rove demo`: the whole loop in an environment, every stage a rove command, every stage resumed where it was stopped."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

import rove
from rove.cli.clients import needs_train_extra
from rove.cli.common import RUNS, console_for, hint, print_json, short
from rove.cli.eval import EvalConfig, run_eval
from rove.cli.exhaustive import ProofConfig, proof_table, run_proof, verdict
from rove.cli.model import ModelConfig, print_model, run_model_new
from rove.core.config import convert, merge, read_toml
from rove.core.errors import ConfigError
from rove.envs.loading import environment_file
from rove.viewer.format import percent

if TYPE_CHECKING:
    from rove.train.config import RLConfig, SFTConfig
    from rove.train.worker_group import Ranks


_ROVE = Path(rove.__file__).resolve().parent
SHIPPED = _ROVE / "_configs" if (_ROVE / "_configs").is_dir() else _ROVE.parent / "configs"
"""Recipes that come with rove: in its package, in a checkout beside it."""
FULL = "full"
"""The folder of the stage that `--full` adds."""
SAMPLED = "the same at T = 1"


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `demo.toml`: the settings of every stage of the loop, and how its table looks."""

    model: dict[str, Any] = {}
    """Of a new model, with random weights; where there is none, `-m` names the model."""
    data: dict[str, Any]
    sft: dict[str, Any]
    rl: list[dict[str, Any]]
    full: dict[str, Any] = {}
    """The stage that `--full` adds to `rl`; its evaluations are of every line of play, with the goals of `proof`."""
    proof: ProofConfig | None = None
    """What `--prove` and `--full` show."""
    evaluation: dict[str, Any]
    opponents: list[dict[str, Any]]
    columns: list[dict[str, Any]]
    record: list[dict[str, Any]] = []
    smoke: dict[str, Any] = {}


class Demo:
    """The stages of one demo in one folder.

    Args:
        env: name of the environment.
        recipe: of its demo.toml.
        folder: where the stages' run folders live.
        seed: of everything.
        console: where progress is shown.
        ranks: the processes that train together, of which this is one.
        model: folder of the model to begin with; a new one, as the recipe says, when not given.
        full: with the recipe's `full` stage.
    """

    def __init__(
        self,
        env: str,
        recipe: Recipe,
        folder: Path,
        seed: int,
        console: Console,
        ranks: Ranks,
        model: str | None = None,
        full: bool = False,
    ):
        self.env = env
        self.recipe = recipe
        self.folder = folder
        self.seed = seed
        self.console = console
        self.ranks = ranks
        self.is_new = model is None
        self.model = model or str(folder / "model")
        self.full = full
        self.rows: list[dict[str, Any]] = []

    def run(self) -> list[dict[str, Any]]:
        """Run every stage; returns the rows of the table."""
        from rove.cli.rl import run_rl
        from rove.cli.sft import run_sft

        teacher = self.recipe.data["model"]
        if self.is_new:
            self._say("1. a new model, random weights")
            self._new_model()
        else:
            self._say(f"1. the model is {self.model}")
        self._say("2. the teacher plays")
        self._eval(self.folder / "data", {**self.recipe.data, "seed": self.seed})
        self.measure(f"teacher ({'script' if teacher.startswith('scripted:') else teacher})", teacher)
        self.measure("base", self.model)
        self._say("3. SFT on the teacher's games that were not lost")
        trained = str(run_sft(self.sft_config(), self.console, ranks=self.ranks)[0])
        self.measure("+ SFT", trained)
        for number, (folder, stage) in enumerate(self.stages(), start=4):
            if folder == FULL:
                self.measure(SAMPLED, trained, temperature=1.0)
            self._say(f"{number}. {stage['name']}: the model plays and learns")
            trained = str(run_rl(self.rl_config(folder, stage, trained), self.console, ranks=self.ranks)[0])
            self.measure(f"+ {stage['name']}", trained)
        if not self.full:
            self.measure(SAMPLED, trained, temperature=1.0)
        (self.folder / "results.json").write_bytes(msgspec.json.encode(self.rows))
        return self.rows

    def follow(self) -> None:
        """Be one of the other processes: train with the first one in every stage that it trains in."""
        from rove.models.load import load_model
        from rove.train.rl import follow_rl
        from rove.train.sft import follow_sft

        if self.ranks.broadcast_continue():
            follow_sft(self.sft_config(), load_model(self.model, "cpu"), self.ranks)
        before = "sft"
        for folder, stage in self.stages():
            config = self.rl_config(folder, stage, str(self.folder / before / "final"))
            if self.ranks.broadcast_continue():
                follow_rl(config, load_model(config.model, "cpu"), self.ranks)
            before = folder

    def sft_config(self) -> SFTConfig:
        """Settings of SFT."""
        from rove.train.config import SFTConfig

        given = {"data": str(self.folder / "data"), "model": self.model, "seed": self.seed, "final_eval_rollouts": 0}
        return convert(SFTConfig, {"run_dir": str(self.folder / "sft"), **given, **self.recipe.sft})

    def rl_config(self, folder: str, stage: dict[str, Any], model: str) -> RLConfig:
        """Settings of a stage of RL."""
        from rove.train.config import RLConfig

        values = {key: value for key, value in stage.items() if key != "name"}
        given = {"env": self.env, "model": model, "seed": self.seed, "run_dir": str(self.folder / folder)}
        return convert(RLConfig, {**given, **values})

    def stages(self) -> list[tuple[str, dict[str, Any]]]:
        """Those of RL, each with the name of its folder."""
        stages = [(f"rl{number}", stage) for number, stage in enumerate(self.recipe.rl, start=1)]
        return [*stages, (FULL, self._full_stage())] if self.full else stages

    def measure(self, name: str, model: str, **over: Any) -> None:
        """Evaluate a player against every opponent and add its row to the table."""
        seen: dict[str, dict[str, Any]] = {}
        for opponent in self.recipe.opponents:
            values = merge(msgspec.to_builtins(self.recipe.evaluation), {"env_args": opponent["env_args"], **over})
            slug = "".join(c if c.isalnum() else "-" for c in f"{name}-{opponent['name']}").strip("-")
            merge(values, {"model": model, "env_args": {"num_examples": values["num_examples"]}})
            title = f"{name} against {opponent['name']}"
            seen[opponent["name"]] = self._eval(self.folder / "eval" / slug, values, title)
        self.rows.append({"name": name, "model": model, "opponents": seen})

    def _full_stage(self) -> dict[str, Any]:
        """The recipe's `full`, which ends as soon as what is to be proven holds."""
        assert self.recipe.proof is not None
        lines = {"env": self.env, "kind": "exhaustive", "goals": msgspec.to_builtins(self.recipe.proof.goals)}
        return {**self.recipe.full, "evaluation": [{**lines, **table} for table in self.recipe.full["evaluation"]]}

    def _say(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/bold]")

    def _new_model(self) -> None:
        if not (Path(self.model) / "config.json").exists():
            given = {"env": self.env, "output": self.model, "seed": self.seed}
            config = convert(ModelConfig, {**given, **self.recipe.model})
            print_model(config, *run_model_new(config), self.console)

    def _eval(self, folder: Path, values: dict[str, Any], title: str = "") -> dict[str, Any]:
        config = convert(EvalConfig, {"env": self.env, "run_dir": str(folder), **values})
        return run_eval(config, self.console, title)[0]


def results_table(recipe: Recipe, rows: list[dict[str, Any]], games: int) -> Table:
    """The rows measured, above those of the public record."""
    opponents = [o["name"] for o in recipe.opponents]
    table = Table(
        title=f"{games} games per row, %; " + ", then ".join(f"against {name}" for name in opponents), width=98
    )
    table.add_column("player")
    for column in recipe.columns:
        table.add_column(column["title"], justify="right")
    for row in rows:
        table.add_row(row["name"], *(_cell(row["opponents"][c["opponent"]], c["values"]) for c in recipe.columns))
    if recipe.record:
        table.add_section()
        table.add_row("[dim]the public record[/dim]")
    for row in recipe.record:
        table.add_row(f"[dim]{row['name']}[/dim]", *(f"[dim]{cell}[/dim]" for cell in row["cells"]))
    return table


def _cell(summary: dict[str, Any], names: list[str]) -> str:
    return "/".join(percent(summary["functions"].get(name, {}).get("mean")) for name in names)


def load_recipe(env: str, smoke: bool, file: str | Path | None = None) -> Recipe:
    """A recipe: the demo.toml beside the environment's module, if no other file is given.

    What is no file here may be one of those that come with rove, by its name in a checkout: configs/NAME.toml.

    Raises:
        ConfigError: there is none, or it is not a recipe.
    """
    values = read_toml(_recipe_file(env, file))
    if smoke:
        for key, over in values.get("smoke", {}).items():
            tables = values.setdefault(key, {})
            for table in tables if isinstance(tables, list) else [tables]:
                merge(table, over)
    return convert(Recipe, values)


def _recipe_file(env: str, given: str | Path | None) -> Path:
    if given is None:
        file = environment_file(env).with_name("demo.toml")
        if not file.exists():
            raise ConfigError(f"environment '{env}' has no demo: {file} does not exist")
        return file
    if Path(given).exists():
        return Path(given)
    shipped = {f"configs/{recipe.name}": recipe for recipe in sorted(SHIPPED.glob("*.toml"))}
    if str(given) not in shipped:
        raise ConfigError(f"no recipe: {given} does not exist; with rove come {', '.join(shipped)}")
    return shipped[str(given)]


@click.command()
@click.argument("env")
@click.option("-m", "--model", help="Model folder to begin with.  [default: a new one, if the recipe has one]")
@click.option(
    "--recipe",
    "file",
    type=click.Path(),
    help="A recipe of your own, or one that comes with rove.  [default: the environment's demo.toml]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything random.")
@click.option("--run-dir", type=click.Path(), help="Folder of the stages.  [default: runs/demo-ENV-seedSEED]")
@click.option("--full", is_flag=True, help="Go on to mastery, and prove it in every line of play.")
@click.option("--prove", "players", multiple=True, metavar="MODEL", help="Only prove this player; may be repeated.")
@click.option("--smoke", is_flag=True, help="Tiny sizes: shows that everything runs, learns nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def command(
    env: str,
    model: str | None,
    file: str | None,
    seed: int,
    run_dir: str | None,
    full: bool,
    players: tuple[str, ...],
    smoke: bool,
    as_json: bool,
) -> None:
    """Run the whole loop in ENV: a model, the teacher's games, SFT, RL, and the table of how they play.

    Stop it whenever you like: the same command continues where it was, and --full where it ended.
    """
    console = console_for(as_json)
    recipe = load_recipe(env, smoke, file)
    if (full or players) and recipe.proof is None:
        raise ConfigError(f"the demo of '{env}' has no [proof]: what --full and --prove are to show")
    if players:
        proofs = _prove(env, recipe, {short(player): player for player in players}, console)
        if as_json:
            print_json(proofs)
        return
    if model is None and not recipe.model:
        raise ConfigError(
            f"{file or 'the recipe'} has no [model]: name the folder of the model to begin with: -m FOLDER"
        )
    if model is not None and not (Path(model) / "config.json").exists():
        raise ConfigError(
            f"-m is '{model}'; expected the folder of a model, and {Path(model) / 'config.json'} does not exist"
        )
    with needs_train_extra():
        import torch

        from rove.train.worker_group import join_process_group

    name = "-".join(["demo", env, *([Path(file).stem] if file else []), f"seed{seed}", *(["smoke"] if smoke else [])])
    folder = Path(run_dir) if run_dir else RUNS / name
    started, cpu = time.time(), time.process_time()
    demo = Demo(env, recipe, folder, seed, console, join_process_group(), model, full)
    if not demo.ranks.is_first:
        demo.follow()
        return
    rows = demo.run()
    console.print()
    console.print(results_table(recipe, rows, recipe.evaluation["num_examples"]))
    shown: dict[str, Any] = {"rows": rows, "folder": str(folder)}
    if full:
        trained = {row["name"]: row["model"] for row in rows if row["name"].startswith("+ ")}
        shown["proofs"] = _prove(env, recipe, trained, console)
    minutes, cpu_minutes = (time.time() - started) / 60, (time.process_time() - cpu) / 60
    spent = f"{cpu_minutes:.1f} CPU-minutes, {minutes:.1f} minutes, {torch.get_num_threads()} thread"
    console.print(f"this run took {spent}; a run that was continued counts from there")
    if as_json:
        print_json(shown)
    final = rows[-1]["model"]
    hint(
        console,
        f"curves: {folder}/*/curves.png",
        f"repeat any row: rove eval --overwrite @ {folder}/eval/ROW/config.toml",
        f"play against it: rove play {env} -m {final}",
    )


def _prove(env: str, recipe: Recipe, players: dict[str, str], console: Console) -> list[dict[str, Any]]:
    """Play every line with each player, by name; print the table and what is to be said of the last."""
    config = recipe.proof
    assert config is not None
    proofs = {name: run_proof(env, model, config) for name, model in players.items()}
    console.print()
    console.print(proof_table(config, proofs))
    for name, proof in proofs.items():
        console.print(f"{name}: {verdict(proof)}", soft_wrap=True)
    return list(proofs.values())
