"""`radixgate demo`: the whole product on one machine, with real traffic."""

import importlib.util
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.console import Console

from gateway.cli.commands.worker import ENGINE_MISSING
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.event_loop import run_loop
from gateway.demo.demo_processes import DemoLocation, free_port
from gateway.demo.demo_run import DemoInterrupted, run_demo
from gateway.demo.traffic import TrafficScale
from gateway.process.children import ChildFailed
from gateway.process.file_locks import lock_file
from gateway.telemetry import logs


def demo(
    workers: Annotated[int, typer.Option(help="Embedded workers.", min=1, max=16)] = 3,
    sessions: Annotated[int, typer.Option(help="Chat sessions per tenant.", min=1)] = TrafficScale().sessions,
    turns: Annotated[int, typer.Option(help="Turns of a session.", min=1)] = TrafficScale().turns,
    seed: Annotated[int, typer.Option(help="Seed of the texts.")] = TrafficScale().seed,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the table to this file.", show_default=False)
    ] = None,
    exit_: Annotated[bool, typer.Option("--exit", help="End after the table instead of staying up.")] = False,
    port: Annotated[
        int, typer.Option(help="Port of the gateway; another if it is taken.", min=0, max=65535)
    ] = 8000,
    admin_port: Annotated[
        int, typer.Option(help="Port of the operator page; another if it is taken.", min=0, max=65535)
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
        raise CommandError(ENGINE_MISSING)
    if json is not None:
        _check_writable(json)
    logs.configure_logging("warning")
    scale = TrafficScale(sessions=sessions, turns=turns, seed=seed)
    with _lock(directory):
        place = DemoLocation(
            directory=directory.absolute(), port=free_port(port), admin_port=free_port(admin_port)
        )
        try:
            run_loop(
                run_demo(
                    place, workers=workers, scale=scale, json_file=json, stay=not exit_, console=Console()
                )
            )
        except DemoInterrupted as err:
            raise typer.Exit(130) from err
        except ChildFailed as err:
            raise CommandError(str(err)) from err
        except OSError as err:
            raise CommandError(f"the demo cannot go on: {err}") from err


def _check_writable(file: Path) -> None:
    """Before anything runs, not after minutes. Leaves no file behind that was not there."""
    was_there = file.exists()
    try:
        file.open("ab").close()
        if not was_there:
            file.unlink()
    except OSError as err:
        raise CommandError(f"--json: {file} cannot be written: {err.strerror}", 2) from err


def _lock(directory: Path) -> IO[str]:
    """One demo to a directory: a second one would write over the settings of the first."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return lock_file(directory / "demo.lock")
    except BlockingIOError:
        raise CommandError(f"--directory: another demo runs in {directory}") from None
    except OSError as err:
        raise CommandError(f"--directory: {directory} cannot be used: {err.strerror}", 2) from err
