"""Real processes race for one limit: together they are granted no more than it allows."""

from tests.benchmarks.quotas.race import race


async def test_eight_processes_get_exactly_what_there_is(valkey):
    outcome = await race(
        str(valkey.url), "race of eight", processes=8, attempts=60, requests=200, tokens=100_000
    )
    assert outcome.granted == 200
    assert outcome.left == 100_000 - outcome.used
