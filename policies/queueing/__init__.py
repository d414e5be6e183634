"""Queue policies: which tenant, and which of its waiting requests, gets the next turn.

Read protocol.py first (tickets, counters and the two interfaces), then sfq.py (the default across tenants) and
two_level_order.py (how a queue policy and a tenant order work together).
"""
