"""The traffic of the demo: two tenants, each with assistants that share a system prompt over many sessions.

    acme    assistant A: [system A][q1]  ->  [system A][q1][a1][q2]  ->  ...      one line for each session,
            assistant A: [system A][q1'] ->  ...                                  with a request before each arrow
    globex  assistant C: ...                                                      nothing shared across tenants

A session is a closed loop: a turn is sent when the turn before it has been answered. Sessions start one after
another. Each message of a user is some sentences that mean nothing, and a question about one of the `topics`.
Equal seeds give equal texts, so two runs differ only by the policy.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import aiohttp

from gateway.bench.client import stream_completion
from gateway.bench.ideal_cache import IdealCache
from gateway.bench.results import RequestResult
from gateway.demo.topics import draw_question
from workers.engine.tiny_text import sentences

ASSISTANTS = 2
START_GAP_SECONDS = 0.15
THINK_SECONDS_MAX = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficScale:
    """The amount of traffic. Lengths of texts are numbers of sentences."""

    sessions: int = 10
    """Sessions of each tenant."""

    turns: int = 6
    """Turns of each session."""

    system_sentences: int = 24
    question_sentences: int = 8
    answer_tokens: int = 32
    seed: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSession:
    """A conversation of one tenant: the system prompt and the questions of all turns."""

    tenant: str
    number: int
    system: str
    questions: tuple[str, ...]


def make_sessions(tenants: Sequence[str], scale: TrafficScale) -> list[ChatSession]:
    """Return all sessions in the order in which they start."""
    made = []
    chance = random.Random(scale.seed)
    per_session = scale.turns * (scale.question_sentences - 1)
    needed = len(tenants) * (ASSISTANTS * scale.system_sentences + scale.sessions * per_session)
    text = iter(sentences(scale.seed, needed))

    def some(count: int) -> str:
        return " ".join(islice(text, count))

    systems = {
        (tenant, assistant): f"You are assistant {assistant} of {tenant}. {some(scale.system_sentences)}"
        for tenant in tenants
        for assistant in range(ASSISTANTS)
    }
    for number in range(scale.sessions):
        for tenant in tenants:
            questions = tuple(
                f"{some(scale.question_sentences - 1)} {draw_question(chance)[0]}".strip()
                for _ in range(scale.turns)
            )
            system = systems[tenant, number % ASSISTANTS]
            made.append(ChatSession(tenant=tenant, number=number, system=system, questions=questions))
    return made


async def run_sessions(
    sessions: Sequence[ChatSession],
    *,
    url: str,
    model: str,
    keys: dict[str, str],
    scale: TrafficScale,
    ideal_cache: IdealCache,
    done: Callable[[RequestResult], None],
) -> tuple[list[RequestResult], float]:
    """Run all sessions against a gateway.

    Args:
        sessions: the sessions, in the order in which they start.
        url: address of the gateway.
        model: name of the model.
        keys: API keys by tenant.
        scale: amount of traffic.
        ideal_cache: calculates the best possible cache hits.
        done: called with the result of each request.

    Returns:
        The results of all requests, and the duration in seconds.
    """
    pauses = random.Random(scale.seed)
    think = {id(s): [pauses.uniform(0, THINK_SECONDS_MAX) for _ in s.questions] for s in sessions}
    loop = asyncio.get_running_loop()
    started = loop.time()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def run_session(number: int, session: ChatSession) -> list[RequestResult]:
            await asyncio.sleep(number * START_GAP_SECONDS)
            messages = [{"role": "system", "content": session.system}]
            results = []
            for question, pause in zip(session.questions, think[id(session)], strict=True):
                messages.append({"role": "user", "content": question})
                body = {
                    "model": model,
                    "messages": messages,
                    "max_tokens": scale.answer_tokens,
                    "temperature": 0,
                }
                possible_tokens = ideal_cache.add_prompt(session.tenant, messages)
                result = await stream_completion(http, url, keys[session.tenant], session.tenant, body)
                results.append(replace(result, possible_tokens=possible_tokens))
                messages.append({"role": "assistant", "content": result.text})
                ideal_cache.add_answer(session.tenant, messages)
                done(results[-1])
                await asyncio.sleep(pause)
            return results

        finished = await asyncio.gather(
            *(run_session(number, session) for number, session in enumerate(sessions))
        )
    return [result for results in finished for result in results], loop.time() - started
