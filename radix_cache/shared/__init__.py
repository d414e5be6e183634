"""The prefix index that all gateways share: one tree in Redis, and a replica of it in the memory of every gateway.

Begin with shared_index. Its SharedIndex is what the gateway calls: `match` looks up a prompt, `record`, `confirm`,
`hold` and `shorten` change the index. It looks up in replica (`TreeReplica.match`, read for each worker by
`PathMatch` of node), and changes Redis through tree_store.

The tree and its replica, from the bottom: keys, lua/tree.lua, lua/holders.lua (how much of a node each worker
holds: gateways that report the same block raise the same number), log_records, node, node_table, predictions,
shard_replica, replica, tree_store. The parts of SharedIndex: worker_tenures (lets workers enter and leave the
index), worker_capacity, sent_predictions, unseen_changes, learnt_while_away. Beside it run replica_reader
(receives the changes of other gateways, and reads a snapshot of a shard) and index_maintenance (evicts, by
fair_shares; older_layouts removes old indexes). Tools inspect the index from outside: tree_dump, index_counts,
tree_drawing, audit and repair. feed_lease_store keeps the leases on the workers' KV events.

Each change that TreeStore sends is a verb with a file of its own in lua: hold, shorten, predict, withdraw (of a
prediction), cut, evict, clear. They use lua/tree.lua and lua/holders.lua, and lua/log.lua writes what they changed.
"""
