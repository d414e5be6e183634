"""Floor 0: tokens to blocks to hashes to who holds them.

Read in this order: blocks, namespace, match, tree, index, local_index; events and follower for what engines say of
themselves; redis and shared for the index that all gateways have in common.
"""
