"""Uploads that stall do not stop other publishers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hubs import package_parts, running_hub
from yarl import URL

from rove.core.errors import RejectedError
from rove.hub.server.store import Store
from rove.hub.server.uploads import UploadLimits, Uploads

HALF_UPLOADS = 150


async def stall(url: str, token: str, number: int) -> asyncio.StreamWriter:
    """Send half of an upload."""
    _, writer = await asyncio.open_connection(URL(url).host, URL(url).port)
    head = (
        f"PUT /api/environments/acme/stalled-{number}/1.0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 5000\r\n\r\n"
        '--b\r\nContent-Disposition: form-data; name="wheel"; filename="a"\r\n\r\nPK'
    )
    writer.write(head.encode())
    await writer.drain()
    return writer


@pytest.mark.broad
async def test_half_uploads_of_one_owner_do_not_stop_another(tmp_path: Path):
    pace = UploadLimits(seconds=600, idle_seconds=600)
    async with running_hub(tmp_path / "hub", pace=pace) as asking:
        stalled = [await stall(asking.url, asking.tokens["acme"], number) for number in range(HALF_UPLOADS)]
        await asyncio.sleep(0.2)
        answer = await asyncio.wait_for(
            asking.upload("zeta/chess/1.0", package_parts(tmp_path / "p", "chess"), "zeta"), 120
        )
        assert answer.status == 201
        for writer in stalled:
            writer.close()


async def test_each_owner_has_a_part_of_the_slots_and_of_the_queue(tmp_path: Path):
    store = Store(tmp_path / "hub")
    uploads = Uploads(store, UploadLimits(uploads=8, waiting=8))
    reading: list[str] = []
    finish = asyncio.Event()

    async def upload(owner: str) -> None:
        async with uploads._slot(owner):
            reading.append(owner)
            await finish.wait()

    tasks = [asyncio.create_task(upload("acme")) for _ in range(6)]
    await asyncio.sleep(0)
    assert reading == ["acme", "acme"]
    with pytest.raises(RejectedError, match=r"4 uploads are already waiting, 4 of them of 'acme'; try again"):
        await upload("acme")
    tasks += [asyncio.create_task(upload("zeta")) for _ in range(2)]
    await asyncio.sleep(0)
    assert reading == ["acme", "acme", "zeta", "zeta"]
    finish.set()
    await asyncio.gather(*tasks)
    assert uploads._waiting == {}
    await uploads.close()
    store.close()


async def test_a_cancelled_upload_leaves_the_queue(tmp_path: Path):
    store = Store(tmp_path / "hub")
    uploads = Uploads(store, UploadLimits(uploads=1))
    async with uploads._slot("acme"):
        waiting = asyncio.create_task(uploads._slot("acme").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert uploads._waiting == {}
    async with uploads._slot("acme"):
        pass
    await uploads.close()
    store.close()
