"""Options of `radixgate plan`: their types, help texts and bounds."""

from pathlib import Path
from typing import Annotated

import typer

from workers.planning.number_formats import KV_DTYPES, WEIGHT_BYTES

FIGURE_MAX = 1e15
"""Beyond the figures of any machine; keeps infinity out of the calculation."""


# The model and its GPUs.

ConfigJson = Annotated[
    Path | None, typer.Option(help="config.json of a model, or its directory.", show_default=False)
]
GpuName = Annotated[
    str, typer.Option(help="GPU, one of --list-gpus; the three options below override its values.")
]
GpuMemoryGb = Annotated[
    float | None, typer.Option(help="Memory of one GPU, 10^9 bytes.", min=0.001, max=FIGURE_MAX)
]
GpuBandwidthGbS = Annotated[
    float | None,
    typer.Option(help="Memory bandwidth of one GPU, 10^9 bytes/s.", min=0.001, max=FIGURE_MAX),
]
GpuTflops = Annotated[
    float | None,
    typer.Option(help="Dense 16-bit rate of one GPU, 10^12 FLOP/s.", min=0.001, max=FIGURE_MAX),
]
Gpus = Annotated[int, typer.Option(help="Number of GPUs in all.", min=1, max=1_000_000)]
TensorParallel = Annotated[
    int | None,
    typer.Option(help="Number of GPUs of one replica; by default all.", min=1, show_default=False),
]

# The load, and how the model is run.

Users = Annotated[int, typer.Option(help="Number of sequences at the same time.", min=1, max=10_000_000)]
Context = Annotated[int, typer.Option(help="Tokens of each sequence.", min=1, max=100_000_000)]
KvDtype = Annotated[str, typer.Option(help=f"Type of keys and values: {', '.join(KV_DTYPES)}.")]
WeightDtype = Annotated[
    str, typer.Option(help=f"Type of linear weights: auto (as stored), {', '.join(WEIGHT_BYTES)}.")
]
Parameters = Annotated[
    float | None,
    typer.Option(
        help="Number of parameters, if a dense model has more or fewer than its architecture implies.",
        min=1,
        max=FIGURE_MAX,
    ),
]
BlockSize = Annotated[int, typer.Option(help="Tokens per KV block.", min=1, max=4096)]
Utilisation = Annotated[
    float, typer.Option(help="Share of GPU memory that the engine may take.", min=0.01, max=1)
]
ReserveGb = Annotated[
    float,
    typer.Option(
        help="Memory for activations and CUDA graphs on each GPU, 10^9 bytes.", min=0, max=FIGURE_MAX
    ),
]

# The assumptions of estimates.

PrefillShare = Annotated[
    float,
    typer.Option(help="Share of the dense FLOP/s that prefill reaches, for estimates.", min=0.01, max=1),
]
DecodeShare = Annotated[
    float,
    typer.Option(help="Share of the memory bandwidth that decode reaches, for estimates.", min=0.01, max=1),
]
Cached = Annotated[
    int, typer.Option(help="Prompt tokens that are cached and not computed.", min=0, max=100_000_000)
]
LinkGbS = Annotated[
    float,
    typer.Option(help="Bandwidth between prefill and decode pools, 10^9 bytes/s.", min=0.001, max=FIGURE_MAX),
]

# Prefill and decode pools.

RequestsPerSecond = Annotated[
    float | None,
    typer.Option(help="Also size prefill and decode pools, for this rate.", min=0.000001, max=FIGURE_MAX),
]
PromptTokens = Annotated[
    int, typer.Option(help="Mean prompt tokens, for --requests-per-second.", min=1, max=100_000_000)
]
OutputTokens = Annotated[
    int, typer.Option(help="Mean answer tokens, for --requests-per-second.", min=1, max=100_000_000)
]
TtftMs = Annotated[
    float, typer.Option(help="TTFT target, for --requests-per-second.", min=0.001, max=FIGURE_MAX)
]
TpotMs = Annotated[
    float, typer.Option(help="TPOT target, for --requests-per-second.", min=0.001, max=FIGURE_MAX)
]

# The output.

PlotFile = Annotated[
    Path | None,
    typer.Option("--plot", help="Draw a plot into this file: png, svg or pdf.", show_default=False),
]
Explain = Annotated[bool, typer.Option("--explain", help="Show the arithmetic, and two published errors.")]
ListGpus = Annotated[bool, typer.Option("--list-gpus", help="Show the known GPUs.")]
