"""Capitals: multiple-choice questions about capital cities, with four options."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer the question with the letter of the right option, for example <answer>B</answer>."
CAPITALS = """
Albania:Tirana Algeria:Algiers Angola:Luanda Argentina:Buenos-Aires Armenia:Yerevan Australia:Canberra Austria:Vienna
Azerbaijan:Baku Bangladesh:Dhaka Belarus:Minsk Belgium:Brussels Bhutan:Thimphu Botswana:Gaborone Brazil:Brasilia
Bulgaria:Sofia Cambodia:Phnom-Penh Cameroon:Yaounde Canada:Ottawa Chad:N'Djamena Chile:Santiago China:Beijing
Colombia:Bogota Croatia:Zagreb Cuba:Havana Cyprus:Nicosia Denmark:Copenhagen Ecuador:Quito Egypt:Cairo
Eritrea:Asmara Estonia:Tallinn Ethiopia:Addis-Ababa Fiji:Suva Finland:Helsinki France:Paris Gabon:Libreville
Georgia:Tbilisi Germany:Berlin Ghana:Accra Greece:Athens Guyana:Georgetown Haiti:Port-au-Prince Hungary:Budapest
Iceland:Reykjavik India:New-Delhi Indonesia:Jakarta Iran:Tehran Iraq:Baghdad Ireland:Dublin Italy:Rome
Jamaica:Kingston Japan:Tokyo Jordan:Amman Kenya:Nairobi Kyrgyzstan:Bishkek Laos:Vientiane Latvia:Riga
Lebanon:Beirut Liberia:Monrovia Libya:Tripoli Lithuania:Vilnius Madagascar:Antananarivo Malawi:Lilongwe
Malaysia:Kuala-Lumpur Mali:Bamako Malta:Valletta Mauritania:Nouakchott Moldova:Chisinau Mongolia:Ulaanbaatar
Morocco:Rabat Mozambique:Maputo Namibia:Windhoek Nepal:Kathmandu Nicaragua:Managua Niger:Niamey Nigeria:Abuja
Norway:Oslo Oman:Muscat Pakistan:Islamabad Paraguay:Asuncion Peru:Lima Philippines:Manila Poland:Warsaw
Portugal:Lisbon Qatar:Doha Romania:Bucharest Rwanda:Kigali Senegal:Dakar Serbia:Belgrade Slovakia:Bratislava
Slovenia:Ljubljana Somalia:Mogadishu Spain:Madrid Sudan:Khartoum Sweden:Stockholm Syria:Damascus Thailand:Bangkok
Tunisia:Tunis Turkey:Ankara Uganda:Kampala Ukraine:Kyiv Uruguay:Montevideo Uzbekistan:Tashkent Vietnam:Hanoi
Yemen:Sanaa Zambia:Lusaka Zimbabwe:Harare
""".split()
LETTERS = "ABCD"


def make_variant(country: str, table: dict[str, str], rng: random.Random) -> dict[str, Any]:
    """Return one question about a country, with fresh distractors in a fresh order."""
    right = table[country]
    options = rng.sample([city for city in table.values() if city != right], 3) + [right]
    rng.shuffle(options)
    lines = [f"{letter}) {city}" for letter, city in zip(LETTERS, options, strict=True)]
    return {
        "question": "\n".join([f"What is the capital of {country}?", *lines]),
        "answer": LETTERS[options.index(right)],
        "info": {"country": country},
    }


def build_rows(variants: int, seed: int) -> list[dict[str, Any]]:
    """Return `variants` questions about each country, in random order."""
    rng = random.Random(seed)
    table = {}
    for entry in CAPITALS:
        country, city = entry.split(":")
        table[country] = city.replace("-", " ")
    rows = [make_variant(country, table, rng) for country in table for _ in range(variants)]
    rng.shuffle(rows)
    return rows


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """1 for the right letter."""
    return float((parser.parse_answer(completion) or "").strip().upper() == answer)


def load_environment(variants: int = 4, eval_share: float = 0.2, seed: int = 0) -> vf.Environment:
    """Return an environment with multiple-choice questions.

    Args:
        variants: Questions per country.
        eval_share: Share of the questions that is used for evaluation.
        seed: Random seed of options and order.
    """
    rows = build_rows(variants, seed)
    num_eval = int(len(rows) * eval_share)
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=rows[num_eval:],
        eval_dataset=rows[:num_eval],
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
    )
