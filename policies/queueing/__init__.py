"""Queue policies: which tenant, and which of its waiting requests, gets the next turn.

Read protocol.py first (tickets, counters and the two interfaces), then sfq.py (the default across tenants) and
flow_heads.py (how a queue policy and a tenant order work together). The other policies are fifo.py,
priority.py, vtc.py and dlpm.py. noted_counters.py has counters that are changed in place, cost_weights.py the cost
of a request, fairness_account.py the evenness of what tenants received; estimate_ages.py chooses the request that
is estimated again.
"""
