"""`radixgate plan`: calculates how many users a model on some GPUs can serve, without running the model."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from gateway.bench.machine import machine, versions
from gateway.cli.planning.plan_explain import explain_arithmetic
from gateway.cli.planning.plan_plot import plot_plan
from gateway.cli.planning.plan_report import (
    Demand,
    gpu_table,
    plan_figures,
    plan_notes,
    pool_notes,
    report_table,
)
from gateway.cli.support.command_error import CommandError
from workers.planning.capacity import Deployment, DoesNotFit
from workers.planning.config_values import ShapeUnknown
from workers.planning.gpus import GPUS, Gpu
from workers.planning.model_shape import ModelShape, read_shape
from workers.planning.number_formats import KV_DTYPES, WEIGHT_BYTES
from workers.planning.pool_sizes import TargetUnreachable, Traffic, pool_sizes

CONFIG_BYTES_MAX = 4 * 1024 * 1024
FIGURE_MAX = 1e15
"""Beyond the figures of any machine; keeps infinity out of the calculation."""
COMPARED_KV_DTYPES = ("bf16", "int8", "int4")


def plan(
    config_json: Annotated[
        Path | None, typer.Option(help="config.json of a model, or its directory.", show_default=False)
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="GPU, one of --list-gpus; the three options below override its values.")
    ] = "h100",
    gpu_memory_gb: Annotated[
        float | None, typer.Option(help="Memory of one GPU, 10^9 bytes.", min=0.001, max=FIGURE_MAX)
    ] = None,
    gpu_bandwidth_gb_s: Annotated[
        float | None,
        typer.Option(help="Memory bandwidth of one GPU, 10^9 bytes/s.", min=0.001, max=FIGURE_MAX),
    ] = None,
    gpu_tflops: Annotated[
        float | None,
        typer.Option(help="Dense 16-bit rate of one GPU, 10^12 FLOP/s.", min=0.001, max=FIGURE_MAX),
    ] = None,
    gpus: Annotated[int, typer.Option(help="Number of GPUs in all.", min=1, max=1_000_000)] = 1,
    tensor_parallel: Annotated[
        int | None,
        typer.Option(help="Number of GPUs of one replica; by default all.", min=1, show_default=False),
    ] = None,
    users: Annotated[
        int, typer.Option(help="Number of sequences at the same time.", min=1, max=10_000_000)
    ] = 1,
    context: Annotated[int, typer.Option(help="Tokens of each sequence.", min=1, max=100_000_000)] = 8192,
    kv_dtype: Annotated[str, typer.Option(help=f"Type of keys and values: {', '.join(KV_DTYPES)}.")] = "bf16",
    weight_dtype: Annotated[
        str, typer.Option(help=f"Type of linear weights: auto (as stored), {', '.join(WEIGHT_BYTES)}.")
    ] = "auto",
    parameters: Annotated[
        float | None,
        typer.Option(
            help="Number of parameters, if a dense model has more or fewer than its architecture implies.",
            min=1,
            max=FIGURE_MAX,
        ),
    ] = None,
    block_size: Annotated[int, typer.Option(help="Tokens per KV block.", min=1, max=4096)] = 16,
    utilisation: Annotated[
        float, typer.Option(help="Share of GPU memory that the engine may take.", min=0.01, max=1)
    ] = 0.9,
    reserve_gb: Annotated[
        float,
        typer.Option(
            help="Memory for activations and CUDA graphs on each GPU, 10^9 bytes.", min=0, max=FIGURE_MAX
        ),
    ] = 2.0,
    prefill_share: Annotated[
        float,
        typer.Option(help="Share of the dense FLOP/s that prefill reaches, for estimates.", min=0.01, max=1),
    ] = 0.5,
    decode_share: Annotated[
        float,
        typer.Option(
            help="Share of the memory bandwidth that decode reaches, for estimates.", min=0.01, max=1
        ),
    ] = 0.7,
    cached: Annotated[
        int, typer.Option(help="Prompt tokens that are cached and not computed.", min=0, max=100_000_000)
    ] = 0,
    link_gb_s: Annotated[
        float,
        typer.Option(
            help="Bandwidth between prefill and decode pools, 10^9 bytes/s.", min=0.001, max=FIGURE_MAX
        ),
    ] = 25.0,
    requests_per_second: Annotated[
        float | None,
        typer.Option(help="Also size prefill and decode pools, for this rate.", min=0.000001, max=FIGURE_MAX),
    ] = None,
    prompt: Annotated[
        int, typer.Option(help="Mean prompt tokens, for --requests-per-second.", min=1, max=100_000_000)
    ] = 2048,
    output: Annotated[
        int, typer.Option(help="Mean answer tokens, for --requests-per-second.", min=1, max=100_000_000)
    ] = 256,
    ttft_ms: Annotated[
        float, typer.Option(help="TTFT target, for --requests-per-second.", min=0.001, max=FIGURE_MAX)
    ] = 2000.0,
    tpot_ms: Annotated[
        float, typer.Option(help="TPOT target, for --requests-per-second.", min=0.001, max=FIGURE_MAX)
    ] = 60.0,
    plot_file: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw a plot into this file: png, svg or pdf.", show_default=False),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", help="Write the figures as JSON to this file.", show_default=False),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the arithmetic, and two published errors.")
    ] = False,
    list_gpus: Annotated[bool, typer.Option("--list-gpus", help="Show the known GPUs.")] = False,
) -> None:
    """Calculate how many users GPUs can serve.

    Memory and speed are calculated from config.json alone: KV bytes per token, users, contexts, ceilings and
    estimates of speed, and sizes of prefill and decode pools.
    """
    console = Console()
    if list_gpus:
        console.print(gpu_table())
    if explain:
        console.print(explain_arithmetic(), soft_wrap=True, highlight=False)
    if config_json is None:
        if explain or list_gpus:
            return
        raise CommandError("plan: --config-json is needed", 2)
    named_dtype = (
        None if weight_dtype == "auto" else _one_of("--weight-dtype", weight_dtype, tuple(WEIGHT_BYTES))
    )
    shape = _shape(config_json, parameters, named_dtype)
    deployment = _deployment(
        shape=shape,
        gpu=_gpu(gpu, gpu_memory_gb, gpu_bandwidth_gb_s, gpu_tflops),
        gpus=gpus,
        tensor_parallel=tensor_parallel or gpus,
        kv_dtype=_one_of("--kv-dtype", kv_dtype, KV_DTYPES),
        weight_dtype=shape.weight_dtype,
        block_size=block_size,
        utilisation=utilisation,
        reserve_bytes=reserve_gb * 1e9,
    )
    if cached >= context:
        raise CommandError(
            "--cached: must be less than --context, since the last token is always computed", 2
        )
    demand = Demand(
        users=users,
        context=context,
        cached=cached,
        prefill_share=prefill_share,
        decode_share=decode_share,
        link_bandwidth=link_gb_s * 1e9,
    )
    equal_sized = {kv_dtype, "bf16"} if kv_dtype == "fp16" else {kv_dtype}
    compared = [kv_dtype, *(other for other in COMPARED_KV_DTYPES if other not in equal_sized)]
    runs = {name: plan_figures(replace(deployment, kv_dtype=name), demand) for name in compared}
    console.print(report_table(deployment, demand, runs))
    for line in plan_notes(deployment, demand, runs[kv_dtype]):
        console.print(line, soft_wrap=True, highlight=False)
    result: dict[str, Any] = {name: {"all": run} for name, run in runs.items()}
    if requests_per_second is not None:
        traffic = Traffic(
            requests_per_second=requests_per_second,
            prompt=prompt,
            output=output,
            cached=min(cached, prompt - 1),
            ttft_seconds=ttft_ms / 1e3,
            tpot_seconds=tpot_ms / 1e3,
            link_bandwidth=link_gb_s * 1e9,
        )
        result[kv_dtype]["pools"] = _print_pools(console, deployment, demand, traffic)
    if plot_file is not None:
        plot_plan(plot_file, deployment, demand)
        console.print(f"drawn in {plot_file}", soft_wrap=True)
    if json_file is not None:
        _write(json_file, deployment, demand, result)
        console.print(f"written to {json_file}", soft_wrap=True)


def _print_pools(
    console: Console, deployment: Deployment, demand: Demand, traffic: Traffic
) -> dict[str, Any]:
    estimate = demand.estimate(deployment)
    try:
        pools = pool_sizes(estimate, traffic)
    except TargetUnreachable as err:
        raise CommandError(str(err)) from err
    for line in pool_notes(estimate, traffic, pools):
        console.print(line, soft_wrap=True, highlight=False)
    return {
        "prefill_replicas": pools.prefill_replicas,
        "decode_replicas": pools.decode_replicas,
        "gpus_per_replica": deployment.tensor_parallel,
        "ratio_to_decode_replicas": pools.ratio,
        "batch": pools.batch,
        "ttft_ms": pools.ttft_seconds * 1e3,
        "tpot_ms": pools.tpot_seconds * 1e3,
        "disaggregation_pays": pools.stall_seconds > traffic.tpot_seconds,
    }


def _shape(path: Path, parameters: float | None, weight_dtype: str | None) -> ModelShape:
    file = path / "config.json" if path.is_dir() else path
    try:
        with file.open("rb") as opened:
            text = opened.read(CONFIG_BYTES_MAX + 1)
    except OSError as err:
        raise CommandError(f"--config-json: {file} cannot be read: {err.strerror}", 2) from err
    if len(text) > CONFIG_BYTES_MAX:
        raise CommandError(f"--config-json: {file} is too large to be a config.json", 2)
    try:
        config = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise CommandError(f"--config-json: {file} is not JSON: {err}", 2) from err
    if not isinstance(config, dict):
        raise CommandError(f"--config-json: {file} must contain a JSON object", 2)
    try:
        number = None if parameters is None else int(parameters)
        return read_shape(config, parameters=number, weight_dtype=weight_dtype)
    except ShapeUnknown as err:
        hint = " (--weight-dtype)" if "name the weights' type" in str(err) else ""
        raise CommandError(f"--config-json: {file}: {err}{hint}", 2) from err


def _gpu(name: str, memory_gb: float | None, bandwidth_gb_s: float | None, tflops: float | None) -> Gpu:
    own = (memory_gb, bandwidth_gb_s, tflops)
    if name not in GPUS and None in own:
        raise CommandError(
            f"--gpu: {name!r} is not one of {', '.join(GPUS)}; with --gpu-memory-gb, --gpu-bandwidth-gb-s and"
            " --gpu-tflops it may have any name",
            2,
        )
    known = GPUS.get(name, Gpu(name=name, memory_bytes=0, bandwidth=0, flops=0, source="as given"))
    return replace(
        known,
        memory_bytes=known.memory_bytes if memory_gb is None else memory_gb * 1e9,
        bandwidth=known.bandwidth if bandwidth_gb_s is None else bandwidth_gb_s * 1e9,
        flops=known.flops if tflops is None else tflops * 1e12,
        source=known.source if own == (None, None, None) else "as given",
    )


def _one_of(option: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise CommandError(f"{option}: {value!r} is not one of {', '.join(known)}", 2)
    return value


def _deployment(**settings: Any) -> Deployment:
    try:
        return Deployment(**settings)
    except DoesNotFit as err:
        raise CommandError(f"plan: {err}") from err


def _write(file: Path, deployment: Deployment, demand: Demand, runs: dict[str, Any]) -> None:
    """Write the result file, in the shape that all result files have. Raises CommandError."""
    settings = {
        "model": deployment.shape.name,
        "gpu": deployment.gpu.name,
        "gpus": deployment.gpus,
        "tensor_parallel": deployment.tensor_parallel,
        "weight_dtype": deployment.weight_dtype,
        "kv_dtype": deployment.kv_dtype,
        "users": demand.users,
        "context_tokens": demand.context,
    }
    result = {"machine": machine(), "versions": versions(), "settings": settings, "runs": runs}
    try:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    except OSError as err:
        raise CommandError(f"--json: {file} cannot be written: {err.strerror}", 2) from err
