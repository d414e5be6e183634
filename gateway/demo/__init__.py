"""`radixgate demo`: workers and a gateway on one machine, compared under two routing policies.

`demo_run` runs it, on the processes of `demo_processes`, which has their model; `traffic` sends the chats, `topics`
has their texts; `table`, `cached_shares` and `live_picture` show the results, `next_steps` how to continue.
"""
