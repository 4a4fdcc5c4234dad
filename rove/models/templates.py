"""Read chat templates by name or file, check their variables, and store both in model folders.

See docs/decisions/base_models.md for the end of a turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import TemplateError, meta, nodes
from transformers.utils import chat_template_utils

from rove.core.errors import ConfigError
from rove.core.plain import UNREADABLE, JsonObject
from rove.core.protocols import RENDERER_ARGUMENTS
from rove.rendering.template_settings import CHATML, TemplateSettings, no_template
from rove.rendering.tool_support import TOOL_VARIABLES

TEMPLATE_FILE = "chat_template.jinja"
"""Name of the file in which transformers stores a chat template."""
ARGS_FILE = "template_args.json"
"""Name of rove's additional file with the template variables of a model or adapter that was trained with such settings."""
CHATML_SOURCE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + END + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
IM_END = "<|im_end|>"
_ANSWER = "answer of the probe"
_CONVERSATION = [{"role": "user", "content": "question of the probe"}, {"role": "assistant", "content": _ANSWER}]


def read_template(chat_template: str) -> str:
    """Return the source of a template by its name or file; the source of ChatML depends on the tokenizer (see `use_template`)."""
    if chat_template == CHATML:
        return CHATML_SOURCE
    file = Path(chat_template).expanduser()
    if not file.is_file():
        raise ConfigError(f"chat_template is '{chat_template}'; expected '{CHATML}', or the path of a Jinja file")
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the chat template {file} cannot be read: {error}; expected a text file with a Jinja template"
        ) from error


def use_template(tokenizer: Any, model: str, chat_template: str | None, args: Mapping[str, object]) -> TemplateSettings:
    """Put the template of the settings into a tokenizer, and check the variables.

    Args:
        tokenizer: Tokenizer of the model.
        model: Name of the model in messages.
        chat_template: Name or file of the template; None means the tokenizer's template.
        args: Variables of the template.

    Raises:
        ConfigError: There is no such template, it is not valid, or it does not mention a variable.
    """
    source: str | None = None
    if chat_template is not None:
        source = _chatml(tokenizer) if chat_template == CHATML else read_template(chat_template)
        tokenizer.chat_template = source
        try:
            template_variables(source)
        except TemplateError as error:
            raise ConfigError(
                f"the chat template {chat_template} is not a Jinja template: {error}; correct it, or use '{CHATML}'"
            ) from error
    if args:
        _check_args(tokenizer, model, args)
    return TemplateSettings(source, dict(args))


def _chatml(tokenizer: Any) -> str:
    """Return ChatML for a tokenizer; if it has no `<|im_end|>`, turns end with its end-of-sequence token."""
    id = tokenizer.get_vocab().get(IM_END)
    if id is not None and tokenizer.encode(IM_END, add_special_tokens=False) == [id]:
        end = f"'{IM_END}'"
    elif tokenizer.eos_token_id is not None:
        end = "eos_token"
    else:
        raise ConfigError(
            f"chat_template is '{CHATML}', but the tokenizer has neither {IM_END} nor an end-of-sequence token, so no token can "
            "end a turn; set eos_token in its tokenizer_config.json"
        )
    bos = tokenizer.bos_token_id
    # A model that never saw a text without its first token (Gemma, Llama) would answer badly.
    adds_bos = bos is not None and tokenizer.encode("", add_special_tokens=True)[:1] == [bos]
    return ("{{ bos_token }}" if adds_bos else "") + CHATML_SOURCE.replace("END", end)


def _check_args(tokenizer: Any, model: str, args: Mapping[str, object]) -> None:
    template: object = tokenizer.chat_template
    if not template:
        raise no_template()
    sources = list(template.values()) if isinstance(template, dict) else [str(template)]
    variables: set[str] = set()
    for source in sources:
        variables |= template_variables(source)
    # Those are arguments of rove's or of the tokenizer's.
    variables -= {*RENDERER_ARGUMENTS, *TOOL_VARIABLES, *tokenizer.special_tokens_map}
    unknown = sorted(args.keys() - variables)
    if unknown:
        has = f"it has: {', '.join(sorted(variables))}" if variables else "it has no variables that can be set"
        raise ConfigError(
            f"template_args has '{unknown[0]}', a variable that the chat template of {model} does not mention; {has}"
        )


def template_variables(source: str) -> set[str]:
    """Return the names that a template reads without always setting them first."""
    tree = chat_template_utils._compile_jinja_template(source).environment.parse(source)
    # Jinja also returns names that are set in every branch of an `if` and read after it. They are set before they are read.
    return meta.find_undeclared_variables(tree) & set(_names_read_first(tree, set()))


_SCOPES = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.With, nodes.Block, nodes.Scope)
"""Parts of a template with their own scope: names that they set, and their parameters, do not exist after them."""


def _names_read_first(node: nodes.Node, set_names: set[str]) -> Iterator[str]:
    """Yield the names that a node reads without setting them first; add the names that it sets to `set_names`."""
    if isinstance(node, nodes.Name):
        if node.ctx != "load":
            set_names.add(node.name)
        elif node.name not in set_names:
            yield node.name
    names = set(set_names) if isinstance(node, _SCOPES) else set_names
    children = list(node.iter_child_nodes())
    if isinstance(node, nodes.Assign | nodes.AssignBlock):
        children.append(children.pop(0))  # the value before the name that gets it
    elif isinstance(node, nodes.For):
        children[:2] = node.iter, node.target  # Jinja lists the target first, but the list is read before it is set
    for child in children:
        yield from _names_read_first(child, names)


def end_of_turn(tokenizer: Any, settings: TemplateSettings) -> int | None:
    """Return the token with which a template ends the model's turn; None if the template writes nothing after an answer.

    Raises:
        ConfigError: The template ends the turn with a text that is not a token, so that sampling could not stop there.
    """
    try:
        text = tokenizer.apply_chat_template(
            _CONVERSATION, tokenize=False, **{**settings.args, "add_generation_prompt": False}
        )
    except Exception as error:  # templates can raise any error
        raise ConfigError(
            f"the chat template cannot render a question and an answer: {type(error).__name__}: {error}; correct it"
        ) from error
    if _ANSWER not in text:
        raise ConfigError("the chat template leaves out the messages of the assistant; correct it")
    ending = text.rpartition(_ANSWER)[2].strip()
    if not ending:
        return None
    ids = tokenizer.encode(ending, add_special_tokens=False)
    if ids[0] == tokenizer.eos_token_id or ids[0] in tokenizer.added_tokens_decoder:
        return ids[0]
    raise ConfigError(
        f"the chat template ends the model's turn with {ending[:40]!r}, which is not a token of this tokenizer, so sampling "
        f"would not stop there; write {{{{ eos_token }}}} at the end of a turn, or use chat_template '{CHATML}'"
    )


def write_settings(folder: Path, settings: TemplateSettings, is_adapter: bool) -> None:
    """Write the settings of the template into a model or adapter folder, if there are any, so that later commands use them."""
    if settings.chat_template is None and not settings.args:
        return
    # The tokenizer of a model is saved with its template; an adapter is saved without a tokenizer.
    if is_adapter and settings.chat_template is not None:
        (folder / TEMPLATE_FILE).write_text(settings.chat_template, encoding="utf-8", newline="\n")
    (folder / ARGS_FILE).write_bytes(msgspec.json.encode(dict(settings.args)))


def read_args(folder: Path) -> JsonObject:
    """Return the template variables with which a model or adapter was trained."""
    file = folder / ARGS_FILE
    if not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=JsonObject)
    except (OSError, *UNREADABLE) as error:
        raise ConfigError(
            f"{file} cannot be read ({error}); expected a JSON object of variables of the chat template: delete it, and set "
            "template_args"
        ) from error


def adapter_template(folder: Path) -> str | None:
    """Return the file of the template with which an adapter was trained; None means the template of its base model.

    Other programs also save a template next to adapters, but without rove's file of variables. For such adapters, rove has
    always used the base model's template.
    """
    file = folder / TEMPLATE_FILE
    return str(file) if file.is_file() and (folder / ARGS_FILE).is_file() else None
