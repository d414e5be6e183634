"""Discovery of workers: queries sources repeatedly, and lets workers join and leave the fleet accordingly.

`discovery` keeps the fleet in line with what the sources report. `configured_sources` makes the sources in the
settings, each a `source`: `file`, `dns`, `kubernetes`, and `worker_registry`, the registry in Redis, where a worker
announces itself by `registration`. `worker_kinds` finds out the engines of workers, and `worker_sleep` puts workers
to sleep.
"""
