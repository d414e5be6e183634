"""Processes and files of the operating system: child processes, locks, secrets, and the state of the drain.

`children` starts child processes and restarts those that die; `multiprocess` uses it to run several gateway
processes on one port. `embedded_valkey` runs a private Valkey server. `drain_state` has whether the gateway still
accepts requests, `settings_in_force` its present settings. `file_locks` locks files until their process ends,
`secrets` reads or makes the deployment secret, and `running_gateways` lists the gateways of this machine for
commands. `watched_socket` sets TCP keepalive, `memory_return` the C library's allocator.
"""
