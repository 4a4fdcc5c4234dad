"""Capital cities: name the capital of a country in one sentence."""

from __future__ import annotations

import random
import re
import unicodedata
from typing import Any

import rove as vf

SYSTEM_PROMPT = "Answer the question about geography in one short sentence."
CAPITALS = """
    Afghanistan=Kabul, Albania=Tirana, Algeria=Algiers, Angola=Luanda, Argentina=Buenos Aires, Armenia=Yerevan,
    Australia=Canberra, Austria=Vienna, Azerbaijan=Baku, Bahrain=Manama, Bangladesh=Dhaka, Belarus=Minsk,
    Belgium=Brussels, Belize=Belmopan, Bhutan=Thimphu, Botswana=Gaborone, Brazil=Brasília, Bulgaria=Sofia,
    Burkina Faso=Ouagadougou, Cambodia=Phnom Penh, Cameroon=Yaoundé, Canada=Ottawa, Chad=N'Djamena, Chile=Santiago,
    China=Beijing, Colombia=Bogotá, Costa Rica=San José, Croatia=Zagreb, Cuba=Havana, Cyprus=Nicosia, Czechia=Prague,
    Denmark=Copenhagen, Ecuador=Quito, Egypt=Cairo, El Salvador=San Salvador, Eritrea=Asmara, Estonia=Tallinn,
    Ethiopia=Addis Ababa, Fiji=Suva, Finland=Helsinki, France=Paris, Gabon=Libreville, Georgia=Tbilisi, Germany=Berlin,
    Ghana=Accra, Greece=Athens, Guinea=Conakry, Guyana=Georgetown, Haiti=Port-au-Prince, Honduras=Tegucigalpa,
    Hungary=Budapest, Iceland=Reykjavik, India=New Delhi, Indonesia=Jakarta, Iran=Tehran, Iraq=Baghdad, Ireland=Dublin,
    Italy=Rome, Jamaica=Kingston, Japan=Tokyo, Jordan=Amman, Kazakhstan=Astana, Kenya=Nairobi, Laos=Vientiane,
    Latvia=Riga, Lebanon=Beirut, Liberia=Monrovia, Libya=Tripoli, Lithuania=Vilnius, Madagascar=Antananarivo,
    Malawi=Lilongwe, Malaysia=Kuala Lumpur, Maldives=Malé, Mali=Bamako, Malta=Valletta, Mauritania=Nouakchott,
    Moldova=Chișinău, Mongolia=Ulaanbaatar, Morocco=Rabat, Mozambique=Maputo, Namibia=Windhoek, Nepal=Kathmandu,
    New Zealand=Wellington, Nicaragua=Managua, Niger=Niamey, Nigeria=Abuja, Norway=Oslo, Oman=Muscat, Pakistan=Islamabad,
    Paraguay=Asunción, Peru=Lima, Philippines=Manila, Poland=Warsaw, Portugal=Lisbon, Qatar=Doha, Romania=Bucharest,
    Russia=Moscow, Rwanda=Kigali, Saudi Arabia=Riyadh, Senegal=Dakar, Serbia=Belgrade, Sierra Leone=Freetown,
    Slovakia=Bratislava, Slovenia=Ljubljana, Somalia=Mogadishu, South Korea=Seoul, Spain=Madrid, Sudan=Khartoum,
    Sweden=Stockholm, Syria=Damascus, Thailand=Bangkok, Togo=Lomé, Tunisia=Tunis, Turkey=Ankara, Uganda=Kampala,
    Ukraine=Kyiv, Uruguay=Montevideo, Uzbekistan=Tashkent, Vietnam=Hanoi, Yemen=Sanaa, Zambia=Lusaka, Zimbabwe=Harare
"""
WORDINGS = ("What is the capital of {}?", "Which city is the capital of {}?", "Name the capital city of {}.")
PAIRS = [tuple(pair.strip().split("=")) for pair in CAPITALS.split(",")]


def plain(text: str) -> str:
    """Return the words of a text in lower case, without accents and punctuation."""
    letters = unicodedata.normalize("NFKD", text)
    letters = "".join(letter for letter in letters if not unicodedata.combining(letter))
    return " ".join(re.findall(r"[a-z]+", letters.lower()))


def correct(completion: vf.Messages, answer: str, parser: vf.Parser) -> float:
    """Return 1 if the response names the capital, as whole words."""
    given = plain(parser.parse_answer(completion) or "")
    return float(f" {plain(answer)} " in f" {given} ")


def oracle(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Name the right city."""
    return f"It is {state['answer']}."


def guesser(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Name any capital."""
    return f"It is {rng.choice(PAIRS)[1]}."


def _rows(count: int, seed: str, pairs: list[tuple[str, ...]]) -> list[dict[str, Any]]:
    rows = [
        {"question": wording.format(country), "answer": capital} for country, capital in pairs for wording in WORDINGS
    ]
    random.Random(seed).shuffle(rows)
    return [rows[index % len(rows)] for index in range(count)]


def load_environment(num_examples: int = 100, seed: int = 0) -> vf.Environment:
    """Return an environment with questions about capitals; every third country is for evaluation only.

    Args:
        num_examples: Number of questions in each dataset.
        seed: Random seed of the order of the questions.
    """
    held_out = PAIRS[::3]
    trained = [pair for pair in PAIRS if pair not in held_out]
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", trained),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", held_out),
        system_prompt=SYSTEM_PROMPT,
        parser=vf.MaybeThinkParser(),
        rubric=vf.Rubric([correct]),
        policies={"oracle": oracle, "guesser": guesser},
    )
