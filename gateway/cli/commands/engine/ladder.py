"""`radixgate ladder`: runs the same requests on engines from a naive one to one with all techniques."""

import typer

from gateway.cli.commands.worker import ENGINE_MISSING
from gateway.cli.support.command_error import CommandError

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""All options are passed on: `python -m workers.engine.ablation` has the same where no gateway is installed."""


def ladder(context: typer.Context) -> int:
    """Measure what each technique of an engine gains.

    The techniques are KV cache, paging, batching, chunked prefill, prefix cache and speculative decoding.
    """
    try:
        from workers.engine.ablation.command import main
    except ImportError as err:
        raise CommandError(f"{ENGINE_MISSING} ({err})") from err
    return main(context.args, prog="radixgate ladder")
