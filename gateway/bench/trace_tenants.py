"""Assigns the requests of a trace to callers: tenants with API keys and latency objectives."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import yaml
from xxhash import xxh3_64_intdigest

from gateway.bench.results import LatencyObjectives
from policies.simulation.trace import TraceRequest

CALLERS_MAX = 10_000


class CallersInvalid(ValueError):
    """A file of callers is wrong; the text says why and never contains a key."""


class Caller(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tenant as which the benchmark sends requests."""

    name: str
    key: str = ""
    headers: dict[str, str] = {}
    """Headers of all its requests."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def objectives(self, default: LatencyObjectives) -> LatencyObjectives:
        """Return the caller's own objectives, with those of `default` where it has none."""
        return LatencyObjectives(
            ttft_seconds=default.ttft_seconds if self.ttft_ms is None else self.ttft_ms / 1000,
            tpot_seconds=default.tpot_seconds if self.tpot_ms is None else self.tpot_ms / 1000,
        )


def read_callers(path: Path) -> list[Caller]:
    """Read a YAML or JSON file with a list of callers. Raises CallersInvalid."""
    try:
        callers = msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), list[Caller])
    except OSError as err:
        raise CallersInvalid(f"{path} cannot be read: {err.strerror}") from err
    except (yaml.YAMLError, UnicodeDecodeError) as err:
        raise CallersInvalid(f"{path} is not valid YAML") from err
    except msgspec.ValidationError as err:
        raise CallersInvalid(f"{path}: {err}") from err
    if not 0 < len(callers) <= CALLERS_MAX:
        raise CallersInvalid(f"{path} must have 1 to {CALLERS_MAX} callers")
    if len({caller.name for caller in callers}) < len(callers):
        raise CallersInvalid(f"{path} has two callers with the same name")
    return callers


def assign_callers(requests: Sequence[TraceRequest], callers: Sequence[Caller]) -> dict[str, Caller]:
    """Return the caller for each tenant of a trace.

    A caller with the name of a tenant is that tenant. The other tenants are assigned to the callers in turn, in
    order of appearance, so that every caller gets a tenant as long as there are enough.
    """
    named = {caller.name: caller for caller in callers}
    others = dict.fromkeys(one.tenant for one in requests if one.tenant and one.tenant not in named)
    return {**{tenant: callers[at % len(callers)] for at, tenant in enumerate(others)}, **named}


def caller_of(request: TraceRequest, callers: Sequence[Caller], assigned: Mapping[str, Caller]) -> Caller:
    """Return the caller of a request: that of its tenant, or one chosen by hash if the trace names no tenants.

    The hash is of the session, or else of the first blocks, so that all turns of a conversation have the same
    caller: requests of different tenants share no cached prompts.
    """
    if request.tenant:
        return assigned[request.tenant]
    head = request.session.encode() if request.session else request.blocks[:2].tobytes()
    return callers[xxh3_64_intdigest(head) % len(callers)]
