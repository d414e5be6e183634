"""The `radixgate` command line: `main` is the entry point, `commands` has a module for each command."""
