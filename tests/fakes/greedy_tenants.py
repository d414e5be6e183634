"""A queue in Redis in which all tenants ask for more than they get; it counts the turns of each."""

from collections import Counter
from itertools import count

from gateway.queueing.shared.queue_messages import SharedTicket


class GreedyTenants:
    """The tenants of one queue by weight; each request costs the same."""

    def __init__(self, store, weights, cost):
        self.store, self.weights = store, weights
        self.sent, self.served = [], Counter()
        self.tenant_of = {}
        self._cost, self._numbers = cost, count()

    def ticket(self, tenant):
        ticket = SharedTicket(
            id=f"{self.store.gateway}:{next(self._numbers)}",
            queue="m",
            tenant=tenant,
            weight=self.weights[tenant],
            cost=self._cost,
            kv_tokens=1,
        )
        self.tenant_of[ticket.id] = tenant
        return ticket

    def begin(self, id):
        self.sent.append(id)
        self.served[self.tenant_of[id]] += 1

    async def take_turns(self, scripts):
        """The ids of the turns that were given and have not begun."""
        entries = await scripts.ask("XRANGE", self.store.keys.turns, "-", "+")
        await scripts.ask("DEL", self.store.keys.turns)
        ids = [fields[1].decode() for _, fields in entries if fields[0] == b"turn"]
        return [id for id in ids if id not in self.sent]
