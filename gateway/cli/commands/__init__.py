"""The commands of `radixgate`, one module for each command or group of commands."""
