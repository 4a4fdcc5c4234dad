"""Customer service for a web shop: look up an order, apply the shop's rules, and act on the request."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass
from typing import Any, Literal

import rove as vf

POLICY = """You are a service agent of a web shop. Use the tools to handle the customer's request, then reply to the customer.
Rules:
1. A delivered order can be refunded within 30 days of delivery, unless it is on sale.
2. An order can be cancelled only while its status is 'processing'.
3. The delivery address can be changed only while the status is 'processing', and only within the same country.
4. If the rules do not allow the request, do not change anything and explain why.
5. After a refund, tell the customer the amount."""

ITEMS = {"kettle": 35, "headphones": 80, "raincoat": 60, "lamp": 45, "backpack": 70, "toaster": 30, "keyboard": 55}
CITIES = {"AT": ["Graz", "Linz", "Wels"], "CH": ["Bern", "Basel", "Chur"], "DE": ["Kiel", "Bonn", "Ulm"]}


@dataclass
class Scenario:
    """A request, the order it is about, and the change that the rules allow."""

    order: dict[str, Any]
    request: str
    change: dict[str, Any]
    say: list[str]


def refund_scenario(rng: random.Random, order: dict[str, Any]) -> Scenario:
    order.update(status="delivered", days_since_delivery=rng.randint(2, 50), sale=rng.random() < 0.2)
    allowed = order["days_since_delivery"] <= 30 and not order["sale"]
    request = f"I don't like the {order['item']} I bought. Please refund order {order['id']}."
    return Scenario(order, request, {"status": "refunded"} if allowed else {}, [str(order["price"])] if allowed else [])


def cancel_scenario(rng: random.Random, order: dict[str, Any]) -> Scenario:
    order["status"] = rng.choice(["processing", "processing", "shipped", "delivered"])
    request = f"I ordered the wrong {order['item']}. Cancel order {order['id']}, please."
    return Scenario(order, request, {"status": "cancelled"} if order["status"] == "processing" else {}, [])


def address_scenario(rng: random.Random, order: dict[str, Any]) -> Scenario:
    order["status"] = rng.choice(["processing", "processing", "shipped"])
    country = rng.choice([order["country"], order["country"], *CITIES])
    city = rng.choice([city for city in CITIES[country] if city != order["city"]])
    request = f"I moved. Can you send order {order['id']} to {city} ({country}) instead?"
    allowed = order["status"] == "processing" and country == order["country"]
    return Scenario(order, request, {"city": city} if allowed else {}, [])


def scenario(rng: random.Random) -> Scenario:
    country = rng.choice(sorted(CITIES))
    item = rng.choice(sorted(ITEMS))
    order = {
        "id": f"{rng.choice('KLMN')}{rng.randint(10**5, 10**6)}",
        "item": item,
        "price": ITEMS[item] + rng.randint(-5, 5),
        "sale": False,
        "status": "processing",
        "days_since_delivery": None,
        "country": country,
        "city": rng.choice(CITIES[country]),
    }
    return rng.choice([refund_scenario, refund_scenario, cancel_scenario, address_scenario])(rng, order)


class HelpdeskEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs: Any):
        super().__init__(parallel_calls=False, **kwargs)
        for tool in (self.get_order, self.refund_order, self.cancel_order, self.change_city):
            self.add_tool(tool, args_to_skip=["db"])

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state["db"] = copy.deepcopy(state["info"]["db"])

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "db": state["db"]}

    def get_order(self, order_id: str, db: dict) -> dict:
        """Return the details of an order."""
        return self._find(order_id, db)

    def refund_order(self, order_id: str, db: dict) -> str:
        """Refund a delivered order in full."""
        order = self._find(order_id, db)
        if order["status"] != "delivered":
            raise ValueError(f"order {order_id} has not been delivered")
        order["status"] = "refunded"
        return f"refunded {order['price']} EUR"

    def cancel_order(self, order_id: str, reason: Literal["mistake", "too late", "other"], db: dict) -> str:
        """Cancel an order that has not been shipped."""
        order = self._find(order_id, db)
        if order["status"] != "processing":
            raise ValueError(f"order {order_id} cannot be cancelled")
        order["status"] = "cancelled"
        return "cancelled"

    def change_city(self, order_id: str, city: str, db: dict) -> str:
        """Change the city to which an order is delivered."""
        self._find(order_id, db)["city"] = city
        return f"order {order_id} goes to {city}"

    @staticmethod
    def _find(order_id: str, db: dict) -> dict:
        if order_id not in db:
            raise KeyError(f"no order {order_id}")
        return db[order_id]


def resolved(state: vf.State, completion: vf.Messages, info: dict[str, Any]) -> float:
    """1 if the database is as it should be and the customer was told everything that is necessary."""
    if state["db"] != info["expected_db"]:
        return 0.0
    last = completion[-1]
    reply = str(last.content or "") if last.role == "assistant" else ""
    return float(all(text in reply for text in info["say"]))


def looked_up(completion: vf.Messages) -> float:
    """1 if any tool was called."""
    return float(any(message.role == "tool" for message in completion))


def rows(count: int, split: str) -> list[dict[str, Any]]:
    found = []
    for index in range(count):
        case = scenario(random.Random(f"helpdesk/{split}/{index}"))
        key = case.order["id"]
        info = {
            "db": {key: case.order},
            "expected_db": {key: {**case.order, **case.change}},
            "say": case.say,
            "change": case.change,
        }
        found.append({"question": case.request, "info": info})
    return found


def agent(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Look the order up, make the change that is allowed, reply."""
    [(order_id, order)] = state["info"]["db"].items()
    change, turn = state["info"]["change"], len(state["trajectory"])
    if turn == 0:
        return vf.tool_call("get_order", order_id=order_id)
    if not change:
        return "I am sorry, our rules do not allow this."
    if turn == 1:
        if "city" in change:
            return vf.tool_call("change_city", order_id=order_id, city=change["city"])
        if change["status"] == "refunded":
            return vf.tool_call("refund_order", order_id=order_id)
        return vf.tool_call("cancel_order", order_id=order_id, reason="mistake")
    return f"Done. The amount is {order['price']} EUR."


def pushover(messages: vf.Messages, state: vf.State, rng: random.Random) -> Any:
    """Do whatever the customer asks for."""
    [(order_id, order)] = state["info"]["db"].items()
    turn, request = len(state["trajectory"]), state["prompt"][-1].content
    if turn:
        return f"Done. The amount is {order['price']} EUR."
    if "refund" in request:
        return vf.tool_call("refund_order", order_id=order_id)
    if "Cancel" in request:
        return vf.tool_call("cancel_order", order_id=order_id, reason="mistake")
    return vf.tool_call("change_city", order_id=order_id, city=request.split(" to ")[1].split(" (")[0])


def load_environment(num_train: int = 300, num_eval: int = 100, max_turns: int = 6) -> vf.Environment:
    rubric = vf.Rubric([resolved])
    rubric.add_metric(looked_up)
    return HelpdeskEnv(
        dataset=lambda: rows(num_train, "train"),
        eval_dataset=lambda: rows(num_eval, "eval"),
        system_prompt=POLICY,
        rubric=rubric,
        policies={"agent": agent, "pushover": pushover},
        max_turns=max_turns,
    )
