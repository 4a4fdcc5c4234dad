"""Recall list: read a stock table and list the devices that a recall notice covers."""

import random
import re

import rove as vf

SYSTEM_PROMPT = (
    "You handle product recalls. Read the notice and the stock table. "
    "List the serial numbers that must be recalled, one per line, inside <recall> tags. "
    "Write <recall>none</recall> if no device is affected."
)
MODELS = ["Kettle K2", "Heater H7", "Charger C1", "Blender B4"]
PLANTS = ["Brno", "Porto", "Graz", "Turku"]


def affected(unit, notice):
    return unit["model"] == notice["model"] and unit["plant"] == notice["plant"] and unit["week"] <= notice["week"]


def serials(text):
    """Return the listed serial numbers; "none" is an empty list."""
    listed = [part for part in re.split(r"[\s,;]+", text.strip()) if part]
    return [] if [part.lower() for part in listed] == ["none"] else listed


def recall_score(parser, completion, info):
    """The share of the affected devices that are listed; 0 if any other device is listed."""
    expected = set(info["affected"])
    if not expected:
        return 1.0
    listed = parser.parse_answer(completion)
    if not listed or set(listed) - expected:
        return 0.0
    return len(set(listed)) / len(expected)


def make_row(rng):
    notice = {"model": rng.choice(MODELS), "plant": rng.choice(PLANTS), "week": rng.randint(8, 30)}
    units = []
    for _ in range(rng.randint(6, 9)):
        serial = "".join(rng.choice("ACDEFHKLMNPRTX") for _ in range(2)) + str(rng.randint(10000, 99999))
        near = rng.random() < 0.6
        units.append(
            {
                "serial": serial,
                "model": notice["model"] if near else rng.choice(MODELS),
                "plant": notice["plant"] if near and rng.random() < 0.6 else rng.choice(PLANTS),
                "week": rng.randint(1, 52),
            }
        )
    table = "\n".join(f"{u['serial']} | {u['model']} | {u['plant']} | week {u['week']}" for u in units)
    text = (
        f"Notice: recall every {notice['model']} made in {notice['plant']} up to and including week {notice['week']}.\n\n"
        f"Serial | Model | Plant | Made\n{table}"
    )
    found = [u["serial"] for u in units if affected(u, notice)]
    return {
        "question": text,
        "answer": "\n".join(found) or "none",
        "info": {"affected": found, "units": units, "notice": notice},
    }


def reader(messages, state, rng):
    """Check model, plant and week."""
    return f"<recall>\n{state['answer']}\n</recall>"


def skimmer(messages, state, rng):
    """Check the model only."""
    info = state["info"]
    found = [u["serial"] for u in info["units"] if u["model"] == info["notice"]["model"]]
    return "<recall>\n" + ("\n".join(found) or "none") + "\n</recall>"


def load_environment(num_examples: int = 600, num_eval_examples: int = 200, seed: int = 3) -> vf.Environment:
    """Recall notices with a table of six to nine devices."""
    parser = vf.XMLParser(["recall"], answer_field="recall", extract_fn=serials)
    return vf.SingleTurnEnv(
        dataset=lambda: [make_row(random.Random(f"recall:train:{seed}:{i}")) for i in range(num_examples)],
        eval_dataset=lambda: [make_row(random.Random(f"recall:eval:{seed}:{i}")) for i in range(num_eval_examples)],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([recall_score], parser=parser),
        policies={"reader": reader, "skimmer": skimmer},
    )
