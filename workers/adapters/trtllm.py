"""The adapter of kind `trtllm`, for trtllm-serve of TensorRT-LLM."""

import re

from workers.adapters.metered import MeteredAdapter


class TrtllmAdapter(MeteredAdapter):
    """The WorkerAdapter of kind `trtllm`: trtllm-serve of TensorRT-LLM.

    Its /metrics gives each statistic to one reader only, so the gauges of /prometheus/metrics are read.
    """

    metrics_path = "prometheus/metrics"
    gauges = re.compile(rb"^trtllm_num_requests_(?:running|waiting)(?:\{[^\n]*\})? ([0-9.e+-]+)$", re.M)
