"""The `radixgate` command line: `main` is the entry point, `commands` has a module for each command.

`command_registry` names all commands and imports one when it runs. `planning` has those that only calculate,
`support` what several commands share.
"""
