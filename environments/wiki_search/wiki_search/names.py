"""Names of the people, places and things in an invented world."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

from .words import read_lists

PARTS = read_lists("""
regions: Ostmarch|Verrin|Highmoor|Nether Tarn|Callowreach|Sundale|Ember Coast|Wintervale|Larkenfell|Greymarch|
  Thornlow|Ivory Hills|Saltmere|Dawnholt
seas: the Grey Sea|the Gulf of Amarel|the Sea of Reeds|the Lantern Sea
hills: Barrow Hills|Cinder Hills|Harp Mountains|Hollow Hills|Juniper Heights|Kestrel Mountains|Lonely Fells|
  Morrow Hills|Needle Peaks|Raven Fells|Shepherd Hills|Whistling Fells
town: Al|Bar|Bel|Bran|Cal|Cor|Dal|Dun|El|Fal|Far|Fen|Gar|Glen|Hal|Har|Hol|Ister|Kel|Kirn|Lan|Lor|Mal|Mar|Mel|Mor|Nar|
  Nor|Ol|Or|Pel|Pen|Quil|Ram|Ros|Sal|Sel|Sor|Stan|Tal|Tam|Tor|Ul|Val|Ver|Wal|Wen|Wil|Yar|Zel
town_end: beck|bridge|by|combe|dale|fell|ford|gate|ham|haven|holm|holt|hurst|ley|mere|mouth|ness|stead|stow|ton|
  wall|wick|worth
river: Ae|Bri|Cae|Dre|Esk|Fla|Gwe|Hae|Ila|Kye|Lei|Mae|Nae|Or|Pri|Rha|Sae|Tei|Ull|Vae|Wye|Yll
river_end: ban|bre|da|dwy|fa|l|lan|mer|n|nor|ra|ren|s|sk|th|ven|wen
she: Adela|Alva|Amabel|Aveline|Bettris|Brenna|Calla|Ceridda|Delphie|Edith|Elspet|Emmeline|Fenna|Gisla|Greta|Hanne|
  Hesper|Ida|Ilse|Ione|Jorunn|Kirsa|Linnet|Lisbet|Mabry|Maren|Merewen|Nell|Nerys|Odile|Orla|Petra|Rhona|Rosamund|
  Sabra|Sigrun|Tamsin|Thea|Ursel|Vesna|Wilmot|Ysolt
he: Aldous|Anselm|Bartram|Bevis|Caspar|Corwin|Dagan|Edmer|Emrys|Fabian|Falk|Garrick|Godric|Hamo|Hugo|Ivor|Jory|Kenelm|
  Lambert|Leofric|Lucan|Marek|Milo|Nye|Odo|Orrin|Osbert|Piers|Quentin|Ranulf|Roderic|Rufus|Sander|Sewell|Silas|Tobias|
  Torquil|Ulric|Vasco|Warin|Wystan|Yorick
last: Ash|Black|Bram|Brook|Bright|Carl|Cross|Dray|Elder|Fair|Fern|Fox|Gold|Gray|Hart|Hawk|Hazel|Heath|Holm|Kettle|
  Lark|Long|Marsh|Mill|Nettle|Oak|Penn|Quick|Rains|Reed|Rook|Rush|Sedge|Sharp|Sparrow|Stone|Swan|Thatch|Thorn|Under|
  Whit|Wood|Wren|Yarrow
last_end: bourne|brand|by|combe|croft|dale|ell|ever|field|gate|ham|hill|ing|ley|low|man|mere|more|shaw|son|stock|
  ton|ward|water|well|wright
trades: Glassblowers=glass|Weavers=woollen cloth|Coopers=barrels|Bellfounders=bells|Tanners=leather|Potters=pottery|
  Clockmakers=clocks|Papermakers=paper|Ropemakers=rope|Brewers=dark beer|Saddlers=saddles|Dyers=blue dye|
  Cheesemongers=goat's cheese|Chandlers=candles|Lutemakers=lutes|Salters=salt|Cutlers=knives|Bakers=honey cakes|
  Shipwrights=fishing boats|Beekeepers=honey
emblems: badger|bee|beetle|boar|crane|dolphin|fox|hare|heron|hound|lynx|magpie|mole|otter|owl|pike|ram|salmon|stag|
  swan|toad|wolf
book: Amber|Ashen|Blind|Borrowed|Broken|Copper|Crooked|Distant|Drowned|Empty|Faithful|Forgotten|Frozen|Hidden|Hollow|
  Iron|Last|Little|Lost|Patient|Pale|Quiet|Restless|Salt|Second|Seventh|Silent|Silver|Sleeping|Stolen|Unwritten|
  Velvet|Wandering|White|Winter
book_end: Almanac|Anchor|Bell|Candle|Cartographer|Clock|Compass|Cottage|Door|Falcon|Ferryman|Garden|Harbour|Heron|
  House|Island|Key|Lamp|Lantern|Ledger|Letter|Lighthouse|Map|Mirror|Orchard|Orphan|Pilgrim|Queen|River|Road|Shepherd|
  Stair|Tailor|Thimble|Tower|Widow
device: Balanced|Counting|Double|Drifting|Folding|Geared|Hanging|Reversing|Rolling|Singing|Spiral|Stepping|Tidal|
  Tilting|Turning|Whistling
device_end: Barrow|Bellows|Crane|Forge|Kiln|Lamp|Lock|Loom|Mill|Oven|Plough|Press|Pump|Quern|Sail|Scale|Seed-drill|
  Still|Windlass|Winch
fair: Apple|Bonfire|Bread|Candle|Cherry|Feather|Goose|Harvest|Herring|Ice|Kite|Lantern|Lilac|Masked|Mushroom|Plum|
  River|Rope|Torch|Wool
fair_end: Fair|Festival|Parade|Feast
building: Alder|Amber|Anchor|Arrow|Beacon|Bell|Bishop's|Candle|Chestnut|Cloud|Crown|Dove|Eagle|Feather|Fountain|
  Gilded|Griffin|Hawthorn|Heron|Juniper|Lark|Lily|Linden|Marble|Moon|Mulberry|Old|Pilgrim's|Poplar|Rose|Saffron|Seven|
  Star|Swallow|Thistle|Tinker's|Violet|Willow
building_end: Arcade|Bridge|Gate|Hall|Library|Mill|Tower
months: January|February|March|April|May|June|July|August|September|October|November|December
""")
"""Parts of names; for example, the name of a river joins an entry of "river" and one of "river_end"."""
TRADES = dict(trade.split("=") for trade in PARTS["trades"])
"""Craftsmen and what they make."""


def in_one_word(first: str, last: str) -> str:
    """Return two parts as one word, without three equal letters in a row."""
    return first + (last[1:] if first[-2:] == 2 * last[0] else last)


def in_two_words(first: str, last: str) -> str:
    """Return two parts as two words."""
    return f"{first} {last}"


def names(rng: random.Random, parts: str, joined: Callable[[str, str], str] = in_one_word) -> list[str]:
    """Return all names that two lists of parts form, each once, in random order."""
    pairs = list(product(PARTS[parts], PARTS[f"{parts}_end"]))
    rng.shuffle(pairs)
    return list(dict.fromkeys(joined(*pair) for pair in pairs))
