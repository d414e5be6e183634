"""`radixgate plan`: calculates how many users a model on some GPUs can serve, without running the model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from gateway.cli.planning import plan_options as option
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
from gateway.cli.support.result_file import JsonFile, write_results
from workers.planning.capacity import Deployment, DoesNotFit
from workers.planning.config_values import ShapeUnknown
from workers.planning.gpus import GPUS, Gpu
from workers.planning.model_shape import ModelShape, read_shape
from workers.planning.number_formats import KV_DTYPES, WEIGHT_BYTES
from workers.planning.pool_sizes import TargetUnreachable, Traffic, pool_sizes

CONFIG_BYTES_MAX = 4 * 1024 * 1024
COMPARED_KV_DTYPES = ("bf16", "int8", "int4")


def plan(
    config_json: option.ConfigJson = None,
    gpu: option.GpuName = "h100",
    gpu_memory_gb: option.GpuMemoryGb = None,
    gpu_bandwidth_gb_s: option.GpuBandwidthGbS = None,
    gpu_tflops: option.GpuTflops = None,
    gpus: option.Gpus = 1,
    tensor_parallel: option.TensorParallel = None,
    users: option.Users = 1,
    context: option.Context = 8192,
    kv_dtype: option.KvDtype = "bf16",
    weight_dtype: option.WeightDtype = "auto",
    parameters: option.Parameters = None,
    block_size: option.BlockSize = 16,
    utilisation: option.Utilisation = 0.9,
    reserve_gb: option.ReserveGb = 2.0,
    prefill_share: option.PrefillShare = 0.5,
    decode_share: option.DecodeShare = 0.7,
    cached: option.Cached = 0,
    link_gb_s: option.LinkGbS = 25.0,
    requests_per_second: option.RequestsPerSecond = None,
    prompt: option.PromptTokens = 2048,
    output: option.OutputTokens = 256,
    ttft_ms: option.TtftMs = 2000.0,
    tpot_ms: option.TpotMs = 60.0,
    plot_file: option.PlotFile = None,
    json_file: JsonFile = None,
    explain: option.Explain = False,
    list_gpus: option.ListGpus = False,
) -> None:
    """Calculate how many users GPUs can serve.

    Memory and speed are calculated from config.json alone: KV bytes per token, users, contexts, ceilings and
    estimates of speed, and sizes of prefill and decode pools.
    """
    console = Console()

    # What needs no model.
    if list_gpus:
        console.print(gpu_table())
    if explain:
        console.print(explain_arithmetic(), soft_wrap=True, highlight=False)
    if config_json is None:
        if explain or list_gpus:
            return
        raise CommandError("plan: --config-json is needed", 2)

    # The model on its GPUs, and the load that it has to serve.
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

    # The figures of this KV type and of those that it is compared with.
    equal_sized = {kv_dtype, "bf16"} if kv_dtype == "fp16" else {kv_dtype}
    compared = [kv_dtype, *(other for other in COMPARED_KV_DTYPES if other not in equal_sized)]
    runs = {name: plan_figures(replace(deployment, kv_dtype=name), demand) for name in compared}
    console.print(report_table(deployment, demand, runs))
    for line in plan_notes(deployment, demand, runs[kv_dtype]):
        console.print(line, soft_wrap=True, highlight=False)

    # The pools of prefill and decode, and the files.
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
    write_results(file, settings, runs)
