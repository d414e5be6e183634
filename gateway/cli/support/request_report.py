"""One finished request as text: its steps as bars, its wait, its ranking, its attempts, its limits."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from gateway.cli.support.columns import format_columns

BAR_WIDTH = 40


def report(one: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the report on a request, given as the admin API shows it."""
    at = datetime.fromtimestamp(one["at"], UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    slow = ", slow" if one["slow"] else ""
    model = one["model"] or "no model"
    if one["asked"] and one["asked"] != one["model"]:
        model = f"{one['asked']} ({model})"
    yield f"{one['id']}  {at}  {one['tenant'] or 'no tenant'}  {model}  {one['api']}"
    worker = f", by {_worker(one)}" if one["worker"] else ""
    yield f"{one['code']} ({one['status']}{slow}) after {milliseconds(one['ms'])} ms{worker}"
    if one["trace_id"]:
        yield f"trace {one['trace_id']}"
    yield ""
    yield from _steps(one)
    yield ""
    yield from _figures(one)
    yield from _wait(one["wait"])
    if one["failed_attempts"]:
        yield ""
        yield "attempts without an answer"
        yield from format_columns(
            [
                ("after ms", "worker", "why"),
                *(
                    (milliseconds(each["at_ms"]), each["worker"], each["why"])
                    for each in one["failed_attempts"]
                ),
            ]
        )
    yield from _ranking(one["ranking"])
    if one["limits"]:
        yield ""
        yield "limits when quota was reserved"
        yield from format_columns(
            [
                ("scope", "limit", "left"),
                *((each["scope"], each["limit"], str(each["remaining"])) for each in one["limits"]),
            ]
        )


def milliseconds(value: float | None) -> str:
    """Return milliseconds as text; `-` where they are not known."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _steps(one: dict[str, Any]) -> Iterator[str]:
    """Yield a bar for each step, on the scale of the whole request."""
    whole = one["ms"] or 1.0
    rows = []
    for step in one["steps"]:
        start = min(BAR_WIDTH - 1, int(BAR_WIDTH * step["start_ms"] / whole))
        length = max(1, min(BAR_WIDTH - start, round(BAR_WIDTH * step["ms"] / whole)))
        bar = " " * start + "#" * length
        rows.append((step["name"], milliseconds(step["ms"]), f"|{bar.ljust(BAR_WIDTH)}|"))
    yield from format_columns([("step", "ms", ""), *rows])


def _figures(one: dict[str, Any]) -> Iterator[str]:
    cached = "not reported" if one["cached_tokens"] is None else str(one["cached_tokens"])
    yield (
        f"prompt {one['prompt_tokens']} tokens, cached {cached} (predicted {one['predicted_cached_tokens']}), "
        f"output {one['output_tokens']} tokens, {one['attempts']} attempt{'' if one['attempts'] == 1 else 's'}"
    )
    target = f", target {milliseconds(one['ttft_target_ms'])}" if one["ttft_target_ms"] is not None else ""
    yield (
        f"first token {milliseconds(one['ttft_ms'])} ms after arrival "
        f"(class {one['service_class'] or '-'}{target}); {milliseconds(one['worker_ttft_ms'])} ms after dispatch, "
        f"predicted {milliseconds(one['predicted_ttft_ms'])} ms"
    )


def _wait(wait: dict[str, Any] | None) -> Iterator[str]:
    if wait is None:
        return
    yield ""
    ahead = f"{wait['requests_ahead']} requests with {wait['tokens_ahead']} uncached tokens ahead"
    tenants = ", ".join(f"{name} {count}" for name, count in wait["tenants_ahead"].items())
    yield f"waited {milliseconds(wait['ms'])} ms: {wait['reason']}; {ahead}{f' ({tenants})' if tenants else ''}"


def _ranking(ranking: list[dict[str, Any]]) -> Iterator[str]:
    if not ranking:
        return
    yield ""
    yield "ranking of the workers at that moment"
    rows = [
        (
            str(number),
            _worker(route),
            milliseconds(route["cost_ms"]),
            str(route["matched_tokens"]),
            route["reason"],
        )
        for number, route in enumerate(ranking, start=1)
    ]
    yield from format_columns([("", "worker", "cost ms", "cached", "why"), *rows])


def _worker(value: dict[str, Any]) -> str:
    prefill = value["prefill_worker"]
    return f"{value['worker']} (prompt by {prefill})" if prefill else str(value["worker"])
