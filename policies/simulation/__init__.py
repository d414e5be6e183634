"""A simulator that judges policies: simulated engines serve a trace, routed by the policies of the real gateway.

Read in this order: trace, engines/, gateway_view, gateway, gateway_announcements, simulation (with
simulation_parts, which builds what it needs), outcome, trial (with a scenario).

workloads generates traces, with the lengths of class_lengths. In turns/ requests wait as in the gateway's queue;
waiting_orders are those of engines, and of gateways without it. worker_speeds is what a gateway learns of workers,
prefixes_in_flight what requests share. known_blocks is the prefix index; index_events brings it the engines'
events, timeline orders all that happens. cells and large_fleet simulate many gateways and workers. contenders names
all rules, baselines/ has those of other gateways, least_ttft and least_when_busy lower bounds.
"""
