"""Who sends which request of a trace: tenants with their keys, and what each may expect."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import yaml
from xxhash import xxh3_64_intdigest

from gateway.bench.results import LatencyObjectives
from policies.simulation.trace import TraceRequest

CALLERS_MAX = 10_000


class CallersInvalid(ValueError):
    """A file of callers that cannot be read; says why. Never says a key."""


class Caller(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant as the benchmark plays it. `headers` go with each of its requests."""

    name: str
    key: str = ""
    headers: dict[str, str] = {}
    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def objectives(self, usual: LatencyObjectives) -> LatencyObjectives:
        """Its own, where it has any."""
        return LatencyObjectives(
            ttft_seconds=usual.ttft_seconds if self.ttft_ms is None else self.ttft_ms / 1000,
            tpot_seconds=usual.tpot_seconds if self.tpot_ms is None else self.tpot_ms / 1000,
        )


def read_callers(path: Path) -> list[Caller]:
    """A YAML or JSON list of callers. Raises CallersInvalid."""
    try:
        callers = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), list[Caller])
    except OSError as err:
        raise CallersInvalid(f"{path} cannot be read: {err.strerror}") from err
    except (yaml.YAMLError, UnicodeDecodeError) as err:
        raise CallersInvalid(f"{path} is no YAML") from err
    except msgspec.ValidationError as err:
        raise CallersInvalid(f"{path}: {err}") from err
    if not 0 < len(callers) <= CALLERS_MAX:
        raise CallersInvalid(f"{path} must have 1 to {CALLERS_MAX} callers")
    if len({caller.name for caller in callers}) < len(callers):
        raise CallersInvalid(f"{path} has two callers of one name")
    return callers


def assign_callers(requests: Sequence[TraceRequest], callers: Sequence[Caller]) -> dict[str, Caller]:
    """Who plays which tenant of a trace: who is named there plays itself, and the others are dealt out in the order
    in which they come, so that nobody is left out as long as there are enough."""
    named = {caller.name: caller for caller in callers}
    others = dict.fromkeys(one.tenant for one in requests if one.tenant and one.tenant not in named)
    return {**{tenant: callers[at % len(callers)] for at, tenant in enumerate(others)}, **named}


def caller_of(request: TraceRequest, callers: Sequence[Caller], played: Mapping[str, Caller]) -> Caller:
    """Who sends a request: who plays its tenant, and where the trace has none, one by lot.

    The lot falls by the session, or else the first blocks, so that the turns of a conversation are one tenant's:
    requests of two tenants have no cache in common.
    """
    if request.tenant:
        return played[request.tenant]
    head = request.session.encode() if request.session else request.blocks[:2].tobytes()
    return callers[xxh3_64_intdigest(head) % len(callers)]
