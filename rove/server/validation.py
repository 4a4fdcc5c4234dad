"""JSON responses, and errors in the format of the requested API."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec
from aiohttp import web

from rove.core.errors import (
    ConfigError,
    Error,
    InfraError,
    ModelError,
    OverlongPromptError,
    RejectedError,
    StructuredOutputError,
    excerpt,
)
from rove.core.plain import JsonObject
from rove.wire.serving import error_body
from rove.wire.serving_anthropic import error_body as anthropic_error

logger = logging.getLogger(__name__)


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a JSON response."""
    content = msgspec.json.encode(body)
    return web.Response(status=status, body=content, content_type="application/json", headers=headers)


def error_response(error: Exception, api: str = "") -> tuple[int, JsonObject]:
    """Return the HTTP status of an error and its JSON body in the format of an API (see `ServingRequest.api`).

    Errors that the caller can fix, including a prompt that is too long, are 4xx. The status is 502 for an unusable model
    response, 503 for an unreachable endpoint, and 500 for any other error.
    """
    status, body = _openai_error(error)
    if api == "anthropic":
        return status, anthropic_error(status, body["error"]["message"])
    if api == "responses":
        return status, {**body["error"], **body, "type": "error"}
    return status, body


def _openai_error(error: Exception) -> tuple[int, JsonObject]:
    message = excerpt(error, 1000)
    if isinstance(error, RejectedError):
        return error.status, error_body(message, _type(error.status), error.code)
    if isinstance(error, web.RequestPayloadError):
        return 400, error_body(f"the body could not be read: {message}")
    if isinstance(error, web.HTTPException):
        return _http_error(error)
    if isinstance(error, OverlongPromptError):
        return 400, error_body(message, code="context_length_exceeded")
    if isinstance(error, (ConfigError, StructuredOutputError)):
        return 400, error_body(message)
    if isinstance(error, ModelError):
        return 502, error_body(message, "model_error")
    if isinstance(error, InfraError):
        return 503, error_body(message, "server_error")
    if not isinstance(error, Error):
        logger.error("a request failed", exc_info=error)
    return 500, error_body(f"{type(error).__name__}: {message}", "server_error")


def _http_error(error: web.HTTPException) -> tuple[int, JsonObject]:
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return 413, error_body(f"the body is too large: {error.text}", code="body_too_large")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return 405, error_body(f"this path does not take {error.method}; expected {allowed}")
    return error.status, error_body(f"{error.reason}", _type(error.status))


def refusal(error: Exception, path: str = "") -> web.Response:
    """Return the response to a request for `path` that failed with `error`."""
    api = "anthropic" if path.endswith(("/messages", "/messages/count_tokens")) else ""
    status, body = error_response(error, api)
    headers: dict[str, str] = {}
    if status == 503:  # clients pause as long before they try again
        headers["Retry-After"] = "1"
    if isinstance(error, web.HTTPMethodNotAllowed):
        headers["Allow"] = error.headers["Allow"]
    if status == 408:  # the rest of the late body would be read as the next request
        headers["Connection"] = "close"
    return json_response(body, status, headers)


def _type(status: int) -> str:
    if status == 401:
        return "authentication_error"
    return "invalid_request_error" if status < 500 else "server_error"
