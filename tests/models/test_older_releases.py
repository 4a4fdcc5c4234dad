"""Saved models are read by transformers 4.57, and keep the other files of their base model.

The released packages are downloaded at test time; without a package index, that test is skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import save_published
from transformers import AutoModelForCausalLM

from rove.models.load import load_model

RELEASES = ["transformers==4.57.6", "tokenizers==0.22.2", "huggingface_hub==0.36.2"]
CHAT = [{"role": "user", "content": "say 3"}, {"role": "assistant", "content": "no <|end|> x"}]
THETA = 777.0
READER = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

for folder in sys.argv[2:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(json.loads(sys.argv[1]), tokenize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1].tolist()
    row = {"ids": ids, "logits": logits, "special": tokenizer.all_special_tokens, "template": tokenizer.chat_template}
    print(json.dumps(row))
"""


def change(file: Path, **values: object) -> None:
    """Change the content of a JSON file; None removes a value."""
    content = json.loads(file.read_bytes()) | values
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def save_base(folder: Path, family: str) -> Path:
    """Write a tiny model whose positions are not those that transformers assumes without a setting."""
    save_published(family, folder, dtype=torch.bfloat16)
    parameters = json.loads((folder / "config.json").read_bytes())["rope_parameters"]
    change(folder / "config.json", rope_parameters=parameters | {"rope_theta": THETA})
    return folder


def test_a_saved_model_has_the_names_of_settings_that_older_releases_read(tmp_path: Path):
    base = save_base(tmp_path / "base", "qwen2")
    loaded = load_model(base)
    loaded.save_final(tmp_path / "final")
    config = json.loads((tmp_path / "final" / "config.json").read_bytes())
    assert (config["rope_theta"], config["rope_parameters"]["rope_theta"]) == (THETA, THETA)
    tokenizer_config = json.loads((tmp_path / "final" / "tokenizer_config.json").read_bytes())
    assert tokenizer_config["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert tokenizer_config["additional_special_tokens"] == loaded.tokenizer.extra_special_tokens
    assert "extra_special_tokens" not in tokenizer_config
    reloaded = load_model(tmp_path / "final")
    assert reloaded.model.config.rope_parameters == loaded.model.config.rope_parameters
    assert reloaded.tokenizer.extra_special_tokens == loaded.tokenizer.extra_special_tokens


def test_a_saved_model_keeps_the_settings_of_a_base_of_an_older_release(tmp_path: Path):
    base = save_base(tmp_path / "base", "phi3")
    scaling = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    older: dict[str, Any] = {"rope_parameters": None, "rope_theta": THETA, "rope_scaling": scaling}
    change(base / "config.json", **older, original_max_position_embeddings=16)
    tokens = {"image_token": "<|user|>"}
    settings = {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, "extra_special_tokens": tokens}
    change(base / "tokenizer_config.json", **settings)
    (base / "preprocessor_config.json").write_text('{"size": 28}')
    load_model(base).save_final(tmp_path / "final")
    config = json.loads((tmp_path / "final" / "config.json").read_bytes())
    assert {name: config[name] for name in ("rope_theta", "rope_scaling")} == {
        "rope_theta": THETA,
        "rope_scaling": scaling,
    }
    tokenizer_config = json.loads((tmp_path / "final" / "tokenizer_config.json").read_bytes())
    assert {name: tokenizer_config[name] for name in settings} == settings
    assert (tmp_path / "final" / "preprocessor_config.json").read_text() == '{"size": 28}'


@pytest.mark.slow
def test_transformers_4_57_reads_a_saved_model(tmp_path: Path):
    packages = tmp_path / "packages"
    options = ["--disable-pip-version-check", "--quiet", "--no-compile", "--no-deps", "--target", str(packages)]
    command = [sys.executable, "-m", "pip", "install", *options, *RELEASES]
    installed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if installed.returncode:
        pytest.skip(f"pip cannot install {RELEASES}: {installed.stderr[-200:]}")
    expected: dict[Path, tuple[list[int], torch.Tensor]] = {}
    for family in ("llama", "qwen2", "phi3", "lfm2", "mixtral"):
        loaded = load_model(save_base(tmp_path / family / "base", family))
        folder = tmp_path / family / "final"
        loaded.save_final(folder)
        ids = loaded.tokenizer.apply_chat_template(CHAT, tokenize=True, return_dict=False)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        with torch.no_grad():
            expected[folder] = ids, model(torch.tensor([ids])).logits[0, -1]
    arguments = [sys.executable, "-c", READER, json.dumps(CHAT), *map(str, expected)]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    output = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True, timeout=600).stdout
    for line, (folder, (ids, logits)) in zip(output.splitlines(), expected.items(), strict=True):
        row = json.loads(line)
        assert row["ids"] == ids, folder
        assert row["template"] == loaded.tokenizer.chat_template
        torch.testing.assert_close(torch.tensor(row["logits"]), logits, atol=1e-4, rtol=1e-4)
