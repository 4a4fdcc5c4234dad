"""Word game: the model guesses a five-letter word; a hint shows which letters of a guess are right.

A hint is a string with one character per letter of the guess: "g" (green: right place), "y" (yellow: another place) or
"." (gray: not in the word, or not as often as in the guess).
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from itertools import chain, pairwise
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Guess the secret English word of five letters. After each guess, you see the color of each letter:\n"
    "- green: the letter is in the word, in this position.\n"
    "- yellow: the letter is in the word, in another position.\n"
    "- gray: the letter is not in the word, or the word has it fewer times than your guess.\n"
    "Explain your guess briefly and give it in this format:\n<think>The word has an R and an A.</think><guess>crane</guess>"
)
COLORS = {"g": "green", "y": "yellow", ".": "gray"}
LOOKS = {"g": "right", "y": "near", ".": "wrong"}
LEVELS = 5
WORDS = """
    about above actor acute admit adopt adult after again agent agree ahead alarm album alert alike alive alley allow alone
    along aloud alter among angel anger angle angry ankle apart apple apply apron arena argue arise armor arrow aside asset
    attic audio avoid awake award aware awful bacon badge badly baker basic basil basin batch beach beard beast began begin
    being below bench berry birch birth black blade blame blank blast blaze bleak blend bless blind blink block blond blood
    bloom blown board boast bonus boost booth bound brain brake brand brass brave bread break breed brick bride brief bring
    brisk broad broke brook broom broth brown brush build built bunch burst buyer cabin cable camel canal candy canoe cargo
    carry carve catch cause cedar chain chair chalk charm chart chase cheap check cheek cheer chess chest chief child chill
    chime china choir chord cider cigar civic claim clash class clean clear clerk click cliff climb clock close cloth cloud
    clown coach coast cocoa color comet comic coral couch cough could count court cover crack craft crane crash crate crawl
    crazy cream creek creep crest crime crisp cross crowd crown cruel crumb crush crust curly curry curve cycle daily dairy
    daisy dance dealt decay decor delay depth diary dirty ditch dizzy dodge doing donor doubt dough dozen draft drain drama
    drank drawn dream dress dried drift drill drink drive drove drums dusty dwarf eager eagle early earth easel eight elbow
    elder empty enemy enjoy enter entry equal error essay event every exact exist extra fable faint fairy faith false fancy
    fault favor feast fence ferry fever fiber field fiery fifth fifty fight final first flair flame flash fleet flesh float
    flock flood floor flour fluid flute focus foggy force forge forth forty found frame frank fraud fresh front frost frown
    fruit fudge funny gauge genre ghost giant given glade glass gleam globe gloom glory glove going grace grade grain grand
    grant grape graph grasp grass grave gravy great green greet grief grill grind groan group grove growl grown guard guess
    guest guide guilt habit handy happy harsh hasty haunt haven hazel heart heavy hedge hello hence hobby honey honor horse
    hotel hound house human humor hurry ideal image imply inbox index inner input irony issue ivory jelly jewel joint jolly
    judge juice juicy jumbo kayak kneel knife knock known label labor ladle large laser later laugh layer learn least leave
    ledge legal lemon level lever light lilac limit linen liver lobby local lodge logic loose lorry lower loyal lucky lunar
    lunch lying magic major maker mango maple march marry match maybe mayor medal melon mercy merge merit merry metal meter
    midst might miner minor minus mixed model moist money month moose moral motor mound mount mouse mouth movie muddy music
    naive nasty naval nerve never newly night ninth noble noise north novel nurse nylon ocean offer often olive onion opera
    orbit order organ other otter ought ounce outer owner paint panda panel panic paper party pasta patch pause peace peach
    pearl pedal penny perch phase phone photo piano piece pilot pinch pitch pizza place plain plane plank plant plate plaza
    pluck point poppy porch pouch pound power press price pride prime print prize proof proud prune pulse punch pupil puppy
    purse quack queen query quest quick quiet quilt quite quota quote radar radio rainy raise rally ranch range rapid raven
    reach ready realm rebel refer reign relax reply ridge rifle right rigid rinse ripen risky rival river roast robin robot
    rocky rough round route royal rugby ruler rural rusty sadly salad salty sandy sauce scale scarf scene scent scold scoop
    scope score scout scrap screw sense serve seven shade shake shall shame shape share shark sharp shave sheep sheet shelf
    shell shift shine shirt shock shoes shore short shout shown siege sight silly since siren sixth sixty skill skirt slate
    sleep slice slide slope smart smell smile smoke snack snail snake sneak solar solid solve sorry sound south space spare
    spark speak spear speed spell spend spice spicy spill spine spoke spoon sport spray squad stack staff stage stain stair
    stake stalk stall stamp stand stare start state steak steal steam steel steep stern stick stiff still sting stock stone
    stood stool store storm story stove straw strip stuck study stuff style sugar sunny super surge swamp swarm sweep sweet
    swept swift swing sword syrup table taken tasty teach tempo tenth thank theft their theme there thick thief thing think
    third thorn those three threw throw thumb tidal tiger tight timer tired title toast today token topic torch total touch
    tough towel tower toxic trace track trade trail train trait treat trend trial tribe trick tried troop trout truck truly
    trunk trust truth tulip tutor twice twins twist uncle under union unite until upper upset urban usage usual vague valid
    value valve vapor vault verse video villa vinyl virus visit vital vivid vocal voice voter vowel wagon waist waste watch
    water weary weave wedge weigh weird whale wheat wheel where which while whirl white whole whose widow width woman world
    worry worse worst worth would wound woven wrist write wrong wrote yacht yearn yeast yield young youth zebra
""".split()  # noqa: SIM905  858 quoted words would be unreadable
LETTERS = Counter(chain.from_iterable(map(set, WORDS)))  # in how many words a letter occurs

History = list[tuple[str, str]]
"""Guesses and their hints."""


@functools.lru_cache(maxsize=50_000)
def hint(guess: str, word: str) -> str:
    """Return the hint for a guess; repeated letters are marked only as often as the word has them, green first."""
    unmatched = Counter(actual for guessed, actual in zip(guess, word) if guessed != actual)
    colors = []
    for guessed, actual in zip(guess, word):
        if guessed == actual:
            colors.append("g")
        else:
            colors.append("y" if unmatched[guessed] > 0 else ".")
            unmatched[guessed] -= 1
    return "".join(colors)


def fits(word: str, history: History) -> bool:
    """Return whether a word is consistent with all hints."""
    return all(hint(guess, word) == colors for guess, colors in history)


def commonness(word: str) -> int:
    """Return how often the letters of a word occur in all words: high for "alert", low for "fuzzy"."""
    return sum(LETTERS[letter] for letter in set(word))


@functools.cache
def levels() -> list[list[str]]:
    """Return the words in five equal parts, from common letters to rare and repeated ones."""
    ranked = sorted(WORDS, key=lambda word: (-commonness(word), word))
    bounds = [len(ranked) * level // LEVELS for level in range(LEVELS + 1)]
    return [sorted(ranked[start:end]) for start, end in pairwise(bounds)]


def show(guess: str, colors: str) -> str:
    """Return a hint as the model sees it: one letter per line, because a model cannot see the letters in a token."""
    return "\n".join(f"{letter.upper()} {COLORS[color]}" for letter, color in zip(guess, colors))


def count_left(count: int) -> str:
    return "You have 1 guess left." if count == 1 else f"You have {count} guesses left."


def _answer(reason: str, guess: str) -> str:
    return f"<think>{reason}</think><guess>{guess}</guess>"


def solver(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess the most informative word in a sample of the words that are consistent with all hints."""
    possible = [word for word in WORDS if fits(word, state["history"])]
    if not state["history"]:
        return _answer("Common letters first.", max(possible, key=commonness))
    guesses, words = (rng.sample(possible, min(size, len(possible))) for size in (20, 50))
    # The sum of squares is proportional to the mean number of words that still fit after a guess.
    counts = {guess: Counter(hint(guess, word) for word in words).values() for guess in sorted(guesses)}
    best = min(counts, key=lambda guess: sum(count * count for count in counts[guess]))
    return _answer(f"Words that fit: {len(possible)}.", best)


def random_word(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess any word, ignoring the hints."""
    return _answer("Any word.", rng.choice(WORDS))


def novice(messages: vf.Messages, state: vf.State, rng: random.Random) -> str:
    """Guess any word that has the known green letters, ignoring the other colors."""
    green = ["."] * 5
    for guess, colors in state["history"]:
        green = [letter if color == "g" else old for letter, color, old in zip(guess, colors, green)]
    possible = [word for word in WORDS if all(old in (".", letter) for letter, old in zip(word, green))]
    return _answer(f"Green: {' '.join(green).upper()}", rng.choice(possible))


class WordGameEnv(vf.MultiTurnEnv):
    """An environment that answers guesses with hints, until the word is found or no guess is left."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(history=[], invalid=False)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        guess, word, history = (self.parser.parse_answer(messages) or "").lower(), state["answer"], state["history"]
        num_left = state["info"]["guesses"] - len(state["trajectory"])
        if len(guess) == 5 and guess.isascii() and guess.isalpha():
            history.append((guess, hint(guess, word)))
            reply = show(*history[-1])
        else:
            state["invalid"] = True
            reply = "Invalid guess. Write exactly five letters from A to Z, for example <guess>crane</guess>."
        if guess != word and num_left:
            return f"{reply}\n{count_left(num_left)}"
        ending = "You found the word." if guess == word else f"You have no guesses left. The word was {word.upper()}."
        state["final_env_response"] = f"{reply}\n{ending}"
        return None

    def render(self, state: vf.State) -> vf.Rendering:
        """Return the guesses with their hints, and empty rows for the remaining ones."""
        rows = [[(letter.upper(), LOOKS[c]) for letter, c in zip(*guess)] for guess in state["history"]]
        num_left = state["info"]["guesses"] - len(state["trajectory"])
        return vf.Rendering(rows + [[("", "")] * 5] * max(0, num_left))


def solved(state: vf.State) -> float:
    """Return 1 if the word was found."""
    return float((state["answer"], "ggggg") in state["history"])


def early(state: vf.State) -> float:
    """Return the fraction of guesses left when the word was found, else 0."""
    return solved(state) * (1 - len(state["trajectory"]) / state["info"]["guesses"])


def invalid_guess(state: vf.State) -> float:
    """Return 1 if any guess was not five letters."""
    return float(state["invalid"])


def fitting(state: vf.State) -> float:
    """Return the fraction of valid guesses that are consistent with all earlier hints; 0 without valid guesses."""
    history = state["history"]
    return sum(fits(guess, history[:turn]) for turn, (guess, _) in enumerate(history)) / max(1, len(history))


def _rows(count: int, seed: str, words: list[str], guesses: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    level_of: dict[str, int] = {}
    for level, level_words in enumerate(levels(), start=1):
        level_of |= dict.fromkeys(level_words, level)
    while len(rows) < count:  # use every word once before repeating any
        for word in random.Random(f"{seed}:{len(rows)}").sample(words, len(words)):
            info = {"level": level_of[word], "guesses": guesses}
            rows.append({"question": f"Guess the word. {count_left(guesses)}", "answer": word, "info": info})
    return rows[:count]


def load_environment(
    num_examples: int = 500,
    seed: int = 0,
    min_level: int = 1,
    max_level: int = LEVELS,
    max_turns: int = 6,
) -> vf.Environment:
    """Return an environment in which the model guesses five-letter words.

    Args:
        num_examples: Number of games; words repeat, in another order, when all of them have been used.
        seed: Random seed of the dataset. With any seed, every fifth word is used only for evaluation.
        min_level, max_level: Difficulty, from 1 (common letters) to 5 (rare and repeated letters).
        max_turns: Maximum guesses, including invalid ones.
    """
    if not 1 <= min_level <= max_level <= LEVELS:
        raise vf.ConfigError(
            f"min_level is {min_level}, max_level {max_level}; need 1 <= min_level <= max_level <= {LEVELS}"
        )
    if max_turns < 1:
        raise vf.ConfigError(f"max_turns is {max_turns}; expected 1 guess or more")
    chosen = levels()[min_level - 1 : max_level]
    evaluation = list(chain.from_iterable(level_words[::5] for level_words in chosen))
    train = [word for word in chain.from_iterable(chosen) if word not in evaluation]
    parser = vf.XMLParser(["think", "guess"], answer_field="guess")
    rubric = vf.Rubric(parser=parser)
    rubric.add_reward_func(solved, weight=1.0)
    rubric.add_reward_func(early, weight=0.2)
    rubric.add_reward_func(parser.get_format_reward_func(), weight=0.2, name="format")
    rubric.add_reward_func(invalid_guess, weight=-0.1)
    rubric.add_metric(fitting)
    return WordGameEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train", train, max_turns),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval", evaluation, max_turns),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        policies={"solver": solver, "random_word": random_word, "novice": novice},
        max_turns=max_turns,
    )
