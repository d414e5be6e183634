"""What a gateway needs of the operating system: processes, files, signals and the order in which it stops.

`children` starts child processes and restarts the ones that die; `multiprocess` runs several gateway processes on
one port with it. `embedded_valkey` runs a private Valkey server. `loop_supervisor` restarts background loops that
crash. `drain_state` says whether the gateway still accepts requests. `file_locks` locks files for the life of a
process, and `secrets` reads or makes the deployment secret.
"""
