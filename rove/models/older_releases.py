"""Write model folders that older releases of transformers, and programs with the same settings, can read.

transformers 5 writes some settings under new names. transformers 4.57 then refuses the tokenizer, or silently computes with
default position embeddings. transformers 5 reads both names, so rove writes both; see docs/decisions/weight_names.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rove.core.plain import JsonObject

MODEL_CONFIG, TOKENIZER_CONFIG = "config.json", "tokenizer_config.json"
PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""Names of the processor files of models that also read images; no tokenizer writes these files."""
OLDER_CLASSES = {"TokenizersBackend": "PreTrainedTokenizerFast"}
"""Class names in transformers 5 → names of the same classes in 4.57."""
TOKENIZER_SETTINGS = ("add_bos_token", "add_eos_token", "added_tokens_decoder")
"""Settings of the loaded tokenizer that transformers 5 leaves out."""
ROPE_SETTINGS = ("rope_theta", "rope_scaling", "rope_local_base_freq", "partial_rotary_factor")
"""Settings that transformers 5 writes as `rope_parameters`."""
GPT_NEOX_NAMES = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
"""Names of the same settings in GPT-NeoX."""

SmallFiles = Mapping[str, bytes]
"""Contents of the configuration files of a loaded model, by file name."""


def read_small_files(folder: Path) -> dict[str, bytes]:
    """Return the configuration files of a model, its tokenizer and its processors.

    They are read when the model is loaded, because its folder may be gone when training ends.
    """
    files = [folder / name for name in (MODEL_CONFIG, TOKENIZER_CONFIG, *PROCESSOR_FILES)]
    return {file.name: file.read_bytes() for file in files if file.is_file()}


def save_tokenizer(tokenizer: Any, folder: Path, small_files: SmallFiles | None = None) -> None:
    """Write a tokenizer, and the processor files of the model that it belongs to.

    Args:
        small_files: The result of `read_small_files` for the model that was loaded.
    """
    tokenizer.save_pretrained(folder)
    small_files = small_files or {}
    for name in PROCESSOR_FILES:
        if name in small_files:
            (folder / name).write_bytes(small_files[name])
    loaded = json.loads(small_files.get(TOKENIZER_CONFIG, b"{}"))
    config = json.loads((folder / TOKENIZER_CONFIG).read_bytes())
    for name in TOKENIZER_SETTINGS:
        if name in loaded:
            config.setdefault(name, loaded[name])
    tokenizer_class = loaded.get("tokenizer_class") or config["tokenizer_class"]
    config["tokenizer_class"] = OLDER_CLASSES.get(tokenizer_class, tokenizer_class)
    # 4.57 expects a mapping of names to tokens there and fails with a list; transformers 5 takes the older name of the list.
    if isinstance(config.get("extra_special_tokens"), list):
        config["additional_special_tokens"] = config.pop("extra_special_tokens")
    named_tokens = loaded.get("extra_special_tokens")
    if isinstance(named_tokens, dict):
        config["extra_special_tokens"] = named_tokens
    write_json(folder / TOKENIZER_CONFIG, config)


def save_model(model: Any, folder: Path, small_files: SmallFiles | None = None) -> None:
    """Write the weights and the configuration of a model."""
    model.save_pretrained(folder)
    add_older_settings(model.config, folder, json.loads((small_files or {}).get(MODEL_CONFIG, b"{}")))


def add_older_settings(config: Any, folder: Path, loaded: JsonObject) -> None:
    """Add the settings of the position embeddings, under their older names, to the configuration in a folder.

    Args:
        config: The configuration in the folder.
        loaded: The content of the configuration with which the model was loaded.
    """
    file = folder / MODEL_CONFIG
    written = file.read_bytes()
    content = json.loads(written)
    _add_rope_settings(content, loaded)
    if "text_config" in content:
        _add_rope_settings(content["text_config"], loaded.get("text_config", {}))
    if content == json.loads(written):
        return
    write_json(file, content)
    try:
        positions = _positions(type(config).from_pretrained(folder))
    except Exception:  # a family may mean something else by an older name; transformers raises errors of all kinds
        positions = None
    # The older names must not change what transformers 5 computes; if they do, the file stays without them.
    if positions != _positions(config):
        file.write_bytes(written)


def _positions(config: Any) -> object:
    return getattr(config.get_text_config(), "rope_parameters", None)


def _add_rope_settings(config: JsonObject, loaded: JsonObject) -> None:
    if not config.get("rope_parameters"):
        return
    # As published, if they were: 4.57 refuses those of Phi-3 in any other form.
    names = (*ROPE_SETTINGS, *GPT_NEOX_NAMES.values())
    settings = {name: loaded[name] for name in names if name in loaded}
    if not settings:
        settings = _older_rope_settings(config["rope_parameters"], str(config.get("model_type")))
    for name, value in settings.items():
        config.setdefault(name, value)


def _older_rope_settings(parameters: JsonObject, model_type: str) -> JsonObject:
    """Return `rope_parameters` as older settings; {} if each kind of layer has its own, for which 4.57 has no names."""
    settings: JsonObject = {}
    may_scale = True
    if "full_attention" in parameters and "sliding_attention" in parameters:
        settings["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
        may_scale = model_type.startswith(("gemma3", "olmo3"))
    if "rope_theta" not in parameters:
        return {}
    settings["rope_theta"] = parameters["rope_theta"]
    if "partial_rotary_factor" in parameters:
        settings["partial_rotary_factor"] = parameters["partial_rotary_factor"]
    if may_scale and parameters["rope_type"] != "default":
        settings["rope_scaling"] = {name: value for name, value in parameters.items() if name not in ROPE_SETTINGS}
    if model_type.startswith("gpt_neox"):
        settings = {GPT_NEOX_NAMES.get(name, name): value for name, value in settings.items()}
    return settings


def write_json(file: Path, content: JsonObject) -> None:
    """Write a configuration file as transformers does."""
    file.write_text(
        json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n"
    )
