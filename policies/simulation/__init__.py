"""A simulator that judges policies: simulated engines serve a trace, routed by the policies of the real gateway.

Read in this order: trace, engines/, gateway_view, gateway, gateway_news, simulation (with simulation_parts, which
builds what it needs), outcome, trial (with a scenario).

workloads generates traces, with the lengths of class_lengths. turn_queue, turn_taking, waiting_orders and
tenants_by_tag let requests wait; queue_view is what the queue of several gateways knows, worker_speeds what a
gateway learns of workers. known_blocks is the prefix index; index_events brings it the engines' events, timeline
orders all that happens. cells and large_fleet simulate many gateways and workers. contenders names all rules,
baselines/ has those of other gateways, least_ttft and least_when_busy lower bounds.
"""
