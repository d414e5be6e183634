"""POST /v1/chat/completions and /v1/completions.

    body -> typed -> tools, prompt tokens, grammar -> engine -> outputs -> `sending`

Each choice is a sequence of its own: a prompt is computed by its first choice, and the others fork from that.
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
from workers.engine_server.errors import ApiError, bad_request
from workers.engine_server.requests import (
    EngineChatBody,
    EngineCompletionBody,
    GenerationBody,
    read_generation,
)
from workers.engine_server.responses import Outputs, as_they_come, send_stream, send_whole
from workers.engine_server.sampling import sampling_params
from workers.engine_server.structured_outputs import RequestedGrammar, grammar_of
from workers.engine_server.tools.plan import TEXT_ONLY, ToolPlan, tool_plan
from workers.engine_server.worker import WORKER, EngineWorker, request_name

COMPLETION_TOKENS = 16
"""OpenAI's max_tokens of a text completion that names none."""

CACHE_SALT_CHARS_MAX = 1024

CHOICES_MAX = 128
"""Of all prompts of a request together; a shorter queue takes no more than it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationJob:
    """What is to be generated."""

    body: EngineChatBody | EngineCompletionBody
    prompts: list[list[int]]
    max_tokens: int
    kind: Callable[[CompletionMetadata], CompletionFormatter]
    tools: ToolPlan = TEXT_ONLY
    echoes: Sequence[str] = ()
    """The text of each prompt, if it is to stand before its answers."""


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """A conversation goes on; by default for as long as the context allows."""
    worker = request.app[WORKER]
    body = await read_generation(request, EngineChatBody)
    _must_be_served(worker, body)
    tools = tool_plan(
        body.tools,
        body.tool_choice,
        body.parallel_tool_calls,
        form=worker.call_format,
        pieces=worker.engine.tokenizer.token_bytes,
    )
    prompt = await worker.prompts.of_chat(
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
                body=body, prompts=[prompt], max_tokens=max_tokens, kind=ChatCompletionFormatter, tools=tools
            ),
        )
    except RequestRefused as err:
        # The engine speaks of prompts; this client sent messages. And its limit may have the newer name.
        sent = {"prompt": "messages"}
        if body.max_completion_tokens is not None:
            sent["max_tokens"] = "max_completion_tokens"
        raise RequestRefused(str(err), param=sent.get(err.param or "", err.param), code=err.code) from err


async def completions(request: web.Request) -> web.StreamResponse:
    """A text goes on."""
    worker = request.app[WORKER]
    body = await read_generation(request, EngineCompletionBody)
    _must_be_served(worker, body)
    if body.echo and body.logprobs is not None:
        raise bad_request(
            "logprobs of an echoed prompt are not supported by this worker.",
            param="logprobs",
            code="unsupported_parameter",
        )
    prompts = await worker.prompts.of_completion(body.prompt, CHOICES_MAX)
    max_tokens = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    echoes: list[str] = []
    if body.echo:
        for prompt in prompts:
            # What can never run is not read either: a token that does not exist has no text.
            worker.engine.limits.check(prompt, max_tokens)
        echoes = _texts(worker, body, prompts)
    job = GenerationJob(
        body=body, prompts=prompts, max_tokens=max_tokens, kind=TextCompletionFormatter, echoes=echoes
    )
    return await (_generate if max_tokens or not body.echo else _echo)(request, job)


def _variables(body: EngineChatBody) -> dict[str, object]:
    """What the template may look at besides messages and tools; the client's own variables win."""
    known = {"documents": body.documents, "reasoning_effort": body.reasoning_effort}
    return {name: value for name, value in known.items() if value is not None} | (
        body.chat_template_kwargs or {}
    )


def _texts(worker: EngineWorker, body: EngineCompletionBody, prompts: Sequence[list[int]]) -> list[str]:
    """The prompts as texts: as they came, or what their tokens say."""
    texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    if all(isinstance(text, str) for text in texts):
        return list(texts)
    return [worker.engine.tokenizer.decode(prompt) for prompt in prompts]


def _must_be_served(worker: EngineWorker, body: GenerationBody) -> None:
    if body.model is not None and body.model != worker.options.model_name:
        raise ApiError(
            404, f"The model {body.model!r} does not exist.", param="model", code="model_not_found"
        )
    if body.cache_salt is not None and len(body.cache_salt) > CACHE_SALT_CHARS_MAX:
        raise bad_request(f"cache_salt has at most {CACHE_SALT_CHARS_MAX} characters.", param="cache_salt")


def _head(
    request: web.Request, job: GenerationJob, *, rid: str, each: int, logprobs: bool
) -> CompletionMetadata:
    worker, body = request.app[WORKER], job.body
    return CompletionMetadata(
        rid=rid,
        model=worker.options.model_name,
        created=int(time.time()),
        include_usage=bool(body.stream and body.stream_options and body.stream_options.include_usage),
        per_prompt=each,
        pieces=worker.engine.tokenizer.token_bytes,
        logprobs=logprobs,
        echoes=[echo for echo in job.echoes for _ in range(each)],
    )


async def _echo(request: web.Request, job: GenerationJob) -> web.StreamResponse:
    """The prompts and nothing else: no token is wanted, so none is computed."""
    each = _choices_of_each(request.app[WORKER], job.body, len(job.prompts))
    rid = request_name(request, job.body.rid)
    head = _head(request, job, rid=rid, each=each, logprobs=False)

    async def nothing() -> Outputs:
        for index in range(len(job.prompts) * each):
            yield (
                index,
                Output(
                    id=rid,
                    text="",
                    tokens=(),
                    finish=FinishReason.LENGTH,
                    prompt_tokens=len(job.prompts[index // each]),
                    cached_tokens=0,
                    completion_tokens=0,
                ),
            )

    send = send_stream if job.body.stream else send_whole
    async with aclosing(nothing()) as outputs:
        choices = [ChoiceState() for _ in range(len(job.prompts) * each)]
        return await send(request, outputs, choices, job.kind(head), head)


async def _generate(request: web.Request, job: GenerationJob) -> web.StreamResponse:
    worker, body = request.app[WORKER], job.body
    rid = request_name(request, body.rid)
    params = sampling_params(body, job.max_tokens)
    each = _choices_of_each(worker, body, len(job.prompts))
    head = _head(request, job, rid=rid, each=each, logprobs=params.logprobs is not None)
    asked = _grammar(job)
    meeting = bootstraps(body, len(job.prompts) * each)
    # Left on every ending: a client that goes away cancels this handler, and that aborts the sequences.
    async with AsyncExitStack() as stack:
        streams: list[OutputStream] = []
        for prompt in job.prompts:
            leader: str | None = None
            for number in range(each):
                choice = Request(
                    id=stack.enter_context(worker.live.enter(rid)),
                    fork_of=leader,
                    bootstrap=meeting[len(streams)],
                    prompt=prompt,
                    # With one seed for all, all choices would be the same.
                    params=params if params.seed is None else replace(params, seed=params.seed + number),
                    salt=body.cache_salt or "",
                    priority=body.priority or 0,
                    deadline_seconds=None if body.deadline_ms is None else body.deadline_ms / 1000,
                    streamed=bool(body.stream),
                    matcher=await _matcher(worker, asked) if asked else None,
                    shown_ids=job.tools.shown_ids,
                )
                streams.append(await stack.enter_async_context(await worker.engine.submit(choice)))
                leader = leader or choice.id
        outputs = await stack.enter_async_context(aclosing(as_they_come(streams)))
        # What a grammar of the client's own holds is its text, and no tool call.
        reads_calls = asked is None or job.tools.grammar is not None
        choices = [ChoiceState(parser=job.tools.parser() if reads_calls else None) for _ in streams]
        send = send_stream if body.stream else send_whole
        return await send(request, outputs, choices, job.kind(head), head)


def _grammar(job: GenerationJob) -> RequestedGrammar | None:
    """What the answers must look like, and which field says so."""
    asked = grammar_of(job.body)
    if job.tools.grammar is None:
        return asked
    if asked is not None:
        raise bad_request(f"{asked[0]} and tool_choice exclude each other.", param=asked[0])
    return "tools", job.tools.grammar


async def _matcher(worker: EngineWorker, asked: RequestedGrammar) -> Matcher:
    """A new one for each answer; the second time costs next to nothing."""
    field, grammar = asked
    try:
        return await worker.engine.grammars.matcher(grammar)
    except RequestRefused as err:
        raise RequestRefused(str(err), param=field, code=err.code) from err


def _choices_of_each(worker: EngineWorker, body: GenerationBody, prompts: int) -> int:
    """How many answers each prompt is to get."""
    number = 1 if body.n is None else body.n
    choices_max = min(CHOICES_MAX, worker.options.waiting_max)
    if number < 1 or prompts * number > choices_max:
        raise bad_request(
            f"A request has between 1 and {choices_max} choices, not {prompts * number}.",
            param="n" if prompts == 1 else "prompt",
        )
    # The best of as many as are wanted are all of them; more would have to be judged.
    if body.best_of not in (None, number):
        raise bad_request(
            "best_of other than n is not supported by this worker.",
            param="best_of",
            code="unsupported_parameter",
        )
    return number
