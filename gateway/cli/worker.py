"""`radixgate worker`: one embedded PyTorch worker, serving over HTTP as SGLang does."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.failure import Failure

ENGINE_MISSING = (
    "the embedded engine is missing; install the extra `engine`: pip install '.[engine]' in the checkout"
)


def worker(
    model: Annotated[
        Path, typer.Option(help="Checkpoint directory: config.json, safetensors, tokenizer.json.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 30000,
    served_model_name: Annotated[
        str | None, typer.Option(help="Name in requests; by default the directory's.", show_default=False)
    ] = None,
    page_size: Annotated[int, typer.Option(help="Tokens per KV page.", min=1)] = 16,
    kv_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens that fit into the KV cache; by default as memory allows.", min=1),
    ] = None,
    max_running_requests: Annotated[int, typer.Option(help="Sequences in one batch.", min=1)] = 32,
    waiting_max: Annotated[int, typer.Option(help="Requests that may wait.", min=0)] = 256,
    chunk_tokens: Annotated[int, typer.Option(help="Token budget of one step.", min=1)] = 512,
    context_length: Annotated[
        int | None, typer.Option(help="Longest prompt and answer together.", min=1)
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Threads of torch on CPU.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of requests that bring none.")] = None,
    kv_events: Annotated[bool, typer.Option(help="Publish what the prefix cache holds, on ZMQ.")] = True,
    kv_events_port: Annotated[
        int,
        typer.Option(help="Port for that, the next one for its replay; 0 takes free ones.", min=0, max=65534),
    ] = 0,
) -> int:
    """Run one embedded worker: a real engine on CPU or CUDA, with paged KV and a prefix cache."""
    if not (model / "config.json").is_file():
        raise Failure(f"--model: there is no config.json in {str(model)!r}", 2)
    try:
        from workers.engine.errors import ConfigInvalid
        from workers.engine_server import main
        from workers.engine_server.options import WorkerOptions
    except ImportError as err:
        raise Failure(f"{ENGINE_MISSING} ({err})") from err
    chosen: dict[str, Any] = {
        "model": model,
        "host": host,
        "port": port,
        "served_model_name": served_model_name,
        "page_size": page_size,
        "kv_tokens": kv_tokens,
        "max_running_requests": max_running_requests,
        "waiting_max": waiting_max,
        "chunk_tokens": chunk_tokens,
        "context_length": context_length,
        "dtype": dtype,
        "device": device,
        "threads": threads,
        "seed": seed,
        "kv_events_port": kv_events_port if kv_events else None,
    }
    try:
        options = WorkerOptions(**chosen)
    except ConfigInvalid as err:
        raise Failure(str(err), 2) from err
    return main.run(options)
