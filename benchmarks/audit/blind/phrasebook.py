"""Phrasebook: translate everyday English words into Spanish, German, Russian, or Greek."""

from __future__ import annotations

import random
import re
import unicodedata
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Translate the English word. Nouns need no article. "
    "Write only the translation in <answer> tags, for example <answer>libro</answer>."
)
LANGUAGES = ("Spanish", "German", "Russian", "Greek")
WORDS = """
water|agua|Wasser|вода|νερό
bread|pan|Brot|хлеб|ψωμί
house|casa|Haus|дом|σπίτι
dog|perro|Hund|собака|σκύλος
cat|gato|Katze|кошка|γάτα
sun|sol|Sonne|солнце|ήλιος
moon|luna|Mond|луна|φεγγάρι
book|libro|Buch|книга|βιβλίο
milk|leche|Milch|молоко|γάλα
night|noche|Nacht|ночь|νύχτα
day|día|Tag|день|μέρα
child|niño|Kind|ребёнок|παιδί
tree|árbol|Baum|дерево|δέντρο
sea|mar|Meer|море|θάλασσα
hand|mano|Hand|рука|χέρι
heart|corazón|Herz|сердце|καρδιά
door|puerta|Tür|дверь|πόρτα
table|mesa|Tisch|стол|τραπέζι
window|ventana|Fenster|окно|παράθυρο
school|escuela|Schule|школа|σχολείο
apple|manzana|Apfel|яблоко|μήλο
snow|nieve|Schnee|снег|χιόνι
fire|fuego|Feuer|огонь|φωτιά
city|ciudad|Stadt|город|πόλη
friend|amigo|Freund|друг|φίλος
mother|madre|Mutter|мать|μητέρα
father|padre|Vater|отец|πατέρας
brother|hermano|Bruder|брат|αδελφός
sister|hermana|Schwester|сестра|αδελφή
fish|pez|Fisch|рыба|ψάρι
horse|caballo|Pferd|лошадь|άλογο
bird|pájaro|Vogel|птица|πουλί
week|semana|Woche|неделя|εβδομάδα
year|año|Jahr|год|χρόνος
salt|sal|Salz|соль|αλάτι
cheese|queso|Käse|сыр|τυρί
garden|jardín|Garten|сад|κήπος
mountain|montaña|Berg|гора|βουνό
river|río|Fluss|река|ποτάμι
light|luz|Licht|свет|φως
""".split("\n")[1:-1]


def normalize(text: str) -> str:
    """Return a text without case, accents, punctuation, and extra spaces."""
    text = unicodedata.normalize("NFKD", text.casefold())
    text = re.sub(r"[^a-z0-9\s]", "", text)
    return " ".join(text.split())


def correct(completion: vf.Messages, answer: str, parser: vf.XMLParser) -> float:
    """Return 1 for the right translation; case and accents do not matter."""
    given = parser.parse_answer(completion)
    if not given:
        return 0.0
    return float(normalize(given) == normalize(answer))


def translator(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Know every word."""
    return f"<answer>{state['answer']}</answer>"


def tourist(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Know Spanish, and answer in Spanish whatever the language is."""
    return f"<answer>{state['info']['spanish']}</answer>"


def _rows(words: list[str], seed: int) -> list[dict[str, Any]]:
    rows = []
    for word in words:
        english, *translations = word.split("|")
        for language, translation in zip(LANGUAGES, translations, strict=True):
            info = {"language": language, "spanish": translations[0]}
            rows.append({"question": f"{english} (in {language})", "answer": translation, "info": info})
    random.Random(seed).shuffle(rows)
    return rows


def load_environment(seed: int = 0) -> vf.Environment:
    """Return an environment with words to translate; 25 words are for training and 15 for evaluation.

    Args:
        seed: Random seed of the split and of the order.
    """
    words = random.Random(f"split:{seed}").sample(WORDS, len(WORDS))
    parser = vf.XMLParser(["answer"])
    return vf.SingleTurnEnv(
        dataset=lambda: _rows(words[:25], seed),
        eval_dataset=lambda: _rows(words[25:], seed),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=vf.Rubric([correct], parser=parser),
        policies={"translator": translator, "tourist": tourist},
    )
