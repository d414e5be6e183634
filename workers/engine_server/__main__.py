"""python -m workers.engine_server --model DIRECTORY --port NUMBER"""

import argparse
from pathlib import Path
from typing import get_args

from workers.engine.config import Device, Dtype
from workers.engine.errors import ConfigInvalid
from workers.engine_server.main import run
from workers.engine_server.options import WorkerOptions


def main(arguments: list[str] | None = None) -> int:
    """Parse and run; the exit code."""
    # Options that are not given are left out, so that every default stands in one place.
    parser = argparse.ArgumentParser(
        prog="python -m workers.engine_server", argument_default=argparse.SUPPRESS
    )
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, help="0 takes any free port")
    parser.add_argument("--unix-socket", type=Path)
    parser.add_argument("--served-model-name")
    parser.add_argument("--page-size", type=int, help="tokens per KV block")
    parser.add_argument("--kv-tokens", type=int, help="tokens that the KV pool holds")
    parser.add_argument("--max-running-requests", type=int)
    parser.add_argument("--waiting-max", type=int)
    parser.add_argument("--chunk-tokens", type=int, help="tokens computed in one step")
    parser.add_argument("--context-length", type=int)
    parser.add_argument("--dtype", choices=get_args(Dtype))
    parser.add_argument("--device", choices=get_args(Device))
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--drain-seconds", type=float)
    values = vars(parser.parse_args(arguments))
    try:
        options = WorkerOptions(**values)
        options.engine_config()
    except ConfigInvalid as err:
        parser.error(str(err))
    return run(options)


if __name__ == "__main__":
    raise SystemExit(main())
