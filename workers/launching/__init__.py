"""Launching an engine as a child process, with the flags that a gateway needs.

Read engine_flags.py first (the flags), then launch.py (the command line, and the watch over the process) and
child_process.py (the child between fork and exec).
"""
