"""First inputs that no literal of the tests holds: packages, weights, tables, records."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path

import msgspec
import packages
import pyarrow
import pyarrow.parquet
import torch
from safetensors.torch import save

from rove.core.records import RolloutRecord, Scores, StepTokens, TrajectoryStep, Usage
from rove.hub.package.signing import load_key, make_key, sign
from rove.runs.serialization import encode_record
from tests.fuzz.targets_file import RUN_FILES
from tests.models.test_gguf import write_tiny

ENTRY_POINTS = b"[rove.environments]\nmy-sums = my_sums:load_environment\n"


def binary_seeds() -> dict[str, list[bytes]]:
    """Return first inputs by the name of their target."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = packages.wheel_files()
        metadata, wheel = files["my_sums-1.0.dist-info/METADATA"], files["my_sums-1.0.dist-info/WHEEL"]
        packages.put_package(folder / "package", tags=["math"])
        manifest = (folder / "package" / "manifest.json").read_bytes()
        make_key(folder / "signing.key")
        signature = sign(manifest, load_key(folder / "signing.key"))
        write_tiny(folder / "model.gguf")
        record = encode_record(_record())
        return {
            "wheel": [packages.make_zip(packages.with_record(files))],
            "source_archive": [packages.make_tar(packages.source_files())],
            "wheel_parts": [b"\n----\n".join([metadata, wheel, ENTRY_POINTS, b"my_sums\n", packages.MODULE])],
            "manifest": [manifest, signature],
            "package_folder": [manifest, manifest + b"\n----\n" + signature],
            "gguf": [(folder / "model.gguf").read_bytes()],
            "safetensors": [save({"a": torch.zeros(2, 3), "b": torch.ones(1, dtype=torch.bfloat16)})],
            "questions_parquet": [_table({"question": ["2+2?", "3+3?"], "answer": ["4", "6"]})],
            "rollout_line": [record],
            "model_files": [
                b'config.json\n{"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 8}',
                b'tokenizer_config.json\n{"tokenizer_class": "PreTrainedTokenizerFast", "auto_map": {"AutoTokenizer": ["a.A"]}}',
                b'tokenizer.json\n{"added_tokens": [{"id": 0, "content": "<end>"}], "model": {"type": "BPE", "vocab": {}}}',
            ],
            "run_folder": [b"rollouts.jsonl\n" + record + b"\n", *(f"{name}\n".encode() for name in RUN_FILES)],
        }


def _record() -> RolloutRecord:
    question = {"role": "user", "content": "2+2?"}
    answer = {"role": "assistant", "content": "4"}
    tokens = StepTokens([1, 2], [3], [-0.5], 2, [(1, 1)])
    step = TrajectoryStep([question], [answer], usage=Usage(2, 1), tokens=tokens, attempts=["HTTP 503"], reward=0.5)
    later = TrajectoryStep([question, answer, question], [answer], tokens=StepTokens([1, 2, 3, 4], [5], [-1.0]))
    scores = Scores(1.0, {"correct": 1.0}, {"correct": 1.0}, {"length": 1.0})
    return RolloutRecord(
        *("key", 0, 0, 7, [question], [answer], "4", {"level": 1}, [step, later], "stop", False, scores, None),
        model_roles={"judge": [step]},
    )


def _table(columns: dict[str, list[str]]) -> bytes:
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), stream)
    return stream.getvalue()


def json_of(value: object) -> bytes | None:
    """Return a literal as JSON; None if JSON cannot represent it."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError):
        return None
