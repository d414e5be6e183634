"""The copy of the shared index that the gateway processes of one machine have in common, in shared memory.

    first process     follows all shards in Redis, keeps its replica, and publishes it       (published_replica.py)
    other processes   match in shared memory, and follow the registry of workers alone       (mapped_replica.py)

Read in this order: segment, heap, slot_table, records, announcements, published_replica, publisher, mapped_replica,
mapped_reader, corrections.

There are no locks. A record is never changed: a new one is written beside it, and one 8-byte store in the slot
table replaces the old one. A reader copies a record and then reads its slot again; if the slot is unchanged, the
copy is whole. So no reader waits for the writer, and a writer that dies in the middle of a change leaves nothing
visible behind. Changes of two records do not become visible together: a match may find only one of them, and then
finds fewer or more blocks than there are. That costs a prefill at most.

A match in shared memory takes 12.1 µs if its nodes were matched lately, and 14.5 µs if half of them were not; a
match in the process's own memory takes 9.2 µs (`python -m tests.benchmarks.index.machine`, five million blocks).
A call to another process over a unix socket took 25 µs at best, with that process idle, and 1.9 ms at p99 on busy
processors.
"""
