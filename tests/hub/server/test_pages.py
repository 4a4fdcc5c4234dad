"""The pages of a hub as HTML: content, privacy, and no active content from packages."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hub_site import HOSTILE, PLAIN_MARKUP, README, SCRIPT_MARKUP, add_results, create_example_hub, rollout
from hubs import add, running_hub
from hypothesis import given
from hypothesis import strategies as st
from tiers import first_quick
from yarl import URL

from rove.audit.card import CARD_FILE, Card
from rove.core.errors import RejectedError
from rove.core.findings import Finding
from rove.hub.server import catalogue
from rove.hub.server.catalogue import Query
from rove.hub.server.pages.html import MAX_README_CHARS, POLICY, readme_html
from rove.hub.server.pages.leaderboard import Row, interval_svg, read_summary, rows_of, scale_of, with_interval
from rove.hub.server.pages.run import MAX_ROLLOUTS, RUN_POLICY, run_page
from rove.hub.server.pages.site import PAGE_SIZE, Site
from rove.hub.server.store import Store

ALLOWED_TAGS = frozenset(
    [
        "p",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "a",
        "code",
        "pre",
        "em",
        "strong",
        "s",
        "ul",
        "ol",
        "li",
        "blockquote",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "hr",
        "br",
    ]
)
ALLOWED_ATTRIBUTES = frozenset({"href", "rel", "title", "class", "start"})
"""The elements and attributes that a rendered README may contain."""


class Elements(HTMLParser):
    """The elements of a page, with their attributes, and its text."""

    def __init__(self, page: str | bytes):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page if isinstance(page, str) else page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element with this tag."""
        return [attributes for name, attributes in self.elements if name == tag]


def check_inert(html: str) -> Elements:
    """Parse a rendered README and check that it has no active content."""
    page = Elements(html)
    for tag, attributes in page.elements:
        assert tag in ALLOWED_TAGS and attributes.keys() <= ALLOWED_ATTRIBUTES, (tag, attributes)
        assert (attributes.get("href") or "https://").lower().startswith(("https://", "http://"))
    return page


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = create_example_hub(tmp_path_factory.mktemp("pages") / "hub")
    yield store
    store.close()


@pytest.fixture(scope="module")
def site(store: Store) -> Site:
    return Site(store, "our hub")


# Untrusted text


def test_a_readme_is_rendered_as_markdown():
    page = check_inert(readme_html(README))
    assert [tag for tag, _ in page.elements][:3] == ["h3", "p", "strong"]
    assert [element["href"] for element in page.all("a")] == ["https://example.org/paper?a=1&b=2"]
    assert page.all("a")[0]["rel"] == "nofollow noopener noreferrer"
    assert "the code" in page.text and "[a plot]" in page.text and len(page.all("td")) == 2


def test_a_hostile_readme_is_rendered_without_active_content():
    page = check_inert(readme_html(HOSTILE))
    assert [element["href"] for element in page.all("a")] == ["https://evil.example/%22onclick=%22window.pwned=7"]
    for escaped in (
        "<script>window.pwned = 2</script>",
        "<style>body",
        "<iframe",
        "[x]",
        "<base href",
        "window.pwned=12",
    ):
        assert escaped in page.text


MARKUP_PIECES = ["<script>", "](", "[", "![", ")", "javascript:", "data:text/html,", "<a/onclick=1>", '"', "'", "`"]
MARKUP_PIECES += ["&#106;avascript:", "|", "---|", "<", ">", "https://x", "//x", "\\", "[a]:", "&lt;", "#", "*", "~~"]
MARKUP_PIECES += ["\n", " ", "\t", "\x00", "\u202e", "    "]


@given(st.lists(st.sampled_from(MARKUP_PIECES), max_size=30).map("".join))
def test_a_random_readme_is_rendered_without_active_content(source: str):
    check_inert(readme_html(source))


@pytest.mark.parametrize("piece", first_quick(["[", "![", "*a_", "> ", "[a](", "|a"]))
def test_a_long_readme_is_truncated(piece: str):
    page = check_inert(readme_html(piece * MAX_README_CHARS))
    assert len(page.text) <= MAX_README_CHARS + 100
    readme_html.cache_clear()


def test_texts_of_manifests_and_runs_are_escaped(site: Site):
    for page in (site.environment("zeta", "evil"), site.index_page(), site.search_page(Query())):
        elements = Elements(page)
        assert len(elements.all("script")) == 1 and not any(
            "id" in element and element["id"] == "pwned" for _, element in elements.elements
        )
        assert not {name for _, attributes in elements.elements for name in attributes if name.startswith("on")}
        assert not any(tag in ("b", "img", "iframe") and attributes for tag, attributes in elements.elements)
        assert PLAIN_MARKUP in elements.text


def check_run_page(page: bytes) -> dict[str, Any]:
    """Check that a run's page has no element but the report's own, and return its data."""
    elements = Elements(page)
    tags = [tag for tag, _ in elements.elements]
    expected_tags = "html head meta meta meta title style body main noscript p pre p script script"
    assert tags == expected_tags.split(), tags
    [policy] = [
        element["content"] for element in elements.all("meta") if element.get("http-equiv") == "Content-Security-Policy"
    ]
    assert f"{policy}; frame-ancestors 'none'" == RUN_POLICY and "unsafe" not in RUN_POLICY
    raw = page.split(b'id="data">', 1)[1].split(b"</script>", 1)[0]
    assert b"<" not in raw
    return msgspec.json.decode(raw)


def test_a_hostile_run_is_only_data_of_its_page(site: Site):
    [row] = site.rows("zeta", "evil", "1.0")
    data = check_run_page(site.run("zeta", "evil", row))
    assert data["title"] == PLAIN_MARKUP and f"SHA-256 of the rollouts: {SCRIPT_MARKUP}" in data["counts"]
    assert SCRIPT_MARKUP in msgspec.json.decode(data["settings"])
    [rollout] = data["rollouts"]
    assert (
        rollout["answer"] == rollout["stop_condition"] == SCRIPT_MARKUP
        and "2 entries that are not" in data["rollouts_note"]
    )
    assert [address for address, _ in data["links"]] == ["../../../../", "../../../../zeta/evil/", f"{row.id}.json"]


def pushed_page(pushed: Any) -> dict[str, Any]:
    """Return the data of the page of a run with this pushed document."""
    row = Row("1.0", "1", "m", "2026-11-22T00:00:00Z", {})
    return check_run_page(run_page("h", ("acme", "sums"), row, pushed, ""))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "m", SCRIPT_MARKUP]),
    lambda children: (
        st.lists(children, max_size=4)
        | st.dictionaries(
            st.sampled_from(["mean", "low", "high", "caveat", "weight", "role", "content", "type"]),
            children,
            max_size=4,
        )
    ),
    max_leaves=8,
)
SUMMARIES = st.dictionaries(
    st.sampled_from(["reward", "functions", "scored", "examples", "stops", "errors", "pass@k"]), JSON, max_size=6
)


@given(SUMMARIES)
def test_any_json_summary_becomes_a_row(summary: dict[str, Any]):
    raw = msgspec.Raw(msgspec.json.encode(summary))
    [row] = rows_of("1.0", [{"id": "1", "model": "m", "uploaded": "2026-11-22T00:00:00Z", "summary": raw}])
    scale = scale_of([row.reward])
    assert scale.low < scale.high and scale.ends and "nan" not in interval_svg("reward", row.reward, scale)
    check_run_page(run_page("h", ("acme", "sums"), row, {}, ""))


@given(
    st.dictionaries(
        st.sampled_from(["prompt", "completion", "scores", "answer", "info", "stop_condition", "steps", "error"]),
        JSON,
        max_size=6,
    )
    | JSON
)
def test_any_json_example_is_a_rollout_or_omitted(example: Any):
    data = pushed_page({"examples": [example, rollout(1.0, "2")]})
    assert len(data["rollouts"]) in (1, 2) and data["rollouts"][-1]["reward"] == 1.0
    assert ("1 entries" in data["rollouts_note"]) == (len(data["rollouts"]) == 1)


def test_deeply_nested_json_is_displayed():
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    assert pushed_page({"examples": [deep, {**rollout(1.0, "x"), "info": {"deep": deep}}]})["rollouts_note"]
    assert read_summary(msgspec.json.encode({"reward": deep})) == {}


def test_a_pushed_rollout_cannot_claim_turns_and_only_the_first_are_shown():
    claims = {**rollout(1.0, "2"), "example_key": "key", "steps": [{"completion": []}], "seed": 7}
    data = pushed_page({"examples": [claims] * (MAX_ROLLOUTS + 1)})
    assert len(data["rollouts"]) == MAX_ROLLOUTS
    assert (data["rollouts"][0]["example_key"], data["rollouts"][0]["steps"], data["rollouts"][0]["seed"]) == (
        "",
        [],
        "0",
    )
    assert data["rollouts"][0]["stopped"] == "answered."
    assert pushed_page({"examples": [{**rollout(0.0, "2"), "is_truncated": True}]})["rollouts"][0]["stopped"] == (
        "answered; truncated."
    )


def test_a_summary_without_an_interval_is_read():
    summary = {"reward": {"mean": 1, "low": None}, "scored": 3}
    assert read_summary(msgspec.json.encode(summary)) == summary


# Content of pages


def test_only_complete_intervals_are_shown():
    assert with_interval({"mean": 0.5, "low": 0.25, "high": 0.625, "caveat": "few"}) == "0.500 [0.250, 0.625]*"
    assert with_interval({"mean": 0.5}) == with_interval({"mean": 0.5, "low": 0.1}) == "0.500"
    assert scale_of([{"mean": 1e300}]).low < 1e300


def test_the_list_contains_only_public_environments(site: Site):
    page = Elements(site.index_page())
    assert [element["href"] for element in page.all("a") if (element["href"] or "").count("/") == 3] == [
        "./acme/my-sums/",
        "./zeta/chess/",
        "./zeta/evil/",
    ]
    assert "secret" not in page.text and "hidden" not in page.text and "3 environments" in page.text
    assert "data-whole" in page.all("ul")[-1]
    assert "secret" in Elements(site.search_page(Query(), "acme")).text


def test_the_list_is_searched_and_paginated(site: Site, monkeypatch: pytest.MonkeyPatch):
    page = Elements(site.search_page(Query(q="SUMS two", tag="math")))
    assert "1 environment found" in page.text and "acme/my-sums" in page.text and "zeta/chess" not in page.text
    assert page.all("input")[0]["value"] == "SUMS two"
    assert [element["value"] for element in page.all("option") if "selected" in element] == ["math"]
    assert "No environments" in Elements(site.search_page(Query(q="nobody"))).text
    monkeypatch.setattr("rove.hub.server.pages.site.PAGE_SIZE", 2)
    first = Elements(site.search_page(Query()))
    assert {"href": "./?offset=2"} in first.all("a") and "data-whole" not in first.all("ul")[-1]
    last = Elements(site.search_page(Query(offset=2)))
    assert "zeta/evil" in last.text and {"href": "./"} in last.all("a")


def test_search_queries_are_escaped(site: Site):
    page = Elements(site.search_page(Query(q=SCRIPT_MARKUP, owner=SCRIPT_MARKUP, tag='"><script>')))
    assert len(page.all("script")) == 1 and page.all("input")[0]["value"] == SCRIPT_MARKUP


def test_an_environment_page_shows_manifest_leaderboard_and_yanked_versions(site: Site):
    page = Elements(site.environment("acme", "my-sums"))
    for words in (
        "0 to 1.200",
        "SUMS_KEY",
        "network access",
        "num_examples",
        "required",
        "yanked: the answers were wrong",
    ):
        assert words in page.text
    assert (
        page.text.index("lab/large")
        < page.text.index("lab/small")
        < page.text.index("odd")
        < page.text.index("lab/old")
    )
    drawings = [element["aria-label"] for element in page.all("svg")]
    assert "reward 1.050, 95% interval 1.020 to 1.080, on a line from 0 to 1.200" in drawings
    assert "rove install acme/my-sums --hub HUB" in page.text
    assert "This version was yanked" not in page.text
    assert "This version was yanked" in Elements(site.environment("zeta", "evil")).text


def test_a_run_page_shows_metrics_errors_and_settings(site: Site):
    row = site.rows("acme", "my-sums", "1.1")[0]
    page = site.run("acme", "my-sums", row)
    data = check_run_page(page)
    assert data["title"] == "lab/large" and data["facts"][0] == "acme/my-sums 1.1"
    assert data["cards"][:2] == [["1.050 [1.020, 1.080]", "reward, 95% interval"], ["400 / 402", "rollouts scored"]]
    assert ["length", "12.500", "[12.470, 12.530]", "metric"] in data["values"]
    assert "2 failed: InfraError (2)" in data["counts"] and f"SHA-256 of the rollouts: {'f' * 64}" in data["counts"]
    assert '"max_tokens": 64' in data["settings"] and data["links"][1][1] == "acme/my-sums"
    assert [rollout["reward"] for rollout in data["rollouts"]] == [0.0, 1.0]
    assert "| reward | 1.050 | \\[1.020, 1.080\\] |  |" in Elements(page).text


def test_private_environments_have_no_page_for_other_readers(site: Site):
    for reader in (None, "zeta"):
        with pytest.raises(RejectedError) as hidden:
            site.environment("acme", "secret", reader)
        with pytest.raises(RejectedError) as absent:
            site.environment("acme", "secreto", reader)
        assert str(absent.value) == str(hidden.value).replace("secret", "secreto") and hidden.value.status == 404
        with pytest.raises(RejectedError):
            site.rows("acme", "secret", "1.0", reader)
    assert "hidden-model" in site.environment("acme", "secret", "acme").decode()


def test_facets_count_environments_visible_to_the_reader(store: Store):
    assert catalogue.facets(store)["tag"] == {"game": 2, "math": 1, "tools": 1}
    assert "hidden" in catalogue.facets(store, "acme")["tag"]


def test_long_leaderboards_are_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rove.hub.server.pages.leaderboard.MAX_ROWS", 2)
    store = create_example_hub(tmp_path / "hub")
    try:
        for i in range(3):
            add_results(store, "1.0", f"model-{i}", {"reward": {"mean": i}}, "zeta", "chess")
        page = Elements(Site(store, "h").environment("zeta", "chess"))
        assert "1 runs with lower rewards are not shown" in page.text and "model-0" not in page.text
    finally:
        store.close()


# HTTP


async def test_pages_have_a_security_policy_and_private_ones_need_a_token(store: Store):
    async with running_hub(store.folder) as asking:
        for path in ("/", "/acme/my-sums/", "/?q=sums&tag=math&limit=5"):
            response = await asking.request("GET", path)
            assert response.status == 200 and response.headers["Content-Type"] == "text/html; charset=utf-8"
            assert response.headers["Content-Security-Policy"] == POLICY and "unsafe" not in POLICY
            assert "style=" not in response.text and "<style" not in response.text
            for element in Elements(response.text).all("link") + Elements(response.text).all("script"):
                asset = await asking.request("GET", f"{path.split('?')[0]}{element.get('href') or element['src']}")
                assert asset.status == 200 and asset.headers["X-Content-Type-Options"] == "nosniff"
        for path in (
            "/acme/secret/",
            "/acme/nothing/",
            "/static/site.py",
            "/acme/my-sums/1.1/runs/x.html",
            "/?offset=x",
        ):
            response = await asking.request("GET", path)
            assert response.status in (400, 404) and response.error
            assert "sandbox" in response.headers["Content-Security-Policy"]
        response = await asking.request("GET", "/acme/secret/", "acme")
        assert response.status == 200 and response.headers["Cache-Control"] == "private, no-cache"
        run = catalogue.runs(store, "acme", "my-sums", "1.1")["runs"][0]["id"]
        response = await asking.request("GET", f"/acme/my-sums/1.1/runs/{run}.html")
        assert (response.status, response.headers["Content-Security-Policy"]) == (200, RUN_POLICY)
        response = await asking.request("GET", "/acme/my-sums")
        assert (response.status, response.headers["Location"]) == (301, "my-sums/")


async def test_redirects_stay_on_the_hub(tmp_path: Path):
    async with running_hub(tmp_path / "hub") as asking:
        for path in ("/acme/%2F%2Fevil.example", "/acme/simple/%2F%2Fevil.example", "/acme/a%0d%0ab"):
            response = await asking.request("GET", URL(asking.url + path, encoded=True))
            assert response.status in (301, 400, 404)
            assert "//evil" not in response.headers.get("Location", "")


def test_the_page_size_is_within_the_search_limit():
    assert PAGE_SIZE <= catalogue.MAX_SEARCH_RESULTS


def test_the_page_shows_the_card_in_the_package(tmp_path: Path):
    finding = Finding(id="length", text="long replies <script>alert(1)</script> earn more")
    card = Card(environment="my_sums#1", date="2026-11-29", rove_version="0.1.0", checks_done=3, findings=[finding])
    store = Store(tmp_path / "hub")
    store.add_owner("acme")
    for name, content in (("my-sums", msgspec.json.encode(card)), ("other", b"{}")):
        add(store, name=name, extra_files={CARD_FILE: content})
    site = Site(store, "our hub")
    page = Elements(site.environment("acme", "my-sums"))
    other_page = Elements(site.environment("acme", "other"))
    store.close()
    assert "which acme wrote" in page.text and "deterministic rewards" in page.text
    assert "<script>alert(1)</script>" in page.text  # as text, not as an element
    assert "deterministic rewards" not in other_page.text
