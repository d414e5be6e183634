"""`radixgate ladder`: the same requests on every rung from a naive engine to a modern one."""

import typer

from gateway.cli.commands.worker import ENGINE_MISSING
from gateway.cli.support.failure import Failure

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Its options are the engine's own: `python -m workers.engine.ablation` has them where nothing else is installed."""


def ladder(context: typer.Context) -> int:
    """Show what each idea of an engine brings: KV cache, paging, batching, chunks, prefix cache, speculation."""
    try:
        from workers.engine.ablation.command import main
    except ImportError as err:
        raise Failure(f"{ENGINE_MISSING} ({err})") from err
    return main(context.args, prog="radixgate ladder")
