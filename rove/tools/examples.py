"""Example values of JSON schemas, for calls of tools without a model."""

from __future__ import annotations

import json

from rove.core.plain import JsonMapping, JsonObject


def example_value(schema: JsonMapping) -> object:
    """Return a small value that fits a JSON schema."""
    for name in ("default", "const"):
        if name in schema:
            return schema[name]
    for name in ("enum", "examples"):
        if schema.get(name):
            return schema[name][0]
    for name in ("anyOf", "oneOf", "allOf"):
        if schema.get(name):
            return example_value(schema[name][0])
    kind = schema.get("type")
    kind = kind[0] if isinstance(kind, list) and kind else str(kind)
    if kind == "object":
        properties = schema.get("properties") or {}
        needed = schema.get("required", list(properties))
        return {name: example_value(properties[name]) for name in needed if name in properties}
    if kind == "array":
        return [example_value(schema.get("items") or {})] if schema.get("minItems") else []
    return {"integer": 1, "number": 1.0, "boolean": True, "null": None}.get(kind, "a")


def example_call(tool: JsonMapping, call_id: str) -> JsonObject:
    """Return a call of a tool in OpenAI's form, with arguments that fit its schema."""
    function = tool["function"]
    arguments = json.dumps(example_value(function.get("parameters") or {}))
    return {"id": call_id, "type": "function", "function": {"name": function["name"], "arguments": arguments}}
