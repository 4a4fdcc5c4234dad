"""Load the model that training starts from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rove.core.digest import adapter_base
from rove.core.errors import ConfigError
from rove.models.chat_templates import limit_chat_templates
from rove.models.load import LoadedModel, load_model, load_tokenizer, settings_with_adapter
from rove.models.pretrained import model_path
from rove.models.templates import TEMPLATE_FILE
from rove.rendering.template_settings import no_template
from rove.train.config import TrainingConfig


def load_initial(config: TrainingConfig, device: str) -> LoadedModel:
    """Load the initial model that the settings name."""
    return load_model(
        config.model,
        device,
        trust_remote_code=config.trust_remote_code,
        chat_template=config.chat_template,
        template_args=config.template_args,
    )


def check_template(config: TrainingConfig, needs_template: Callable[[], bool]) -> None:
    """Check the settings of the chat template, without reading weights.

    Args:
        needs_template: Function that returns whether the model must read messages; called only if the model has no template.

    Raises:
        ConfigError: The settings do not fit the model, or the model needs a template but has none.
    """
    path = Path(model_path(config.model)).expanduser()
    chat_template, args = config.chat_template, config.template_args
    while (base := adapter_base(path)) is not None:
        chat_template, args = settings_with_adapter(path, chat_template, args)
        path = Path(base).expanduser()
    has_settings = chat_template is not None or bool(args)
    if not has_settings and (path / TEMPLATE_FILE).is_file():
        return
    limit_chat_templates()
    try:
        tokenizer, _ = load_tokenizer(path, config.trust_remote_code, chat_template, args)
    except ConfigError:
        raise
    # Of a missing or damaged folder, transformers and tokenizers raise errors of all kinds. `begin` and `load_model` report them.
    except Exception:
        return
    if not tokenizer.chat_template and needs_template():
        raise no_template()
