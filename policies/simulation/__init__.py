"""Judges policies: a fleet of simulated engines, in which the policies that run in the gateway route a trace.

Read in this order: trace, step_time, block_cache, engine, view, simulation, limits, outcome.
"""
