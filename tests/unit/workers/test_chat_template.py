"""Chat templates: the same text as transformers, one kind of failure, and no way out of the sandbox."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from workers.chat_template import ChatTemplate, TemplateFailed
from workers.engine.tiny_checkpoint import CHAT_TEMPLATE

QWEN_LIKE = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if loop.first and message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}
"""

LLAMA_3_LIKE = """\
{{- bos_token }}
{%- set ns = namespace(system='', found=false) %}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {%- set ns.system = message['content'] | trim %}
        {%- set ns.found = true %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools is not none %}
    {{- 'Environment: ipython\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- '\\n\\n' }}
    {%- endfor %}
{%- endif %}
{{- ns.system + '<|eot_id|>' }}
{%- for message in messages if message['role'] != 'system' %}
    {%- if message['role'] not in ['user', 'assistant'] %}
        {{- raise_exception('Only user and assistant roles are supported, not ' ~ message['role'] ~ '!') }}
    {%- endif %}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' + message['content'] | trim + eos_token }}
        {%- endgeneration %}
    {%- else %}
        {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "Hi"}],
    "with a system": [
        {"role": "system", "content": " Be brief. "},
        {"role": "user", "content": "<b>Hi</b> & 'bye'"},
    ],
    "turns": [
        {"role": "user", "content": "a\n\nb  "},
        {"role": "assistant", "content": "  ünï 🦊 {{ no }} {% raw %}"},
        {"role": "user", "content": ""},
    ],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Wetter in <Köln> & "anderswo"',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
TOKENS = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|pad|>"}


def template(text: str) -> ChatTemplate:
    return ChatTemplate({"default": text}, TOKENS)


@pytest.fixture(scope="module")
def theirs(model: Path) -> Any:
    return AutoTokenizer.from_pretrained(model)


@pytest.mark.parametrize("text", [CHAT_TEMPLATE, QWEN_LIKE, LLAMA_3_LIKE], ids=["chatml", "qwen", "llama3"])
@pytest.mark.parametrize("messages", CHATS.values(), ids=CHATS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
@pytest.mark.parametrize("prompt", [True, False])
def test_the_text_is_that_of_transformers(
    theirs: Any, text: str, messages: list[dict[str, Any]], tools: Any, prompt: bool
) -> None:
    wanted = theirs.apply_chat_template(
        messages, chat_template=text, tools=tools, add_generation_prompt=prompt, tokenize=False
    )
    assert wanted == template(text).render(messages, tools=tools, add_generation_prompt=prompt)


def test_further_variables_reach_the_template_as_in_transformers(theirs: Any) -> None:
    messages = CHATS["one"]
    wanted = theirs.apply_chat_template(
        messages, chat_template=QWEN_LIKE, add_generation_prompt=True, tokenize=False, enable_thinking=False
    )
    assert wanted == template(QWEN_LIKE).render(messages, enable_thinking=False)
    assert "<think>" in wanted


def test_tool_calls_and_tool_answers_are_rendered(theirs: Any) -> None:
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Köln <&>"}}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain"},
    ]
    wanted = theirs.apply_chat_template(
        messages, chat_template=QWEN_LIKE, add_generation_prompt=True, tokenize=False
    )
    assert wanted == template(QWEN_LIKE).render(messages)


CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]


@pytest.mark.parametrize("text", [CHAT_TEMPLATE, QWEN_LIKE, "{{ messages[1]['content'] | trim }}|"])
def test_no_content_is_empty_content(text: str) -> None:
    """As SGLang and vLLM have it; transformers leaves it to the template, and some print None."""
    asked, answered, told = HISTORY
    rendered = template(text).render(HISTORY)
    assert "None" not in rendered
    assert rendered == template(text).render([asked, {**answered, "content": ""}, told])
    left_out = {name: value for name, value in answered.items() if name != "content"}
    assert rendered == template(text).render([asked, left_out, told])
    assert HISTORY[1]["content"] is None


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}]])
def test_a_tool_may_answer_nothing(content: Any) -> None:
    told = {"role": "tool", "tool_call_id": "c1", "content": content}
    for text in (CHAT_TEMPLATE, QWEN_LIKE):
        nothing = template(text).render([*HISTORY[:2], {**told, "content": ""}])
        assert template(text).render([*HISTORY[:2], told]) == nothing


def test_arguments_of_a_call_reach_the_template_as_an_object() -> None:
    """OpenAI's are a text; templates walk through them, and the engines decode them first."""
    arguments = "messages[1].tool_calls[0].function.arguments"
    walk = "{% for name, value in " + arguments + ".items() %}{{ name }}={{ value }}{% endfor %}"
    assert template(walk).render(HISTORY) == "city=Köln"
    assert HISTORY[1]["tool_calls"] == [CALL]
    assert CALL["function"]["arguments"] == '{"city": "Köln"}'


@pytest.mark.parametrize(
    "calls", [None, [], [5], "x", [{}], [{"function": 5}], [{"function": {"name": "f"}}]]
)
def test_odd_calls_are_left_to_the_template(calls: Any) -> None:
    messages = [{"role": "assistant", "content": "x", "tool_calls": calls}]
    assert template("{{ messages[0].content }}").render(messages) == "x"


@pytest.mark.parametrize("arguments", ["{", "5", "[1]", "\ud800", "[" * 100_000])
def test_arguments_that_are_no_json_stay_as_they_are(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    text = "{{ messages[0].tool_calls[0].function.arguments }}"
    assert template(text).render(messages) == arguments


def test_a_template_that_reads_parts_gets_them_as_they_are(theirs: Any) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    wanted = theirs.apply_chat_template(
        messages, chat_template=CHAT_TEMPLATE, add_generation_prompt=True, tokenize=False
    )
    assert wanted == template(CHAT_TEMPLATE).render(messages)


def test_a_template_that_reads_only_strings_gets_the_parts_joined() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    plain = [{"role": "user", "content": "a\nb"}]
    for text in (QWEN_LIKE, LLAMA_3_LIKE, "{{ messages[0].content }}", "{{ messages | tojson }}"):
        assert template(text).render(plain) == template(text).render(parts)


def test_the_date_comes_from_the_clock_that_was_given() -> None:
    text = "{{ strftime_now('%d %b %Y') }}"
    clock = ChatTemplate({"default": text}, {}, now=lambda: datetime(2026, 11, 20))
    assert clock.render([]) == "20 Nov 2026"


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        (["text"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\]\.role"),
        ([{"role": None, "content": "x"}], r"messages\[0\]\.role"),
        ([{"role": "user", "content": 5}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": {"text": "x"}}], r"messages\[0\]\.content"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages\[0\]\.content\[0\]"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], r"messages\[0\]\.content\[0\]"),
        ([{"role": "robot", "content": "x"}], "not robot!"),
    ],
)
def test_a_bad_message_is_named(messages: Any, named: str) -> None:
    with pytest.raises(TemplateFailed, match=named):
        template(LLAMA_3_LIKE).render(messages)


ESCAPES = [
    "{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__closure__ }}{{ strftime_now.__globals__.datetime }}",
    "{{ (messages | tojson).__init__.__globals__.x }}",
    "{{ namespace.__init__.__globals__.json }}",
    "{{ ''.format.__self__.__class__.__subclasses__() }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}{{ '%s' | attr('__class__') }}",
    "{% set ns = namespace() %}{% set ns.__class__ = 5 %}",
    "{% set ns = namespace(__init__=5) %}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'content': 'changed'}) }}",
    "{{ dict.update(messages[0], {'content': 'changed'}) }}",
    "{{ self._TemplateReference__context.environment.from_string('x') }}",
    "{% for n in range(10 ** 9) %}x{% endfor %}",
    "{{ lipsum.__globals__['os'] }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{{ 1 / 0 }}",
    "{{ undefined_name.attribute }}",
    "{{ messages[0].content + 5 }}",
    "{{ strftime_now(5) }}",
    "{{ messages | tojson(indent='x', separators=5) }}",
]


@pytest.mark.parametrize("text", ESCAPES)
def test_a_template_can_only_fail_and_only_in_one_way(text: str) -> None:
    messages = [{"role": "user", "content": "unchanged"}]
    with pytest.raises(TemplateFailed):
        template(text).render(messages)
    assert messages == [{"role": "user", "content": "unchanged"}]


@pytest.mark.parametrize("text", ["{% if %}", "{{ 'open }}", "{% for x in y %}", "{{ x | nofilter }}"])
def test_a_malformed_template_is_refused_when_it_is_loaded(text: str) -> None:
    with pytest.raises(TemplateFailed, match="malformed"):
        template(text)


def write(directory: Path, config: object, jinja: str | None = None) -> Path:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    if jinja is not None:
        (directory / "chat_template.jinja").write_text(jinja)
    return directory


def test_special_tokens_may_be_objects(tmp_path: Path) -> None:
    config = {
        "chat_template": "{{ bos_token }}|{{ eos_token }}|",
        "bos_token": {"content": "<s>"},
        "eos_token": "</s>",
    }
    assert ChatTemplate.from_directory(write(tmp_path, config)).render([]) == "<s>|</s>|"


def test_the_file_wins_over_the_config(tmp_path: Path) -> None:
    directory = write(tmp_path, {"chat_template": "config", "bos_token": "<s>"}, jinja="file {{ bos_token }}")
    assert ChatTemplate.from_directory(directory).render([]) == "file <s>"


def test_of_named_templates_the_one_for_tools_is_used_with_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    loaded = ChatTemplate.from_directory(write(tmp_path, {"chat_template": named}))
    assert (loaded.render([]), loaded.render([], tools=TOOLS)) == ("plain", "tools")


@pytest.mark.parametrize(
    "config",
    [{}, {"chat_template": None}, {"chat_template": []}, {"chat_template": 5}, [], {"chat_template": [5]}],
)
def test_a_directory_without_a_usable_template_is_an_error_that_names_it(
    tmp_path: Path, config: object
) -> None:
    with pytest.raises(TemplateFailed):
        ChatTemplate.from_directory(write(tmp_path, config))


def test_named_templates_without_a_default_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TemplateFailed, match="tool_use"):
        ChatTemplate.from_directory(
            write(tmp_path, {"chat_template": [{"name": "tool_use", "template": "x"}]})
        )


def test_an_empty_or_broken_directory_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(TemplateFailed, match="no chat template"):
        ChatTemplate.from_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(TemplateFailed, match="cannot be read"):
        ChatTemplate.from_directory(tmp_path)
