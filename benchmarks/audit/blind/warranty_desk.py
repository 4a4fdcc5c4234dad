"""Warranty desk: find the serial number of a customer's device in the registration database."""

import json
import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "You work at a warranty desk. Find the serial number of the device in question. find_customers(name) lists customers "
    "with their town; registrations(customer_id) lists the devices of a customer. Hand in the serial number with submit."
)
FIRST = "Anna Ben Chloe David Eva Felix Gina Henry Iris Jack".split()
LAST = "Alt Berg Clark Diaz Ek Fox Grant Holm".split()
TOWNS = "Aston Bristow Carlow Denton Exmoor Fairlie".split()
DEVICES = "washer dryer oven freezer dishwasher vacuum".split()


def serial(rng):
    letters = "".join(rng.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(2))
    return f"{letters}-{rng.randint(10000, 99999)}-{rng.choice('ABCDEFGHJK')}"


def shape(text):
    return re.sub(r"[A-Z]", "A", re.sub(r"\d", "9", text))


class WarrantyEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        for tool in (self.find_customers, self.registrations, self.submit):
            self.add_tool(tool, args_to_skip=["state"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}

    def find_customers(self, name: str, state: vf.State) -> list:
        """List the customers of a name.

        Args:
            name: full name
        """
        people = state["info"]["people"]
        return [{"id": p["id"], "name": p["name"], "town": p["town"]} for p in people if p["name"] == name]

    def registrations(self, customer_id: str, state: vf.State) -> list:
        """List the registered devices of a customer.

        Args:
            customer_id: such as C12
        """
        for person in state["info"]["people"]:
            if person["id"] == customer_id:
                return person["devices"]
        raise ValueError(f"there is no customer '{customer_id}'")

    def submit(self, serial_number: str, state: vf.State) -> str:
        """Hand in the serial number.

        Args:
            serial_number: the serial number of the device
        """
        number = serial_number.strip().upper()
        if shape(number) != shape(state["answer"]):
            raise ValueError(f"'{serial_number}' is not a serial number; expected a format such as {state['answer']}")
        state["submitted"] = number
        return "Thank you."

    @vf.stop
    def handed_in(self, state: vf.State) -> bool:
        return "submitted" in state


def correct(state, answer) -> float:
    """1 if the right serial number was handed in."""
    return float(state.get("submitted") == answer)


def agent(messages, state, rng):
    """Find the customer by name and town, then the device."""
    info, turn = state["info"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("find_customers", name=info["name"])
    found = json.loads(messages[-1].content)
    if turn == 1:
        return vf.tool_call("registrations", customer_id=next(p["id"] for p in found if p["town"] == info["town"]))
    matches = [d["serial"] for d in found if d["device"] == info["device"] and d["year"] == info["year"]]
    return vf.tool_call("submit", serial_number=matches[0])


def hasty(messages, state, rng):
    """Take the first customer of that name and the first device."""
    turn = len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("find_customers", name=state["info"]["name"])
    found = json.loads(messages[-1].content)
    if turn == 1:
        return vf.tool_call("registrations", customer_id=found[0]["id"])
    return vf.tool_call("submit", serial_number=found[0]["serial"])


def make_row(rng, first_names):
    name = f"{rng.choice(first_names)} {rng.choice(LAST)}"
    people = []
    for town in rng.sample(TOWNS, 4):
        kinds = rng.sample([(device, year) for device in DEVICES for year in range(2018, 2025)], rng.randint(2, 4))
        devices = [{"device": device, "year": year, "serial": serial(rng)} for device, year in kinds]
        people.append({"name": name if len(people) < 3 else "Kim Stone", "town": town, "devices": devices})
    for number, person in zip(rng.sample(range(10, 100), 4), people, strict=True):
        person["id"] = f"C{number}"
    who = rng.choice(people[:3])
    device = rng.choice(who["devices"])
    question = (
        f"{name} from {who['town']} asks about the {device['device']} bought in {device['year']}. Its serial number?"
    )
    info = {"people": people, "name": name, "town": who["town"], "device": device["device"], "year": device["year"]}
    return {"question": question, "answer": device["serial"], "info": info}


def load_environment(num_examples: int = 400, seed: int = 5, max_turns: int = 8) -> vf.Environment:
    """Requests about registered devices; each has its own database."""
    return WarrantyEnv(
        dataset=lambda: [make_row(random.Random(f"{seed}:train:{i}"), FIRST[:7]) for i in range(num_examples)],
        eval_dataset=lambda: [make_row(random.Random(f"{seed}:eval:{i}"), FIRST[7:]) for i in range(num_examples // 2)],
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
        policies={"agent": agent, "hasty": hasty},
        max_turns=max_turns,
    )
