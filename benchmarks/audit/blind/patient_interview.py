"""Interview a simulated patient and name the condition."""

import random
import re

import rove as vf

# Symptoms of each (simplified) condition: probability of each answer.
CONDITIONS = {
    "migraine": {
        "head": "throbbing on one side",
        "light": "hurts my eyes",
        "fever": "no",
        "stomach": "queasy",
        "neck": "fine",
    },
    "flu": {
        "head": "aching all over",
        "light": "does not bother me",
        "fever": "39 degrees",
        "stomach": "queasy",
        "neck": "a bit sore",
    },
    "tension headache": {
        "head": "like a tight band",
        "light": "does not bother me",
        "fever": "no",
        "stomach": "fine",
        "neck": "stiff from the desk",
    },
    "meningitis": {
        "head": "aching all over",
        "light": "hurts my eyes",
        "fever": "39 degrees",
        "stomach": "queasy",
        "neck": "too stiff to bend",
    },
    "sinusitis": {
        "head": "pressure behind the cheeks",
        "light": "does not bother me",
        "fever": "a little",
        "stomach": "fine",
        "neck": "fine",
    },
    "food poisoning": {
        "head": "a bit dull",
        "light": "does not bother me",
        "fever": "a little",
        "stomach": "cramps and vomiting",
        "neck": "fine",
    },
    "hay fever": {"head": "stuffy", "light": "makes me sneeze", "fever": "no", "stomach": "fine", "neck": "fine"},
    "concussion": {
        "head": "sore since I fell",
        "light": "hurts my eyes",
        "fever": "no",
        "stomach": "queasy",
        "neck": "a bit sore",
    },
}
VAGUE = ["hard to say", "I did not pay attention", "comes and goes"]
NAMES = "Mr. Adler;Ms. Boone;Mr. Cho;Ms. Dietz;Mr. Egan;Ms. Ferro;Mr. Grau;Ms. Huang;Mr. Ivers;Ms. Jansen".split(";")
JOBS = ["teacher", "welder", "cook", "student", "driver", "nurse", "baker", "clerk"]
SYSTEM = (
    "You are a triage nurse. Ask the patient up to five questions, one per turn (about the head, light, fever, stomach, "
    "neck, and so on). Then reply 'Diagnosis: X', where X is one of: " + ", ".join(sorted(CONDITIONS)) + "."
)
DIAGNOSIS = re.compile(r"diagnosis:\s*([a-z ]+)", re.I)


class Patient:
    def __init__(self, record):
        self.record = record

    def answer(self, question):
        """Answer about every topic of the record that the question mentions."""
        words = set(re.findall(r"[a-z]+", question.lower()))
        told = [f"My {topic}? {value}." for topic, value in self.record.items() if topic in words]
        return " ".join(told) or "I am not sure what you mean."


class InterviewEnv(vf.MultiTurnEnv):
    async def setup_state(self, state, **kwargs):
        state["patient"] = Patient(state["info"]["record"])
        state["diagnosis"] = None

    async def env_response(self, messages, state, **kwargs):
        text = str(messages[-1].content or "")
        if match := DIAGNOSIS.search(text):
            state["diagnosis"] = match[1].strip().lower()
            state["final_env_response"] = "Thank you, nurse."
            return None
        left = self.max_turns - len(state["trajectory"])
        note = "\n(Name your diagnosis now.)" if left == 1 else ""
        return state["patient"].answer(text) + note


def correct(state, answer):
    return float(state["diagnosis"] == answer)


def questions_asked(state):
    return float(len(state["trajectory"]) - (state["diagnosis"] is not None))


def case(rng):
    condition = rng.choice(sorted(CONDITIONS))
    symptoms = dict(CONDITIONS[condition])
    name, job = rng.choice(NAMES), rng.choice(JOBS)
    record = {"name": name, "age": str(rng.randint(18, 80)), "job": job, "condition": condition, **symptoms}
    for topic in rng.sample(["light", "stomach", "neck"], rng.randint(0, 1)):
        record[topic] = rng.choice(VAGUE)
    opening = rng.choice(
        [
            "I don't feel well.",
            "My head is no good today.",
            "I have felt bad since {}.".format(rng.choice(["Monday", "yesterday", "lunch"])),
        ]
    )
    return {
        "question": f"{name}, {job}, {record['age']}, ticket {rng.randint(10000, 99999)}: {opening}",
        "answer": condition,
        "info": {"record": record},
    }


def load_environment(num_train: int = 300, num_eval: int = 100, seed: int = 1):
    def cases(split, count):
        return [case(random.Random(f"{split}-{seed}-{i}")) for i in range(count)]

    rubric = vf.Rubric([correct])
    rubric.add_metric(questions_asked)
    return InterviewEnv(
        dataset=lambda: cases("train", num_train),
        eval_dataset=lambda: cases("eval", num_eval),
        system_prompt=SYSTEM,
        rubric=rubric,
        max_turns=6,
    )
