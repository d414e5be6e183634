"""Turns a request's fields into the engine's sampling parameters."""

from workers.engine.errors import RequestRefused
from workers.engine.sampling.sampling_params import TOP_LOGPROBS_MAX, SamplingParams
from workers.engine_server.errors import bad_request
from workers.engine_server.requests import EngineChatBody, EngineCompletionBody

# The one thread that computes for all requests compares each stop string after every token of its request.
STOPS_MAX = 32
STOP_CHARS_MAX = 256

SEED_MAX = (1 << 63) - 1
"""The largest seed. The engine uses 64 bits of a seed, so of larger ones two would be the same."""


def sampling_params(body: EngineChatBody | EngineCompletionBody, max_tokens: int) -> SamplingParams:
    """Return the sampling parameters of a request, with OpenAI's defaults for absent fields.

    Raises:
        ApiError, RequestRefused: A field is invalid; the error names it.
    """
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if len(stop) > STOPS_MAX or any(len(text) > STOP_CHARS_MAX for text in stop):
        raise bad_request(
            f"stop has at most {STOPS_MAX} strings of at most {STOP_CHARS_MAX} characters.", param="stop"
        )
    if body.seed is not None and not -SEED_MAX - 1 <= body.seed <= SEED_MAX:
        raise bad_request(f"seed must be between {-SEED_MAX - 1} and {SEED_MAX}.", param="seed")
    logprobs = _top_logprobs(body) if isinstance(body, EngineChatBody) else body.logprobs
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        temperature=_value_or(body.temperature, 1.0),
        top_p=_value_or(body.top_p, 1.0),
        top_k=body.top_k or 0,
        min_p=_value_or(body.min_p, 0.0),
        repetition_penalty=_value_or(body.repetition_penalty, 1.0),
        presence_penalty=_value_or(body.presence_penalty, 0.0),
        frequency_penalty=_value_or(body.frequency_penalty, 0.0),
        logit_bias=body.logit_bias or {},
        logprobs=logprobs,
        seed=body.seed,
        stop=tuple(stop),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
    )


def _top_logprobs(body: EngineChatBody) -> int | None:
    top = body.top_logprobs or 0
    if not 0 <= top <= TOP_LOGPROBS_MAX:
        raise RequestRefused(
            f"top_logprobs must be between 0 and {TOP_LOGPROBS_MAX}, not {top}", param="top_logprobs"
        )
    if top and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true.", param="top_logprobs")
    return top if body.logprobs else None


def _value_or(value: float | None, default: float) -> float:
    return default if value is None else value
