"""The prefix index: which worker holds the KV cache of which prompt prefix. Imports none of the other packages.

Read in this order: blocks (hashes of prefixes), namespace, match, tree_node, tree, index (the interface). A
gateway uses shared/shared_index.py, the index that all gateways share through Redis. local_index is an index in
one process: in it shared_index keeps what the replica does not show yet, and what it learnt while Redis was away.
events and follower handle the KV events of engines. tiers are GPU, host memory and disk; in_flight_tree counts the
requests under way by their prefixes; loop_yield keeps long work from holding up the event loop.
"""
