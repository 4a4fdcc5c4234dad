"""Bank reconciliation: find the bookings that are missing in the ledger and post their total as one adjustment."""

import random

import rove as vf

SYSTEM = (
    "Reconcile the account. Read the bank statement and the ledger; the ledger lacks some of the statement's bookings. "
    "Post one adjustment that brings the ledger to the balance of the statement (negative for money that left the "
    "account), then reply with a short confirmation."
)
PAYEES = (
    "Aldermann Ltd;City Water;Drift Energy;Fenn Print;Gale Insurance;Harrow Rent;Inkwell;Juno Telecom;Kestrel Travel;"
    "Lund Catering;Moss Cleaning;North Tax Office;Orchard Foods;Pell Couriers;Quill Software;Rook Security"
).split(";")


def cents(text):
    """'-12.50' -> -1250"""
    return round(float(text) * 100)


def money(value):
    return f"{value / 100:.2f}"


class ReconcileEnv(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(max_threads=0, parallel_calls=False, **kwargs)
        self.add_tool(self.bank_statement, args_to_skip=["books"])
        self.add_tool(self.ledger, args_to_skip=["books"])
        self.add_tool(self.post_adjustment, args_to_skip=["books"])

    async def setup_state(self, state, **kwargs):
        info = state["info"]
        state["books"] = {"statement": info["statement"], "missing": set(info["missing"]), "adjustment": None}

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "books": state["books"]}

    def bank_statement(self, page: int, books: dict) -> str:
        """Show a page of the bank statement, eight bookings a page.

        Args:
            page: number of the page, from 1
        """
        return self._page(books["statement"], page)

    def ledger(self, page: int, books: dict) -> str:
        """Show a page of the ledger, eight bookings a page.

        Args:
            page: number of the page, from 1
        """
        entries = [e for i, e in enumerate(books["statement"]) if i not in books["missing"]]
        return self._page(sorted(entries, key=lambda e: e[1]), page)

    def post_adjustment(self, amount: str, books: dict) -> str:
        """Post the adjustment and close the month.

        Args:
            amount: amount with two decimals, such as -120.50
        """
        try:
            value = cents(amount)
        except (ValueError, OverflowError):
            raise ValueError(f"'{amount}' is not an amount") from None
        statement = sum(cents(e[2]) for e in books["statement"])
        booked = sum(cents(e[2]) for i, e in enumerate(books["statement"]) if i not in books["missing"])
        if booked + value != statement:
            raise ValueError(
                f"month not closed: ledger {money(booked)} plus adjustment {money(value)} is {money(booked + value)}, "
                f"statement is {money(statement)}, difference {money(statement - booked - value)}"
            )
        books["adjustment"] = value
        return "adjustment posted, month closed"

    def _page(self, entries, page):
        shown = entries[8 * (page - 1) : 8 * page] if page > 0 else []
        if not shown:
            return "no bookings on this page"
        return "\n".join(f"{day:02d}  {payee:<18} {amount:>10}" for day, payee, amount in shown)

    @vf.stop
    def closed(self, state):
        return state["books"]["adjustment"] is not None


def month_closed(state, answer):
    """1 if the right adjustment was posted."""
    return float(state["books"]["adjustment"] == cents(answer))


def pages_read(completion):
    return float(sum(m.role == "tool" and "  " in str(m.content) for m in completion))


def make(rng):
    days = sorted(rng.sample(range(1, 29), rng.randint(14, 22)))
    statement = [
        [day, rng.choice(PAYEES), money(rng.choice([-1, -1, -1, 1]) * rng.randint(500, 90_000))] for day in days
    ]
    missing = sorted(rng.sample(range(len(days)), rng.randint(2, 4)))
    total = sum(cents(statement[i][2]) for i in missing)
    month = rng.choice("January February March April May June July August".split())
    text = f"Please close {month} for account {rng.randint(10000, 99999)}."
    return {"question": text, "answer": money(total), "info": {"statement": statement, "missing": missing}}


def bookkeeper(messages, state, rng):
    """Reads all pages, then posts the sum of the missing bookings."""
    turn = len(state["trajectory"])
    if turn < 6:
        return vf.tool_call("bank_statement" if turn < 3 else "ledger", page=turn % 3 + 1)
    texts = [m.content.splitlines() for m in messages if m.role == "tool"]
    statement, ledger = (
        sum((cents(l.split()[-1]) for t in part for l in t if l[:2].isdigit()), 0) for part in (texts[:3], texts[3:6])
    )
    return vf.tool_call("post_adjustment", amount=money(statement - ledger))


def skimmer(messages, state, rng):
    """Reads one page of each and posts the first booking that it misses there."""
    turn = len(state["trajectory"])
    if turn < 2:
        return vf.tool_call(["bank_statement", "ledger"][turn], page=1)
    if turn > 2:
        return "I could not close the month."
    texts = [m.content.splitlines() for m in messages if m.role == "tool"]
    gone = [l for l in texts[0] if l not in texts[1]]
    return vf.tool_call("post_adjustment", amount=gone[0].split()[-1] if gone else "0.00")


def load_environment(num_examples: int = 200, seed: int = 5, max_turns: int = 10) -> vf.Environment:
    rubric = vf.Rubric([month_closed])
    rubric.add_metric(pages_read)
    return ReconcileEnv(
        dataset=lambda: [make(random.Random(f"{seed}:train:{i}")) for i in range(num_examples)],
        eval_dataset=lambda: [make(random.Random(f"{seed}:eval:{i}")) for i in range(num_examples)],
        system_prompt=SYSTEM,
        rubric=rubric,
        policies={"bookkeeper": bookkeeper, "skimmer": skimmer},
        max_turns=max_turns,
    )
