"""The prefix index of all gateways: one tree in Redis, a read copy in every process.

Read in this order: keys, lua/tree.lua, records, node, copy, store, reader, index, keeper; then what looks at it
from outside: stored, census, drawing, audit, repair.
"""
