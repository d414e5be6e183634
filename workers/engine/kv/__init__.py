"""The KV cache: blocks of keys and values, their reference counts, and the prefix tree that shares them.

block_pool      counts the references of each block
prefix_tree     shares full blocks between requests with equal prefixes
block_table     lists the blocks of one sequence, and frees them (`close`)
baseline_tables have two layouts that paging replaced, for comparison
kv_store        holds the tensors; `kv_codec` has how a number is stored, `pool_sizing` how many blocks fit
kv_events       reports what the prefix tree stored and removed
"""
