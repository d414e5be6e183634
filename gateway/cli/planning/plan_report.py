"""Report of `radixgate plan`: a table of figures with a column for each KV cache type, and notes on them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.table import Table

from workers.planning.capacity import Deployment
from workers.planning.gpus import GPUS
from workers.planning.pool_sizes import PoolSizes, Traffic, kv_transfer

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The load that a deployment has to serve, and the assumptions of its estimates."""

    users: int
    """Sequences at the same time."""

    context: int
    """Tokens of each sequence."""

    cached: int
    """Tokens of each prompt that a prefix hit saves."""

    prefill_share: float
    """Share of the GPU's dense FLOP/s that prefill reaches."""

    decode_share: float
    """Share of the GPU's memory bandwidth that decode reaches."""

    link_bandwidth: float
    """Bandwidth between prefill and decode pools, in bytes per second."""

    def estimate(self, deployment: Deployment) -> Deployment:
        """Return the same deployment at the shares of its ceilings that real engines reach."""
        return replace(deployment, flops_share=self.prefill_share, bandwidth_share=self.decode_share)


ROWS = (
    ("memory", None, ""),
    ("KV bytes per token", "kv_bytes_per_token", "{:,.0f} B"),
    ("  on each GPU", "kv_bytes_per_token_per_gpu", "{:,.0f} B"),
    ("  state of each sequence", "state_mb_per_sequence", "{:,.1f} MB"),
    ("weights", "weights_gb", "{:,.1f} GB"),
    ("  on each GPU", "weights_gb_per_gpu", "{:,.1f} GB"),
    ("room for KV on each GPU", "kv_room_gb_per_gpu", "{:,.1f} GB"),
    ("tokens in all pools", "kv_tokens", "{:,.0f}"),
    ("users at this context, at most", "users_max", "{:,.0f}"),
    ("context for these users, at most", "context_max_tokens", "{:,.0f}"),
    ("ceilings", None, ""),
    ("decode, one stream", "decode_tokens_per_second_1", "{:,.0f} tok/s"),
    ("decode, these users", "decode_tokens_per_second", "{:,.0f} tok/s"),
    ("  a step", "step_ms", "{:,.1f} ms"),
    ("prefill", "prefill_tokens_per_second", "{:,.0f} tok/s"),
    ("estimates", None, ""),
    ("TTFT, idle", "ttft_ms", "{:,.0f} ms"),
    ("TPOT, these users", "tpot_ms", "{:,.1f} ms"),
    ("moving KV to another pool", None, ""),
    ("KV of one context", "kv_gb_per_context", "{:,.3f} GB"),
    ("to move it", "transfer_ms", "{:,.0f} ms"),
    ("to compute it again", "recompute_ms", "{:,.0f} ms"),
    ("break-even link", "break_even_gb_per_second", "{:,.1f} GB/s"),
)


def plan_figures(deployment: Deployment, demand: Demand) -> dict[str, Any]:
    """Return all figures of the table and the result file, by names that end in their units."""
    estimate = demand.estimate(deployment)
    users_max = deployment.users_max(demand.context)
    served = max(1, min(demand.users, users_max))
    batch = -(-served // deployment.replicas)
    move = kv_transfer(
        replace(estimate, gpus=deployment.tensor_parallel), demand.context, demand.link_bandwidth
    )
    return {
        "parameters": deployment.shape.parameters,
        "kv_bytes_per_token": deployment.kv_bytes_per_token,
        "kv_bytes_per_token_per_gpu": deployment.kv_bytes_per_token_per_gpu,
        "active_parameters": deployment.shape.active,
        "state_mb_per_sequence": deployment.state_bytes / 1e6,
        "weights_gb": deployment.weights / 1e9,
        "weights_gb_per_gpu": deployment.weights_per_gpu / 1e9,
        "kv_room_gb_per_gpu": deployment.kv_room / 1e9,
        "kv_tokens": deployment.kv_tokens * deployment.replicas,
        "users_max": users_max,
        "context_max_tokens": deployment.context_max(demand.users),
        "batch_per_replica": batch,
        "decode_tokens_per_second_1": deployment.decode_tokens_per_second(1, demand.context)
        / deployment.replicas,
        "decode_tokens_per_second": served / deployment.step_seconds(batch, demand.context),
        "step_ms": deployment.step_seconds(batch, demand.context) * 1e3,
        "prefill_tokens_per_second": deployment.prefill_tokens_per_second(demand.context),
        "ttft_ms": estimate.ttft_seconds(demand.context, cached=demand.cached) * 1e3,
        "tpot_ms": estimate.step_seconds(batch, demand.context) * 1e3,
        "kv_gb_per_context": move.kv_bytes / 1e9,
        "transfer_ms": move.transfer_seconds * 1e3,
        "recompute_ms": move.recompute_seconds * 1e3,
        "break_even_gb_per_second": move.break_even_bandwidth / 1e9,
        "transfer_pays": move.pays,
    }


def report_table(deployment: Deployment, demand: Demand, runs: Mapping[str, Figures]) -> Table:
    """Return the table: figures are rows, KV cache types are columns, of which the first was requested."""
    model, load = deployment.shape, f"{demand.users:,} users of {demand.context:,} tokens"
    hardware = (
        f"{deployment.gpus} x {deployment.gpu.name} ({deployment.replicas} x {deployment.tensor_parallel})"
    )
    active = f" ({model.active / 1e9:,.2f} B active)" if model.experts else ""
    drawn = Table(
        title=f"{model.name}, {model.parameters / 1e9:,.2f} B parameters{active} in {deployment.weight_dtype}, on"
        f" {hardware}: {load}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    # In a narrow window a unit goes below its figure; no figure is cut.
    drawn.add_column("keys and values in")
    for name in runs:
        drawn.add_column(name, justify="right")
    for title, figure, shape in ROWS:
        if figure is None:
            drawn.add_section()
            drawn.add_row(title, style="bold")
        elif any(run[figure] for run in runs.values()):
            drawn.add_row(f"  {title}", *(shape.format(run[figure]) for run in runs.values()))
    return drawn


def plan_notes(deployment: Deployment, demand: Demand, run: Figures) -> Iterator[str]:
    """Yield sentences that say what the figures mean for this demand."""
    limit = deployment.shape.context_length
    if run["users_max"] >= demand.users:
        yield f"{demand.users:,} users of {demand.context:,} tokens fit."
    else:
        yield (
            f"{demand.users:,} users of {demand.context:,} tokens do not fit: {run['users_max']:,} do, or"
            f" {run['context_max_tokens']:,} tokens each. Speeds are those of the users that fit."
        )
    if demand.context > limit:
        yield f"The model was made for contexts of {limit:,} tokens, fewer than {demand.context:,}."
    if parts := deployment.shape.uncounted:
        yield f"Only the language model is counted: the weights of {', '.join(parts)} come on top."
    held = deployment.kv_bytes_per_token_per_gpu * deployment.tensor_parallel
    if held > deployment.kv_bytes_per_token:
        yield (
            f"The {deployment.tensor_parallel} GPUs of a replica hold"
            f" {held / deployment.kv_bytes_per_token:.2g} copies of its keys and values, which cannot be divided"
            " further: more GPUs per replica save no KV memory."
        )
    link, faster = demand.link_bandwidth / 1e9, "moving" if run["transfer_pays"] else "computing"
    slower = "computing" if run["transfer_pays"] else "moving"
    yield (
        f"Over a link of {link:,.1f} GB/s, {faster} KV is faster than {slower} it; both take equally long at"
        f" {run['break_even_gb_per_second']:,.1f} GB/s."
    )
    yield (
        f"Ceilings are from the data sheet ({deployment.gpu.source}); estimates assume {demand.prefill_share:.0%}"
        f" of its FLOP/s and {demand.decode_share:.0%} of its bandwidth. GB are 10^9 bytes; links inside a replica"
        " are assumed to cost nothing."
    )


def pool_notes(replica: Deployment, traffic: Traffic, pools: PoolSizes) -> Iterator[str]:
    """Yield sentences on the sizes of prefill and decode pools, and on whether two pools are better than one."""
    each = replica.tensor_parallel
    yield (
        f"For {traffic.requests_per_second:g} requests/s of {traffic.prompt:,} + {traffic.output:,} tokens:"
        f" {pools.prefill_replicas} prefill and {pools.decode_replicas} decode replicas of {each} GPU"
        f"{'s' if each > 1 else ''} ({pools.ratio:.2f} to 1), {pools.batch} sequences in a decode step;"
        f" TTFT {pools.ttft_seconds * 1e3:,.0f} ms, TPOT {pools.tpot_seconds * 1e3:,.1f} ms."
    )
    stall, target = pools.stall_seconds * 1e3, traffic.tpot_seconds * 1e3
    if pools.stall_seconds > traffic.tpot_seconds:
        yield (
            f"Two pools are better: in one pool, a prompt would stall running streams for {stall:,.0f} ms, and the"
            f" TPOT target is {target:,.0f} ms; chunks spread that stall and do not remove it."
        )
    else:
        yield (
            f"One pool is enough: a prompt stalls running streams for {stall:,.0f} ms, within the TPOT target"
            f" of {target:,.0f} ms."
        )


def gpu_table() -> Table:
    """Return the table of known GPUs, with the sources of their figures."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column("GPU", no_wrap=True)
    for name in ("memory", "bandwidth", "dense bf16"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("source, TFLOP/s")
    for gpu in GPUS.values():
        drawn.add_row(
            gpu.name,
            f"{gpu.memory_bytes / 1e9:,.0f} GB",
            f"{gpu.bandwidth / 1e12:.2f} TB/s",
            f"{gpu.flops / 1e12:,.0f} TFLOP/s",
            gpu.source,
        )
    return drawn
