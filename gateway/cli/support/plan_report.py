"""What `radixgate plan` prints: figures with their units; a column for each type of keys and values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.table import Table

from workers.planning.capacity import Deployment
from workers.planning.gpus import GPUS
from workers.planning.pool_sizes import Pools, Traffic, transfer

Figures = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What is asked of a deployment, and what share of its ceilings an estimate counts on."""

    users: int
    context: int
    cached: int
    prefill_share: float
    decode_share: float
    link_bandwidth: float

    def estimate(self, deployment: Deployment) -> Deployment:
        """The same deployment at the shares that real engines reach."""
        return replace(deployment, flops_share=self.prefill_share, bandwidth_share=self.decode_share)


ROWS = (
    ("memory", None, ""),
    ("KV bytes per token", "kv_bytes_per_token", "{:,.0f} B"),
    ("  on each GPU", "kv_bytes_per_token_per_gpu", "{:,.0f} B"),
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


def figures(deployment: Deployment, demand: Demand) -> dict[str, Any]:
    """Everything that the table and the file have, by name with its unit."""
    estimate = demand.estimate(deployment)
    users_max = deployment.users_max(demand.context)
    served = max(1, min(demand.users, users_max))
    batch = -(-served // deployment.replicas)
    move = transfer(replace(estimate, gpus=deployment.tensor_parallel), demand.context, demand.link_bandwidth)
    return {
        "parameters": deployment.shape.parameters,
        "kv_bytes_per_token": deployment.kv_bytes_per_token,
        "kv_bytes_per_token_per_gpu": deployment.kv_bytes_per_token_per_gpu,
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
    """Figures are rows, types of keys and values are columns; the first is the one that was asked for."""
    of, asked = deployment, f"{demand.users:,} users of {demand.context:,} tokens"
    drawn = Table(
        title=f"{of.shape.name}, {of.shape.parameters / 1e9:,.2f} B parameters in {of.weight_dtype}, on {of.gpus} x"
        f" {of.gpu.name} ({of.replicas} x {of.tensor_parallel}): {asked}",
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
        else:
            drawn.add_row(f"  {title}", *(shape.format(run[figure]) for run in runs.values()))
    return drawn


def notes(deployment: Deployment, demand: Demand, run: Figures) -> Iterator[str]:
    """What the figures mean for the question that was asked."""
    limit = deployment.shape.context_length
    if run["users_max"] >= demand.users:
        yield f"{demand.users:,} users of {demand.context:,} tokens fit."
    else:
        yield (
            f"{demand.users:,} users of {demand.context:,} tokens do not fit: {run['users_max']:,} do, or"
            f" {run['context_max_tokens']:,} tokens each. Speeds are those of the users that fit."
        )
    if demand.context > limit:
        yield f"The model was made for {limit:,} tokens: {demand.context:,} are more."
    if deployment.tensor_parallel > deployment.shape.kv_heads:
        yield (
            f"{deployment.tensor_parallel} GPUs share {deployment.shape.kv_heads} key-value heads, so some hold"
            " copies: more GPUs to a replica save no KV memory."
        )
    link, faster = demand.link_bandwidth / 1e9, "moving" if run["transfer_pays"] else "computing"
    yield (
        f"Over a link of {link:,.1f} GB/s {faster} KV is the faster; they are equal at"
        f" {run['break_even_gb_per_second']:,.1f} GB/s."
    )
    yield (
        f"Ceilings are the data sheet's ({deployment.gpu.source}); estimates count on {demand.prefill_share:.0%}"
        f" of its FLOP/s and {demand.decode_share:.0%} of its bandwidth. GB are 10^9 bytes; links inside a replica"
        " cost nothing."
    )


def pool_lines(replica: Deployment, traffic: Traffic, pools: Pools) -> Iterator[str]:
    """The sizes of both pools, and whether two are better than one."""
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
            f"Two pools pay: in one, a prompt would hold up running streams for {stall:,.0f} ms, and the TPOT"
            f" target is {target:,.0f} ms; chunks spread that stall and do not remove it."
        )
    else:
        yield (
            f"One pool will do: a prompt holds up running streams for {stall:,.0f} ms, within the TPOT target"
            f" of {target:,.0f} ms."
        )


def gpu_table() -> Table:
    """The GPUs that are known, with where their figures stand."""
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
