"""Run NVIDIA's router and mock engine on a trace, in an environment of their own:

    .tools/dynamo-venv/bin/python -m tests.benchmarks.routing.dynamo SETTINGS       prints figures, as JSON

Nothing here may import what that environment lacks.
"""

import json
import os
import sys
from typing import Any

BLOCK_TOKENS = 512
TTFT_MS, TPOT_MS = 2000.0, 60.0


def replayed(settings: dict[str, Any]) -> dict[str, float]:
    """Replay a trace; `settings` has trace, workers, kv_tokens and mode (round_robin, kv_router)."""
    os.environ |= {"DYN_LOG": "error", "RUST_LOG": "error"}  # it logs every request
    from dynamo._core import run_mocker_trace_replay  # type: ignore[import-not-found]

    result = run_mocker_trace_replay(
        [settings["trace"]],
        extra_engine_args={
            "engine": {"block_size": BLOCK_TOKENS, "num_gpu_blocks": settings["kv_tokens"] // BLOCK_TOKENS}
        },
        num_workers=settings["workers"],
        router_mode=settings["mode"],
        trace_block_size=BLOCK_TOKENS,
        capture_per_request=True,
    )
    requests = [one for one in result.per_request if one["ttft_ms"] is not None]
    good = sum(one["ttft_ms"] <= TTFT_MS and (one["itl_ms"] or 0.0) <= TPOT_MS for one in requests)
    told = result.summary
    return {
        "requests": len(requests),
        "hit_ratio": told["prefix_cache_reused_ratio"],
        "ttft_ms_mean": told["mean_ttft_ms"],
        "ttft_ms_p50": told["median_ttft_ms"],
        "ttft_ms_p90": told["p90_ttft_ms"],
        "ttft_ms_p99": told["p99_ttft_ms"],
        "tpot_ms_mean": told["mean_tpot_ms"],
        "goodput": good / told["num_requests"],
    }


if __name__ == "__main__":
    print(json.dumps(replayed(json.loads(sys.argv[1]))))
