"""Settings of a chat template: another template than the model's own, and variables of the template."""

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
    """What settings change about the chat template of a model."""

    chat_template: str | None = None
    """Jinja source of the template; None: the template of the tokenizer."""
    args: Mapping[str, object] = MappingProxyType({})
    """Variables of the template in every conversation, such as `enable_thinking`; those of a request win."""

    @property
    def identity(self) -> JsonObject:
        """What identifies an evaluation besides the weights; empty without settings, as in runs of older versions."""
        identity: JsonObject = {}
        if self.chat_template is not None:
            identity["chat_template"] = fingerprint({"source": self.chat_template})
        if self.args:
            identity["template_args"] = dict(self.args)
        return identity


OWN_TEMPLATE = TemplateSettings()
"""The template of the tokenizer, without variables."""


def no_template() -> ConfigError:
    """Return the error for messages to a model without a chat template."""
    return ConfigError(
        "the model has no chat template, so it cannot read messages. Give it one with --chat-template (setting "
        f'chat_template): "{CHATML}", or the path of a Jinja file. Or use raw texts, which need none: environments with '
        'message_type="completion", rows with the texts "prompt" and "completion" in rove sft, /v1/completions over HTTP'
    )
