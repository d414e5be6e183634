"""The engines that are measured, each in a process of its own, started with the Python that has it."""
