"""The scheduler: decides which tokens of which sequences the next step computes, without touching a tensor.

Read in this order: `sequence`, `plan`, `limits`, `policy`, `table_opener`, `scheduler`; then, for speculative
decoding, `drafter`, `speculation`, `draft_length`, `step_cost`, `counters`.
"""
