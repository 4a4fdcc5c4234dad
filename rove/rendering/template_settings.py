"""Settings of a chat template: a template that replaces the model's own, and variables of the template."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from rove.core.digest import fingerprint
from rove.core.errors import ConfigError
from rove.core.plain import JsonObject

CHATML = "chatml"
"""Name of the template that every tokenizer can use."""


class TemplateSettings(NamedTuple):
    """A chat template and template variables that replace the model's defaults."""

    chat_template: str | None = None
    """Jinja source of the template; None means the tokenizer's template."""
    args: Mapping[str, object] = MappingProxyType({})
    """Variables of the template in every conversation, such as `enable_thinking`; variables of a request take precedence."""

    @property
    def identity(self) -> JsonObject:
        """The part of an evaluation's identity that comes from these settings; empty without settings."""
        identity: JsonObject = {}
        if self.chat_template is not None:
            identity["chat_template"] = fingerprint({"source": self.chat_template})
        if self.args:
            identity["template_args"] = dict(self.args)
        return identity


OWN_TEMPLATE = TemplateSettings()
"""The settings for using the tokenizer's template without variables."""


def no_template() -> ConfigError:
    """Return the error to raise if messages are sent to a model without a chat template."""
    return ConfigError(
        "the model has no chat template, so it cannot read messages. Give it one with --chat-template (setting "
        f'chat_template): "{CHATML}", or the path of a Jinja file. Or use raw texts, which need none: environments with '
        'message_type="completion", rows with the texts "prompt" and "completion" in rove sft, /v1/completions over HTTP'
    )
