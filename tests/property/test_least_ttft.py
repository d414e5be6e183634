"""No routing rule passes the lower bound of the time to first token."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from policies.simulation.contenders import contender, contender_names
from policies.simulation.engines.step_time import StepTime
from policies.simulation.least_ttft import least_prefill_ms, least_ttft
from policies.simulation.scenario import Scenario
from policies.simulation.simulation import Simulation
from policies.simulation.trace import BLOCK_TOKENS, TraceRequest
from policies.simulation.turns.queue_rule import QueueRule

TIMES = st.sampled_from(
    [
        StepTime(),
        StepTime(chunk_tokens=2048),
        StepTime(prefill_ms=(5.0, 0.01, 1e-6)),
        StepTime(prefill_ms=(40, 0.02, 0)),
    ]
)
REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.lists(st.integers(0, 2), min_size=1, max_size=12),
        st.integers(1, BLOCK_TOKENS),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=25,
)


def traced(rows):
    """Return requests with chained blocks: equal beginnings of the lists of names are equal prefixes."""
    requests = []
    for number, (at, names, last_tokens, output_tokens) in enumerate(sorted(rows, key=lambda row: row[0])):
        blocks = array("Q", [hash((*names[: end + 1],)) & (2**63 - 1) for end in range(len(names))])
        if last_tokens < BLOCK_TOKENS:
            blocks[-1] = hash((*names, last_tokens, at)) & (2**63 - 1)
        tokens = BLOCK_TOKENS * (len(names) - 1) + last_tokens
        requests.append(
            TraceRequest(
                at=at,
                prompt_tokens=tokens,
                output_tokens=output_tokens,
                blocks=blocks,
                # One floods, the other is its victim.
                tenant="victim" if number % 5 == 4 else "flood",
            )
        )
    return requests


@given(REQUESTS, TIMES, st.sampled_from(contender_names()), st.integers(1, 4), st.booleans())
def test_no_request_has_its_first_token_before_the_bound(rows, times, rule, workers, queued):
    trace = traced(rows)
    turns = {"window_tokens": 4096, "turns": QueueRule()} if queued else {}
    scenario = Scenario(workers=workers, kv_tokens=32 * BLOCK_TOKENS, times=times, **turns)
    result = Simulation(trace, contender(rule, {}), scenario).run()
    bound = least_ttft(trace, times, workers=workers)
    for found, least in zip(result.outcomes, bound.outcomes, strict=True):
        assert found.ttft is None or found.ttft >= least.ttft - 1e-9


@given(TIMES, st.integers(1, 20_000), st.lists(st.integers(1, 2048), min_size=1, max_size=30))
def test_no_division_into_steps_is_faster_than_the_least_time(times, tokens, parts):
    steps, left = [], tokens
    for part in parts:
        if left:
            steps.append(min(part, left, times.chunk_tokens))
            left -= steps[-1]
    while left:
        steps.append(min(left, times.chunk_tokens))
        left -= steps[-1]
    assert sum(map(times.prefill, steps)) >= least_prefill_ms(tokens, times) - 1e-9
