"""Floor 0: tokens to blocks to hashes to who holds them.

Read in this order: blocks, namespace, match, tree, index, local_index.
"""
