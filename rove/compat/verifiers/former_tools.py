"""The example tools that the library shipped until 0.1.7, as `verifiers.utils.tools`."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import textwrap

_CELL_SECONDS = 10
_SHOWN_CHARS = 1000
_PAGE_CHARS = 50_000


def calculator(expression: str) -> str:
    """Evaluates a single line of Python math expression. No imports or variables allowed.

    Args:
        expression (str): A mathematical expression using only numbers and basic operators (+,-,*,/,**,())

    Returns:
        The result of the calculation or an error message

    Examples:
        "2 + 2" -> "4"
        "3 * (17 + 4)" -> "63"
        "100 / 5" -> "20.0"
    """
    if not set(expression) <= set("0123456789+-*/.() "):
        return "Error: Invalid characters in expression"
    code = f"print(eval({expression!r}, {{'__builtins__': {{}}}}, {{}}))"
    output, error, is_late = _run(code)
    if is_late:
        return f"Error: calculation timed out after {_CELL_SECONDS} seconds"
    if error:
        said = error.strip().splitlines()[-1]
        return f"Error: {said.split(': ', 1)[-1]}"
    return output.strip()


def python(code: str) -> str:
    """Evaluates Python code like a Jupyter notebook cell, returning output and/or the last expression value.

    Args:
        code (str): A block of Python code

    Returns:
        The output (stdout + last expression if not None) or error message

    Examples:
        {"code": "import numpy as np\\nnp.array([1, 2, 3]) + np.array([4, 5, 6])"} -> "[5 7 9]"
        {"code": "x = 5\\ny = 10\\nx + y"} -> "15"
        {"code": "a, b = 3, 4\\na, b"} -> "(3, 4)"
    """
    output, error, is_late = _run(_as_cell(code))
    if is_late:
        return f"Error: Code execution timed out after {_CELL_SECONDS} seconds"
    return error.strip()[:_SHOWN_CHARS] or output.strip()[:_SHOWN_CHARS]


def _run(code: str) -> tuple[str, str, bool]:
    """Output, errors, and whether the time was up."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], timeout=_CELL_SECONDS, text=True, capture_output=True, check=False
        )
    except subprocess.TimeoutExpired:
        return "", "", True
    return done.stdout, done.stderr, False


def _as_cell(code: str) -> str:
    """Code that prints the value of its last expression."""
    code = textwrap.dedent(code)
    tree = ast.parse(code, mode="exec")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if not isinstance(last, ast.Expr):
        return code
    return f"{ast.unparse(tree)}\n_ = {ast.unparse(last.value)}\nif _ is not None: print(_)"


def ask(question: str, url: str) -> str:
    """Ask a question about a web page returned from search results.

    Args:
        question: The question to be answered (by an LLM who will be given the web page contents)
        url: The URL of the web page to query

    Returns:
        A LLM-generated answer to the question based on the web page contents.

    Examples:
        {"question": "What is the capital of France?", "url": "https://en.wikipedia.org/wiki/France"} -> "The capital of France is Paris."
        {"question": "How many people live in the United States?", "url": "https://en.wikipedia.org/wiki/United_States"} -> "The population of the United States is approximately 340 million people."
    """  # noqa: E501
    page = _page(url)[:_PAGE_CHARS]
    if page.startswith("Error:"):
        return "Error: Failed to fetch URL contents."
    asked = f"Answer the following question based on the provided web page contents:\n\nQuestion: {question}\n\n"
    asked += f"Page: {url}\n\nPage contents:\n{page}\n"
    try:
        client = importlib.import_module("openai").OpenAI(
            base_url="https://api.deepinfra.com/v1/openai", api_key=os.getenv("DEEPINFRA_API_KEY")
        )
        reply = client.chat.completions.create(
            model="Qwen/Qwen2.5-7B-Instruct", messages=[{"role": "user", "content": asked}], max_tokens=4000
        )
        return reply.choices[0].message.content or "Error: No response from model."
    except Exception as error:
        return f"Error: {error}"


def _page(url: str) -> str:
    try:
        response = importlib.import_module("requests").get(url, timeout=30)
        response.raise_for_status()
        return importlib.import_module("markdownify").markdownify(response.text)
    except Exception as error:
        return f"Error: {error}"


def search_ddg(query: str, num_results: int = 5) -> str:
    """Searches DuckDuckGo and returns concise summaries of top results.

    Args:
        query (str): The search query string
        num_results (int): Number of results to return (default: 5, max: 10)

    Returns:
        Formatted string with bullet points of top results, each with title and brief summary

    Examples:
        {"query": "who invented the lightbulb", "num_results": 3}
    """
    try:
        with importlib.import_module("duckduckgo_search").DDGS() as engine:
            found = list(engine.text(query, max_results=min(num_results, 10)))
    except Exception as error:
        return f"Error: {error}"
    lines = [f"• {one['title']}\n  {one['body'][:200].rsplit('.', 1)[0]}." for one in found]
    return "\n\n".join(lines) or "No results found"


def search(query: str) -> str:
    """Searches the web and returns summaries of top results.

    Args:
        query: The search query string

    Returns:
        Formatted string with bullet points of top 3 results, each with title, source, url, and brief summary

    Examples:
        {"query": "who invented the lightbulb"} -> ["Thomas Edison (1847-1931) - Inventor of the lightbulb", ...]
        {"query": "what is the capital of France"} -> ["Paris is the capital of France", ...]
        {"query": "when was the Declaration of Independence signed"} -> ["The Declaration of Independence was signed on July 4, 1776", ...]
    """  # noqa: E501
    try:
        engine = importlib.import_module("brave").Brave()
        found = engine.search(q=query, count=10, raw=True).get("web", {}).get("results", [])
    except Exception as error:
        return f"Error: {error}"
    lines = [
        f"•  {one['profile']['name']} ({one['profile']['long_name']})\n   {one['title']}\n"
        f"   {one['description'][:300]} ...\n   {one['url']}"
        for one in found
        if "profile" in one
    ]
    return "\n\n".join(lines[:3]) or "No results found"
