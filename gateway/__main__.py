"""`python -m gateway`, and `radixgate`."""

import sys


def main() -> None:
    """The entry point. Its imports take a moment, in which somebody may already press Ctrl-C."""
    try:
        from gateway.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
