"""Turns prompts into tokens, by a rule that the gateway (gateway/tokenization) repeats exactly.

chat          the rendered template, by default with add_generation_prompt=True; it is encoded without special
              tokens, because the template has written them
completions   a string is encoded with special tokens; token ids stay as they are

As in vLLM and SGLang, a template variable overrides the field of the same name; `messages` and `tools` are refused.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from workers.chat_template import ChatTemplate, Message, NothingToContinue
from workers.engine.tokenization.tokenizer import LONG_TEXT_CHARS, Tokenizer
from workers.engine_server.errors import bad_request

_RESERVED = frozenset({"messages", "tools"})


class PromptTokenizer:
    """The tokenizer and the chat template of one model; `template` is None for a model without one."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate | None) -> None:
        self._tokenizer = tokenizer
        self._template = template

    async def tokenize_chat(
        self,
        messages: Sequence[Message],
        *,
        variables: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Return the tokens of a conversation.

        Args:
            messages: The conversation.
            variables: Further variables of the chat template.
            tools: The tools that the template lists.
            add_generation_prompt: Whether the prompt ends with the beginning of an assistant's message.
            continue_final_message: Whether the answer continues the last message; there is no generation prompt
                then.

        Raises:
            ApiError: The request is invalid, or the model has no chat template.
            TemplateFailed: The template does not accept the conversation.
        """
        if self._template is None:
            raise bad_request(
                "This model has no usable chat template; use /v1/completions.", code="no_chat_template"
            )
        if not messages:
            raise bad_request("messages must not be empty.", param="messages")
        if reserved := _RESERVED & (variables or {}).keys():
            raise bad_request(
                f"{min(reserved)} is reserved: it is no template variable.",
                param="chat_template_kwargs",
            )
        try:
            fields = {
                "add_generation_prompt": add_generation_prompt,
                "continue_final_message": continue_final_message,
            }
            text = self._template.render(messages, tools=tools, **{**fields, **(variables or {})})
        except NothingToContinue as err:
            raise bad_request(
                "There is no last message to continue.", param="continue_final_message"
            ) from err
        return await self.tokenize_text(text, add_special_tokens=False, param="messages")

    async def tokenize_completion(self, prompt: str | list[Any], prompts_max: int) -> list[list[int]]:
        """Return the tokens of each prompt.

        `prompt` is a string, token ids, a list of strings, or a list of lists of token ids.
        """
        prompts: list[Any] = [prompt] if isinstance(prompt, str) or _are_tokens(prompt) else prompt
        if len(prompts) > prompts_max:
            raise bad_request(f"A request has at most {prompts_max} prompts.", param="prompt")
        if all(isinstance(one, str) for one in prompts):
            return [await self.tokenize_text(one, add_special_tokens=True, param="prompt") for one in prompts]
        if all(isinstance(one, list) and _are_tokens(one) for one in prompts):
            return prompts
        raise bad_request("prompt must be a string, token ids, or a list of either.", param="prompt")

    async def tokenize_text(self, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
        """Return the tokens of a text; a long text is encoded in a thread, so that others are served meanwhile."""
        try:
            if len(text) <= LONG_TEXT_CHARS:
                return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
            return await asyncio.to_thread(
                self._tokenizer.encode, text, add_special_tokens=add_special_tokens
            )
        except UnicodeEncodeError as err:
            raise bad_request("The text holds half of a surrogate pair.", param=param) from err

    async def detokenize(self, tokens: list[int], *, special: bool) -> str:
        """Return the text of tokens, with or without special ones; many tokens are decoded in a thread."""
        if len(tokens) <= LONG_TEXT_CHARS:
            return self._tokenizer.decode(tokens, special=special)
        return await asyncio.to_thread(self._tokenizer.decode, tokens, special=special)


def _are_tokens(prompt: list[Any]) -> bool:
    return all(type(token) is int for token in prompt)
