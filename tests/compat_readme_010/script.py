"""The code of README of verifiers 0.1.0, level by level, as one script; `client` and `model_name` are set by the test."""

import verifiers as vf
from datasets import Dataset

dataset = Dataset.from_list([{"question": "2+2?", "answer": "4"}, {"question": "3+3?", "answer": "6"}])


# Level 1
def correct(prompt, completion, answer, **kwargs):
    return float(parser.parse_answer(completion) == answer)


parser = vf.XMLParser(["think", "answer"])
rubric = vf.Rubric(correct, parser.get_format_reward_func(), weights=[1.0, 0.2])
vf_env = vf.SingleTurnEnv(
    dataset=dataset,
    system_prompt=f"Respond in the following format: {parser.get_format_str()}",
    parser=parser,
    rubric=rubric,
)


def count_letters(prompt, completion, answer, **kwargs):
    return float(len(completion[-1]["content"]))


train_env = vf.SingleTurnEnv(
    dataset=dataset,
    parser=parser,
    rubric=vf.Rubric(count_letters, parser.get_format_reward_func(), weights=[1.0, 0.2]),
)

# Level 2
results = vf_env.evaluate(client, model="scripted", num_samples=100)  # noqa: F821
mean_reward = results["rewards_avg"]
synthetic = vf_env.make_dataset(results)
synthetic = synthetic.sort("reward", reverse=True).select(range(1))


# Level 3
model, tokenizer = vf.get_model_and_tokenizer(model_name)  # noqa: F821
args = vf.grpo_defaults(run_name="readme")
args.max_steps = 2  # instead of 500
args.max_completion_length = 8  # instead of 2048
weights_before = [weight.detach().clone() for weight in model.parameters()]
trainer = vf.GRPOTrainer(model=model, processing_class=tokenizer, env=train_env, args=args)
trainer.train()


# Level 4
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


tool_env = vf.ToolEnv(dataset=dataset, system_prompt="Use tools.", tools=[double], max_steps=5)


# Level 5
class YourMultiTurnEnv(vf.MultiTurnEnv):
    def __init__(self, dataset, system_prompt, parser, rubric, max_turns, **kwargs):
        super().__init__(
            dataset=dataset, system_prompt=system_prompt, parser=parser, rubric=rubric, max_turns=max_turns, **kwargs
        )

    def is_completed(self, messages, state, **kwargs):
        return messages[-1]["content"] == "2 is enough"

    def env_response(self, messages, state, **kwargs):
        turns = sum(message["role"] == "assistant" for message in messages)
        return {"role": "user", "content": f"{turns} is enough"}, state


def count_messages(completion, **kwargs):
    return float(len(completion))


turn_env = YourMultiTurnEnv(dataset, "Talk.", vf.Parser(), vf.Rubric(count_messages), 5)
turn_results = turn_env.evaluate(client, model="scripted", num_samples=1)  # noqa: F821
