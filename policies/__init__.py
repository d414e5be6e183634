"""Decisions of the gateway as pure, synchronous code: no clock, no I/O, no randomness of its own.

Read in this order: routing/protocol, routing/cost, queueing/protocol, admission/dispatch_window,
admission/limit_windows, registry (where policies are registered by name).

Beside these packages: latency_model (the speed of one worker, learnt) and speeds (of all), others_load (work that
other gateways have sent), service_class (voice, code, chat, batch), cell_ownership and cell_turns (tenants and
turns of cells).
"""
