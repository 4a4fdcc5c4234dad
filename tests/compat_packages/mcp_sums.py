"""Tools of an MCP server."""

import sys
from pathlib import Path

import verifiers as vf
from datasets import Dataset

SERVER = Path(__file__).parents[1] / "support" / "mcp_server.py"


def load_environment(**kwargs):
    def added(completion, answer):
        return float(any(m["role"] == "tool" and m["content"] == answer for m in completion))

    rows = [{"question": "Add 2 and 3.", "answer": "5"}, {"question": "Fail.", "answer": "no"}]
    return vf.MCPEnv(
        mcp_servers=[
            {"name": "test", "command": sys.executable, "args": [str(SERVER), "stdio"], "description": "a test server"}
        ],
        dataset=Dataset.from_list(rows),
        rubric=vf.Rubric(funcs=[added]),
        max_turns=3,
        **kwargs,
    )
