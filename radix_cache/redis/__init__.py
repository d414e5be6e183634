"""A client for Redis and Valkey, one server or a cluster, with as little work per call as the hot path needs.

Read in this order: connection, call, library, batch, server, sentinel, topology, slot_map, cluster, scripts,
pubsub.
"""
