"""Talking to Redis and Valkey, one server or a cluster, as leanly as the hot path needs it.

Read in this order: line, call, server, topology, cluster, scripts, ears.
"""
