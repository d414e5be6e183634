"""`radixgate worker`: one embedded PyTorch worker, serving over HTTP as SGLang does; or a launched engine."""

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.cli.support.failure import Failure
from gateway.cli.support.options import refuse

ENGINE_MISSING = (
    "the embedded engine is missing; install the extra `engine`: pip install '.[engine]' in the checkout"
)


OF_LAUNCHED = ("python", "load_feed", "start_seconds", "silent_seconds", "drain_seconds")
OF_BOTH = (
    *("engine", "model", "host", "port", "served_model_name", "page_size", "kv_events", "kv_events_port"),
    *("disaggregation_mode", "disaggregation_bootstrap_port"),
    *("register", "register_id", "register_url", "register_prefix"),
)
CONTEXT = {"allow_extra_args": True}


def worker(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help="Checkpoint directory: config.json, safetensors, tokenizer.json; or what the engine takes."
        ),
    ],
    engine: Annotated[
        str,
        typer.Option(
            help="embedded; or sglang or vllm, to be launched, watched and registered: its own flags go after --."
        ),
    ] = "embedded",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 takes a free one.", min=0, max=65535)] = 30000,
    served_model_name: Annotated[
        str | None, typer.Option(help="Name in requests; by default the directory's.", show_default=False)
    ] = None,
    page_size: Annotated[int, typer.Option(help="Tokens per KV page; vllm's are 32 by default.", min=1)] = 16,
    kv_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens that fit into the KV cache; by default as memory allows.", min=1),
    ] = None,
    max_running_requests: Annotated[int, typer.Option(help="Sequences in one batch.", min=1)] = 32,
    waiting_max: Annotated[int, typer.Option(help="Requests that may wait.", min=1)] = 256,
    chunk_tokens: Annotated[int, typer.Option(help="Token budget of one step.", min=1)] = 512,
    batching: Annotated[str, typer.Option(help="continuous, or static: a baseline.")] = "continuous",
    chunked_prefill: Annotated[bool, typer.Option(help="Cut long prompts to what a step has left.")] = True,
    prefix_caching: Annotated[bool, typer.Option(help="Read blocks that others have computed.")] = True,
    kv_layout: Annotated[
        str, typer.Option(help="paged; contiguous or none are baselines: see `radixgate ladder`.")
    ] = "paged",
    priority_first: Annotated[
        str, typer.Option(help="Which `priority` goes first: lower or higher.")
    ] = "lower",
    ageing_seconds: Annotated[
        float, typer.Option(help="How long a wait makes up for one class of priority.")
    ] = 60.0,
    context_length: Annotated[
        int | None, typer.Option(help="Longest prompt and answer together.", min=1)
    ] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    kv_cache_dtype: Annotated[
        str, typer.Option(help="auto, float32, bfloat16, float16, int8, int4 or k8v4.")
    ] = "auto",
    disaggregation_mode: Annotated[
        str, typer.Option(help="null; prefill or decode: one half of a pair.")
    ] = "null",
    disaggregation_transfer_backend: Annotated[
        str, typer.Option(help="How a decode worker fetches KV: tcp, or shm on one machine.")
    ] = "tcp",
    disaggregation_bootstrap_port: Annotated[
        int, typer.Option(help="Port of a prefill worker for that; 0 takes a free one.", min=0, max=65535)
    ] = 8998,
    quantization: Annotated[
        str, typer.Option(help="Of linear weights as they are read: none, int8 or int4.")
    ] = "none",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Threads of torch on CPU.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of requests that bring none.")] = None,
    speculative_method: Annotated[
        str | None,
        typer.Option(
            help="Guess tokens ahead: ngram, draft_model, early_exit or medusa.", show_default=False
        ),
    ] = None,
    speculative_num_tokens: Annotated[int, typer.Option(help="Tokens guessed at most in a step.")] = 4,
    speculative_draft_model: Annotated[
        Path | None,
        typer.Option(help="Checkpoint of the draft model, or of the Medusa heads.", show_default=False),
    ] = None,
    speculative_exit_layer: Annotated[
        int | None, typer.Option(help="early_exit: first layers that guess.", show_default=False)
    ] = None,
    speculative_disable_by_batch_size: Annotated[
        int, typer.Option(help="Guess nothing while more sequences than this decode.")
    ] = 32,
    tool_call_parser: Annotated[
        str,
        typer.Option(
            help="How the model writes tool calls: hermes, llama3_json or mistral; auto reads the template."
        ),
    ] = "auto",
    register: Annotated[
        str | None,
        typer.Option(
            metavar="REDIS_URL",
            envvar="RADIXGATE_REGISTER",
            help="Register there, for gateways with `discovery: [{kind: redis}]`, and leave when it ends.",
            show_default=False,
        ),
    ] = None,
    register_id: Annotated[
        str | None, typer.Option(help="Its id there.", show_default="the host's name and the port")
    ] = None,
    register_url: Annotated[
        str | None, typer.Option(help="Where gateways reach it.", show_default="where it listens")
    ] = None,
    register_prefix: Annotated[str, typer.Option(help="As redis.prefix of the gateways.")] = "rg",
    kv_events: Annotated[bool, typer.Option(help="Publish what the prefix cache holds, on ZMQ.")] = True,
    kv_events_port: Annotated[
        int,
        typer.Option(help="Port for that, the next one for its replay; 0 takes free ones.", min=0, max=65533),
    ] = 0,
    kv_events_buffer_steps: Annotated[
        int, typer.Option(help="Batches of events kept for replay, each of one step.", min=1)
    ] = 10_000,
    python: Annotated[
        str | None,
        typer.Option(
            help="Launched: the interpreter that has the engine; by default ours.", show_default=False
        ),
    ] = None,
    load_feed: Annotated[
        bool | None,
        typer.Option(
            "--load-feed/--no-load-feed",
            help="Launched, sglang: publish how busy it is, on all addresses, on the port after the replay's.",
            show_default="where --host is no loopback address",
        ),
    ] = None,
    start_seconds: Annotated[float, typer.Option(help="Launched: until it has to answer.", min=1)] = 1800.0,
    silent_seconds: Annotated[
        float, typer.Option(help="Launched: silence after which it is started anew.", min=1)
    ] = 30.0,
    drain_seconds: Annotated[
        float, typer.Option(help="Launched: how long running requests may go on after SIGTERM.", min=0)
    ] = 120.0,
) -> int:
    """Run one worker: embedded, a real engine on CPU or CUDA with paged KV and a prefix cache; or SGLang or vLLM
    with the flags that a gateway makes use of, started again when it dies.
    """
    registering = None
    if register is not None:
        from gateway.cli.support.registering import Registering

        registering = Registering(redis=register, id=register_id, url=register_url, prefix=register_prefix)
        registering.check(host)
    if engine != "embedded":
        from gateway.cli.support import worker_engine as launching

        return launching.launched(
            context,
            own=(*OF_BOTH, *OF_LAUNCHED),
            engine=engine,
            model=model,
            host=host,
            port=port,
            served_model_name=served_model_name,
            page_size=page_size,
            events_port=kv_events_port if kv_events else None,
            load_feed=load_feed,
            role=disaggregation_mode,
            bootstrap_port=disaggregation_bootstrap_port,
            python=python,
            registering=registering,
            drain_seconds=drain_seconds,
            start_seconds=start_seconds,
            silent_seconds=silent_seconds,
        )
    refuse(context, OF_LAUNCHED, "for engines that are launched: see --engine")
    if context.args:
        raise Failure(f"unexpected: {' '.join(context.args)}", 2)
    checkpoint = Path(model)
    if not (checkpoint / "config.json").is_file():
        raise Failure(f"--model: there is no config.json in {model!r}", 2)
    try:
        from workers.engine.errors import ConfigInvalid
        from workers.engine_server import main
        from workers.engine_server.options import WorkerOptions
    except ImportError as err:
        raise Failure(f"{ENGINE_MISSING} ({err})") from err
    chosen: dict[str, Any] = {
        "model": checkpoint,
        "host": host,
        "port": port,
        "served_model_name": served_model_name,
        "page_size": page_size,
        "kv_tokens": kv_tokens,
        "max_running_requests": max_running_requests,
        "waiting_max": waiting_max,
        "chunk_tokens": chunk_tokens,
        "batching": batching,
        "chunked_prefill": chunked_prefill,
        "prefix_caching": prefix_caching,
        "kv_layout": kv_layout,
        "priority_first": priority_first,
        "ageing_seconds": ageing_seconds,
        "context_length": context_length,
        "dtype": dtype,
        "kv_cache_dtype": kv_cache_dtype,
        "disaggregation_mode": disaggregation_mode,
        "disaggregation_transfer_backend": disaggregation_transfer_backend,
        "disaggregation_bootstrap_port": disaggregation_bootstrap_port,
        "quantization": quantization,
        "device": device,
        "threads": threads,
        "seed": seed,
        "speculative_method": speculative_method,
        "speculative_num_tokens": speculative_num_tokens,
        "speculative_draft_model": speculative_draft_model,
        "speculative_exit_layer": speculative_exit_layer,
        "speculative_disable_by_batch_size": speculative_disable_by_batch_size,
        "tool_call_parser": tool_call_parser,
        "kv_events_port": kv_events_port if kv_events else None,
        "kv_events_buffer_steps": kv_events_buffer_steps,
    }
    try:
        options = WorkerOptions(**chosen)
        options.engine_config()
    except ConfigInvalid as err:
        raise Failure(str(err), 2) from err
    return main.run(options, beside=registering.beside) if registering is not None else main.run(options)
