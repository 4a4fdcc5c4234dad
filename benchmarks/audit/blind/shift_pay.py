"""Shift pay: compute the gross pay of one week from a payslip, with overtime and a night supplement."""

import random

import rove as vf

SYSTEM_PROMPT = (
    "You work in payroll. Hours above 40 in the week are overtime and are paid at 1.5 times the hourly rate. "
    "Each night shift adds a flat supplement. Write the gross pay of the week as <pay>amount</pay>."
)
DAYS = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat"]
JOBS = ["warehouse", "bakery", "reception", "laundry", "security", "kitchen", "cleaning", "courier"]


def amount(text):
    """Read an amount such as "$1,024.50"."""
    try:
        return round(float(text.strip().lstrip("$").replace(",", "")), 2)
    except ValueError:
        return None


def gross(hours, rate, nights, supplement):
    total = sum(hours)
    return round(rate * (min(total, 40) + 1.5 * max(0, total - 40)) + nights * supplement, 2)


def make_slip(number, rng):
    hours = [rng.choice([0, 4, 6, 7, 8, 9, 10, 11]) for _ in DAYS]
    rate = rng.randrange(1200, 2800, 50) / 100
    nights = rng.randint(0, 3)
    supplement = rng.choice([12, 15, 18, 20])
    lines = [f"Payslip P-{number}", f"Department: {rng.choice(JOBS)}", f"Rate: ${rate:.2f} per hour"]
    lines.append("Hours: " + ", ".join(f"{day} {h}" for day, h in zip(DAYS, hours, strict=True)))
    lines.append(f"Night shifts: {nights} (supplement ${supplement} each)")
    info = {"hours": hours, "rate": rate, "nights": nights, "supplement": supplement}
    return {"question": "\n".join(lines), "answer": f"{gross(hours, rate, nights, supplement):.2f}", "info": info}


def make_rows(count, seed, first_number):
    return [make_slip(first_number + i, random.Random(seed + i)) for i in range(count)]


def correct(parser, completion, answer):
    """1 if the amount is right to the cent."""
    return float(parser.parse_answer(completion) == float(answer))


def clerk(messages, state, rng):
    """Compute the pay by the rules."""
    info = state["info"]
    return f"<pay>{gross(info['hours'], info['rate'], info['nights'], info['supplement']):.2f}</pay>"


def trainee(messages, state, rng):
    """Forget that overtime is paid at a higher rate."""
    info = state["info"]
    return f"<pay>{sum(info['hours']) * info['rate'] + info['nights'] * info['supplement']:.2f}</pay>"


def load_environment(num_examples: int = 400, num_eval_examples: int = 200, seed: int = 0) -> vf.Environment:
    """Payslips of one week; the seed determines the slips."""
    parser = vf.XMLParser(["pay"], answer_field="pay", extract_fn=amount)
    return vf.SingleTurnEnv(
        dataset=lambda: make_rows(num_examples, seed, 1000),
        eval_dataset=lambda: make_rows(num_eval_examples, seed + 1, 5000),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"clerk": clerk, "trainee": trainee},
    )
