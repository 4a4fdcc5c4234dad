"""Names of types that packages for 0.1.0 to 0.1.10 import, mostly to annotate with."""

from __future__ import annotations

from typing import Any, Literal

from rove.compat.verifiers.messages import Message, Messages, ToolCall
from rove.compat.verifiers.types import Response

ChatMessage = Message
ChatMessages = Messages
ChatCompletionMessageToolCall = ToolCall
ChatCompletion = Completion = ModelResponse = Response
ChatCompletionToolParam = FunctionDefinition = FunctionParameters = dict[str, Any]
ChatCompletionRole = Literal["developer", "system", "user", "assistant", "tool", "function"]
JsonPrimitive = Literal["string", "number", "integer", "boolean", "array", "object"]
