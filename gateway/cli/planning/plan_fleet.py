"""`radixgate plan-fleet`: calculates the load of gateways and Redis, and the smallest layout that handles it."""

from typing import Annotated

import typer
from rich.console import Console

from gateway.cli.planning.fleet_report import (
    bottleneck_note,
    fleet_figures,
    layout_note,
    parts_table,
    traffic_table,
)
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.result_file import JsonFile, write_results
from gateway.planning.costs import MEASURED
from gateway.planning.demand import FleetDemand, FleetLayout, FleetMachines
from gateway.planning.fleet_plan import fleet_plan
from gateway.planning.smallest_layout import NoLayout, smallest_layout


def plan_fleet(
    requests_per_second: Annotated[
        float, typer.Option(help="Requests per second, of all gateways together.", min=0.001, max=1e9)
    ] = 100.0,
    gateways: Annotated[int, typer.Option(help="Number of gateways.", min=1, max=100_000)] = 2,
    processes: Annotated[int, typer.Option(help="Processes of each gateway.", min=1, max=1024)] = 1,
    primaries: Annotated[
        int, typer.Option(help="Primaries of the Redis Cluster; 1: a single server.", min=1, max=1000)
    ] = 1,
    deployments: Annotated[
        int,
        typer.Option(
            help="Cells with a Redis of their own, among which the tenants are divided; they share one for quotas.",
            min=1,
            max=10_000,
        ),
    ] = 1,
    shared_primaries: Annotated[
        int,
        typer.Option(help="Primaries of the Redis that several cells share.", min=1, max=1000),
    ] = 1,
    tenant_shards: Annotated[
        int,
        typer.Option(
            help="Shards among which the tenants of each model are divided in a cluster: queueing.tenant_shards.",
            min=1,
            max=24,
        ),
    ] = 1,
    workers: Annotated[int, typer.Option(help="Number of workers.", min=1, max=10_000_000)] = 8,
    tenants: Annotated[
        int, typer.Option(help="Number of tenants; an isolation group counts as one.", min=1, max=100_000_000)
    ] = 10,
    models: Annotated[int, typer.Option(help="Number of models.", min=1, max=1_000_000)] = 1,
    blocks: Annotated[
        int,
        typer.Option(help="Blocks that all workers together have cached.", min=0, max=1_000_000_000_000),
    ] = 1_000_000,
    block_size: Annotated[int, typer.Option(help="Tokens per block.", min=1, max=4096)] = 64,
    prompt: Annotated[int, typer.Option(help="Mean tokens of a prompt.", min=1, max=100_000_000)] = 2048,
    shared_prefix: Annotated[
        float, typer.Option(help="Share of a mean prompt that a worker has cached already.", min=0, max=1)
    ] = 0.5,
    waiting: Annotated[
        float, typer.Option(help="Share of requests that wait for their turn.", min=0, max=1)
    ] = 0.1,
    redis_memory_gb: Annotated[
        float, typer.Option(help="Memory of one Redis server, 10^9 bytes.", min=0.1, max=1e6)
    ] = 16.0,
    process_memory_gb: Annotated[
        float, typer.Option(help="Memory of one gateway process, 10^9 bytes.", min=0.3, max=1e6)
    ] = 4.0,
    network_gbit_s: Annotated[
        float, typer.Option(help="Network of one Redis server, 10^9 bits/s.", min=0.01, max=1e6)
    ] = 10.0,
    used: Annotated[
        float, typer.Option(help="Share of each core, memory and network to plan with.", min=0.05, max=1)
    ] = 0.7,
    json_file: JsonFile = None,
) -> None:
    """Calculate the load of gateways and Redis, and the smallest layout that handles it.

    Prints the scripts, commands, bytes and deliveries of index changes of a request, the CPU and memory of each
    part, the bottleneck, and the smallest layout that handles the load. The costs of one request were counted by
    `make bench-fleet`.
    """
    demand = FleetDemand(
        requests_per_second=requests_per_second,
        workers=workers,
        tenants=tenants,
        models=models,
        blocks=blocks,
        prompt_tokens=prompt,
        shared_prefix=shared_prefix,
        waiting=waiting,
        block_size=block_size,
    )
    layout = FleetLayout(
        gateways=gateways,
        processes=processes,
        primaries=primaries,
        deployments=deployments,
        tenant_shards=tenant_shards if primaries > 1 else 1,
        shared_primaries=shared_primaries,
    )
    if gateways < deployments:
        raise CommandError(
            "--deployments: each cell needs a gateway, so there cannot be more cells than --gateways", 2
        )
    machines = FleetMachines(
        redis_bytes=redis_memory_gb * 1e9,
        process_bytes=process_memory_gb * 1e9,
        network_bytes_per_second=network_gbit_s * 1e9 / 8,
        used_max=used,
    )
    console = Console()
    plan = fleet_plan(demand, layout, machines, MEASURED)
    for table in (traffic_table(plan), parts_table(plan, machines)):
        console.print(table)
    console.print(bottleneck_note(plan), soft_wrap=True, highlight=False)
    try:
        smallest = smallest_layout(demand, layout, machines, MEASURED)
    except NoLayout as err:
        raise CommandError(f"plan-fleet: {err}") from err
    console.print(layout_note(smallest), soft_wrap=True, highlight=False)
    if json_file is not None:
        runs = {"asked": fleet_figures(plan), "smallest": fleet_figures(smallest)}
        write_results(json_file, demand, {name: {"all": figures} for name, figures in runs.items()})
        console.print(f"written to {json_file}", soft_wrap=True)
