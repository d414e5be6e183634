"""Candidates and queries for tests of routing policies."""

from array import array
from functools import cache

from policies.routing.protocol import Candidate, RouteQuery, RoutingPolicy
from policies.simulation.contenders import contender
from radix_cache.match import WorkerId
from workers.worker import Speed, WorkerSnapshot

SPEED = Speed(ms_per_token=0.1, fixed_ms=20, step_ms=20)


def candidate(name: str, *, matched: int = 0, speed: Speed = SPEED, **state: float) -> Candidate:
    """A worker that holds the first `matched` tokens of the prompt, in the given state."""
    return Candidate(worker=WorkerSnapshot(id=WorkerId(name), speed=speed, **state), matched_tokens=matched)


def aged(name: str, seconds: float, **state: float) -> Candidate:
    """A worker that joined the fleet `seconds` ago."""
    return candidate(name, age_seconds=seconds, **state)


def query(
    prompt: int = 4000,
    *,
    sequence: int = 0,
    draw: float = 0.0,
    blocks: tuple[int, ...] = (),
    session: int | None = None,
) -> RouteQuery:
    """A request of `prompt` tokens and 100 output tokens, in blocks of 512 tokens."""
    return RouteQuery(
        prompt_tokens=prompt,
        output_tokens=100,
        sequence=sequence,
        draw=draw,
        blocks=array("Q", blocks),
        block_tokens=512,
        session=session,
    )


@cache
def policy(name: str, options: tuple[tuple[str, float], ...]) -> RoutingPolicy:
    """A built-in policy or a baseline of the simulator, made once for its options."""
    return contender(name, dict(options))


def best(name: str, candidates: list[Candidate], asked: RouteQuery | None = None, **options: float) -> str:
    """The worker that the policy ranks first."""
    return policy(name, tuple(options.items())).rank(asked or query(), candidates, 0.0)[0].worker


def draws(count: int = 200) -> list[float]:
    """Draws of the unit interval at even distances."""
    return [at / count for at in range(count)]
