"""The prefix index that all gateways share: one tree in Redis, and a replica of it in the memory of every gateway.

Read in this order: keys, lua/tree.lua, lua/holders.lua (how much of a node each worker holds: gateways that
report the same block raise the same number), log_records, node, node_table, predictions, shard_replica,
replica, tree_store, replica_reader (receives the changes of other gateways, and reads a snapshot of a shard),
worker_tenures (lets workers enter and leave the index), worker_capacity, sent_predictions, unsent_paths,
shared_index, index_maintenance (by fair_shares; older_layouts removes old indexes); then the tools that inspect
the index from outside: tree_dump, index_counts, tree_drawing, audit and repair. feed_lease_store keeps the
leases on the workers' KV events.
"""
