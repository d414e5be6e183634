"""The handlers of POST /v1/chat/completions and /v1/completions.

    body -> typed -> tools, prompt tokens, grammar -> engine -> outputs -> `responses`

Each choice is a sequence of its own: a prompt is computed by its first choice, and the others fork from that one.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace

from aiohttp import web

from workers.engine.async_engine import OutputStream
from workers.engine.errors import RequestRefused
from workers.engine.grammar.matcher import Matcher
from workers.engine.request import Output, Request
from workers.engine.scheduler.sequence import FinishReason
from workers.engine_server.bootstrap import bootstraps
from workers.engine_server.choices import ChoiceState
from workers.engine_server.completion_formatters import (
    ChatCompletionFormatter,
    CompletionFormatter,
    CompletionMetadata,
    TextCompletionFormatter,
)
from workers.engine_server.engine_worker import WORKER, EngineWorker, request_name
from workers.engine_server.errors import bad_request
from workers.engine_server.requests import (
    EngineChatBody,
    EngineCompletionBody,
    GenerationBody,
    read_generation,
)
from workers.engine_server.responses import Outputs, merged_outputs, send_stream, send_whole
from workers.engine_server.sampling import sampling_params
from workers.engine_server.served_models import requested_lora
from workers.engine_server.structured_outputs import RequestedGrammar, requested_grammar
from workers.engine_server.tools.plan import TEXT_ONLY, ToolPlan, tool_plan

COMPLETION_TOKENS_DEFAULT = 16
"""OpenAI's default for max_tokens of a text completion."""

CACHE_SALT_CHARS_MAX = 1024

CHOICES_MAX = 128
"""Most choices of all prompts of a request together; a queue that holds fewer lowers the limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationJob:
    """One request for completions, ready for the engine."""

    body: EngineChatBody | EngineCompletionBody
    lora: str
    """The LoRA adapter that answers; empty: the model itself."""
    prompts: list[list[int]]
    """The tokens of each prompt."""
    max_tokens: int
    formatter: Callable[[CompletionMetadata], CompletionFormatter]
    """Writes chat or text completions."""
    tools: ToolPlan = TEXT_ONLY
    echoes: Sequence[str] = ()
    """The text of each prompt, where the client wants it before the answers."""


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """Answer POST /v1/chat/completions; without max_tokens the answer may fill the context."""
    worker = request.app[WORKER]
    body = await read_generation(request, EngineChatBody)
    lora = requested_lora(worker, body.model)
    _check_salt(body)
    tools = tool_plan(
        body.tools,
        body.tool_choice,
        body.parallel_tool_calls,
        call_format=worker.call_format,
        token_bytes=worker.engine.tokenizer.token_bytes,
    )
    prompt = await worker.prompt_tokenizer.tokenize_chat(
        body.messages,
        tools=body.tools,
        variables=_variables(body),
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=body.continue_final_message is True,
    )
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if max_tokens is None:
        max_tokens = max(1, worker.engine.limits.tokens_max - len(prompt))
    try:
        return await _generate(
            request,
            GenerationJob(
                body=body,
                lora=lora,
                prompts=[prompt],
                max_tokens=max_tokens,
                formatter=ChatCompletionFormatter,
                tools=tools,
            ),
        )
    except RequestRefused as err:
        # The engine names its own fields; the client sent `messages`, and may have used the newer limit.
        client_names = {"prompt": "messages"}
        if body.max_completion_tokens is not None:
            client_names["max_tokens"] = "max_completion_tokens"
        param = client_names.get(err.param or "", err.param)
        raise RequestRefused(str(err), param=param, code=err.code) from err


async def completions(request: web.Request) -> web.StreamResponse:
    """Answer POST /v1/completions."""
    worker = request.app[WORKER]
    body = await read_generation(request, EngineCompletionBody)
    lora = requested_lora(worker, body.model)
    _check_salt(body)
    if body.echo and body.logprobs is not None:
        raise bad_request(
            "logprobs of an echoed prompt are not supported by this worker.",
            param="logprobs",
            code="unsupported_parameter",
        )
    prompts = await worker.prompt_tokenizer.tokenize_completion(body.prompt, CHOICES_MAX)
    max_tokens = COMPLETION_TOKENS_DEFAULT if body.max_tokens is None else body.max_tokens
    echoes: list[str] = []
    if body.echo:
        for prompt in prompts:
            # Checked before the prompt is decoded: a token that does not exist has no text.
            worker.engine.limits.check(prompt, max_tokens)
        echoes = _prompt_texts(worker, body, prompts)
    job = GenerationJob(
        body=body,
        lora=lora,
        prompts=prompts,
        max_tokens=max_tokens,
        formatter=TextCompletionFormatter,
        echoes=echoes,
    )
    return await (_generate if max_tokens or not body.echo else _echo)(request, job)


def _variables(body: EngineChatBody) -> dict[str, object]:
    """Return the template's variables besides messages and tools; the client's own variables take precedence."""
    known = {"documents": body.documents, "reasoning_effort": body.reasoning_effort}
    return {name: value for name, value in known.items() if value is not None} | (
        body.chat_template_kwargs or {}
    )


def _prompt_texts(
    worker: EngineWorker, body: EngineCompletionBody, prompts: Sequence[list[int]]
) -> list[str]:
    """Return the prompts as texts: as the client sent them, or decoded from their tokens."""
    texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if all(isinstance(text, str) for text in texts):
        return list(texts)
    return [worker.engine.tokenizer.decode(prompt) for prompt in prompts]


def _check_salt(body: GenerationBody) -> None:
    if body.cache_salt is not None and len(body.cache_salt) > CACHE_SALT_CHARS_MAX:
        raise bad_request(f"cache_salt has at most {CACHE_SALT_CHARS_MAX} characters.", param="cache_salt")


def _metadata(
    request: web.Request, job: GenerationJob, *, rid: str, choices_per_prompt: int, logprobs: bool
) -> CompletionMetadata:
    worker, body = request.app[WORKER], job.body
    return CompletionMetadata(
        rid=rid,
        model=job.lora or worker.options.model_name,
        created=int(time.time()),
        include_usage=bool(body.stream and body.stream_options and body.stream_options.include_usage),
        choices_per_prompt=choices_per_prompt,
        token_bytes=worker.engine.tokenizer.token_bytes,
        logprobs=logprobs,
        echoes=[echo for echo in job.echoes for _ in range(choices_per_prompt)],
    )


async def _echo(request: web.Request, job: GenerationJob) -> web.StreamResponse:
    """Return the prompts alone, for an echo without new tokens; the engine computes nothing."""
    choices_per_prompt = _choices_per_prompt(request.app[WORKER], job.body, len(job.prompts))
    rid = request_name(request, job.body.rid)
    metadata = _metadata(request, job, rid=rid, choices_per_prompt=choices_per_prompt, logprobs=False)

    async def empty_outputs() -> Outputs:
        for index in range(len(job.prompts) * choices_per_prompt):
            yield (
                index,
                Output(
                    id=rid,
                    text="",
                    tokens=(),
                    finish=FinishReason.LENGTH,
                    prompt_tokens=len(job.prompts[index // choices_per_prompt]),
                    cached_tokens=0,
                    completion_tokens=0,
                ),
            )

    send = send_stream if job.body.stream else send_whole
    async with aclosing(empty_outputs()) as outputs:
        choices = [ChoiceState() for _ in range(len(job.prompts) * choices_per_prompt)]
        return await send(request, outputs, choices, job.formatter(metadata), metadata)


async def _generate(request: web.Request, job: GenerationJob) -> web.StreamResponse:
    worker, body = request.app[WORKER], job.body
    rid = request_name(request, body.rid)
    params = sampling_params(body, job.max_tokens)
    choices_per_prompt = _choices_per_prompt(worker, body, len(job.prompts))
    metadata = _metadata(
        request, job, rid=rid, choices_per_prompt=choices_per_prompt, logprobs=params.logprobs is not None
    )
    grammar = _grammar(job)
    bootstrap_of_choice = bootstraps(body, len(job.prompts) * choices_per_prompt)
    # The context is left on every ending: a lost connection cancels this handler, and that aborts the sequences.
    async with AsyncExitStack() as stack:
        streams: list[OutputStream] = []
        for prompt in job.prompts:
            leader: str | None = None
            for number in range(choices_per_prompt):
                choice = Request(
                    id=stack.enter_context(worker.live_requests.enter(rid)),
                    fork_of=leader,
                    bootstrap=bootstrap_of_choice[len(streams)],
                    prompt=prompt,
                    # With one seed for all, all choices would be the same text.
                    params=params if params.seed is None else replace(params, seed=params.seed + number),
                    salt=body.cache_salt or "",
                    lora=job.lora,
                    priority=body.priority or 0,
                    deadline_seconds=None if body.deadline_ms is None else body.deadline_ms / 1000,
                    streamed=bool(body.stream),
                    matcher=await _matcher(worker, grammar) if grammar else None,
                    shown_ids=job.tools.shown_ids,
                )
                streams.append(await stack.enter_async_context(await worker.engine.submit(choice)))
                leader = leader or choice.id
        outputs = await stack.enter_async_context(aclosing(merged_outputs(streams)))
        # An answer that the client's own grammar constrains is text and has no tool calls.
        reads_calls = grammar is None or job.tools.grammar is not None
        choices = [ChoiceState(parser=job.tools.parser() if reads_calls else None) for _ in streams]
        send = send_stream if body.stream else send_whole
        return await send(request, outputs, choices, job.formatter(metadata), metadata)


def _grammar(job: GenerationJob) -> RequestedGrammar | None:
    """Return the grammar of the answers, and the field that contains it; None where the answers are free."""
    requested = requested_grammar(job.body)
    if job.tools.grammar is None:
        return requested
    if requested is not None:
        raise bad_request(f"{requested[0]} and tool_choice exclude each other.", param=requested[0])
    return "tools", job.tools.grammar


async def _matcher(worker: EngineWorker, requested: RequestedGrammar) -> Matcher:
    """Return a new matcher for one answer; a compiled grammar is cached, so the next matcher costs little."""
    field, grammar = requested
    try:
        return await worker.engine.grammars.matcher(grammar)
    except RequestRefused as err:
        raise RequestRefused(str(err), param=field, code=err.code) from err


def _choices_per_prompt(worker: EngineWorker, body: GenerationBody, prompts: int) -> int:
    """Return how many answers each prompt is to get."""
    number = 1 if body.n is None else body.n
    choices_max = min(CHOICES_MAX, worker.options.waiting_max)
    if number < 1 or prompts * number > choices_max:
        raise bad_request(
            f"A request has between 1 and {choices_max} choices, not {prompts * number}.",
            param="n" if prompts == 1 else "prompt",
        )
    # With best_of equal to n every answer is returned; more answers would have to be ranked.
    if body.best_of not in (None, number):
        raise bad_request(
            "best_of other than n is not supported by this worker.",
            param="best_of",
            code="unsupported_parameter",
        )
    return number
