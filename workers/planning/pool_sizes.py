"""Disaggregated serving: when moving KV pays, and how many prefill and decode replicas a traffic needs.

    requests/s  ->  [ prefill replicas ]  --KV over a link-->  [ decode replicas ]  ->  tokens
                     TTFT: wait + prefill + transfer + step      TPOT: one step of the batch

A prefill replica serves one prompt after another, so its queue is M/D/1 (Zhong et al. 2024, DistServe, arXiv
2401.09670, section 3.1): mean wait = load * service / (2 * (1 - load)). A decode replica takes as many sequences as
memory and the TPOT target allow; how many there are at one moment is Little's law, rate * output * TPOT.
"""

import math
from dataclasses import dataclass, replace

from workers.planning.capacity import Deployment, require_positive

BATCH_MAX = 4096
"""Largest batch that is considered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The requests to serve, their targets, and the link between the pools.

    Making one raises InvalidFigure for an impossible number.
    """

    requests_per_second: float
    prompt: int
    """Mean length of prompts, in tokens."""
    output: int
    """Mean length of answers, in tokens."""
    ttft_seconds: float
    """Target for the time to the first token."""
    tpot_seconds: float
    """Target for the time per output token."""
    link_bandwidth: float
    """Bytes per second between the pools."""
    cached: int = 0
    """Prompt tokens that are cached."""

    def __post_init__(self) -> None:
        require_positive(
            requests_per_second=self.requests_per_second,
            prompt=self.prompt,
            output=self.output,
            ttft_seconds=self.ttft_seconds,
            tpot_seconds=self.tpot_seconds,
            link_bandwidth=self.link_bandwidth,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTransfer:
    """The KV of one prompt: moved to another worker, or computed again there."""

    kv_bytes: float
    transfer_seconds: float
    recompute_seconds: float
    break_even_bandwidth: float
    """Bytes per second above which moving is faster."""

    @property
    def pays(self) -> bool:
        """Whether moving is faster than computing again."""
        return self.transfer_seconds < self.recompute_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """The replicas of each phase, and the times that they reach."""

    prefill_replicas: int
    decode_replicas: int
    batch: int
    """Sequences in a step of a decode replica."""
    ttft_seconds: float
    tpot_seconds: float
    stall_seconds: float
    """How long one prompt would hold up the streams of a replica that did both, without chunks."""

    @property
    def ratio(self) -> float:
        """Prefill replicas for one decode replica."""
        return self.prefill_replicas / self.decode_replicas


class TargetUnreachable(ValueError):
    """No number of such replicas reaches a target; the message names it."""


def kv_transfer(replica: Deployment, tokens: int, bandwidth: float) -> KvTransfer:
    """Return what a prompt's KV costs to move over a link of `bandwidth` bytes/s, and to compute again.

    Break-even: KV bytes / prefill seconds; for short prompts that is kv * FLOP/s / (2 * parameters).
    """
    require_positive(tokens=tokens, bandwidth=bandwidth)
    kv = float(replica.transferred_bytes(tokens))
    again = replica.prefill_seconds(tokens)
    return KvTransfer(
        kv_bytes=kv,
        transfer_seconds=kv / bandwidth,
        recompute_seconds=again,
        break_even_bandwidth=kv / again,
    )


def pool_sizes(deployment: Deployment, traffic: Traffic) -> PoolSizes:
    """Return the fewest replicas of the deployment's kind for each phase.

    Raises TargetUnreachable, which names the target that is out of reach.
    """
    replica = replace(deployment, gpus=deployment.tensor_parallel)
    uncached = max(1, traffic.prompt - traffic.cached)
    service = replica.prefill_seconds(uncached, traffic.prompt - uncached)
    batch = _batch(replica, traffic)
    context = traffic.prompt + traffic.output // 2
    step = replica.step_seconds(batch, context)
    fixed = service + kv_transfer(replica, traffic.prompt, traffic.link_bandwidth).transfer_seconds + step
    slack = traffic.ttft_seconds - fixed
    if slack <= 0:
        raise TargetUnreachable(
            f"TTFT: prefill, transfer and first step take {fixed * 1e3:.0f} ms,"
            f" the target is {traffic.ttft_seconds * 1e3:.0f} ms"
        )
    # The mean wait of M/D/1, solved for the load at which it equals the slack.
    load = 2 * slack / (service + 2 * slack)
    prefill = max(1, math.ceil(traffic.requests_per_second * service / load))
    running = traffic.requests_per_second * traffic.output * step
    decode = max(1, math.ceil(running / batch))
    reached = traffic.requests_per_second * service / prefill
    return PoolSizes(
        prefill_replicas=prefill,
        decode_replicas=decode,
        batch=batch,
        ttft_seconds=fixed + reached * service / (2 * (1 - reached)),
        tpot_seconds=step,
        stall_seconds=service,
    )


def _batch(replica: Deployment, traffic: Traffic) -> int:
    """Return the largest batch that keeps the TPOT target and fits into memory at full length."""
    fits = min(BATCH_MAX, replica.users_max(traffic.prompt + traffic.output))
    if fits < 1:
        raise TargetUnreachable(
            f"one sequence of {traffic.prompt + traffic.output} tokens does not fit into a replica"
        )
    context = traffic.prompt + traffic.output // 2
    if replica.step_seconds(1, context) > traffic.tpot_seconds:
        raise TargetUnreachable(
            f"TPOT: one sequence alone takes {replica.step_seconds(1, context) * 1e3:.1f} ms a token,"
            f" the target is {traffic.tpot_seconds * 1e3:.1f} ms"
        )
    low, high = 1, fits
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high)
            if replica.step_seconds(middle, context) <= traffic.tpot_seconds
            else (low, middle - 1)
        )
    return low
