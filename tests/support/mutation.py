"""Change the code in a sample of places, and count the changes that the quick tests notice: `make mutation`.

cosmic-ray makes the changes (mutants), each in a copy of the repository in `build/mutation/tree`. Before that, the tests
of an area run with coverage.py, which records the tests that run each line. Then each mutant runs the tests of its line
until one fails. A line that runs only at import or in other processes gets the tests of its module.

Repeat a command to continue it. Killed mutants are kept as long as their module is the same; survivors are tried
again after any change of the code or the tests.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "mutation"
TREE = FOLDER / "tree"
MAX_TESTS_S = 15.0
"""A mutant runs the first tests that together took at most this many seconds."""
TIMEOUT_S = 60.0
"""Time limit of a mutant's tests, in addition to three times their time without a change."""
PYTEST = ["-q", "-m", "not slow", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
ARITHMETIC = "Add|Sub|Mul|Div|FloorDiv|Mod|Pow"
BITWISE = "BitOr|BitAnd|BitXor|RShift|LShift"
CHOSEN_OPERATORS = re.compile(
    "core/(?!ReplaceBinaryOperator|ReplaceComparisonOperator)"
    f"|core/ReplaceBinaryOperator_((?:{ARITHMETIC})_(?:{ARITHMETIC})|(?:{BITWISE})_(?:{BITWISE}))$"
    "|core/ReplaceComparisonOperator_(?!(?:Eq_Is|Is_Eq|NotEq_IsNot|IsNot_NotEq)$)"
)
"""The operators of cosmic-ray in use. A bitwise operator in the place of an arithmetic one is a TypeError wherever it runs, and
identity in the place of equality is the same for None, small numbers, and short texts.
"""


class Area(NamedTuple):
    """Modules that are mutated together, and the folders of their tests."""

    modules: list[str]
    tests: list[str]


AREAS = {
    "statistics": Area(
        [f"statistics/{name}" for name in ("compare", "format", "intervals", "result", "summary")], ["statistics"]
    ),
    "scorers": Area(
        [
            f"rubrics/{name}"
            for name in (
                "answers",
                "choices",
                "numbers",
                "math",
                "parser",
                "quotations",
                "scorers",
                "verdict_json",
                "verdicts",
            )
        ],
        ["rubrics"],
    ),
    "tool calls": Area(
        [
            f"rendering/{name}"
            for name in ("calls_in_text", "json_calls", "python_calls", "tag_calls", "tool_calls", "tool_support")
        ]
        + ["tools/tool"],
        ["rendering", "tools"],
    ),
    "losses, advantages": Area(["train/losses", "train/advantages"], ["train"]),
    "records, samples": Area(
        ["core/records", "train/sequences", "train/batch", "rollouts/groups", "rollouts/filters"],
        ["core", "train", "rollouts"],
    ),
}


class Mutant(NamedTuple):
    """One change: an operator of cosmic-ray at one of the places that it can change."""

    area: str
    module: str
    operator: str
    occurrence: int
    start: tuple[int, int]
    end: tuple[int, int]
    lines: range
    """The lines of the statement, without those of its body."""
    key: str


class LineTable(NamedTuple):
    """The times and the lines of the tests in a run without a change."""

    seconds: dict[str, float]
    """By test function."""
    lines: dict[str, dict[int, set[str]]]
    """Test functions, or files for what shared fixtures ran, by module and line."""


# A plugin of pytest, in the run that records the lines ----------------------------------------------------------------


class LineRecorder:
    """Reports the running test to coverage.py, and records the time of each test."""

    def __init__(self, coverage: Any, out: Path) -> None:
        self.coverage = coverage
        self.out = out
        self.seconds: Counter[str] = Counter()
        self.failed: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.coverage.switch_context(_function_of(item.nodeid))
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Iterator[None]:
        """Attribute the lines that a shared fixture runs to every test of the file, not only to the first one."""
        if fixturedef.scope == "function":
            return (yield)
        test = _function_of(request._pyfuncitem.nodeid)
        self.coverage.switch_context(test.split("::")[0])
        try:
            return (yield)
        finally:
            self.coverage.switch_context(test)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = _function_of(report.nodeid)
        self.seconds[test] += report.duration
        if report.failed:
            self.failed.add(test)

    def pytest_sessionfinish(self) -> None:
        passed = {test: seconds for test, seconds in self.seconds.items() if test not in self.failed}
        self.out.write_text(json.dumps(passed))


def _function_of(test: str) -> str:
    """Return the test function of a test, which may have parameters."""
    return test.split("[")[0]


def pytest_configure(config: pytest.Config) -> None:
    out = os.environ.get("ROVE_TEST_SECONDS")
    if out:
        import coverage

        config.pluginmanager.register(LineRecorder(coverage.Coverage.current(), Path(out)))


# Preparation ----------------------------------------------------------------------------------------------------------


def copy_tree() -> None:
    """Make the copy equal to the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    files = [name for name in names if (ROOT / name).is_file()]
    for name in files:
        content = (ROOT / name).read_bytes()
        copy = TREE / name
        if not copy.is_file() or copy.read_bytes() != content:
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
    for copy in TREE.rglob("*.py"):
        if copy.relative_to(TREE).as_posix() not in files:
            copy.unlink()


def digest_of(*folders: str) -> str:
    """Return a digest of the Python files in folders of the copy."""
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted((TREE / folder).rglob("*.py")):
            digest.update(str(file).encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def environment(*extra_paths: Path) -> dict[str, str]:
    """Return the environment variables of a run of the tests in the copy."""
    paths = [TREE, TREE / "tests" / "support", *extra_paths]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "PYTHONDONTWRITEBYTECODE": ""}


def record_lines(folder: str) -> LineTable:
    """Return which tests of a folder run each line of the modules, from the last run if rove and the folder are the same."""
    from coverage import CoverageData

    modules = [f"rove/{name}.py" for area in AREAS.values() for name in area.modules]
    out = FOLDER / "lines" / f"{Path(folder).name}-{digest_of('rove', folder)}"
    seconds = out / "seconds.json"
    data = out / "coverage"
    if not seconds.exists():
        out.mkdir(parents=True, exist_ok=True)
        config = out / "coverage.ini"
        included = "".join(f"\n    {TREE / module}" for module in modules)
        config.write_text(f"[run]\ndata_file = {data}\ninclude ={included}\n")
        command = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", "-m", "pytest", "-p", "mutation"]
        variables = {**environment(FOLDER / "coverage"), "ROVE_TEST_SECONDS": str(seconds)}
        subprocess.run([*command, *PYTEST, folder], cwd=TREE, env=variables, check=False)

    measured = CoverageData(str(data))
    measured.read()
    lines = {
        module: {line: set(tests) for line, tests in measured.contexts_by_lineno(str(TREE / module)).items()}
        for module in modules
    }
    return LineTable(json.loads(seconds.read_text()), lines)


def merge_tables(tables: Sequence[LineTable]) -> LineTable:
    """Merge the tables of several folders of tests."""
    seconds: dict[str, float] = {}
    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for table in tables:
        seconds |= table.seconds
        for module, tests_by_line in table.lines.items():
            for line, tests in tests_by_line.items():
                lines[module][line] |= tests
    return LineTable(seconds, lines)


# The mutants ----------------------------------------------------------------------------------------------------------


def sample(area: str, modules: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Choose places at random, and one change at each of them."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    sources = {module: (TREE / module).read_text() for module in modules}
    mutants_by_location: dict[tuple[str, tuple[int, int]], list[Mutant]] = defaultdict(list)
    for module, source in sources.items():
        for mutant in _all_mutants(area, module, source):
            mutants_by_location[module, mutant.start].append(mutant)
    draw = random.Random(f"{seed} {area}")
    order = sorted(mutants_by_location)
    draw.shuffle(order)
    chosen: list[Mutant] = []
    for location in order:
        mutant = draw.choice(mutants_by_location[location])
        source = sources[mutant.module]
        if is_real_change(source, mutate_code(source, get_operator(mutant.operator)(), mutant.occurrence)):
            chosen.append(mutant)
        if len(chosen) == count:
            break
    return chosen


def _all_mutants(area: str, module: str, source: str) -> Iterator[Mutant]:
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    classes = {name: get_operator(name) for name in operator_names() if CHOSEN_OPERATORS.match(name)}
    operators = {name: operator() for name, operator in classes.items() if not operator.arguments()}
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    occurrences: Counter[str] = Counter()
    for node in ast_nodes(get_ast(source)):
        for name, operator in operators.items():
            for start, end in operator.mutation_positions(node):
                key = f"{module} {digest} {name} {occurrences[name]}"
                lines = statement_lines(statements, start[0])
                yield Mutant(area, module, name, occurrences[name], start, end, lines, key)
                occurrences[name] += 1


def statement_lines(statements: Sequence[ast.stmt], line: int) -> range:
    """Return the lines of the innermost statement at a line, without its body: Python reports only some of them as run."""
    enclosing = [node for node in statements if node.lineno <= line <= (node.end_lineno or node.lineno)]
    if not enclosing:  # the line of a decorator
        return range(line, line + 1)
    innermost = max(enclosing, key=lambda node: node.lineno)
    body = getattr(innermost, "body", None)
    last = innermost.end_lineno or innermost.lineno
    if body and line < body[0].lineno:
        last = max(line, body[0].lineno - 1)
    return range(innermost.lineno, last + 1)


class _WithoutAnnotations(ast.NodeTransformer):
    """Removes annotations, which pyright checks and no code runs."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        node.annotation = ast.Constant(None)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        return node


def is_real_change(original: str, mutated: str | None) -> bool:
    """Return whether a mutant is valid code that differs in more than annotations."""
    if mutated is None:
        return False
    try:
        trees = [_WithoutAnnotations().visit(ast.parse(source)) for source in (original, mutated)]
    except SyntaxError:
        return False
    return ast.dump(trees[0]) != ast.dump(trees[1])


def choose_tests(mutant: Mutant, table: LineTable) -> list[str]:
    """Return the tests of a mutant's line: first those in the test file of its module, and of these the quick ones.

    If the line runs at import, or only in processes that coverage.py does not see, any test of the module may notice it.
    """
    module_lines = table.lines[mutant.module]
    of_line = set[str]().union(*(module_lines.get(line, set()) for line in mutant.lines))
    names = of_line
    if not of_line or "" in of_line:
        names = set[str]().union(*module_lines.values())
    tests = [test for test in table.seconds if test in names or test.split("::")[0] in names]
    package, name = Path(mutant.module).parts[1:]
    own_tests = f"tests/{package}/test_{Path(name).stem}.py::"
    tests.sort(key=lambda test: (not test.startswith(own_tests), test not in of_line, table.seconds[test]))
    chosen: list[str] = []
    remaining_s = MAX_TESTS_S
    for test in tests:
        if chosen and table.seconds[test] > remaining_s:
            continue
        chosen.append(test)
        remaining_s -= table.seconds[test]
    return chosen


def try_mutant(mutant: Mutant, tests: Sequence[str], seconds: float) -> dict[str, Any]:
    """Run the tests of a mutant, and return whether it was killed, survived, or timed out."""
    from cosmic_ray.mutating import mutate_and_test
    from cosmic_ray.work_item import MutationSpec, WorkerOutcome

    spec = MutationSpec(TREE / mutant.module, mutant.operator, mutant.occurrence, mutant.start, mutant.end)
    command = shlex.join([sys.executable, "-m", "pytest", "-x", *PYTEST, *tests])
    os.environ.update(environment())
    result = mutate_and_test([spec], command, TIMEOUT_S + 3 * seconds)
    if result.worker_outcome != WorkerOutcome.NORMAL or result.test_outcome == "incompetent":
        raise RuntimeError(f"cosmic-ray cannot test {mutant}: {result.output}")
    output = result.output or ""
    killer = re.search(r"^(?:FAILED|ERROR) ([^\s\[]+)", output, re.MULTILINE)
    outcome = "timeout" if output == "timeout" else str(result.test_outcome.value)
    changes = [line for line in (result.diff or "").splitlines() if line[:1] in "+-" and line[:3] not in ("---", "+++")]
    return {
        "key": mutant.key,
        "area": mutant.area,
        "place": f"{mutant.module}:{mutant.start[0]}",
        "before": " ".join(line[1:].strip() for line in changes if line[0] == "-"),
        "after": " ".join(line[1:].strip() for line in changes if line[0] == "+"),
        "outcome": outcome,
        "killer": killer[1] if killer else None,
        "tests": len(tests),
    }


# The command ----------------------------------------------------------------------------------------------------------


def report(results: Sequence[dict[str, Any]]) -> str:
    """Return a table of the areas and a list of the survivors."""
    from rove.statistics import clopper_pearson

    row = "{:<20} {:>8} {:>8} {:>9} {:>9}  {}".format
    lines = [row("area", "mutants", "killed", "timeouts", "survived", "killed or timeout (95% interval)")]
    areas = [*dict.fromkeys(result["area"] for result in results)]
    for area in [*areas, "all"]:
        outcomes = [result["outcome"] for result in results if area in (result["area"], "all")]
        counts = Counter(outcomes)
        noticed = [float(outcome != "survived") for outcome in outcomes]
        low, high = clopper_pearson(sum(noticed), len(noticed))
        share = f"{sum(noticed) / len(noticed):.1%} ({low:.1%} to {high:.1%})"
        lines.append(row(area, len(outcomes), counts["killed"], counts["timeout"], counts["survived"], share))
    survivors = [result for result in results if result["outcome"] == "survived"]
    lines += ["", "survivors:" if survivors else "no survivors"]
    for result in sorted(survivors, key=lambda result: result["place"]):
        lines += [f"{result['place']} ({result['tests']} tests)", f"  - {result['before']}", f"  + {result['after']}"]
    return "\n".join(lines)


def failing_killers(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the tests that killed mutants but also fail without a change, so that their results prove nothing."""
    killers = sorted({result["killer"] for result in results if result["killer"] and "::" in result["killer"]})
    command = [sys.executable, "-m", "pytest", *PYTEST, *killers]
    output = subprocess.run(command, cwd=TREE, env=environment(), capture_output=True, text=True, check=False).stdout
    return re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", output, re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Sample, test, and report; return 1 if a test that killed a mutant fails anyway."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", help="such as rove/train/losses.py; by default all of AREAS")
    parser.add_argument("--mutants", type=int, default=40, help="mutants per area (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    parser.add_argument("--overwrite", action="store_true", help="test killed mutants again")
    options = parser.parse_args(arguments)

    copy_tree()
    os.chdir(TREE)
    digest = digest_of("rove", "tests")
    results_file = FOLDER / "results.jsonl"
    if options.overwrite:
        results_file.unlink(missing_ok=True)
    earlier_results = (
        [json.loads(line) for line in results_file.read_text().splitlines()] if results_file.exists() else []
    )
    results_by_key = {result["key"]: result for result in earlier_results}
    results: list[dict[str, Any]] = []
    for area, (names, folders) in AREAS.items():
        modules = [f"rove/{name}.py" for name in names if not options.modules or f"rove/{name}.py" in options.modules]
        if not modules:
            continue
        table = merge_tables([record_lines(f"tests/{folder}") for folder in folders])
        for mutant in sample(area, modules, options.mutants, options.seed):
            result = results_by_key.get(mutant.key)
            if result is None or (result["outcome"] == "survived" and result["digest"] != digest):
                tests = choose_tests(mutant, table)
                seconds = sum(table.seconds[test] for test in tests)
                result = {**try_mutant(mutant, tests, seconds), "digest": digest}
                with results_file.open("a") as out:
                    out.write(json.dumps(result) + "\n")
                print(f"{result['outcome']:<8} {result['place']}  {result['after']}", flush=True)
            results.append(result)

    print("\n" + report(results))
    failing = failing_killers(results)
    times = os.times()
    print(f"\n{(times.user + times.system + times.children_user + times.children_system) / 60:.1f} CPU-minutes")
    if failing:
        print("These tests killed mutants, but also fail without a change:", *failing, sep="\n")
    return int(bool(failing))


if __name__ == "__main__":
    sys.path[:0] = [str(FOLDER / "cosmic-ray"), str(FOLDER / "coverage")]
    sys.exit(main(sys.argv[1:]))
