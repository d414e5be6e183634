"""A simulator that judges policies: simulated engines serve a trace, routed by the policies of the real gateway.

Read in this order: trace, step_time, block_cache, engine, gateway_view, gateway, simulation, shared_cache, outcome,
trial.
"""
