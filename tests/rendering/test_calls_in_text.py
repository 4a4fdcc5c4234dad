from __future__ import annotations

import json
import time

import pytest
from tiers import each_row

from rove.rendering.calls_in_text import call_left_in
from rove.rendering.python_calls import Call
from rove.rendering.tool_calls import FORMATS

TOOLS = ("save", "get-weather", "search.web")

CALLS_LEFT_IN_TEXT = {
    "Hermes": '<tool_call>\n{"name": "save", "arguments": {"x": 1}}\n</tool_call>',
    "Hermes after reasoning": '<think>save?</think>\n<tool_call>{"arguments": {"x": 1}, "name": "save"}</tool_call>',
    "Hermes after text": 'I store it now.\n<tool_call>\n{"name": "save", "arguments": {"x": 1}}\n</tool_call>',
    "Llama 3": '{"name": "save", "parameters": {"x": 1}}',
    "Llama 3, type first": '{"type": "function", "name": "save", "parameters": {"x": "1"}}',
    "Llama 3, two calls": '{"name": "save", "parameters": {"x": 1}}; {"name": "save", "parameters": {"x": 2}}',
    "Llama 3, builtin": '<|python_tag|>search.web.call(query="rain")',
    "Llama 3, builtin without token": 'save.call(x="1")',
    "Llama 3, marked": '<|python_tag|>{"name": "save", "parameters": {"x": 1}}',
    "Llama 3.1, custom": '<function=save>{"x": 1}</function>',
    "Llama 3.2, pythonic": "[save(x=1), get-weather(city='Oslo')]",
    "Llama 4": "<|python_start|>[save(x=1)]<|python_end|>",
    "Mistral 7B": '[TOOL_CALLS] [{"name": "save", "arguments": {"x": 1}}]',
    "Mistral without token": '[{"name": "save", "arguments": {"x": 1}, "id": "abcdefghi"}]',
    "Mistral Small 3": '[TOOL_CALLS]save[ARGS]{"x": 1}',
    "Mistral with id": '[TOOL_CALLS]save[CALL_ID]123456789[ARGS]{"x": 1}',
    "Devstral without token": 'save{"x": 1}',
    "DeepSeek V3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>save\n```json\n"
        '{"x": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "DeepSeek V3 without tokens": 'functionsave\n```json\n{"x": 1}\n```',
    "DeepSeek V3.1": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>save<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
    ),
    "DeepSeek V3.2": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="save">\n<｜DSML｜parameter name="x" string="false">1'
        "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"
    ),
    "Kimi K2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get-weather:0<|tool_call_argument_begin|>"
        '{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "Kimi K2 without tokens": 'I look it up. functions.get-weather:0{"city": "Oslo"}',
    "Granite 3.0": '<|tool_call|> [{"name": "save", "arguments": {"x": 1}}]',
    "Granite 3.1": '<tool_call>[{"arguments": {"x": 1}, "name": "save"}]',
    "Granite 20B": '<function_call> {"name": "save", "arguments": {"x": 1}}',
    "Phi-4": 'functools[{"name": "save", "arguments": {"x": 1}}]',
    "Phi-4 mini": '<|tool_call|>[{"name": "save", "arguments": {"x": 1}}]<|/tool_call|>',
    "Qwen3-Coder": "<tool_call>\n<function=save>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
    "Qwen3-Coder without outer tag": "<function=save>\n<parameter=x>\n1\n</parameter>\n</function>",
    "Seed-OSS": "<seed:tool_call>\n<function=save>\n<parameter=x>1</parameter>\n</function>\n</seed:tool_call>",
    "GLM-4.5": "<tool_call>save\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "GLM-4.7": "<tool_call>save<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>",
    "GLM-4.5, no arguments": "<tool_call>save\n</tool_call>",
    "GLM-4": 'save\n{"x": 1}',
    "ChatGLM3": "save\n```python\ntool_call(x=1)\n```",
    "MiniMax M1": '<tool_calls>\n{"name": "save", "arguments": {"x": 1}}\n</tool_calls>',
    "MiniMax M2": (
        '<minimax:tool_call>\n<invoke name="save">\n<parameter name="x">1</parameter>\n</invoke>\n</minimax:tool_call>'
    ),
    "Anthropic": (
        '<function_calls>\n<invoke name="save">\n<parameter name="x">1</parameter>\n</invoke>\n</function_calls>'
    ),
    "Anthropic, older": (
        "<function_calls>\n<invoke>\n<tool_name>save</tool_name>\n<parameters>\n<x>1</x>\n</parameters>\n</invoke>\n"
        "</function_calls>"
    ),
    "Command R": 'Action: ```json\n[\n    {\n        "tool_name": "save",\n        "parameters": {"x": 1}\n    }\n]```',
    "Command A": (
        "<|START_THINKING|>I will save.<|END_THINKING|><|START_ACTION|>\n"
        '[{"tool_call_id": "0", "tool_name": "save", "parameters": {"x": 1}}]\n<|END_ACTION|>'
    ),
    "Command A without tokens": '[\n    {"tool_call_id": "0", "tool_name": "save", "parameters": {"x": 1}}\n]',
    "InternLM2": '<|action_start|><|plugin|>{"name": "save", "parameters": {"x": 1}}<|action_end|>',
    "Jamba": '<tool_calls>[{"name": "save", "arguments": "{\\"x\\": 1}"}]</tool_calls>',
    "xLAM": '[{"name": "save", "arguments": {"x": 1}}, {"name": "get-weather", "arguments": {}}]',
    "xLAM in a block": 'I store it.\n```json\n[{"name": "save", "arguments": {"x": 1}}]\n```',
    "LFM2": "<|tool_call_start|>[save(x=1)]<|tool_call_end|>",
    "LFM2 without tokens": '[get-weather(city="Oslo")]',
    "MiniCPM": "<|tool_call_start|>\n```python\nsave(x=1)\n```\n<|tool_call_end|>",
    "gpt-oss": '<|channel|>commentary to=functions.save <|constrain|>json<|message|>{"x": 1}<|call|>',
    "gpt-oss without tokens": 'analysisI should save it.assistantcommentary to=functions.save json{"x": 1}',
    "Functionary 3.2": '>>>save\n{"x": 1}',
    "Functionary 2": '<|from|>assistant\n<|recipient|>save\n<|content|>{"x": 1}',
    "Nemotron": '<TOOLCALL>[{"name": "save", "arguments": {"x": 1}}]</TOOLCALL>',
    "OLMo 3": "<function_calls>get-weather(city='Oslo')\nsave(x=1)</function_calls>",
    "Gemma 3": "```tool_code\nsave(x=1)\n```",
    "FunctionGemma": "<start_function_call>call:get-weather{city:<escape>Oslo<escape>}<end_function_call>",
    "Gemma 4": '<|tool_call>call:get-weather{city:<|"|>Oslo<|"|>}<tool_call|>',
    "Hunyuan": '<tool_calls>[{"name": "save", "arguments": {"x": 1}}]</tool_calls>',
    "Apertus": '<|tools_prefix|>[{"save": {"x": 1}}]<|tools_suffix|>',
    "GigaChat": 'function call{"name": "save", "arguments": {"x": 1}}',
    "LongCat": '<longcat_tool_call>\n{"name": "save", "arguments": {"x": 1}}\n</longcat_tool_call>',
    "Step 3": (
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="save"><steptml:parameter name="x">1'
        "</steptml:parameter></steptml:invoke><｜tool_call_end｜>"
    ),
    "Qwen-Agent": '✿FUNCTION✿: save\n✿ARGS✿: {"x": 1}',
    "ReAct": 'Thought: I must store it.\nAction: save\nAction Input: {"x": 1}',
    "OpenAI's own form": '{"tool_calls": [{"id": "1", "type": "function", "function": {"name": "save", "arguments": "{}"}}]}',
    "line break in a string": '{"name": "save", "arguments": {"x": "a\nb"}}',
    "function as the key": '{"function": "save", "parameters": {"x": 1}}',
    "tool as the key": '{"tool": "save", "args": {"x": 1}}',
    "input as the key": '{"name": "save", "input": {"x": 1}}',
    "arguments null": '{"name": "save", "parameters": null}',
    "Llama 3, end token": '{"name": "save", "parameters": {"x": 1}}<|eom_id|>',
    "Hermes, first token lost": '{"name": "save", "arguments": {"x": 1}}\n</tool_call>',
    "end tokens": "[save(x=1)]<|eot_id|> </s>",
    "Kimi K2, first tokens lost": 'functions.save:0<|tool_call_argument_begin|>{"x": 1}',
    "Mistral, empty id": '[TOOL_CALLS]save[CALL_ID][ARGS]{"x": 1}',
    "GLM, first token lost": "save\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>",
    "LongCat, tags": "<longcat_tool_call>save\n<longcat_arg_key>x</longcat_arg_key></longcat_tool_call>",
    "Qwen2.5-Coder": '<tools>\n{"name": "save", "arguments": {"x": 1}}\n</tools>',
    "text, then JSON": 'Sure, I store it.\n\n{"name": "save", "arguments": {"x": 1}}\n{"name": "save", "arguments": {"x": 2}}',
    "text, then a list": 'Sure:\n[\n  {"name": "save", "arguments": {"x": 1}}\n]',
    "one own tool of two": '[{"name": "save", "arguments": {}}, {"name": "unknown", "arguments": {}}]',
}
"""Calls in the published forms of models, and in what servers leave of them when they remove special tokens."""

ORDINARY = {
    "plain answer": "The number is 42.",
    "mention": "I would call save with x = 1.",
    "code in prose": "Call `save(x=1)` to store the number; `get-weather` needs a city.",
    "call in a sentence": "You can write save(x=1) or get-weather(city='Oslo') here.",
    "other function": '{"name": "delete", "arguments": {"x": 1}}',
    "other function, marked": '<|tool_call|>[{"name": "delete", "arguments": {"x": 1}}]',
    "person": '{"name": "Ada", "age": 36}',
    "person with a tool's name": '{"name": "save", "age": 36}',
    "data with parameters": '{"name": "save", "parameters": {"x": 1}, "score": 0.5}',
    "list of data": '[{"name": "save", "count": 3}, {"name": "get-weather", "count": 1}]',
    "tool described": (
        '{"name": "save", "description": "Save a number.", "parameters": {"type": "object", "properties": {}}}'
    ),
    "tools described, in tags": (
        '<tools>[{"type": "function", "function": {"name": "save", "description": "Save.", "parameters": {}}}]</tools>'
    ),
    "schema as parameters": '{"name": "save", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}',
    "tools listed in XML": "<tools><tool>save</tool><tool>get-weather</tool></tools>",
    "tools described in XML": '<tool name="save">Saves a number.</tool>\n<tool><name>save</name></tool>',
    "names in a list": '["save", "get-weather"]',
    "argument values": '{"x": 1}',
    "answer with action": '{"action": "save", "reason": "the number is new"}',
    "nested answer": '{"answer": {"name": "save", "arguments": {"x": 1}}}',
    "JSON string": '"save"',
    "name alone": "save",
    "name and number": "save\n42",
    "heading and list": "save\n[1, 2, 3]",
    "Python code": "```python\ndef save(x):\n    return x\n\nsave(x=1)\n```",
    "example, then the answer": 'Write this:\n```json\n{"name": "save", "arguments": {"x": 1}}\n```\nThe answer is 4.',
    "code block of data": '```json\n{"name": "save", "size": 3}\n```',
    "quoted JSON": 'The log says {"name": "save", "arguments": {"x": 1}} and then stops.',
    "result quoted": '<tool_response>{"name": "save", "arguments": {"x": 1}}</tool_response> was the result.',
    "tag explained": "Wrap the call in <tool_call> and </tool_call>; its name is save.",
    "action in prose": "Action: save the file.\nAction Input: none",
    "function word": "function save is documented below.",
    "recipient in prose": "Send it to=functions or save it.",
    "HTML": "<p>save</p><function-list>save</function-list>",
    "call inside reasoning": '<think><tool_call>{"name": "save", "arguments": {"x": 1}}</tool_call></think>The answer is 4.',
    "reasoning not closed": '<think>I could write {"name": "save"}: <tool_call>{"name": "save", "arguments": {}}</tool_call>',
    "cut off": '<tool_call>\n{"name": "save", "arguments": {"x": ',
    "cut off, XML": "<tool_call>\n<function=save>\n<parameter=x>\n1",
    "cut off, Kimi": '<|tool_call_begin|>functions.save:0<|tool_call_argument_begin|>{"x": 1',
    "longer name": '{"name": "save_all", "arguments": {"x": 1}}\nsave_all{"x": 1}',
    "longer name in tags": "<function=save-all><parameter=x>1</parameter></function>",
    "call in other reasoning": '<thinking><invoke name="save"></invoke></thinking>4',
    "JSON in other reasoning": '<reasoning>\n{"name": "save", "arguments": {}}\n</reasoning>\nThe answer is 4.',
    "tools repeated": '<tools>[{"name": "save"}, {"name": "save", "parameters": {"properties": {}}}]</tools>',
    "JSON, then text": 'One could write\n{"name": "save", "arguments": {"x": 1}}\nbut the answer is 4.',
    "data, then a call in it": '{"steps": [\n{"name": "save", "arguments": {"x": 1}}\n]}',
    "data over lines": 'Result:\n{"x": 1}\n{"name": "save", "count": 2}',
    "tag without arguments": "<tool_call>save</b>",
    "positional arguments": "[save(1)]",
    "list of values": "[save, 1]",
    "indexing": "values[save(x)] = 1",
    "Markdown table": "| tool | use |\n|---|---|\n| save | store |",
    "empty": "",
}


@each_row("form", CALLS_LEFT_IN_TEXT)
def test_a_call_left_in_the_text_is_found(form: str):
    assert call_left_in(CALLS_LEFT_IN_TEXT[form], TOOLS) in TOOLS


@pytest.mark.parametrize("form", CALLS_LEFT_IN_TEXT)
def test_a_call_of_another_environments_tool_is_not_found(form: str):
    assert call_left_in(CALLS_LEFT_IN_TEXT[form], ("sav", "weather", "web", "unrelated")) is None


@each_row("kind", ORDINARY)
def test_an_ordinary_reply_holds_no_call(kind: str):
    assert call_left_in(ORDINARY[kind], TOOLS) is None


@pytest.mark.parametrize("tool_format", FORMATS, ids=lambda tool_format: tool_format.name)
def test_what_rove_writes_is_found(tool_format):
    calls = [Call("get-weather", {"city": 'it\'s\n"Oslo"', "max-days": 3}), Call("save", {})]
    assert call_left_in(tool_format.write(calls), TOOLS) == "get-weather"
    assert call_left_in(json.dumps(tool_format.write(calls)), TOOLS) is None or tool_format.name in (
        "hermes",
        "lfm2",
        "mistral_named",
        "mistral",
    )


@each_row(
    "text",
    [
        "<tool_call>" * 20_000 + "save",
        '<tool_call>["save' * 20_000,
        "<function=save>" * 20_000,
        "<" + "tool" * 50_000 + "save",
        "[" * 100_000 + "save",
        "save(" * 50_000,
        "[save(x=" + "[" * 50_000,
        "to=functions.save " * 20_000,
        "```json\n{" * 20_000 + "save```",
        "save" + " " * 200_000 + ".",
        "save" + "</s>" * 50_000,
        '{"a": 1}\n' * 20_000 + "save",
        "\n[" * 50_000 + "save",
    ],
)
def test_long_hostile_texts_are_read_in_linear_time(text: str):
    started = time.process_time()
    assert call_left_in(text, TOOLS) is None
    assert time.process_time() - started < 10
