"""Decisions of the gateway as pure, synchronous code: no clock, no I/O, no randomness of its own.

Read in this order: routing/protocol, routing/cost, queueing/protocol, admission/dispatch_window,
admission/limit_windows, registry (where policies are registered by name).
"""
