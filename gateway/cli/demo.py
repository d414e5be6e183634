"""`radixgate demo`: the whole product on one machine, with real traffic."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gateway.cli.failure import Failure
from gateway.cli.serve import run_loop
from gateway.cli.worker import ENGINE_MISSING
from gateway.demo.sessions import Scale
from gateway.demo.show import show
from gateway.demo.stage import Place, free_port
from gateway.processes import ChildFailed
from gateway.telemetry import logs


def demo(
    workers: Annotated[int, typer.Option(help="Embedded workers.", min=1, max=16)] = 3,
    sessions: Annotated[int, typer.Option(help="Chat sessions per tenant.", min=1)] = Scale().sessions,
    turns: Annotated[int, typer.Option(help="Turns of a session.", min=1)] = Scale().turns,
    seed: Annotated[int, typer.Option(help="Seed of the texts.")] = Scale().seed,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the table to this file.", show_default=False)
    ] = None,
    exit_: Annotated[bool, typer.Option("--exit", help="End after the table instead of staying up.")] = False,
    port: Annotated[int, typer.Option(help="Port of the gateway; another if it is taken.")] = 8000,
    admin_port: Annotated[
        int, typer.Option(help="Port of the operator page; another if it is taken.")
    ] = 8001,
    directory: Annotated[Path, typer.Option(help="Where checkpoint, settings and logs go.")] = Path(
        ".radixgate/demo"
    ),
) -> None:
    """Start workers and a gateway, run the same chat sessions under two policies, and compare.

    A private Valkey, three embedded PyTorch workers and a gateway with two tenants run as processes of their own on
    this machine. Nothing is downloaded: the model is a tiny Llama with random weights, built on the spot.
    """
    if importlib.util.find_spec("torch") is None:
        raise Failure(ENGINE_MISSING)
    logs.set_up("warning")
    place = Place(directory=directory, port=free_port(port), admin_port=free_port(admin_port))
    scale = Scale(sessions=sessions, turns=turns, seed=seed)
    try:
        run_loop(show(place, workers=workers, scale=scale, json_file=json, stay=not exit_, console=Console()))
    except ChildFailed as err:
        raise Failure(str(err)) from err
