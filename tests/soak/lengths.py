"""What an engine keeps for every length of a step: made before anything is counted.

oneDNN makes a kernel for each (workers/engine/model/row_counts.py), some of 0.7 MB; in traffic the rare lengths
come when they come, for hours, and each would look like a leak.
"""

from random import Random

import aiohttp

STEP_TOKENS = 512
"""As `--chunk-tokens` has it by default."""


async def every_length(http: aiohttp.ClientSession, url: str, model: str) -> None:
    """Asks for a prompt of every length that a step may have; none of them begins like another."""
    chance = Random(0)
    for length in range(1, STEP_TOKENS + 1):
        prompt = [chance.randrange(5, 200) for _ in range(length)]
        body = {"model": model, "prompt": prompt, "max_tokens": 2}
        async with http.post(f"{url}/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
