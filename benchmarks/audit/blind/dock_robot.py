"""Dock the robot: drive a cleaning robot over a floor plan to its dock."""

import random
from collections import deque

import rove as vf

SIZE = 7
MOVES = {"N": (-1, 0), "S": (1, 0), "W": (0, -1), "E": (0, 1)}
NAMES = "Dusty Rollo Pixel Sweepy Bruno Wanda Orbit Felix Mop Nimbus".split()
ROOMS = ["kitchen", "lobby", "office", "workshop", "gallery", "cellar"]
NUM_PLANS = 48


class Plan:
    """A floor plan: walls, a start and a dock that can be reached from it."""

    def __init__(self, number):
        rng = random.Random(f"plan-{number}")
        cells = [(r, c) for r in range(SIZE) for c in range(SIZE)]
        while True:
            self.walls = set(rng.sample(cells, 17))
            free = [cell for cell in cells if cell not in self.walls]
            self.start, self.dock = rng.sample(free, 2)
            route = self.route(self.start)
            if route and len(route) >= 6:
                self.shortest = len(route)
                return

    def step(self, cell, move):
        r, c = cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]
        return None if not (0 <= r < SIZE and 0 <= c < SIZE) or (r, c) in self.walls else (r, c)

    def route(self, origin):
        paths, queue = {origin: ""}, deque([origin])
        while queue:
            cell = queue.popleft()
            if cell == self.dock:
                return paths[cell]
            for move in MOVES:
                after = self.step(cell, move)
                if after and after not in paths:
                    paths[after] = paths[cell] + move
                    queue.append(after)
        return None

    def draw(self, robot):
        look = {self.dock: "D", robot: "R"}
        return "\n".join(
            " ".join(look.get((r, c), "#" if (r, c) in self.walls else ".") for c in range(SIZE)) for r in range(SIZE)
        )


class DockEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["plan"] = Plan(state["info"]["plan"])
        state.update(robot=state["plan"].start, steps=0, bumps=0)

    async def env_response(self, messages, state, **kwargs):
        plan = state["plan"]
        moves = [m for m in (self.parser.parse_answer(messages) or "").upper() if m in MOVES]
        if not moves:
            return "No moves found. Answer <moves>N E E</moves>"
        for move in moves[:20]:
            after = plan.step(state["robot"], move)
            state["steps"] += 1
            if after is None:
                state["bumps"] += 1
                return f"The robot hit a wall and stopped.\n{plan.draw(state['robot'])}"
            state["robot"] = after
            if after == plan.dock:
                state["final_env_response"] = "Docked."
                return None
        return plan.draw(state["robot"])


def docked(state):
    """1 on the dock, less for detours."""
    if state["robot"] != state["plan"].dock:
        return 0.0
    return max(0.3, min(1.0, state["plan"].shortest / state["steps"]))


def bumps(state):
    return float(state["bumps"])


def episode(seed):
    rng = random.Random(seed)
    number = seed % NUM_PLANS
    plan = Plan(number)
    text = f"{rng.choice(NAMES)} is in the {rng.choice(ROOMS)}, with {rng.randint(20, 95)}% battery.\n{plan.draw(plan.start)}"
    return {"question": text, "info": {"plan": number, "seed": seed}}


def navigator(messages, state, rng):
    return f"<moves>{' '.join(state['plan'].route(state['robot']))}</moves>"


def wanderer(messages, state, rng):
    """Four random moves that do not hit a wall."""
    plan, cell, moves = state["plan"], state["robot"], []
    for _ in range(4):
        move = rng.choice([m for m in MOVES if plan.step(cell, m)])
        cell = plan.step(cell, move)
        moves.append(move)
    return f"<moves>{' '.join(moves)}</moves>"


def load_environment(num_train: int = 400, num_eval: int = 100, seed: int = 0, max_turns: int = 5) -> vf.Environment:
    """Seeds from 10,000 on are for evaluation."""
    parser = vf.XMLParser(["moves"], answer_field="moves")
    rubric = vf.Rubric([docked], parser=parser)
    rubric.add_metric(bumps)
    return DockEnv(
        dataset=lambda: [episode(seed + i) for i in range(num_train)],
        eval_dataset=lambda: [episode(10_000 + seed + i) for i in range(num_eval)],
        system_prompt=(
            "Drive the robot R to the dock D. # is a wall. Answer <moves>N E E S</moves> with up to 20 moves; "
            "you have five turns, and short routes earn more."
        ),
        parser=parser,
        rubric=rubric,
        policies={"navigator": navigator, "wanderer": wanderer},
        max_turns=max_turns,
    )
