"""Floor 2: decisions only. Pure, synchronous, no clock, no I/O.

Read in this order: routing/protocol, routing/cost, queueing/protocol, admission, windows, registry.
"""
