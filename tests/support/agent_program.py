"""A foreign agent as a program: it uses OpenAI's package, which finds the model through environment variables alone."""

import os
import subprocess
import sys

import openai

task = sys.stdin.read()
assert task == os.environ["ROVE_TASK"]
behavior = sys.argv[1] if len(sys.argv) > 1 else "fine"
subprocess.Popen(["sleep", "1000"])  # still runs when the program ends, and keeps its pipes open
messages = [{"role": "system", "content": "You are asked by a program."}, {"role": "user", "content": task}]
for _ in range(2):
    with openai.OpenAI(max_retries=0) as sdk:
        answer = sdk.chat.completions.create(model="any", messages=messages).choices[0].message
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": "go on"}]
if behavior == "crash":
    print("about to fail", file=sys.stderr)
    sys.exit(3)
print(messages[-2]["content"])
