"""The capture of computations as CUDA graphs; they share one memory pool, because they never run together."""

import torch
from torch import Tensor

from workers.engine.errors import ConfigInvalid
from workers.engine.execution.decode_graphs import Compute

_WARM_UPS = 2
"""Runs before a capture: kernels are compiled, and libraries allocate what a capture must not allocate."""


class CudaCapture:
    """Captures computations on the current CUDA device."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute) -> Compute:
        """Return a computation that replays `compute`; its result is overwritten by every replay of the pool.

        Raises:
            ConfigInvalid: the computation cannot be captured.
        """
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads of the process may use the device meanwhile.
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = compute()
        except RuntimeError as err:
            raise ConfigInvalid(
                f"a decode step cannot be captured as a CUDA graph ({err}); start with cuda_graphs off"
            ) from err
        return CudaGraph(graph, result)


class CudaGraph:
    """A captured computation; calling it replays the graph and returns the result's tensor."""

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor) -> None:
        self._graph = graph
        self._result = result

    def __call__(self) -> Tensor:
        """Replay the graph."""
        self._graph.replay()
        return self._result
