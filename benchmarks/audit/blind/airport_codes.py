"""Airport codes: name the city that an airport serves."""

from __future__ import annotations

import random
import re
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Name the city that the airport serves. Begin your answer with the name of the city; the country may follow."
)

# code, accepted names of the city (English first, then other names in use, then the name on local signs)
AIRPORTS = """
AMS Amsterdam|ATH Athens/Athina/Αθήνα|AKL Auckland|BKK Bangkok/Krung Thep/กรุงเทพ|BCN Barcelona|PEK Beijing/Peking/北京
BEG Belgrade/Beograd/Београд|BER Berlin|BGO Bergen|BIO Bilbao|BOD Bordeaux|BOS Boston|BNE Brisbane|BRU Brussels/Bruxelles/Brussel
OTP Bucharest/Bucuresti|BUD Budapest|EZE Buenos Aires|CAI Cairo/القاهرة|CCU Kolkata/Calcutta/কলকাতা|CPT Cape Town/Kaapstad
CMN Casablanca/الدار البيضاء|ORD Chicago|CPH Copenhagen/Kobenhavn|DAC Dhaka/Dacca/ঢাকা|DEL Delhi/New Delhi/दिल्ली|DEN Denver
DOH Doha/الدوحة|DXB Dubai/دبي|DUB Dublin|DUS Dusseldorf|EDI Edinburgh|FLR Florence/Firenze|FRA Frankfurt|FUK Fukuoka/福岡
GVA Geneva/Geneve/Genf|GOT Gothenburg/Goteborg|CAN Guangzhou/Canton/广州|HAM Hamburg|HAN Hanoi/Ha Noi|HAV Havana/La Habana
HEL Helsinki|HND Tokyo/東京|HKG Hong Kong/香港|HNL Honolulu|IST Istanbul|CGK Jakarta|JNB Johannesburg|KTM Kathmandu/काठमाडौं
KBP Kyiv/Kiev/Київ|KEF Reykjavik|KUL Kuala Lumpur|LOS Lagos|LIM Lima|LIS Lisbon/Lisboa|LJU Ljubljana|LHR London|LAX Los Angeles
LYS Lyon|MAD Madrid|MNL Manila|RAK Marrakesh/Marrakech/مراكش|MRS Marseille|MEL Melbourne|MEX Mexico City/Ciudad de Mexico
MIA Miami|MXP Milan/Milano|MSQ Minsk/Мінск|YUL Montreal|MUC Munich/Munchen|BOM Mumbai/Bombay/मुंबई|NGO Nagoya/名古屋|NBO Nairobi
NAP Naples/Napoli|NCE Nice|NRT Narita/成田|OPO Porto/Oporto|OSL Oslo|KIX Osaka/大阪|YOW Ottawa|PMO Palermo|CDG Paris|PER Perth
SKP Skopje/Скопје|PRG Prague/Praha|UIO Quito|RGN Yangon/Rangoon/ရန်ကုန်|RIX Riga|GIG Rio de Janeiro|RUH Riyadh/الرياض|FCO Rome/Roma
CTS Sapporo/札幌|SCL Santiago|SVQ Seville/Sevilla|ICN Seoul/서울|PVG Shanghai/上海|SIN Singapore|SOF Sofia/София
ARN Stockholm|STR Stuttgart|SYD Sydney|TPE Taipei/臺北|TLL Tallinn|TAS Tashkent|TBS Tbilisi/Tiflis/თბილისი|IKA Tehran/Teheran/تهران
TLV Tel Aviv/תל אביב|TIA Tirana|YYZ Toronto|TUN Tunis/تونس|TRN Turin/Torino|ULN Ulaanbaatar/Улаанбаатар|VLC Valencia|YVR Vancouver
VCE Venice/Venezia|VIE Vienna/Wien|VNO Vilnius|WAW Warsaw/Warszawa|WLG Wellington|EVN Yerevan/Erevan/Երևան|ZAG Zagreb|ZRH Zurich
AMM Amman/عمان|BEY Beirut/بيروت|SKG Thessaloniki/Salonica/Θεσσαλονίκη|HER Heraklion/Iraklio/Ηράκλειο|PUS Busan/Pusan/부산
KHH Kaohsiung/高雄|CTU Chengdu/成都|XIY Xi'an/Sian/西安|OKA Naha/那覇|HIJ Hiroshima/広島|CNX Chiang Mai/เชียงใหม่|LHE Lahore/لاہور
VAR Varna/Варна|LED Saint Petersburg/Sankt Peterburg/Санкт-Петербург|ALA Almaty/Алматы|SEA Seattle|SFO San Francisco|BOG Bogota
MDE Medellin|GRU Sao Paulo|BSB Brasilia|ADD Addis Ababa/አዲስ አበባ|DSS Dakar|ACC Accra|KGL Kigali|DAR Dar es Salaam|MRU Port Louis
"""


def airports() -> list[tuple[str, list[str]]]:
    entries = [entry for line in AIRPORTS.split("\n") for entry in line.split("|") if entry]
    return [(entry[:3], entry[4:].split("/")) for entry in entries]


def normalize(text: str) -> str:
    """Lower case, letters and digits only, single spaces."""
    return " ".join(re.sub(r"[^a-z0-9]+", " ", text.lower()).split())


def correct(completion: vf.Messages, info: dict[str, Any]) -> float:
    """Return 1 if the reply begins with one of the accepted names."""
    reply = normalize(completion[-1]["content"] or "")
    return float(any(reply.startswith(normalize(name)) for name in info["accepted"]))


def _rows(entries: list[tuple[str, list[str]]]) -> list[dict[str, Any]]:
    return [
        {"question": f"Which city does the airport {code} serve?", "answer": names[0], "info": {"accepted": names}}
        for code, names in entries
    ]


def load_environment(num_examples: int = 75, seed: int = 0) -> vf.Environment:
    """Return an environment that asks for the cities of airports.

    Args:
        num_examples: Number of airports for training and for evaluation, at most half of the list.
        seed: Random seed of the order; the split does not depend on it.
    """
    entries = airports()
    random.Random("split").shuffle(entries)
    half = len(entries) // 2
    train, held_out = entries[:half], entries[half:]
    random.Random(seed).shuffle(train)
    return vf.SingleTurnEnv(
        dataset=_rows(train[:num_examples]),
        eval_dataset=_rows(held_out[:num_examples]),
        system_prompt=SYSTEM_PROMPT,
        rubric=vf.Rubric([correct]),
    )
