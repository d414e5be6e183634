"""A simulator that judges policies: simulated engines serve a trace, routed by the policies of the real gateway.

Read in this order: trace, step_time, block_cache, engine, gateway_view, gateway, simulation, shared_cache, outcome,
trial (with a scenario).

workloads generates traces, with the lengths of class_lengths. turn_queue, turn_taking, waiting_orders and
tenants_by_tag let requests wait, queue_view is what the queue of several gateways knows; known_blocks is the prefix
index; cells and large_fleet simulate many gateways and workers. contenders names all rules, baselines/ has those of
other gateways, least_ttft a lower bound.
"""
