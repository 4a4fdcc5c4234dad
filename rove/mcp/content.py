"""Convert results of MCP tools to message content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

Part = dict[str, Any]


def text_part(text: str) -> Part:
    """Return a text as a content part."""
    return {"type": "text", "text": text}


def content_of(result: Mapping[str, Any], max_chars: int) -> str | list[Part]:
    """Return the result of a tool as text, or as content parts if it is not only text.

    Structured content is added as JSON if the result has no text.

    Args:
        result: as the protocol spells it.
        max_chars: characters of all texts together; the rest is cut.
    """
    parts = [_part(block) for block in result.get("content", ())]
    structured = result.get("structuredContent")
    if structured is not None and not any(part["type"] == "text" for part in parts):
        parts.append(text_part(msgspec.json.encode(structured).decode()))
    if all(part["type"] == "text" for part in parts):
        return cut("\n".join(part["text"] for part in parts), max_chars)
    left = max_chars
    for part in parts:
        if part["type"] == "text":
            whole = part["text"]
            part["text"] = cut(whole, left)
            left = max(0, left - len(whole))
    return parts


def text_of_result(result: Mapping[str, Any], max_chars: int) -> str:
    """Return only the texts of a result."""
    content = content_of(result, max_chars)
    return content if isinstance(content, str) else "\n".join(p["text"] for p in content if p["type"] == "text")


def cut(text: str, max_chars: int) -> str:
    """Return the beginning of a text, with a note of how much is missing."""
    missing = len(text) - max_chars
    return text if missing <= 0 else f"{text[:max_chars]}\n… {missing} more characters"


def _part(block: Mapping[str, Any]) -> Part:
    kind = block.get("type")
    if kind == "text":
        return text_part(block["text"])
    if kind == "image":
        return _image(block["mimeType"], block["data"])
    if kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": block["data"], "format": _audio(block["mimeType"])}}
    if kind == "resource_link":
        return text_part(" ".join(str(block[key]) for key in ("name", "uri", "description") if block.get(key)))
    if kind == "resource":
        resource = block["resource"]
        mime = resource.get("mimeType") or ""
        if "text" in resource:
            return text_part(resource["text"])
        if mime.startswith("image/"):
            return _image(mime, resource["blob"])
        return text_part(f"{resource['uri']} ({mime or 'binary'}, not shown)")
    return text_part(msgspec.json.encode(block).decode())


def _image(mime: str, data: str) -> Part:
    return {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}


def _audio(mime: str) -> str:
    kind = mime.partition("/")[2].removeprefix("x-")
    return {"mpeg": "mp3", "wave": "wav"}.get(kind, kind)
