"""Steps of every length, run before anything is counted, since an engine keeps memory for each length.

oneDNN makes a kernel for each length (workers/engine/model/row_counts.py), some of 0.7 MB. In traffic the rare
lengths would come one by one, for hours, and each would look like a leak.
"""

from random import Random

import aiohttp

STEP_TOKENS = 512
"""The default of `--chunk-tokens`."""


async def every_length(http: aiohttp.ClientSession, url: str, model: str) -> None:
    """Send a prompt of every length that a step may have; no two of them share a beginning."""
    chance = Random(0)
    for length in range(1, STEP_TOKENS + 1):
        prompt = [chance.randrange(5, 200) for _ in range(length)]
        body = {"model": model, "prompt": prompt, "max_tokens": 2}
        async with http.post(f"{url}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
