"""The quota stores of one gateway: the shared store, the local one for its absence, and the escrow before both."""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.quotas.counter_recovery import CounterRecovery, SpentReader
from gateway.quotas.escrow import Escrow
from gateway.quotas.events import LimitEvents
from gateway.quotas.failover_store import FailoverQuotaStore
from gateway.quotas.gateway_count import GatewayCount
from gateway.quotas.leases import Leases
from gateway.quotas.local_store import LocalQuotaStore
from gateway.quotas.redis_store import RedisQuotaStore
from gateway.settings.stores import RedisSettings
from radix_cache.redis.scripts import ScriptCaller


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaParts:
    """What counts the quotas of one gateway; each part has a loop, but for the events."""

    store: FailoverQuotaStore
    escrow: Escrow
    leases: Leases
    gateway_count: GatewayCount
    events: LimitEvents
    recovery: CounterRecovery | None
    """Puts back what Redis has lost; None without a usage ledger."""

    @classmethod
    def create(
        cls,
        redis: RedisSettings,
        scripts: ScriptCaller,
        stack: AsyncExitStack,
        spent: SpentReader | None = None,
    ) -> "QuotaParts":
        """Return the services; nothing is sent yet. The stack gives back what is reserved, escrow first.

        `spent` reads what accounts have used, to put back the usage of long windows.
        """
        events, gateway_count = LimitEvents(), GatewayCount(scripts, redis.prefix)
        timeout_seconds = redis.timeout_ms / 1000
        recovery = CounterRecovery(spent) if spent is not None else None
        shared = RedisQuotaStore(
            scripts,
            timeout_seconds,
            prefix=redis.prefix,
            events=events,
            recovery=recovery,
        )
        store = FailoverQuotaStore(
            shared,
            LocalQuotaStore(time.monotonic, time.time, events),
            shared.check,
            time.monotonic,
            gateways=lambda: gateway_count.count,
            events=events,
        )
        escrow = Escrow(
            store,
            store.availability,
            enabled=redis.escrow,
            flush=scripts.flush,
            timeout_seconds=timeout_seconds,
        )
        leases = Leases(escrow, events, flush=escrow.flush_if_short)
        stack.callback(gateway_count.close)
        for close in (store.close, leases.close, escrow.close):
            stack.push_async_callback(close)
        return cls(
            store=store,
            escrow=escrow,
            leases=leases,
            gateway_count=gateway_count,
            events=events,
            recovery=recovery,
        )
