"""The program `radixgate`, also started by `python -m gateway`."""

import sys


def main() -> None:
    """Run the command line. The imports are inside, so that Ctrl-C during them also ends without a traceback."""
    try:
        from gateway.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
