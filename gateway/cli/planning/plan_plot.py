"""`radixgate plan --plot`: the longest context and the decode speed by the number of users."""

from dataclasses import replace
from pathlib import Path

from gateway.cli.planning.plan_report import Demand
from gateway.cli.support.command_error import CommandError
from workers.planning.capacity import Deployment

ENDINGS = (".png", ".svg", ".pdf")
STEPS = 24


def plot_plan(file: Path, deployment: Deployment, demand: Demand) -> None:
    """Draw both plots into `file`. Raises CommandError if matplotlib is missing or the file cannot be written."""
    if file.suffix not in ENDINGS:
        raise CommandError(f"--plot: {file} must end in {', '.join(ENDINGS)}", 2)
    try:
        from matplotlib.figure import Figure
    except ImportError as err:
        raise CommandError("--plot needs matplotlib; pip install 'radixgate[plots]'") from err
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    contexts, speeds = figure.subplots(1, 2)
    user_counts = _steps(max(2 * demand.users, 64))
    for dtype in dict.fromkeys((deployment.kv_dtype, "bf16", "int8", "int4")):
        each = replace(deployment, kv_dtype=dtype)
        # Zero has no place on a logarithmic axis.
        reached = [(users, each.context_max(users)) for users in user_counts]
        contexts.plot(*zip(*[point for point in reached if point[1]], strict=True), label=f"KV in {dtype}")
        batches = [users for users in user_counts if users % each.replicas == 0 or users == 1]
        speed = [
            each.decode_tokens_per_second(max(1, users // each.replicas), demand.context) for users in batches
        ]
        speeds.plot(batches, speed, label=f"KV in {dtype}")
    contexts.axhline(
        deployment.shape.context_length, color="grey", linestyle=":", label="context of the model"
    )
    contexts.plot([demand.users], [demand.context], "kx", label="requested")
    contexts.set(xlabel="users at once", ylabel="longest context, tokens", xscale="log", yscale="log")
    speeds.set(
        xlabel="users at once", ylabel=f"decode ceiling at {demand.context:,} tokens, tok/s", xscale="log"
    )
    contexts.legend()
    speeds.legend()
    hardware = f"{deployment.gpus} x {deployment.gpu.name}"
    figure.suptitle(f"{deployment.shape.name} on {hardware}, weights in {deployment.weight_dtype}")
    try:
        figure.savefig(file)
    except OSError as err:
        raise CommandError(f"--plot: {file} cannot be written: {err.strerror}", 2) from err


def _steps(last: int) -> list[int]:
    """Return whole numbers from 1 to `last`, about evenly spaced on a logarithmic axis."""
    return sorted({round(last ** (step / STEPS)) for step in range(STEPS + 1)})
