"""The copy of the shared index that the gateway processes of one machine have in common, in shared memory.

    first process     follows all shards in Redis, keeps its replica, and publishes it       (published_replica.py)
    other processes   match in shared memory, and follow the registry of workers alone       (mapped_replica.py)

Read in this order: segment, heap, slot_table, records, announcements, published_replica, publisher, mapped_replica,
mapped_reader, corrections.

There are no locks. A record is never changed: a new one is written beside it, and one store of eight bytes in the
slot table shows the new one in place of the old. A reader copies a record and then looks at its slot again: if that
still shows the record, the copy is whole. So no reader waits for the writer, and a writer that dies in the middle
of a change leaves nothing behind that a reader could see. Two records are not shown at once: a match may see one of
two changes, and then finds less or more than there is, which costs a prefill and nothing else.

A match in shared memory takes 1.3 times as long as one in the process if the nodes were matched lately, and 1.6
if half of them were not: 12.1 and 14.5 µs where the process takes 9.2 (`python -m tests.benchmarks.index.machine`,
five million blocks). Asking another process over a unix socket was measured beside it: 25 µs at best, if that
process does nothing else, and 1.9 ms in one of a hundred cases where the processors are busy.
"""
