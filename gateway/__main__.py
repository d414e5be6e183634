"""The program `radixgate`, also started by `python -m gateway`."""

import gc
import importlib.util
import sys
from pathlib import Path

PACKAGES = ("policies", "radix_cache", "workers")
"""The packages beside this one; their names are common, and a folder of the user may have one of them."""


def main() -> None:
    """Run the command line. The imports are inside, so that Ctrl-C during them also ends without a traceback."""
    # The imports create half a million objects that live as long as the process: the garbage collector's usual
    # thresholds would make it visit them often, which takes a tenth of the start.
    gc.set_threshold(20_000, 20, 50)
    try:
        if (hidden := _hidden_package()) is not None:
            name, place = hidden
            print(
                f"radixgate: {place} hides radixgate's own package {name!r}: start it in another directory, as "
                "`radixgate` instead of `python -m gateway`, or without that directory in PYTHONPATH",
                file=sys.stderr,
            )
            sys.exit(1)
        from gateway.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


def _hidden_package() -> tuple[str, str] | None:
    """Return a package of ours that another folder hides, with the place of that folder; None if there is none."""
    home = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            place = Path(found.origin).resolve().parent
            if place != home / name:
                return name, str(place)
    return None


if __name__ == "__main__":
    main()
