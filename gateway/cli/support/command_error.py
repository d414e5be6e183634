"""The error that ends a command."""


class CommandError(Exception):
    """Why a command failed, in one line for the user.

    Args:
        line: the message.
        exit_code: 1 for a failure, 2 for wrong use or wrong settings.
    """

    def __init__(self, line: str, exit_code: int = 1) -> None:
        super().__init__(line)
        self.exit_code = exit_code
