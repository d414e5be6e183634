"""Command line of the worker process: python -m workers.engine_server --model DIRECTORY --port NUMBER."""

import argparse
from pathlib import Path
from typing import get_args

from workers.engine.config.engine_config import (
    AttentionName,
    Batching,
    Device,
    Dtype,
    KvDtype,
    KvLayout,
    PriorityFirst,
    Quantization,
)
from workers.engine.config.speculation_config import Method
from workers.engine.disaggregation.messages import Backend
from workers.engine.errors import ConfigInvalid
from workers.engine_server.main import run
from workers.engine_server.options import DisaggregationMode, WorkerOptions, parse_lora_module
from workers.engine_server.tools.formats import FORMATS


def main(arguments: list[str] | None = None) -> int:
    """Parse the arguments, run the worker, and return the exit code."""
    # Options that are not given are left out, so that WorkerOptions alone has the defaults.
    parser = argparse.ArgumentParser(
        prog="python -m workers.engine_server", argument_default=argparse.SUPPRESS
    )
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", type=int, help="port to listen on; 0 takes any free port")
    parser.add_argument("--unix-socket", type=Path, help="listen on this Unix socket, not on a port")
    parser.add_argument("--served-model-name", help="model name that clients use; else the directory's")
    parser.add_argument("--page-size", type=int, help="tokens per KV block")
    parser.add_argument("--kv-tokens", type=int, help="tokens that the KV cache holds")
    parser.add_argument("--max-running-requests", type=int, help="sequences computed in one batch")
    parser.add_argument("--waiting-max", type=int, help="requests that may wait in the queue")
    parser.add_argument("--chunk-tokens", type=int, help="token budget of one step")
    parser.add_argument("--batching", choices=get_args(Batching), help="when requests join a batch")
    switch = argparse.BooleanOptionalAction
    parser.add_argument(
        "--chunked-prefill", action=switch, help="compute long prompts in pieces that fit a step"
    )
    parser.add_argument("--prefix-caching", action=switch, help="reuse KV blocks of earlier prompts")
    parser.add_argument("--kv-layout", choices=get_args(KvLayout), help="how the KV cache is laid out")
    parser.add_argument(
        "--priority-first", choices=get_args(PriorityFirst), help="priority that is served first"
    )
    parser.add_argument(
        "--ageing-seconds", type=float, help="waiting time that raises a request by one priority"
    )
    parser.add_argument("--context-length", type=int, help="most tokens of a prompt and its answer")
    parser.add_argument("--dtype", choices=get_args(Dtype), help="data type of weights and activations")
    parser.add_argument("--kv-cache-dtype", choices=get_args(KvDtype), help="data type of the KV cache")
    parser.add_argument(
        "--disaggregation-mode",
        choices=get_args(DisaggregationMode),
        help="compute prompts only (prefill), answers only (decode), or both (null)",
    )
    parser.add_argument(
        "--disaggregation-transfer-backend",
        choices=get_args(Backend),
        help="how KV blocks travel to a decode worker",
    )
    parser.add_argument(
        "--disaggregation-bootstrap-port",
        type=int,
        help="port at which a prefill worker waits for decode workers; 0 takes any free port",
    )
    parser.add_argument("--quantization", choices=get_args(Quantization), help="precision of the weights")
    parser.add_argument("--device", choices=get_args(Device), help="device that computes")
    parser.add_argument(
        "--attention-backend", choices=get_args(AttentionName), help="how attention is computed"
    )
    parser.add_argument(
        "--cuda-graphs", action=switch, help="replay decode steps as CUDA graphs, with the Triton backend"
    )
    parser.add_argument("--threads", type=int, help="CPU threads that torch uses")
    parser.add_argument("--seed", type=int, help="seed of the random numbers for sampling")
    parser.add_argument(
        "--tool-call-parser", choices=("auto", *FORMATS), help="how the model writes tool calls"
    )
    parser.add_argument("--speculative-method", choices=get_args(Method), help="how draft tokens are guessed")
    parser.add_argument("--speculative-num-tokens", type=int, help="most draft tokens in a step")
    parser.add_argument("--speculative-draft-model", type=Path, help="the draft model, or the Medusa heads")
    parser.add_argument("--speculative-exit-layer", type=int, help="early_exit: how many first layers draft")
    parser.add_argument("--speculative-disable-by-batch-size", type=int, help="no drafts in larger batches")
    parser.add_argument(
        "--lora-modules",
        nargs="+",
        action="extend",
        metavar="NAME=PATH",
        help="LoRA adapters in PEFT's format, each a model name of its own",
    )
    parser.add_argument("--max-loaded-loras", type=int, help="most LoRA adapters")
    parser.add_argument("--max-lora-rank", type=int, help="largest rank of a LoRA adapter")
    parser.add_argument("--lora-bytes-max", type=int, help="most bytes of all LoRA adapters")
    parser.add_argument("--kv-events-buffer-steps", type=int, help="batches of KV events kept for replay")
    parser.add_argument(
        "--drain-seconds", type=float, help="how long running requests may continue after SIGTERM"
    )
    values = vars(parser.parse_args(arguments))
    try:
        if "lora_modules" in values:
            values["lora_modules"] = tuple(map(parse_lora_module, values["lora_modules"]))
        options = WorkerOptions(**values)
        options.engine_config()
    except ConfigInvalid as err:
        parser.error(str(err))
    return run(options)


if __name__ == "__main__":
    raise SystemExit(main())
