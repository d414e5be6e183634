"""`radixgate worker`: runs one worker, which is the embedded PyTorch engine or a launched SGLang or vLLM."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.cli.support.command_error import CommandError
from gateway.cli.support.options import refuse_options

if TYPE_CHECKING:
    from gateway.cli.support.register_options import RegisterOptions

ENGINE_MISSING = (
    "the embedded engine is missing; install it with: pip install 'radixgate[engine]' (in a clone: '.[engine]'); "
    "on Linux without a GPU install torch from PyTorch's index of CPU builds first"
)

KEY_OF_REGISTERED = "--api-key: gateways that find a worker by its registration have no key for it"

LAUNCHED_ONLY = ("python", "load_feed", "start_seconds", "silent_seconds", "drain_seconds")
"""Options that apply only to an engine that is launched."""

LAUNCHED_TOO = (
    *("engine", "model", "host", "port", "served_model_name", "page_size", "kv_events", "kv_events_port"),
    *("disaggregation_mode", "disaggregation_bootstrap_port"),
    *("register", "register_id", "register_url", "register_prefix"),
)
"""Options that apply to the embedded engine and to one that is launched."""

CONTEXT = {"allow_extra_args": True}


def worker(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help="Directory with config.json, safetensors and tokenizer.json, or what a launched engine takes."
        ),
    ],
    engine: Annotated[
        str,
        typer.Option(
            help="embedded, or sglang or vllm, which is then launched and restarted when it dies; its own flags go "
            "after --."
        ),
    ] = "embedded",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 30000,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            help="Name of the model in requests; by default the name of its directory.", show_default=False
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="RADIXGATE_WORKER_KEY",
            help="Key that the embedded engine requires as a bearer token, except for probes and metrics.",
            show_default=False,
        ),
    ] = None,
    page_size: Annotated[
        int, typer.Option(help="Tokens per page of the KV cache; a launched vllm has 32 by default.", min=1)
    ] = 16,
    kv_tokens: Annotated[
        int | None,
        typer.Option(help="Size of the KV cache in tokens; by default as large as memory allows.", min=1),
    ] = None,
    max_running_requests: Annotated[
        int, typer.Option(help="Largest number of sequences in one batch.", min=1)
    ] = 32,
    waiting_max: Annotated[int, typer.Option(help="Largest number of requests that may wait.", min=1)] = 256,
    chunk_tokens: Annotated[
        int, typer.Option(help="Largest number of tokens computed in one step.", min=1)
    ] = 512,
    batching: Annotated[
        str, typer.Option(help="continuous, or static (a baseline to compare with).")
    ] = "continuous",
    chunked_prefill: Annotated[
        bool, typer.Option(help="Split long prompts into chunks that fit a step.")
    ] = True,
    prefix_caching: Annotated[
        bool, typer.Option(help="Reuse KV blocks that earlier requests have computed.")
    ] = True,
    kv_layout: Annotated[
        str, typer.Option(help="paged; contiguous or none are baselines for `radixgate ladder`.")
    ] = "paged",
    priority_first: Annotated[
        str, typer.Option(help="Whether a lower or a higher `priority` value goes first: lower or higher.")
    ] = "lower",
    ageing_seconds: Annotated[
        float, typer.Option(help="Seconds of waiting that raise a request by one priority class.")
    ] = 60.0,
    context_length: Annotated[
        int | None, typer.Option(help="Largest number of tokens of prompt and answer together.", min=1)
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Type of the weights: auto, float32, bfloat16 or float16.")
    ] = "auto",
    kv_cache_dtype: Annotated[
        str,
        typer.Option(
            help="Type of the KV cache: auto, float32, bfloat16, float16, int8, int4 or k8v4 (8-bit keys, 4-bit "
            "values)."
        ),
    ] = "auto",
    disaggregation_mode: Annotated[
        str, typer.Option(help="Role in disaggregated serving: null (none), prefill or decode.")
    ] = "null",
    disaggregation_transfer_backend: Annotated[
        str, typer.Option(help="How a decode worker fetches KV blocks: tcp, or shm on one machine.")
    ] = "tcp",
    disaggregation_bootstrap_port: Annotated[
        int,
        typer.Option(
            help="Port on which a prefill worker hands over KV blocks; 0 takes a free one.", min=0, max=65535
        ),
    ] = 8998,
    quantization: Annotated[
        str, typer.Option(help="Quantization of linear weights when they are loaded: none, int8 or int4.")
    ] = "none",
    device: Annotated[str, typer.Option(help="Device of the engine: auto, cpu or cuda.")] = "auto",
    attention_backend: Annotated[
        str,
        typer.Option(
            help="How attention is computed: triton (kernels for CUDA), sdpa (any device), or auto: triton where "
            "it can run."
        ),
    ] = "auto",
    cuda_graphs: Annotated[
        bool, typer.Option(help="Replay decode steps as CUDA graphs, with triton on CUDA.")
    ] = True,
    threads: Annotated[int | None, typer.Option(help="Number of CPU threads of PyTorch.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Sampling seed for requests without a seed.")] = None,
    speculative_method: Annotated[
        str | None,
        typer.Option(
            help="Speculative decoding: ngram, draft_model, early_exit or medusa.", show_default=False
        ),
    ] = None,
    speculative_num_tokens: Annotated[
        int, typer.Option(help="Largest number of draft tokens in a step.")
    ] = 4,
    speculative_draft_model: Annotated[
        Path | None,
        typer.Option(help="Directory of the draft model, or of the Medusa heads.", show_default=False),
    ] = None,
    speculative_exit_layer: Annotated[
        int | None,
        typer.Option(help="Number of leading layers that draft tokens with early_exit.", show_default=False),
    ] = None,
    speculative_disable_by_batch_size: Annotated[
        int, typer.Option(help="Number of decoding sequences above which no tokens are drafted.")
    ] = 32,
    tool_call_parser: Annotated[
        str,
        typer.Option(
            help="Format of the model's tool calls: hermes, llama3_json or mistral; auto reads it from the chat "
            "template."
        ),
    ] = "auto",
    lora_modules: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="LoRA adapter of the embedded engine, a directory in PEFT's format: a model of its own in "
            "requests. Several are named one after the other, or with the option repeated.",
            show_default=False,
        ),
    ] = None,
    max_loaded_loras: Annotated[int, typer.Option(help="Largest number of LoRA adapters.", min=1)] = 32,
    max_lora_rank: Annotated[int, typer.Option(help="Largest rank of a LoRA adapter.", min=1)] = 64,
    lora_bytes_max: Annotated[
        int, typer.Option(help="Largest memory in bytes of all LoRA adapters together.", min=1)
    ] = 1 << 30,
    register: Annotated[
        str | None,
        typer.Option(
            metavar="REDIS_URL",
            envvar="RADIXGATE_REGISTER",
            help="Register the worker in this Redis while it runs, for gateways with `discovery: [{kind: redis}]`.",
            show_default=False,
        ),
    ] = None,
    register_id: Annotated[
        str | None, typer.Option(help="Id to register with.", show_default="host name and port")
    ] = None,
    register_url: Annotated[
        str | None,
        typer.Option(help="URL at which gateways reach the worker.", show_default="where it listens"),
    ] = None,
    register_prefix: Annotated[
        str, typer.Option(help="Prefix of keys in Redis: the setting redis.prefix of the gateways.")
    ] = "rg",
    kv_events: Annotated[
        bool, typer.Option(help="Publish changes of the prefix cache as KV events over ZMQ.")
    ] = True,
    kv_events_port: Annotated[
        int,
        typer.Option(
            help="Port for KV events, the next one for their replay; 0 takes free ports.", min=0, max=65533
        ),
    ] = 0,
    kv_events_buffer_steps: Annotated[
        int, typer.Option(help="Number of steps whose KV events are kept for replay.", min=1)
    ] = 10_000,
    python: Annotated[
        str | None,
        typer.Option(
            help="Launched engine: Python interpreter that has it installed; by default that of this command.",
            show_default=False,
        ),
    ] = None,
    load_feed: Annotated[
        bool | None,
        typer.Option(
            "--load-feed/--no-load-feed",
            help="Launched sglang: publish its load over ZMQ, on all addresses, on the port after the replay port.",
            show_default="if --host is not a loopback address",
        ),
    ] = None,
    start_seconds: Annotated[
        float, typer.Option(help="Launched engine: seconds until its first answer, at most.", min=1)
    ] = 1800.0,
    silent_seconds: Annotated[
        float,
        typer.Option(help="Launched engine: seconds without an answer after which it is restarted.", min=1),
    ] = 30.0,
    drain_seconds: Annotated[
        float,
        typer.Option(help="Launched engine: seconds that running requests may take after SIGTERM.", min=0),
    ] = 120.0,
) -> int:
    """Run one worker: the embedded engine, or SGLang or vLLM.

    The embedded engine runs on CPU or CUDA and has a paged KV cache and a prefix cache. SGLang and vLLM are
    launched with the flags that a gateway makes use of, and restarted when they die.
    """
    registration = None
    if register is not None:
        from gateway.cli.support.register_options import RegisterOptions

        registration = RegisterOptions(
            redis=register, id=register_id, url=register_url, prefix=register_prefix
        )
        registration.check(host)
    if engine != "embedded":
        from gateway.cli.support.launch_engine import launch_engine

        return launch_engine(
            context,
            launch_options=(*LAUNCHED_TOO, *LAUNCHED_ONLY),
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
            registration=registration,
            drain_seconds=drain_seconds,
            start_seconds=start_seconds,
            silent_seconds=silent_seconds,
        )
    if api_key is not None and registration is not None:
        raise CommandError(KEY_OF_REGISTERED, 2)
    refuse_options(context, LAUNCHED_ONLY, "for launched engines only: see --engine")
    # As in vLLM, all words after --lora-modules name adapters; the parser takes the first one only.
    modules = [*lora_modules, *context.args] if lora_modules else []
    if context.args and not modules:
        raise CommandError(f"unexpected arguments: {' '.join(context.args)}", 2)
    chosen: dict[str, Any] = {
        "model": Path(model),
        "host": host,
        "port": port,
        "api_key": api_key,
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
        "attention_backend": attention_backend,
        "cuda_graphs": cuda_graphs,
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
        "max_loaded_loras": max_loaded_loras,
        "max_lora_rank": max_lora_rank,
        "lora_bytes_max": lora_bytes_max,
    }
    return _serve_embedded(chosen, modules, registration)


def _serve_embedded(
    chosen: dict[str, Any], modules: Sequence[str], registration: "RegisterOptions | None"
) -> int:
    """Serve the embedded engine with these options and LoRA adapters (NAME=PATH); return the exit code."""
    if not (chosen["model"] / "config.json").is_file():
        raise CommandError(f"--model: there is no config.json in {str(chosen['model'])!r}", 2)
    try:
        from workers.engine.errors import ConfigInvalid
        from workers.engine_server import main
        from workers.engine_server.options import WorkerOptions, parse_lora_module
    except ImportError as err:
        raise CommandError(f"{ENGINE_MISSING} ({err})") from err
    try:
        chosen["lora_modules"] = tuple(map(parse_lora_module, modules))
        options = WorkerOptions(**chosen)
        options.engine_config()
    except ConfigInvalid as err:
        raise CommandError(str(err), 2) from err
    if registration is not None:
        return main.run(options, while_serving=registration.open_for_embedded)
    return main.run(options)
