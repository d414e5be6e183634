"""Accounts of running requests: one that has just begun, one that was sent, and one that was answered."""

from gateway.domain.token_usage import PromptDetails, TokenUsage
from gateway.telemetry.progress import Progress
from policies.routing.protocol import Route
from radix_cache.match import WorkerId


def progress(clock, **state):
    """A request that has just begun, with this state."""
    made = Progress("req-1", "chat/completions", clock, lambda: 1_700_000_000.0)
    made.tenant, made.key_id, made.model, made.stream = "acme", "k1", "m", True
    for name, value in state.items():
        setattr(made, name, value)
    return made


def sent(made, reason, predicted_tokens):
    """Send it to worker w0."""
    route = Route(worker=WorkerId("w0"), cost_ms=300.0, matched_tokens=predicted_tokens, reason=reason)
    made.assign_worker(
        "w0", by_shadow=False, predicted_tokens=predicted_tokens, predicted_ttft_seconds=0.3, route=route
    )
    made.mark_dispatched()


def answered(clock):
    """A stream: 0.5 s to its first token, 1.0 s in all, 6 tokens, 40 of 64 prompt tokens cached."""
    made = progress(clock, prompt_tokens=60)
    clock.advance(0.01)
    made.mark("authenticate")
    clock.advance(0.09)
    made.mark("route")
    sent(made, "48 of 60 tokens held", 48)
    clock.advance(0.4)
    made.mark("first_byte")
    made.answered = True
    made.output_sent()
    clock.advance(0.5)
    made.output_sent()
    made.mark("relay")
    made.usage = TokenUsage(
        prompt_tokens=64, completion_tokens=6, prompt_tokens_details=PromptDetails(cached_tokens=40)
    )
    return made
