"""Test the viewer's server: access control, API results, and invalid or hostile input."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession, CookieJar
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_folders import edit_line, make_record, make_scores, write_run_folder
from tiers import each_row

from rove.core.errors import ConfigError, RunError
from rove.core.records import StepTokens, TrajectoryStep
from rove.runs.run import Run
from rove.runs.serialization import encode_record
from rove.runs.token_stats import TrainedRollout, TrainedTurn, write_tokens
from rove.viewer.api import ENDPOINTS
from rove.viewer.app import make_viewer, serve_viewer
from rove.viewer.index import JsonlTail
from rove.viewer.rollouts import first_difference
from rove.viewer.run_store import RunStore, status
from rove.viewer.search import Query, search_lines

EVIL = "<script>alert(1)</script>\x1b[31m\u202e"


def records_of_examples(wins: list[float | None], **fields: Any) -> list[Any]:
    return [make_record(example, i, win, **fields) for example in range(3) for i, win in enumerate(wins)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create two evaluations, an RL run with tokens, and damaged runs."""
    runs = tmp_path / "runs"
    better = write_run_folder(runs / "better", records_of_examples([1.0, 1.0, 0.5]), num_examples=3)
    better.finish({"reward": {"mean": 1.03, "low": 0.93, "high": 1.13, "caveat": None}})
    write_run_folder(runs / "worse", records_of_examples([0.0, 1.0, None]), api_base="https://me:secret@host/v1")
    turn = TrajectoryStep([], [], tokens=StepTokens([1, 2], [3, 4], [-0.1, -2.0]))
    with write_run_folder(
        runs / "deep/rl", records_of_examples([1.0, 0.0], step=1, steps=[turn]), kind="rl", steps=2
    ) as run:
        run.append_metrics({"step": 1, "reward/mean": 0.7, "eval/held/reward/mean": 0.4})
        run.append_alert({"step": 1, "id": "x", "text": EVIL})
    (runs / "torn").mkdir()
    (runs / "torn/config.toml").write_text('kind = "eval"\n[config]\nenv = "quiz"\n[identity]\n')
    (runs / "torn/rollouts.jsonl").write_bytes((runs / "worse/rollouts.jsonl").read_bytes()[:-30] + b"")
    (runs / "broken").mkdir()
    (runs / "broken/config.toml").write_bytes(b"\xff\xfe not toml")
    (runs / "better/rollouts.jsonl").open("ab").write(b"\xff{garbage\n")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/config.toml").write_text('kind = "eval"\n[config]\n[identity]\n')
    return runs


@pytest.fixture
async def client(folder: Path) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(make_viewer(RunStore(folder)))) as client:
        yield client


async def get_json(client: TestClient[Any, Any], path: str, **params: Any) -> Any:
    answer = await client.get(path, params=params)
    assert answer.status == 200, await answer.text()
    return await answer.json()


async def test_all_runs_are_listed_including_unreadable_ones(client: TestClient[Any, Any]):
    listing = await get_json(client, "/api/runs")
    runs = {run["name"]: run for run in listing["runs"]}
    assert list(runs) == ["better", "broken", "deep/rl", "torn", "worse"]
    assert (runs["better"]["status"], runs["better"]["reward"]["mean"], runs["better"]["bad"]) == ("complete", 1.03, 1)
    assert (runs["worse"]["rollouts"], runs["worse"]["failed"], runs["worse"]["status"]) == (9, 3, "stopped")
    assert runs["worse"]["reward"]["mean"] == pytest.approx(0.7)
    assert runs["broken"]["kind"] == "unreadable"
    assert (runs["deep/rl"]["held_out"], runs["deep/rl"]["curve"]) == ({"eval/held/reward/mean": 0.4}, [0.7])
    assert runs["torn"]["rollouts"] == 8


async def test_the_details_of_a_run_contain_no_passwords(client: TestClient[Any, Any]):
    answer = await client.get("/api/run", params={"run": "worse"})
    assert "secret" not in await answer.text()
    details = await answer.json()
    assert details["scores"] == ["win", "format", "length"]
    assert details["progress"] == {
        "bytes": details["progress"]["size"],
        "size": details["progress"]["size"],
        "done": True,
        "bad": 0,
    }


async def test_rows_facets_rollouts_and_unreadable_lines_are_returned(client: TestClient[Any, Any]):
    page = await get_json(client, "/api/rollouts", run="worse", **{"is.error": ""}, sort="reward", order="down")
    assert page["total"] == 6 and page["rows"][0]["scores"]["win"] == 1.0
    facet = await get_json(client, "/api/facet", run="worse", name="error")
    assert facet["values"] == [[None, 6], ["model: InfraError", 3]]
    rollout = await get_json(client, "/api/rollout", run="worse", line=2)
    assert (rollout["error"]["type"], rollout["reward"], len(rollout["members"])) == ("InfraError", None, 3)
    raw = await get_json(client, "/api/raw", run="worse", line=2)
    assert msgspec.json.decode(raw["text"])["record"]["error"]["type"] == "InfraError"
    bad = await get_json(client, "/api/bad", run="better")
    assert bad["bad"] == 1 and bad["lines"][0]["text"].startswith("\ufffd{garbage")


async def test_tokens_are_returned_with_log_probabilities_and_advantage(client: TestClient[Any, Any]):
    rollout = await get_json(client, "/api/rollout", run="deep/rl", line=0)
    [turn] = rollout["tokens"]
    assert turn == {
        "turn": 0,
        "fresh": False,
        "prompt": [[1, None], [2, None]],
        "sampled": [[3, None], [4, None]],
        "logprobs": [-0.1, -2.0],
        "versions": [[0, 2]],
        "left_out": 0,
    }
    assert rollout["advantage"] == pytest.approx(0.5)


async def test_all_policy_versions_of_a_turn_are_returned(client: TestClient[Any, Any], folder: Path):
    spans = [(3, 1), (5, 2)]
    steps = [
        TrajectoryStep([], [], tokens=StepTokens([1], [7, 8, 9], [-0.1] * 3, 3, spans)),
        TrajectoryStep([], [], tokens=StepTokens([1, 7, 8, 9], [4], [-0.1], 5)),
        TrajectoryStep([], []),
    ]
    write_run_folder(folder / "async", [make_record(0, 0, step=6, steps=steps)], kind="rl")
    rollout = await get_json(client, "/api/rollout", run="async", line=0)
    assert [step["versions"] for step in rollout["steps"]] == ["versions 3–5", "version 5", ""]
    assert [turn["versions"] for turn in rollout["tokens"]] == [[[3, 1], [5, 2]], [[5, 1]]]


async def test_recorded_token_stats_are_returned_with_their_tokens(client: TestClient[Any, Any], folder: Path):
    write_tokens(folder / "deep/rl", 1, [TrainedRollout("key1", 0, [TrainedTurn(0, [-0.2, -2.5], [0.3, 1.0], 0.75)])])
    rows = (await get_json(client, "/api/rollouts", run="deep/rl"))["rows"]
    lines = {(row["example"], row["rollout"]): row["line"] for row in rows}
    rollout = await get_json(client, "/api/rollout", run="deep/rl", line=lines[1, 0])
    [turn] = rollout["tokens"]
    assert turn["trained"] == {"logprobs": [-0.2, -2.5], "entropies": [0.3, 1.0], "advantage": 0.75}
    unrecorded = await get_json(client, "/api/rollout", run="deep/rl", line=lines[2, 1])
    assert "trained" not in unrecorded["tokens"][0]
    assert [row["line"] for row in unrecorded["kept"]] == [lines[1, 0]]
    file = folder / "deep/rl/tokens/1.json"
    for broken in (b"[1, 2]", b"\xff", b""):
        file.write_bytes(broken)
        assert (await get_json(client, "/api/rollout", run="deep/rl", line=0))["kept"] == []
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert (await get_json(client, "/api/rollout", run="deep/rl", line=0))["kept"] == []
    assert "tokens" not in str((await get_json(client, "/api/runs"))["runs"])


async def test_metrics_updates_have_only_new_rows(client: TestClient[Any, Any], folder: Path):
    first = await get_json(client, "/api/metrics", run="deep/rl")
    assert [row["step"] for row in first["rows"]] == [1] and first["alerts"][0]["text"] == EVIL
    assert [step["step"] for step in first["steps"]] == [1]
    with (folder / "deep/rl/metrics.jsonl").open("ab") as lines:
        lines.write(b'{"step": 2}\n{"step": 3')
    update = await get_json(client, "/api/metrics", run="deep/rl", after=1, life=first["life"])
    assert [row["step"] for row in update["rows"]] == [2]
    # as if resumed from a checkpoint
    (folder / "deep/rl/metrics.jsonl").write_bytes(b'{"step": 1, "reward/mean": 0.5}\n')
    reloaded = await get_json(client, "/api/metrics", run="deep/rl", after=2, life=first["life"])
    assert reloaded["life"] == first["life"] + 1 and [row["step"] for row in reloaded["rows"]] == [1]


async def test_group_members_show_their_first_difference(client: TestClient[Any, Any]):
    group = await get_json(client, "/api/group", run="better", line=1)
    assert [rollout["parts"] for rollout in group["rollouts"]] == [None, [0, 7], [0, 7]]
    assert group["left_out"] == 0


async def test_two_runs_are_compared_and_movers_have_lines(client: TestClient[Any, Any]):
    comparison = await get_json(client, "/api/compare", a="worse", b="better")
    assert comparison["main"]["difference"] == pytest.approx(1 / 3)
    assert {difference["name"]: difference["weight"] for difference in comparison["others"]} == {
        "win": 1.0,
        "format": 0.2,
        "length": 0.0,
    }
    assert comparison["up"][0]["lines"] == [0, 2]
    answer = await client.get("/api/compare", params={"a": "worse", "b": "better", "value": "wins"})
    assert answer.status == 400 and "did you mean 'win'" in (await answer.json())["error"]


async def test_a_search_streams_its_hits(client: TestClient[Any, Any]):
    answer = await client.get("/api/search", params={"run": "worse", "text": "QUESTION 1"})
    lines = [msgspec.json.decode(line) for line in (await answer.read()).splitlines()]
    assert [line["line"] for line in lines[:-1]] == [3, 4, 5]
    assert lines[0]["found"] == "question 1" and lines[-1]["done"] and lines[-1]["hits"] == 3
    refused = await client.get("/api/search", params={"run": "worse", "text": "(", "regex": "1"})
    assert refused.status == 400 and "not a regular expression" in (await refused.json())["error"]


def test_a_search_finds_texts_that_are_joined_from_several_values(tmp_path: Path):
    parts = [{"type": "text", "text": "Time"}, {"type": "text", "text": "out"}]
    call = {"id": "1", "type": "function", "function": {"name": "move", "arguments": "{}"}}
    completion = [{"role": "assistant", "content": parts, "tool_calls": [call]}]
    run = write_run_folder(tmp_path / "run", [make_record(0, 0, None), make_record(1, 0, completion=completion)])
    for text, line in (("model: InfraError", 0), ("timeout", 1), ("'name': 'move'", 1)):
        for case in (False, text != "timeout"):
            with (run.path / "rollouts.jsonl").open("rb") as lines:
                hits = [hit["line"] for hit in search_lines(lines, Query(text, case=case)) if "line" in hit]
            assert hits == [line], text


def search_processes(folder: Path) -> list[str]:
    """Return the search processes for runs of this folder."""
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    return [command.decode() for command in commands if b"rove.viewer.search" in command and bytes(folder) in command]


async def test_a_search_ends_when_the_client_disconnects(client: TestClient[Any, Any], folder: Path):
    line = (folder / "worse/rollouts.jsonl").read_bytes().splitlines(keepends=True)[0]
    slow_line = edit_line(line, b"question 0", b"a" * 40 + b"!")
    (folder / "worse/rollouts.jsonl").write_bytes(line + slow_line)
    answer = await client.get("/api/search", params={"run": "worse", "text": "(a+)+$", "regex": "1"})
    # the slow pattern does not block other requests
    assert (await get_json(client, "/api/rollouts", run="worse"))["total"] == 1
    assert search_processes(folder)
    answer.close()
    async with asyncio.timeout(60):
        while search_processes(folder):  # noqa: ASYNC110  other processes set no event
            await asyncio.sleep(0.05)


async def test_runs_outside_of_the_folder_are_refused(client: TestClient[Any, Any], folder: Path):
    (folder / "link").symlink_to(folder.parent / "secret")
    names = ["../secret", "..", ".", "", "/etc", "better/../better", "better\0", "a" * 5000, "deep", "link"]
    paths = ["/api/run", "/api/rollouts", "/api/bad", "/api/metrics", "/api/search"]
    for name, path in itertools.product(names, paths):
        answer = await client.get(path, params={"run": name, "text": "x"})
        assert answer.status == 400, (name, path, await answer.text())
        assert "no run" in (await answer.json())["error"]
    assert "link" not in {run["name"] for run in (await get_json(client, "/api/runs"))["runs"]}


@pytest.mark.parametrize(
    "path", ["/static/../app.py", "/static/%2e%2e%2fapp.py", "/static/", "/static/nothing.js", "/api/nothing", "/x"]
)
async def test_unknown_paths_and_files_are_not_served(client: TestClient[Any, Any], path: str):
    answer = await client.session.get(f"http://{client.host}:{client.port}{path}")
    assert answer.status == 404 and "error" in await answer.json()


@each_row(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Host": "localhost:8123"}, True),
        ({"Host": "[::1]:8123"}, True),
        ({"Host": "evil.example"}, False),
        ({"Host": "127.0.0.1.evil.example"}, False),
        ({"Host": "192.168.0.9"}, False),
        ({"Host": "["}, False),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, True),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-origin"}, True),
    ],
)
async def test_requests_from_other_sites_are_refused(
    client: TestClient[Any, Any], headers: dict[str, str], allowed: bool
):
    for path in ("/api/runs", "/static/main.js"):
        answer = await client.get(path, headers=headers)
        assert answer.status == (200 if allowed else 403)
        assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
        assert "Access-Control-Allow-Origin" not in answer.headers


async def test_only_get_and_head_requests_are_allowed(client: TestClient[Any, Any]):
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        answer = await client.request(method, "/api/runs")
        assert answer.status == 405 and answer.headers["Allow"] == "GET,HEAD"


async def open_annotating_client(folder: Path) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(make_viewer(RunStore(folder, annotate=True)))) as client:
        yield client


annotating_client = pytest.fixture(open_annotating_client)


async def test_rollouts_are_annotated_filtered_by_annotations_and_counted(
    annotating_client: TestClient[Any, Any], folder: Path
):
    client = annotating_client

    async def annotate(**wish: Any) -> Any:
        answer = await client.post("/api/annotate", json={"run": "worse", **wish})
        assert answer.status == 200, await answer.text()
        return await answer.json()

    assert (await get_json(client, "/api/facet", run="worse", name="tag"))["values"] == []
    assert await annotate(line=0, add=["good", "odd"]) == {
        "tags": ["good", "odd"],
        "note": "",
        "known_tags": ["good", "odd"],
    }
    assert (await annotate(line=4, add=["odd"], note=EVIL))["note"] == EVIL
    assert (await annotate(line=0, remove=["good"], add=["bad"]))["tags"] == ["odd", "bad"]
    assert (await annotate(add=["keep"]))["tags"] == ["keep"]
    [listed] = [run for run in (await get_json(client, "/api/runs"))["runs"] if run["name"] == "worse"]
    assert listed["tags"] == ["keep"]
    details = await get_json(client, "/api/run", run="worse")
    assert (details["tags"], details["known_tags"], details["annotated"], details["annotate"]) == (
        ["keep"],
        ["bad", "odd"],
        True,
        True,
    )
    facet = await get_json(client, "/api/facet", run="worse", name="tag")
    assert facet["values"] == [["odd", 2], ["bad", 1], [None, 7]]
    for tag, lines in {"odd": [0, 4], "bad": [0], "": [1, 2, 3, 5, 6, 7, 8], "nobody's": []}.items():
        page = await get_json(client, "/api/rollouts", run="worse", **{"is.tag": tag})
        assert [row["line"] for row in page["rows"]] == lines
    either = await client.get(
        "/api/rollouts", params=[("run", "worse"), ("is.tag", "bad"), ("is.tag", ""), ("limit", 3)]
    )
    assert [row["line"] for row in (await either.json())["rows"]] == [0, 1, 2]
    page = await get_json(client, "/api/rollouts", run="worse", **{"is.noted": 1, "sort": "noted"})
    assert [(row["line"], row["tags"], row["note"]) for row in page["rows"]] == [(4, ["odd"], EVIL)]
    assert (await get_json(client, "/api/facet", run="worse", name="noted"))["values"] == [[0, 8], [1, 1]]
    rollout = await get_json(client, "/api/rollout", run="worse", line=4)
    assert (rollout["tags"], rollout["note"]) == (["odd"], EVIL)
    repeated = make_record(0, 0, 1.0)  # the rollout of line 0 is repeated: its annotations apply to the new record
    with (folder / "worse/rollouts.jsonl").open("ab") as lines:
        lines.write(encode_record(repeated) + b"\n")
    page = await get_json(client, "/api/rollouts", run="worse", **{"is.tag": "bad"})
    assert [row["line"] for row in page["rows"]] == [9]


async def test_annotating_needs_the_flag_and_a_request_from_the_viewer_page(
    client: TestClient[Any, Any], annotating_client: TestClient[Any, Any], folder: Path
):
    change = {"run": "worse", "line": 0, "add": ["good"]}
    refused = await client.post("/api/annotate", json=change)
    assert refused.status == 403 and "rove view --annotate" in (await refused.json())["error"]
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example"},
    ):
        assert (await annotating_client.post("/api/annotate", json=change, headers=headers)).status == 403
    form = await annotating_client.post(
        "/api/annotate", data=msgspec.json.encode(change), headers={"Content-Type": "text/plain"}
    )
    assert form.status == 415
    assert (await annotating_client.get("/api/annotate", params={"run": "worse"})).status == 404
    assert not (folder / "worse/annotations.jsonl").exists()


@each_row(
    ("body", "why"),
    [
        (b"", "not an annotation"),
        (b"[]", "not an annotation"),
        (b'{"run": "worse"}', "the change is empty"),
        (b'{"run": "worse", "line": 99, "add": ["x"]}', "no rollout in line 99"),
        (b'{"run": "worse", "line": 1e99, "add": ["x"]}', "not an annotation"),
        (b'{"run": "worse", "line": -1, "add": ["x"]}', "not an annotation"),
        (b'{"run": "../secret", "add": ["x"]}', "no run"),
        (b'{"run": "worse", "add": [" "]}', "a tag is"),
        (b'{"run": "worse", "add": ["\\ud800"]}', "not an annotation"),
        (b'{"run": "worse", "line": 0, "note": "\xff"}', "not an annotation"),
        (b'{"run": "worse", "note": "of a run"}', "to annotate a rollout"),
        (b"[" * 5000, "not an annotation"),
    ],
)
async def test_invalid_annotations_are_refused(
    annotating_client: TestClient[Any, Any], folder: Path, body: bytes, why: str
):
    answer = await annotating_client.post("/api/annotate", data=body, headers={"Content-Type": "application/json"})
    assert answer.status == 400 and why in (await answer.json())["error"]
    assert not (folder / "worse/annotations.jsonl").exists()


async def test_damaged_annotations_do_not_hide_valid_ones(client: TestClient[Any, Any], folder: Path):
    good = b'{"add":["good"],"rollout":{"example_key":"key0","rollout_index":1}}\n'
    (folder / "worse/annotations.jsonl").write_bytes(b"\xff\n" + good + b'{"add":["torn"],"roll')
    details = await get_json(client, "/api/run", run="worse")
    assert (details["bad_annotations"], details["known_tags"]) == (1, ["good"])
    page = await get_json(client, "/api/rollouts", run="worse", **{"is.tag": "good"})
    assert [row["line"] for row in page["rows"]] == [1]


async def test_access_from_other_machines_needs_a_token(folder: Path):
    async with TestClient(TestServer(make_viewer(RunStore(folder), host="0.0.0.0", token="right"))) as client:
        assert (await client.get("/", allow_redirects=False)).status == 401
        assert (await client.get("/api/runs?token=wrong")).status == 401
        welcome = await client.get("/?token=right", allow_redirects=False)
        assert (welcome.status, welcome.headers["Location"]) == (303, "/")
        assert "HttpOnly" in welcome.headers["Set-Cookie"] and "SameSite=Strict" in welcome.headers["Set-Cookie"]
        cookie = {"Cookie": f"rove_view={welcome.cookies['rove_view'].value}"}
        assert (await client.get("/api/runs", headers=cookie)).status == 200
        assert (await client.get("/api/runs", headers={**cookie, "Host": "10.0.0.5:80"})).status == 200
        assert (await client.get("/api/runs", headers={**cookie, "Host": "evil.example"})).status == 403


async def test_pages_have_no_inline_scripts_or_external_urls(client: TestClient[Any, Any]):
    page = await (await client.get("/")).text()
    static = Path(__file__).parents[2] / "rove/viewer/static"
    scripts = sorted(path.name for path in static.glob("*.js"))
    assert sum(len((static / name).read_text().splitlines()) for name in scripts) <= 2300
    assert re.findall(r"<script.*?>", page) == ['<script type="module" src="/static/main.js">']
    for name in scripts:
        answer = await client.get(f"/static/{name}")
        text = await answer.text()
        assert answer.content_type == "text/javascript"
        assert set(re.findall(r"https?://[\w.]+", text)) <= {"http://www.w3.org"}
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function", text), name
        assert text.count("\n") < 260, name


# Arbitrary queries and records

param_values = st.one_of(
    st.sampled_from(
        [
            "better",
            "worse",
            "deep/rl",
            "torn",
            "broken",
            "0",
            "1",
            "-1",
            "1e400",
            "nan",
            "reward",
            "score.win",
            "stop",
            "",
        ]
    ),
    st.text(max_size=20),
)
param_names = st.one_of(
    st.sampled_from(
        [
            "run",
            "line",
            "name",
            "sort",
            "order",
            "offset",
            "limit",
            "is.stop",
            "is.reward",
            "from.reward",
            "to.score.win",
            "is.tag",
            "is.noted",
        ]
    ),
    st.sampled_from(
        ["a", "b", "value", "after", "life", "first", "last", "text", "regex", "whole", "is.", "is.step", "to.example"]
    ),
    st.text(max_size=12),
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(ENDPOINTS)),
    st.sampled_from(["better", "deep/rl", "torn", "broken"]),
    st.lists(st.tuples(param_names, param_values), max_size=5),
)
async def test_no_query_causes_a_server_error(
    client: TestClient[Any, Any], endpoint: str, run: str, params: list[tuple[str, str]]
):
    answer = await client.get(f"/api/{endpoint}", params=[("run", run), *params])
    assert answer.status in (200, 400, 404), (endpoint, params, await answer.text())
    if answer.status != 200:
        assert (await answer.json())["error"]


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


@pytest.mark.broad
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
async def test_no_record_causes_a_server_error(client: TestClient[Any, Any], folder: Path, data: st.DataObject):
    lines = (folder / "deep/rl/rollouts.jsonl").read_bytes().splitlines(keepends=True)[:2]
    record = msgspec.json.decode(lines[0])
    del record["checksum"]
    target = data.draw(st.sampled_from([record, record["record"], record["record"]["scores"], record["steps"][0]]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(json_values)
    if isinstance(record["record"], dict) and data.draw(st.booleans()):
        record["record"]["completion"] = [
            data.draw(json_values),
            {"role": data.draw(json_values), "content": data.draw(json_values)},
        ]
    (folder / "torn/rollouts.jsonl").write_bytes(msgspec.json.encode(record) + b"\n" + lines[1])
    for endpoint in ENDPOINTS:
        answer = await client.get(
            f"/api/{endpoint}", params={"run": "torn", "line": 0, "name": "reward", "a": "torn", "b": "better"}
        )
        assert answer.status in (200, 400, 404), (endpoint, await answer.text())


async def test_hostile_text_is_returned_as_text_and_shortened(client: TestClient[Any, Any], folder: Path):
    completion = [{"role": "assistant", "content": EVIL + "x" * 5_000_000}]
    hostile = make_record(0, 0, completion=completion, stop_condition=EVIL, scores=make_scores(1.0, **{EVIL: 1.0}))
    with Run(folder / "torn") as run:
        (run.path / "rollouts.jsonl").unlink()
        run.append_rollout(hostile)
    rollout = await get_json(client, "/api/rollout", run="torn", line=0)
    assert (
        rollout["completion"][0]["content"].startswith(EVIL)
        and len(rollout["completion"][0]["content"]) < 25_000
        and rollout["cut"]
    )
    whole = await get_json(client, "/api/rollout", run="torn", line=0, whole=1)
    assert len(whole["completion"][0]["content"]) > 5_000_000
    assert (await get_json(client, "/api/facet", run="torn", name="stop"))["values"] == [[EVIL, 1]]


async def test_the_error_of_a_stopped_run_contains_no_passwords(client: TestClient[Any, Any], folder: Path):
    with pytest.raises(RunError), Run(folder / "worse") as run:
        run._acquire()
        raise RunError("http://me:secret@here:1/v1 does not answer " + "x" * 9000)
    [listed] = [row for row in (await get_json(client, "/api/runs"))["runs"] if row["name"] == "worse"]
    details, metrics = [await get_json(client, path, run="worse") for path in ("/api/run", "/api/metrics")]
    for result in (listed, details, metrics):
        assert result["why"].startswith("http://***@here:1/v1 does not answer")
        assert len(result["why"]) < 1000
    assert (await get_json(client, "/api/run", run="better"))["why"] == ""


def test_a_run_is_running_while_a_process_holds_its_lock(tmp_path: Path):
    run = write_run_folder(tmp_path / "run", [make_record()])
    assert status(run) == "stopped"
    with (run.path / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert status(run) == "running"
    run.finish({})
    assert status(run) == "complete"


def test_the_run_store_of_a_run_folder_has_one_run(tmp_path: Path):
    write_run_folder(tmp_path / "one", [make_record()])
    write_run_folder(tmp_path / "other", [make_record()])
    store = RunStore(tmp_path / "one")
    assert store.names() == ["one"]
    with pytest.raises(ConfigError, match="no run 'other'"):
        store.run("other")
    with pytest.raises(ConfigError, match="no folder"):
        RunStore(tmp_path / "nowhere")


async def test_the_viewer_listens_until_it_is_canceled(folder: Path):
    urls: asyncio.Queue[str] = asyncio.Queue()
    task = asyncio.create_task(serve_viewer(RunStore(folder), "127.0.0.1", 0, "secret", urls.put_nowait))
    url = await urls.get()
    # by default aiohttp ignores cookies of IP addresses
    async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:
        answer = await session.get(url)
        assert (answer.status, url.endswith("/?token=secret")) == (200, True)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_lines_of_a_growing_file_are_read_once(tmp_path: Path):
    tail = JsonlTail(tmp_path / "metrics.jsonl")
    tail.catch_up()
    assert (tail.rows, tail.life) == ([], 0)
    tail.file.write_bytes(b'{"a": 1}\nnothing\n[1]\n{"a": 2')
    tail.catch_up()
    assert (tail.rows, tail.bad) == ([{"a": 1}], 2)
    tail.file.write_bytes(b'{"a": 1}\nnothing\n[1]\n{"a": 2}\n')
    tail.catch_up()
    assert tail.rows == [{"a": 1}, {"a": 2}]
    tail.file.unlink()
    tail.catch_up()
    assert (tail.rows, tail.life) == ([], 1)


message_lists = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from("ab"), st.text("xy", max_size=6)),
    max_size=4,
)


@given(message_lists, message_lists)
def test_the_first_difference_of_conversations_is_found(first: list[dict[str, str]], second: list[dict[str, str]]):
    difference = first_difference(first, second)
    if difference is None:
        assert first == second
        return
    message, char = difference
    assert first[:message] == second[:message]
    if message < min(len(first), len(second)):
        a, b = first[message]["content"], second[message]["content"]
        assert first[message] != second[message] and a[:char] == b[:char] and (a[char:][:1] != b[char:][:1] or a == b)


@given(
    st.lists(st.text('aBcé"\\\n', max_size=8), max_size=6), st.text('aBcé"\\\n', min_size=1, max_size=2), st.booleans()
)
def test_a_search_finds_all_matching_rollouts(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], term: str, case: bool
):
    run = write_run_folder(
        tmp_path_factory.mktemp("run"),
        [
            make_record(0, i, prompt=[], answer="", completion=[{"role": "user", "content": text}])
            for i, text in enumerate(texts)
        ],
    )
    (run.path / "rollouts.jsonl").touch()
    with (run.path / "rollouts.jsonl").open("rb") as lines:
        hits = [hit["line"] for hit in search_lines(lines, Query(term, case=case)) if "line" in hit]
    expected = [i for i, text in enumerate(texts) if (term in text if case else term.lower() in text.lower())]
    assert hits == expected
