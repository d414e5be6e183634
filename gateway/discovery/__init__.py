"""Discovery of workers: sources that are queried again and again, by which workers join and leave the fleet.

`discovery` keeps the fleet equal to what the sources report. `configured_sources` makes the sources that the
settings name: `file`, `dns`, `kubernetes`, and `worker_registry`, the registry in Redis, where a worker announces
itself by `registration`. `worker_kinds` asks workers which engine they are, `worker_sleep` puts them to sleep.
"""
