"""Tests of the conversion of MCP tool results to message content, and of reading lines from a server."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import each_row

from rove.core.errors import MCPServerError
from rove.mcp import process, servers
from rove.mcp.process import lines_of
from rove.mcp.sdk import content_of, text_of_result
from rove.mcp.settings import ServerSettings
from rove.tools.tool import as_content

IMAGE = {"type": "image", "data": "QQ==", "mimeType": "image/png"}
TEXT_RESOURCE = {"type": "resource", "resource": {"uri": "a://b", "text": "inside"}}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


@each_row(
    ("blocks", "content"),
    [
        ([], ""),
        ([text("a"), text("b")], "a\nb"),
        ([TEXT_RESOURCE], "inside"),
        ([{"type": "resource_link", "name": "n", "uri": "a://b"}], "n a://b"),
        ([{"type": "resource", "resource": {"uri": "a://b", "blob": "QQ=="}}], "a://b (binary, not shown)"),
        ([{"type": "new", "x": 1}], '{"type":"new","x":1}'),
        ([IMAGE], [{"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}]),
        (
            [{"type": "resource", "resource": {"uri": "a://b", "blob": "QQ==", "mimeType": "image/gif"}}],
            [{"type": "image_url", "image_url": {"url": "data:image/gif;base64,QQ=="}}],
        ),
        (
            [{"type": "audio", "data": "QQ==", "mimeType": "audio/mpeg"}],
            [{"type": "input_audio", "input_audio": {"data": "QQ==", "format": "mp3"}}],
        ),
    ],
)
def test_content_blocks_become_message_content(blocks: list[dict[str, Any]], content: Any) -> None:
    assert content_of({"content": blocks}, 1000) == content
    assert as_content(content) == content  # `ToolEnv` sends it to the model unchanged


def test_structured_content_appears_once() -> None:
    structured = {"n": 1}
    assert content_of({"content": [text("one")], "structuredContent": structured}, 100) == "one"
    assert content_of({"content": [], "structuredContent": structured}, 100) == '{"n":1}'
    parts = content_of({"content": [IMAGE], "structuredContent": structured}, 100)
    assert isinstance(parts, list) and parts[1] == text('{"n":1}')


@given(st.lists(st.one_of(st.text(max_size=20), st.none()), max_size=6), st.integers(1, 30))
def test_text_is_truncated_only_above_the_limit(block_texts: list[str | None], most: int) -> None:
    result = {"content": [IMAGE if block_text is None else text(block_text) for block_text in block_texts]}
    shortened = text_of_result(result, most)
    texts = [block_text for block_text in block_texts if block_text is not None]
    if sum(map(len, texts)) + len(texts) <= most:
        assert shortened == "\n".join(texts)
    content = content_of(result, most)
    images = 0 if isinstance(content, str) else sum(part["type"] == "image_url" for part in content)
    assert images == block_texts.count(None)
    assert len(shortened) <= most + 40 * max(1, len(texts))


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.integers(1, 7))
def test_lines_are_complete_for_any_chunk_size(lines: list[bytes], size: int) -> None:
    async def read() -> list[bytes]:
        stream = asyncio.StreamReader()
        data = b"".join(line + b"\n" for line in lines) + b"cut off"
        task = asyncio.ensure_future(collect(stream))
        for start in range(0, len(data), size):
            stream.feed_data(data[start : start + size])
            await asyncio.sleep(0)
        stream.feed_eof()
        return await task

    async def collect(stream: asyncio.StreamReader) -> list[bytes]:
        return [line async for line in lines_of(stream)]

    assert asyncio.run(read()) == lines


async def test_a_line_above_the_size_limit_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_MESSAGE_BYTES", 100)
    stream = asyncio.StreamReader()
    stream.feed_data(b"x" * 101)
    with pytest.raises(ValueError, match="a line of more than"):
        await anext(lines_of(stream))


async def test_a_server_that_is_closed_during_its_restart_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    running: set[object] = set()

    class LostConnection:
        tools = ()
        lost = True

        async def open(self) -> None:
            await asyncio.sleep(0)
            running.add(self)

        async def close(self) -> None:
            running.discard(self)

    monkeypatch.setattr(servers, "Connection", lambda *settings: LostConnection())
    shop = servers.Servers([ServerSettings(name="shop", command="shop")], 1.0, 1.0, max_restarts=1)
    await shop.start()
    call = asyncio.create_task(shop.call("shop", "buy", {}))
    await asyncio.sleep(0)
    await shop.close()
    with pytest.raises(MCPServerError, match="'shop' has been closed"):
        await call
    assert not running


def test_identities_contain_no_secrets() -> None:
    servers = (
        ServerSettings(name="a", command="b", env={"KEY": "sk-1"}),
        ServerSettings(name="a", url="http://c", headers={"authorization": "sk-1"}),
    )
    assert [b"sk-1" in msgspec.json.encode(server.identity) for server in servers] == [False, False]
