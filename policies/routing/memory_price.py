"""The shadow price of KV memory: what a request costs others by the memory that it holds.

    memory  = memory_weight full^2 (P + E) / KV E d
    delayed = r min(1, full / CROWDED)                 full = min(1, K / KV); the other symbols are those of cost.py

A request fills `(P + E) / KV` of a worker's memory for about E steps of d milliseconds. Where requests wait for
memory, each of them waits longer by the product. `full`^2 is about the chance that they do, and `memory_weight`
about how many they are. So memory costs nothing while there is plenty of it. A worker with a small or full memory,
or with slow steps, so that memory is held there for longer, is avoided before requests wait there. Of a part of a
prompt that no worker has computed yet only a share counts in P: all requests that wait for it use it
(wanted_copies.py).

A prefill delays the running streams. While memory is plenty this only makes their tokens come a little later; where
it is scarce, all the memory that they hold comes free later. So fewer of them count as `delayed` below CROWDED.

Lost, as multiples of the mean TTFT without the change (docs/pages/measures/policy-experiments.md): `full` to the
fourth power with longer answers, fleets of agents with little memory 0.9, but conversations past saturation 1.16
and Claude Code sessions 1.05; the price for the whole prompt in place of P, 1.06; all running streams `delayed`,
tiny prompts 1.11.

The policy `cost` writes both out in `_memory_uses` of cost.py, to make no calls for each candidate.
"""

from policies.routing.cost_options import RUNNING_MAX

CROWDED = 0.5
"""Filled share of KV memory from which all running streams count as delayed by a prefill."""


def memory_ms(
    weight: float,
    *,
    tokens_new: float,
    output_tokens: int,
    step_ms: float,
    kv_tokens: int,
    kv_tokens_max: int | None,
) -> float:
    """Return `memory`: what others wait longer for memory, in milliseconds; 0 where its size is unknown."""
    if not kv_tokens_max:
        return 0.0
    full = min(1.0, kv_tokens / kv_tokens_max)
    return weight * full * full * (tokens_new + output_tokens) / kv_tokens_max * (output_tokens * step_ms)


def delayed_streams(streams: int, kv_tokens: int, kv_tokens_max: int | None) -> float:
    """Return `delayed`: how many of a worker's open streams count as delayed by a prefill.

    Where it is not known how full memory is, these are all that run.
    """
    if not kv_tokens_max or not kv_tokens:
        return min(streams, RUNNING_MAX)
    full = kv_tokens / kv_tokens_max
    return min(streams / max(1.0, full), RUNNING_MAX) * min(1.0, full / CROWDED)
