"""Load the model that training starts from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rove.core.digest import adapter_base
from rove.core.errors import ConfigError
from rove.models.chat_templates import limit_chat_templates
from rove.models.load import LoadedModel, load_model, load_tokenizer, settings_with_adapter
from rove.models.pretrained import model_path
from rove.rendering.renderer import Renderer
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


def check_template(config: TrainingConfig, check: Callable[[Renderer], None]) -> None:
    """Without loading the weights, check the settings of the chat template and whether it can render what the model must read.

    Args:
        check: Raises a `ConfigError` if the model cannot read the data or the environment.

    Raises:
        ConfigError: The settings do not fit the model, or `check` raises it.
    """
    path = Path(model_path(config.model)).expanduser()
    chat_template, args = config.chat_template, config.template_args
    while (base := adapter_base(path)) is not None:
        chat_template, args = settings_with_adapter(path, chat_template, args)
        path = Path(base).expanduser()
    limit_chat_templates()
    try:
        tokenizer, settings = load_tokenizer(path, config.trust_remote_code, chat_template, args)
    except ConfigError:
        raise
    # Of a missing or damaged folder, transformers and tokenizers raise errors of all kinds. `begin` and `load_model` report them.
    except Exception:
        return
    check(Renderer(tokenizer, settings=settings))
