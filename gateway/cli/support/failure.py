"""Failure: what a command could not do, in one line."""


class Failure(Exception):
    """`exit_code`: 1 failed, 2 wrong use."""

    def __init__(self, line: str, exit_code: int = 1) -> None:
        super().__init__(line)
        self.exit_code = exit_code
