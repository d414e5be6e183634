"""Processes and files of the operating system: child processes, locks, secrets, and the state of the drain.

`children` starts child processes and restarts those that die; `multiprocess` uses it to run several gateway
processes on one port. `embedded_valkey` runs a private Valkey server. `loop_supervisor` restarts background loops
that crash. `drain_state` tells whether the gateway still accepts requests. `file_locks` locks files for the life of
a process, and `secrets` reads or makes the deployment secret.
"""
