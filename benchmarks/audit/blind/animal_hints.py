"""Animal hints: guess an animal; every wrong guess reveals one more hint."""

from __future__ import annotations

import random
from typing import Any

import rove as vf

SYSTEM_PROMPT = (
    "Guess the animal. After each wrong guess you get another hint. You have four guesses. Reply <animal>name</animal>"
)
ANIMALS = """
    aardvark albatross alligator alpaca anaconda anteater antelope armadillo baboon badger barracuda beaver beetle bison
    boar buffalo butterfly camel caribou cassowary caterpillar chameleon cheetah chimpanzee chinchilla chipmunk cobra
    cockatoo condor cormorant cougar coyote crane cricket crocodile crow dolphin donkey dragonfly dromedary eagle echidna
    elephant falcon ferret finch firefly flamingo gazelle gecko gerbil gibbon giraffe gorilla grasshopper grouse hamster
    hare hawk hedgehog heron hippopotamus hornet hyena ibex iguana impala jackal jaguar jellyfish kangaroo kingfisher
    kiwi koala lemur leopard lizard llama lobster lynx macaw magpie mallard manatee mandrill mantis marmot meerkat mink
    mole mongoose moose mosquito narwhal newt nightingale ocelot octopus okapi opossum orangutan orca ostrich otter owl
    panther parrot partridge pelican penguin pheasant pigeon platypus porcupine puffin python quail rabbit raccoon
    reindeer rhinoceros salamander scorpion seahorse skunk sloth squirrel starling stork swan tapir tiger toucan turtle
    vulture wallaby walrus weasel wolverine wombat woodpecker yak zebra
""".split()


def hints(name: str) -> list[str]:
    """Return four hints, from vague to clear."""
    vowels = sum(letter in "aeiou" for letter in name)
    return [
        f"Its name has {len(name)} letters, {vowels} of them vowels, and ends with {name[-1].upper()}.",
        f"The third letter is {name[2].upper()}.",
        f"The letters in alphabetical order are {' '.join(sorted(name.upper()))}.",
        f"It begins with {name[:2].upper()}.",
    ]


class HintsEnv(vf.MultiTurnEnv):
    """An environment that answers a wrong guess with another hint."""

    async def setup_state(self, state: vf.State, **kwargs: Any) -> None:
        state.update(found=False, used=1)

    async def env_response(self, messages: vf.Messages, state: vf.State, **kwargs: Any) -> str | None:
        guess = (self.parser.parse_answer(messages) or "").strip().lower()
        if guess == state["answer"]:
            state["found"] = True
            state["final_env_response"] = "Right!"
            return None
        if state["used"] == len(state["info"]["hints"]):
            state["final_env_response"] = "Wrong, and there are no more hints."
            return None
        hint = state["info"]["hints"][state["used"]]
        state["used"] += 1
        return f"Wrong. {hint}"


def found(state: vf.State) -> float:
    """Return 1 for the right animal with one hint, 0.8 with two, 0.6 with three, 0.4 with four; otherwise 0."""
    return float(state["found"]) * (1.2 - 0.2 * state["used"])


def hints_used(state: vf.State) -> float:
    """Return the number of hints that the model got."""
    return float(state["used"])


def _rows(count: int, seed: str) -> list[dict[str, Any]]:
    names = list(ANIMALS)
    random.Random(seed).shuffle(names)
    return [{"question": hints(name)[0], "answer": name, "info": {"hints": hints(name)}} for name in names[:count]]


def load_environment(num_examples: int = 80, seed: int = 0) -> vf.Environment:
    """Return an environment in which the model guesses animals.

    Args:
        num_examples: Number of animals for training, and for evaluation.
        seed: Random seed of the selection.
    """
    parser = vf.XMLParser(["animal"], answer_field="animal")
    rubric = vf.Rubric([found], parser=parser)
    rubric.add_metric(hints_used)
    return HintsEnv(
        dataset=lambda: _rows(num_examples, f"{seed}:train"),
        eval_dataset=lambda: _rows(num_examples, f"{seed}:eval"),
        system_prompt=SYSTEM_PROMPT,
        parser=parser,
        rubric=rubric,
        max_turns=4,
    )
