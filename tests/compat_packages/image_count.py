"""Prompts with images."""

import verifiers as vf
from datasets import Dataset

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def load_environment(**kwargs):
    def build():
        rows = []
        for number in (1, 2):
            parts = [{"type": "text", "text": f"How many dots ({number})?"}]
            parts += [{"type": "image_url", "image_url": {"url": PIXEL}}] * number
            rows.append({"prompt": [{"role": "user", "content": parts}], "answer": str(number)})
        return Dataset.from_list(rows)

    def right(prompt, completion, answer):
        images = [part for part in prompt[-1]["content"] if part["type"] == "image_url"]
        return float(completion[-1]["content"] == answer == str(len(images)))

    return vf.SingleTurnEnv(dataset=build, rubric=vf.Rubric(funcs=[right]), **kwargs)
