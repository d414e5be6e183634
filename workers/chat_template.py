r"""Chat templates: render messages to the text that a model reads, with the Jinja template of its checkpoint.

    messages --> template (sandboxed) --> "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n" --> tokenizer

The gateway and the engine both use this file, because their prefixes agree only if they render the same text. It
renders what transformers renders, after normalising messages as SGLang and vLLM do: missing content becomes empty
content, and the arguments of a tool call, a JSON text in OpenAI's API, become the decoded value. A template is
untrusted code, so it runs in a sandbox without access to Python or to the caller's values.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

Message = Mapping[str, Any]

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_PROBE = "radixgate probe"

_END = "radixgate-end-of-the-last-message"
"""A mark for the end of the last message in the rendered text, where the message's own text may occur again."""


class TemplateFailed(Exception):
    """There is no usable template, or it cannot render these messages; the text has the reason."""


class NothingToContinue(TemplateFailed):
    """The last message has no text to continue, or the template leaves the text out."""


class ChatTemplate:
    """The templates of one model: "default", and perhaps "tool_use" for requests with tools."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """Compile the templates; raises TemplateFailed if one is malformed or none is the default."""
        environment = _environment(now)
        self.text_with_tools = templates.get("tool_use", templates.get("default", ""))
        """The source of the template that requests with tools use."""
        self._special_tokens = dict(special_tokens)
        self._templates = {name: _compile(environment, name, text) for name, text in templates.items()}
        if "default" not in self._templates:
            raise TemplateFailed(f"there is no default chat template, only {sorted(self._templates)}")
        self._reads_parts = self._probe_parts()

    @classmethod
    def from_directory(cls, directory: Path | str) -> "ChatTemplate":
        """Read chat_template.jinja or tokenizer_config.json; raises TemplateFailed if neither has a template."""
        path = Path(directory)
        config = _read_config(path / "tokenizer_config.json")
        templates = _named(config.get("chat_template"))
        try:
            # chat_template.jinja is the newer form, and takes precedence if both exist.
            templates["default"] = (path / "chat_template.jinja").read_text(encoding="utf-8")
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as err:
            raise TemplateFailed(f"{path / 'chat_template.jinja'} cannot be read: {err}") from err
        if not templates:
            raise TemplateFailed(
                f"{path} has no chat template, neither in chat_template.jinja nor in tokenizer_config.json"
            )
        return cls(templates, _special_tokens(config))

    def render(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Return the prompt for `messages`. Further keywords are variables of the template.

        Content is a string or a list of text parts; a template for strings alone gets the parts joined by
        line breaks. Raises TemplateFailed, and nothing else, if a message is malformed or the template refuses it.

        With `continue_final_message` the model continues the last message: the text that the template adds after it
        is cut off, as in transformers, and there is no generation prompt. Raises NothingToContinue.
        """
        template = self._templates["default"]
        if tools:
            template = self._templates.get("tool_use", template)
        normalised: Sequence[Message] = [
            self._normalised(place, message) for place, message in enumerate(messages)
        ]
        text = self._render(
            template,
            {
                **self._special_tokens,
                "documents": None,
                **kwargs,
                "messages": _marked(normalised) if continue_final_message else normalised,
                "tools": tools,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            },
        )
        if not continue_final_message:
            return text
        text, marked, _ = text.rpartition(_END)
        if not marked:
            raise NothingToContinue("the template leaves out how the last message ends")
        return text

    def _render(self, template: Template, variables: Mapping[str, Any]) -> str:
        try:
            return template.render(variables)
        except TemplateError as err:
            raise TemplateFailed(f"the chat template refused the messages: {err}") from err
        # A template is a program, which can fail in any way that Python can.
        except Exception as err:
            raise TemplateFailed(
                f"the chat template failed on the messages: {type(err).__name__}: {err}"
            ) from err

    def _normalised(self, place: int, message: object) -> Message:
        if not isinstance(message, Mapping):
            raise TemplateFailed(f"messages[{place}] must be an object, not {type(message).__name__}")
        if not isinstance(message.get("role"), str):
            raise TemplateFailed(f"messages[{place}].role must be a string")
        if message.get("tool_calls"):
            message = {**message, "tool_calls": _decoded_calls(message["tool_calls"])}
        content = message.get("content")
        if content is None:
            return {**message, "content": ""}
        if isinstance(content, str):
            return message
        if not isinstance(content, Sequence):
            raise TemplateFailed(f"messages[{place}].content must be a string or a list of text parts")
        texts = [
            _text_of(part, f"messages[{place}].content[{number}]") for number, part in enumerate(content)
        ]
        return message if self._reads_parts else {**message, "content": "\n".join(texts)}

    def _probe_parts(self) -> bool:
        """Return whether the template understands lists of content parts; others print them as a Python list."""
        probe = [{"role": "user", "content": [{"type": "text", "text": _PROBE}]}]
        variables = {**self._special_tokens, "messages": probe, "tools": None, "documents": None}
        try:
            text = self._render(self._templates["default"], variables)
        except TemplateFailed:
            return False
        return _PROBE in text and f"'{_PROBE}'" not in text and f'"{_PROBE}"' not in text


def _marked(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages with a mark where the text of the last one ends, without trailing space."""
    *before, last = messages or [{}]
    content = last.get("content")
    if isinstance(content, str):
        if content.strip():
            return [*before, {**last, "content": content.rstrip() + _END}]
    elif content:
        *parts, part = content
        if part["text"].strip():
            part = {**part, "text": part["text"].rstrip() + _END}
            return [*before, {**last, "content": [*parts, part]}]
    raise NothingToContinue("there is no last message to continue")


def _decoded_calls(calls: object) -> object:
    """Return tool calls with decoded arguments; malformed calls are returned unchanged."""
    return [_decoded_call(call) for call in calls] if isinstance(calls, list) else calls


def _decoded_call(call: object) -> object:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if not isinstance(call, Mapping) or not isinstance(function, Mapping) or not isinstance(arguments, str):
        return call
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": value}}


def _text_of(part: object, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise TemplateFailed(f'{where} must be a text part, as in {{"type": "text", "text": "..."}}')
    return text


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as err:
        raise TemplateFailed(f"{path} cannot be read: {err}") from err
    if not isinstance(config, dict):
        raise TemplateFailed(f"{path} must hold a JSON object")
    return config


def _named(value: object) -> dict[str, str]:
    """Return templates by name, from one template or a list of {"name", "template"}."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    try:
        return {str(entry["name"]): str(entry["template"]) for entry in value}  # type: ignore[attr-defined]
    except (TypeError, KeyError) as err:
        raise TemplateFailed(
            "tokenizer_config.json: chat_template must be a string or a list of named ones"
        ) from err


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens, each given as a string or as {"content": string, ...}."""
    found = {name: config.get(name) for name in _SPECIAL_TOKENS}
    texts = {
        name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _compile(environment: ImmutableSandboxedEnvironment, name: str, text: str) -> Template:
    try:
        return environment.from_string(text)
    except TemplateError as err:
        raise TemplateFailed(f"the {name} chat template is malformed: {err}") from err


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    """Return the Jinja environment for which chat templates are written."""

    def strftime_now(form: str) -> str:
        return now().strftime(form)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": strftime_now,
        "namespace": _Namespace,
        # The type itself would expose its methods; dict.update(messages[0], ...) would change the caller's message.
        "dict": _new_dict,
    }
    return environment


class _GenerationTag(Extension):
    """The tag `{% generation %}...{% endgeneration %}`, which marks training text; only its content is kept."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the tag into a scope with its content."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Namespace(Namespace):
    """A Jinja namespace that refuses names with a leading underscore, which lead to Python internals."""

    def __init__(self, /, *args: Any, **kwargs: Any) -> None:
        values = dict(*args, **kwargs)
        for name in values:
            _must_be_plain(name)
        super().__init__(values)

    def __setitem__(self, name: str, value: Any) -> None:
        _must_be_plain(name)
        super().__setitem__(name, value)


def _must_be_plain(name: str) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")


def _new_dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own tojson escapes < > & ' for HTML; a model was trained on plain JSON.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
