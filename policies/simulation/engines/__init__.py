"""Simulated engines: `simulated_engine` runs jobs in steps of step_time, with the KV memory of block_cache.

read_tokens counts what running streams read. shared_cache is one cache for all engines, as a bound of what routing
can reach.
"""
