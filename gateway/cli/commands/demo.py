"""`radixgate demo`: runs workers and a gateway on this machine, with real requests."""

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

WATCH_LINES_MIN = 42
"""Lines of a terminal on which the demo draws while requests run."""


def demo(
    workers: Annotated[int, typer.Option(help="Number of embedded workers.", min=1, max=16)] = 3,
    sessions: Annotated[
        int, typer.Option(help="Number of chat sessions per tenant.", min=1)
    ] = TrafficScale().sessions,
    turns: Annotated[int, typer.Option(help="Number of turns of a session.", min=1)] = TrafficScale().turns,
    seed: Annotated[int, typer.Option(help="Seed of the generated texts.")] = TrafficScale().seed,
    json: Annotated[
        Path | None,
        typer.Option(
            "--json", help="Write the figures of the table as JSON to this file.", show_default=False
        ),
    ] = None,
    exit_: Annotated[
        bool, typer.Option("--exit", help="Stop after the table instead of keeping the gateway running.")
    ] = False,
    port: Annotated[
        int, typer.Option(help="Port of the gateway; a free one if it is taken.", min=0, max=65535)
    ] = 8000,
    admin_port: Annotated[
        int,
        typer.Option(
            help="Port of the console and the admin API; a free one if it is taken.", min=0, max=65535
        ),
    ] = 8001,
    directory: Annotated[Path, typer.Option(help="Directory for the settings and the logs.")] = Path(
        ".radixgate/demo"
    ),
    model: Annotated[
        Path | None,
        typer.Option(
            help="Directory of a real model for the workers (Llama, Qwen or Mistral); by default a tiny one that "
            "was trained for the demo.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        bool | None,
        typer.Option(
            help="Draw the cached share under both policies, the prefix tree and the latest requests meanwhile.",
            show_default=f"on a terminal of {WATCH_LINES_MIN} lines or more",
        ),
    ] = None,
) -> None:
    """Compare two policies on this machine.

    The demo starts workers and a gateway, and runs the same chat sessions under two routing policies. A private
    Valkey, three embedded PyTorch workers and a gateway with two tenants run as separate processes on this machine.
    Nothing is downloaded: the model is a tiny Llama that is part of the package. It was trained on a few pages
    about prefix caching, routing and tenants, and on nothing else. --model takes a real one.
    """
    if importlib.util.find_spec("torch") is None:
        raise CommandError(ENGINE_MISSING)
    if model is not None and not (model / "config.json").is_file():
        raise CommandError(f"--model: there is no config.json in {model}", 2)
    if json is not None:
        _check_writable(json)
    logs.configure_logging("warning")
    console = Console()
    if watch is None:
        watch = console.is_terminal and console.height >= WATCH_LINES_MIN
    scale = TrafficScale(sessions=sessions, turns=turns, seed=seed)
    with _lock(directory):
        location = DemoLocation(
            directory=directory.absolute(),
            port=free_port(port),
            admin_port=free_port(admin_port),
            model=model.absolute() if model is not None else None,
        )
        try:
            run_loop(
                run_demo(
                    location,
                    workers=workers,
                    scale=scale,
                    json_file=json,
                    stay=not exit_,
                    watch=watch,
                    console=console,
                )
            )
        except DemoInterrupted as err:
            raise typer.Exit(130) from err
        except ChildFailed as err:
            raise CommandError(str(err)) from err
        except OSError as err:
            raise CommandError(f"the demo cannot continue: {err}") from err


def _check_writable(file: Path) -> None:
    """Raise CommandError if the file cannot be written. A file that did not exist is not left behind."""
    was_there = file.exists()
    try:
        file.open("ab").close()
        if not was_there:
            file.unlink()
    except OSError as err:
        raise CommandError(f"--json: {file} cannot be written: {err.strerror}", 2) from err


def _lock(directory: Path) -> IO[str]:
    """Lock the directory: a second demo in it would overwrite the settings of the first. Raises CommandError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return lock_file(directory / "demo.lock")
    except BlockingIOError:
        raise CommandError(f"--directory: another demo is running in {directory}") from None
    except OSError as err:
        raise CommandError(f"--directory: {directory} cannot be used: {err.strerror}", 2) from err
