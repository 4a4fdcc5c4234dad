"""Refuse names that exist in the fallback index: an owner's package must not silently replace a package of the public index.

An installer that uses an owner's index on this hub requests every dependency from this index. For projects that the owner does
not have, the hub redirects the installer to the fallback index. If the owner publishes a package under the name of such a
dependency (`requests`), the owner's package is installed instead, in every environment that needs the dependency (dependency
confusion). The operator of the hub can allow a name.
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import quote

import aiohttp

from rove.core.errors import RejectedError

LOOK_UP_TIMEOUT_S = 10.0


async def check_not_shadowing(name: str, fallback: str, allowed: Collection[str]) -> None:
    """Check that the fallback index has no project with the name of a new package."""
    if name in allowed:
        return
    address = f"{fallback}/{quote(name)}/"
    timeout = aiohttp.ClientTimeout(total=LOOK_UP_TIMEOUT_S)
    try:
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(address) as reply:
            status = reply.status
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise RejectedError(
            503,
            f"the fallback index of this hub cannot be asked whether it has a project '{name}' ({type(error).__name__}); "
            "try again later",
        ) from error
    if status in (404, 410):
        return
    if status == 200:
        raise RejectedError(
            409,
            f"the fallback index of this hub has a project '{name}', which this package would replace for everybody who installs "
            f"from this hub; expected another name: rename the package, or ask the hub's operator for --allow-shadow {name}",
            "shadowed_name",
        )
    raise RejectedError(503, f"the fallback index of this hub answers {status} for '{name}'; try again later")
