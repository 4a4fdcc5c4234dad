"""The model card of a trained model: a `README.md` in the Hugging Face hub's format, written from what rove recorded."""

from __future__ import annotations

import logging
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple, cast

import msgspec
import yaml
from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub import metadata_load as read_metadata  # pyright: ignore[reportUnknownVariableType]

from rove.core.digest import ADAPTER_CONFIG, MODEL_CARD
from rove.core.masking import public_path, without_secrets
from rove.core.plain import JsonMapping, JsonObject, is_mapping, is_sequence
from rove.models.load import LoadedModel, folder_of, is_cached
from rove.models.pretrained import CATALOG, model_path, models_folder
from rove.models.templates import ARGS_FILE, TEMPLATE_FILE, read_args
from rove.runs.run import Run
from rove.statistics.format import caveats, interval, limits, number
from rove.train.config import RLConfig, SFTConfig, TrainingConfig
from rove.utils.files import atomic_write
from rove.utils.markdown import cell

logger = logging.getLogger(__name__)

TAG = "rove"
SHOWN_SETTINGS = ("steps", "epochs", "batch_size", "learning_rate", "seed")
"""Settings that the card names even if they have their default values."""
OMITTED_SETTINGS = frozenset(
    {"model", "env", "env_args", "env_dir", "data", "evaluation", "run_dir", "device", "threads", "loggers", "vllm"}
    | {"isolation", "ray", "trust_remote_code"}
)
"""Settings that the card states elsewhere, or that describe the machine."""
LICENSE_FIELDS = ("license", "license_name", "license_link")
HUB_NAME = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*")
"""Pattern of a model's name on the Hugging Face hub; names of old models have no owner."""
HUB_CACHE = re.compile(r"/models--([\w.-]+?)--([\w.-]+)/snapshots/\w+/?$")
"""Pattern of a model's folder in Hugging Face's cache."""


class Measurement(NamedTuple):
    """The result of one model in one environment."""

    model: str
    """Name in the table, such as "base" or "step 20"."""
    env: str
    """Environment and version."""
    condition: str
    """Name of the evaluation; "" without one."""
    estimates: Mapping[str, JsonMapping]
    """Metric → its mean, and the limits `low` and `high` of its 95% interval."""


def write_card(
    folder: Path,
    run: Run,
    config: RLConfig | SFTConfig,
    summary: JsonMapping,
    measurements: Sequence[Measurement] = (),
    name: str = "",
    notes: Sequence[str] = (),
) -> None:
    """Write the card of a trained model into its folder; if that fails, only warn, because the model is worth more than its card.

    Args:
        run: The run that trained the model.
        summary: The summary of the run, which says which weights were kept.
        measurements: Results to show. Default: the evaluations of the run.
        name: Name of this model in the measurements.
        notes: Sentences about the measurements, such as that some of their examples chose the weights.
    """
    try:
        text = _card(folder, run, config, summary, measurements, name, notes)
        atomic_write(folder / MODEL_CARD, text.encode("utf-8", "replace"))
    except Exception as error:  # the base model, whose license the card states, may be gone by now
        logger.warning("The model is saved without its card %s: %s: %s", MODEL_CARD, type(error).__name__, error)


def _card(
    folder: Path,
    run: Run,
    config: RLConfig | SFTConfig,
    summary: JsonMapping,
    measurements: Sequence[Measurement],
    name: str,
    notes: Sequence[str],
) -> str:
    kind, model = run.config()["kind"], config.model
    kept_step = _kept_step(run, summary)
    measured_in_training = not measurements
    if measured_in_training:
        name = f"after step {kept_step}"
        measurements = _evaluations(run, config, kept_step)
    base = _base_metadata(model)
    library = "peft" if (folder / ADAPTER_CONFIG).exists() else "transformers"
    subject = f"{_public_model(model)} trained with {kind.upper()}"
    tags = [TAG, kind]
    if library == "peft":
        tags.append("lora")
    results = list(_eval_results([measurement for measurement in measurements if measurement.model == name]))
    data = ModelCardData(
        **base,
        library_name=library,
        pipeline_tag="text-generation",
        tags=tags,
        model_name=subject if results else None,
        eval_results=results or None,
    )
    facts = {
        "base model": _public_model(model),
        "license of the base model": base.get("license_name") or base.get("license") or "unknown",
        **_data_facts(run, config, summary),
        "weights": _weights(kept_step, summary),
        **{setting: _public_json(value) for setting, value in _settings(config)},
        "software": _software(run),
    }
    front_matter = data.to_yaml().rstrip("\n")  # pyright: ignore[reportUnknownMemberType]
    lines = ["---", front_matter, "---", "", f"# {subject}", "", "## Training", "", "| | |", "|---|---|"]
    lines += [f"| {label} | {cell(value)} |" for label, value in facts.items()]
    lines += ["", "## Results", "", *_results(run, summary, measurements, kept_step, measured_in_training)]
    for note in notes:
        lines += ["", f"Note: {cell(note)}"]
    lines += ["", "## Use", "", *_usage(config, library, folder), ""]
    return "\n".join(lines)


def save_result(config: RLConfig | SFTConfig, run: Run, loaded: LoadedModel, summary: JsonMapping) -> Path:
    """Save the model of a run with its card in `final/`; return that folder."""

    def write(folder: Path) -> None:
        loaded.save_final(folder)
        write_card(folder, run, config, summary)

    return run.save_final(write)


def _public_model(model: str) -> str:
    """Return the name of a model without the folders of this machine."""
    return _hub_name(model) or public_path(model)


def _hub_name(model: str) -> str | None:
    """Return a model's name on the Hugging Face hub; None if the model is not known to be on the hub."""
    if model in CATALOG and not Path(model).is_dir():
        return None
    path = Path(model_path(model)).expanduser()
    if not path.is_dir() and is_cached(model):
        return model
    if path.parent == models_folder() and "--" in path.name:
        return path.name.replace("--", "/", 1)  # as `rove model get hf:…` names it
    match = HUB_CACHE.search(path.absolute().as_posix())
    return f"{match[1]}/{match[2]}" if match else None


def _base_metadata(model: str) -> JsonObject:
    """Return the fields of the card about the initial model (name and license), as far as they are known."""
    metadata: JsonObject = {}
    loaded = _card_metadata(folder_of(model_path(model)) / MODEL_CARD)
    if model in CATALOG and not Path(model).is_dir():
        metadata["license"] = CATALOG[model].license.lower()
    for name in LICENSE_FIELDS:
        if isinstance(loaded.get(name), str):
            metadata[name] = public_path(loaded[name])
    # A model that rove trained derives from the same published model as the one that is trained from it.
    tags = loaded.get("tags")
    inherited = loaded.get("base_model") if is_sequence(tags) and TAG in tags else None
    name = _hub_name(model) or inherited
    # The card of a model from elsewhere may name a folder of its author's machine.
    if isinstance(name, str) and HUB_NAME.fullmatch(name):
        metadata["base_model"] = name
    return metadata


def _card_metadata(card: Path) -> JsonMapping:
    """Return the metadata of a model's card; {} if the card has none or is damaged, as cards from other sources may be."""
    try:
        metadata = cast("object", read_metadata(card)) if card.is_file() else None
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return metadata if is_mapping(metadata) else {}


def _kept_step(run: Run, summary: JsonMapping) -> int:
    """Return the step whose weights were kept."""
    best = summary.get("best")
    return int(best["step"] if best else run.metrics()[-1]["step"])


def _evaluations(run: Run, config: TrainingConfig, kept_step: int) -> list[Measurement]:
    """Return the results of the evaluations during a run: before training, and after the step `kept_step`."""
    rows = {int(row["step"]): row for row in run.metrics()}
    versions = run.config()["identity"].get("evaluated", [evaluation.env for evaluation in config.evaluation])
    measurements: list[Measurement] = []
    for evaluation, version in zip(config.evaluation, versions, strict=True):
        prefix = f"eval/{evaluation.label}/reward/"
        condition = f"{evaluation.label}, temperature {evaluation.temperature:g}"
        for step in sorted({0, kept_step}):
            model = "before training" if step < kept_step else f"after step {kept_step}"
            row = rows.get(step, {})
            if f"{prefix}mean" not in row:
                continue
            low, high = row.get(f"{prefix}interval_low"), row.get(f"{prefix}interval_high")
            estimate = {"mean": row[f"{prefix}mean"], "low": low, "high": high}
            measurements.append(Measurement(model, str(version), condition, {"reward": estimate}))
    return measurements


def _eval_results(measurements: Iterable[Measurement]) -> Iterator[EvalResult]:
    """Yield the results of the card's model in the form of the hub."""
    for measurement in measurements:
        env, _, revision = measurement.env.partition("#")
        for metric, estimate in measurement.estimates.items():
            mean = estimate.get("mean")
            if not isinstance(mean, float | int) or not math.isfinite(mean):
                continue
            bounds = limits(estimate)
            yield EvalResult(
                task_type="text-generation",
                dataset_type=public_path(env),
                dataset_name=f"{public_path(env)} {measurement.condition}".rstrip(),
                dataset_revision=revision or None,
                metric_type=metric,
                metric_name=f"mean of {metric}",
                metric_value=mean,
                metric_args={"interval_95": list(bounds)} if bounds else None,
            )


def _data_facts(run: Run, config: RLConfig | SFTConfig, summary: JsonMapping) -> dict[str, str]:
    """Return facts about the training data: an environment, or conversations."""
    identity = run.config()["identity"]
    if isinstance(config, RLConfig):
        version = identity.get("env")
        facts = {"environment": public_path(version) if isinstance(version, str) else config.env}
        if config.env_args:
            facts["arguments of the environment"] = _public_json(config.env_args)
        return facts
    return {
        "data": f"{public_path(config.data)} ({identity.get('data')})",
        "conversations": str(summary["conversations"]),
    }


def _weights(kept_step: int, summary: JsonMapping) -> str:
    best = summary.get("best")
    return f"after step {kept_step}, chosen by `{best['metric']}`" if best else f"after step {kept_step}"


def _software(run: Run) -> str:
    versions = run.versions()[-1]
    return ", ".join(f"{name} {version}" for name, version in versions.items() if name != "platform")


def _results(
    run: Run, summary: JsonMapping, measurements: Sequence[Measurement], kept_step: int, measured_in_training: bool
) -> Iterator[str]:
    """Yield the table of results; without evaluations, yield the last measurement of the training itself.

    Args:
        measured_in_training: Whether the measurements are those by which the training may have chosen the weights.
    """
    if not measurements:
        row = next(row for row in reversed(run.metrics()) if row["step"] == kept_step)
        values = [f"{name} {row[name]:.4g}" for name in ("reward/mean", "validation_loss", "loss") if name in row]
        yield f"The run has no evaluation. Measured in training at step {kept_step}: {', '.join(values)}."
        return
    yield from ("| model | environment | metric | mean | 95% interval |", "|---|---|---|---:|---:|")
    for measurement in measurements:
        env = f"{public_path(measurement.env)} {measurement.condition}".rstrip()
        for metric, estimate in measurement.estimates.items():
            cells = (measurement.model, env, metric, number(estimate.get("mean")), interval(estimate))
            yield f"| {' | '.join(map(cell, cells))} |"
    note = caveats(chain.from_iterable(measurement.estimates.values() for measurement in measurements))
    if note:
        yield from ("", f"\\{note}")
    best = summary.get("best")
    if measured_in_training and best and best["metric"].startswith("eval/"):
        yield ""
        yield f"The weights were chosen by `{best['metric']}`, so this value is probably higher than on new examples."


def _usage(config: TrainingConfig, library: str, folder: Path) -> Iterator[str]:
    """Yield examples with transformers, or PEFT, and rove."""
    name = "AutoPeftModelForCausalLM" if library == "peft" else "AutoModelForCausalLM"
    prompt = _prompt_lines(folder, is_adapter=library == "peft")
    yield from ("```python", f"from {library} import {name}")
    if prompt:
        yield "from transformers import AutoTokenizer"
    yield from ("", f'model = {name}.from_pretrained("FOLDER")', *prompt, "```", "")
    if prompt:
        yield from ("The model was trained with these settings of the chat template; rove uses them by itself.", "")
    if library == "peft":
        yield from ("`adapter_config.json` names the base model; change it to where the base model is.", "")
    command = "rove eval ENVIRONMENT -m FOLDER"
    if isinstance(config, RLConfig):
        command = f"rove eval {public_path(config.env)} -m FOLDER"
        if config.env_args:
            command += f" -a {shlex.quote(_public_json(config.env_args))}"
    yield from ("```bash", command, "```")


def _prompt_lines(folder: Path, is_adapter: bool) -> list[str]:
    """Return code that renders a prompt as in training; [] if the model was trained with the template as it is."""
    if not (folder / ARGS_FILE).is_file():
        return []
    lines = [f'tokenizer = AutoTokenizer.from_pretrained("{"BASE MODEL" if is_adapter else "FOLDER"}")']
    if is_adapter and (folder / TEMPLATE_FILE).is_file():
        lines.append(f'tokenizer.chat_template = open("FOLDER/{TEMPLATE_FILE}").read()')
    arguments = ["messages", "add_generation_prompt=True"]
    arguments += [f"{name}={value!r}" for name, value in read_args(folder).items()]
    return [
        *lines,
        'messages = [{"role": "user", "content": "QUESTION"}]',
        f"prompt = tokenizer.apply_chat_template({', '.join(arguments)})",
    ]


def _settings(settings: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the settings that differ from their defaults, and the most important ones."""
    for field in msgspec.structs.fields(settings):
        value = getattr(settings, field.name)
        default: object = field.default
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        if not prefix and field.name in OMITTED_SETTINGS:
            continue
        if isinstance(value, msgspec.Struct):
            yield from _settings(value, f"{prefix}{field.name}.")
        elif value != default or (not prefix and field.name in SHOWN_SETTINGS):
            yield prefix + field.name, msgspec.to_builtins(value)


def _public_json(value: object) -> str:
    """Return a setting as text without secrets and without the folders of this machine."""
    masked = without_secrets(_with_public_paths(value), value)
    return masked if isinstance(masked, str) else msgspec.json.encode(masked).decode()


def _with_public_paths(value: object) -> object:
    if is_mapping(value):
        return {name: _with_public_paths(item) for name, item in value.items()}
    if is_sequence(value):
        return [_with_public_paths(item) for item in value]
    return public_path(value) if isinstance(value, str) else value
