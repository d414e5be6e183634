"""Checks of the settings.

`tree_checks` has the first error of a whole tree; it calls `worker_checks` and `listener_checks` for theirs.
`settings_warnings` are about settings that are valid.
"""
