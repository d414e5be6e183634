"""The prefix index: which worker holds the KV cache of which prompt prefix. Imports none of the other packages.

Read in this order: blocks (hashes of prefixes), namespace, match, tree, index, local_index; events and follower for
the KV events of engines; redis and shared for the index that all gateways have in common.
"""
