"""The prefix index: which worker holds the KV cache of which prompt prefix. Imports none of the other packages.

Read in this order: blocks (hashes of prefixes), namespace, match, tree, index (the interface). A gateway matches
and records in shared/shared_index.py, which all gateways have in common by way of redis; local_index is the same
index in one process, for simulations and tests. events and follower are for the KV events of engines.
"""
