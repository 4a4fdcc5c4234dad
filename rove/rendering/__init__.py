"""Messages to tokens and back: chat templates and the formats of tool calls."""
