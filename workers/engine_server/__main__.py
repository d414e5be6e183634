"""python -m workers.engine_server --model DIRECTORY --port NUMBER"""

import argparse
from pathlib import Path
from typing import get_args

from workers.engine.config.engine_config import (
    Batching,
    Device,
    Dtype,
    KvDtype,
    KvLayout,
    PriorityFirst,
    Quantization,
)
from workers.engine.config.speculation_config import Method
from workers.engine.disaggregation.manifest import Backend
from workers.engine.errors import ConfigInvalid
from workers.engine_server.main import run
from workers.engine_server.options import DisaggregationMode, WorkerOptions
from workers.engine_server.tools.formats import FORMATS


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
    parser.add_argument("--batching", choices=get_args(Batching))
    switch = argparse.BooleanOptionalAction
    parser.add_argument("--chunked-prefill", action=switch, help="cut long prompts to what a step has left")
    parser.add_argument("--prefix-caching", action=switch, help="read blocks that others have computed")
    parser.add_argument("--kv-layout", choices=get_args(KvLayout))
    parser.add_argument("--priority-first", choices=get_args(PriorityFirst), help="which priority goes first")
    parser.add_argument("--ageing-seconds", type=float, help="wait that makes up for a class of priority")
    parser.add_argument("--context-length", type=int)
    parser.add_argument("--dtype", choices=get_args(Dtype))
    parser.add_argument("--kv-cache-dtype", choices=get_args(KvDtype))
    parser.add_argument("--disaggregation-mode", choices=get_args(DisaggregationMode))
    parser.add_argument("--disaggregation-transfer-backend", choices=get_args(Backend))
    parser.add_argument("--disaggregation-bootstrap-port", type=int, help="0 takes any free port")
    parser.add_argument("--quantization", choices=get_args(Quantization))
    parser.add_argument("--device", choices=get_args(Device))
    parser.add_argument("--threads", type=int, help="threads of torch")
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--tool-call-parser", choices=("auto", *FORMATS), help="how the model writes tool calls"
    )
    parser.add_argument("--speculative-method", choices=get_args(Method), help="guess tokens ahead")
    parser.add_argument("--speculative-num-tokens", type=int, help="tokens guessed at most in a step")
    parser.add_argument("--speculative-draft-model", type=Path, help="the draft model, or the Medusa heads")
    parser.add_argument("--speculative-exit-layer", type=int, help="early_exit: first layers that guess")
    parser.add_argument("--speculative-disable-by-batch-size", type=int, help="no guesses above it")
    parser.add_argument("--kv-events-buffer-steps", type=int, help="batches of KV events kept for replay")
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
