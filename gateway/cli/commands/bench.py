"""`radixgate bench`: sends a trace or a generated workload to an OpenAI-compatible server, and measures it."""

import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer
from rich.console import Console

from gateway.bench.client import Endpoint
from gateway.bench.machine import machine
from gateway.bench.replay import BenchTarget, ReplayResult, replay
from gateway.bench.report import report_page, report_table, results_csv, write_text
from gateway.bench.results import LatencyObjectives, percentile, summary_by_tenant
from gateway.bench.simulation_report import PlotError
from gateway.bench.trace_prompts import TracePrompts
from gateway.bench.trace_tenants import Caller, read_callers
from gateway.cli.support.command_error import CommandError
from gateway.cli.support.event_loop import run_loop
from gateway.cli.support.output_files import check_writable
from gateway.cli.support.progress_bar import progress_bar
from gateway.cli.support.result_file import JsonFile, write_results
from gateway.settings.urls import url_problem
from policies.simulation.trace import TraceRequest, ideal_hit_ratio
from policies.simulation.trial import TraceSource
from policies.simulation.workloads import WORKLOADS, WorkloadParameters
from workers.system_error import reason_of

KEY_VARIABLE = "RADIXGATE_KEY"
CONNECT_SECONDS_MAX = 10.0
PROMPTS_SAMPLED = 20
"""Prompts that are encoded to see how close their lengths are to those of the trace."""


def bench(
    url: Annotated[str, typer.Argument(help="URL of the server, with or without /v1.")],
    model: Annotated[str, typer.Option(help="Name of the model in requests.")],
    trace: Annotated[
        Path | None, typer.Option(help="Trace file in Mooncake's format (JSON lines).", show_default=False)
    ] = None,
    workload: Annotated[
        str, typer.Option(help=f"Without --trace: workload to generate ({', '.join(WORKLOADS)}).")
    ] = "chat",
    speed: Annotated[
        float,
        typer.Option(help="Factor by which requests are sent faster than recorded.", min=0.001, max=10_000),
    ] = 1.0,
    requests: Annotated[
        int,
        typer.Option(
            help="Number of requests to send; 0: all of a trace, 200 of a workload.", min=0, max=10**7
        ),
    ] = 0,
    rate: Annotated[
        float, typer.Option(help="Sessions per second of a generated workload.", min=0.001, max=100_000)
    ] = 1.0,
    prompt_tokens_max: Annotated[
        int, typer.Option(help="Prompts are cut to this number of tokens; 0: no limit.", min=0, max=10**7)
    ] = 0,
    output_tokens_max: Annotated[
        int,
        typer.Option(help="Answers are limited to this number of tokens; 0: no limit.", min=0, max=10**7),
    ] = 0,
    callers_file: Annotated[
        Path | None,
        typer.Option(
            "--tenants",
            help="YAML file with a list of tenants: {name, key, headers, ttft_ms, tpot_ms}.",
            show_default="one tenant with --key",
        ),
    ] = None,
    key: Annotated[
        str, typer.Option(envvar=KEY_VARIABLE, help="API key to send, without --tenants.", show_default=False)
    ] = "",
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Directory with tokenizer.json, to make prompts of exact lengths.", show_default=False
        ),
    ] = None,
    endpoint: Annotated[Endpoint, typer.Option(help="Endpoint to call.")] = Endpoint.CHAT,
    body: Annotated[
        str, typer.Option(help="JSON object with further fields for every request.")
    ] = '{"temperature": 0, "ignore_eos": true}',
    ttft_ms: Annotated[
        float, typer.Option(help="Goodput counts answers with at most this TTFT.", min=0)
    ] = 2000.0,
    tpot_ms: Annotated[
        float, typer.Option(help="Goodput counts answers with at most this TPOT.", min=0)
    ] = 60.0,
    seconds_max: Annotated[float, typer.Option(help="Longest time for one answer.", min=0.1)] = 600.0,
    in_flight_max: Annotated[
        int,
        typer.Option(
            help="Largest number of requests at one time; further ones are not sent and count as errors.",
            min=1,
            max=100_000,
        ),
    ] = 5000,
    seed: Annotated[
        int,
        typer.Option(
            help="Seed of the texts, and of the send times within a time bucket of the trace.", min=0
        ),
    ] = 0,
    json_file: JsonFile = None,
    csv_file: Annotated[
        Path | None,
        typer.Option("--csv", help="Write a CSV file with a line for each request.", show_default=False),
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write an HTML page with plots.", show_default=False)
    ] = None,
) -> None:
    """Measure a server with a trace or workload.

    The results are TTFT, TPOT, ITL, E2E, goodput and cache hits. Requests are sent when they are due, even if
    earlier ones are still running (open loop). Equal blocks of the trace become equal text, so that the server's
    prefix cache gets the same hits as with the recorded prompts. Any server with the OpenAI API can be measured.
    """
    if problem := "expected http:// or https://" if "://" not in url else url_problem(url):
        raise CommandError(f"{url}: {problem}", 2)
    if trace is None and workload not in WORKLOADS:
        raise CommandError(f"--workload: {workload!r} is not one of {', '.join(WORKLOADS)}", 2)
    check_writable("--json", json_file)
    check_writable("--csv", csv_file)
    check_writable("--html", html_file, has_plots=True)
    default = LatencyObjectives(ttft_seconds=ttft_ms / 1000, tpot_seconds=tpot_ms / 1000)
    try:
        callers = read_callers(callers_file) if callers_file else [Caller(name="all", key=key)]
        source = TraceSource(
            path=trace,
            workload=workload,
            load=WorkloadParameters(requests=requests or 200, rate=rate, tenants=len(callers)),
            speed=speed,
            requests_max=requests or None,
        )
        requests_sent = [_cut(one, prompt_tokens_max, output_tokens_max) for one in source.trace(seed)]
        prompts = TracePrompts(tokenizer, seed=seed)
    except ValueError as err:
        raise CommandError(f"bench: {err}", 2) from err
    target = BenchTarget(
        url=url,
        model=model,
        endpoint=endpoint,
        body=_fields(body),
        seconds_max=seconds_max,
        in_flight_max=in_flight_max,
    )
    _check_connection(url)
    console = Console()
    replayed = _replay_with_progress(console, requests_sent, target, callers, prompts)

    objectives = {caller.name: caller.objectives(default) for caller in callers}
    run = summary_by_tenant(replayed.results, replayed.seconds, objectives.__getitem__)
    facts = _facts(url, model, trace.name if trace else workload, requests_sent, prompts, replayed)
    console.print(report_table(run))
    for name, value in facts.items():
        console.print(f"{name:32} {value}", soft_wrap=True)
    settings = {
        **facts,
        **_remaining_settings(source, target, seed),
        "tenants": len(callers),
        "requests": len(requests_sent),
        "prompt_tokens_max": prompt_tokens_max,
        "output_tokens_max": output_tokens_max,
        "ttft_ms": ttft_ms,
        "tpot_ms": tpot_ms,
    }
    if json_file is not None:
        write_results(json_file, settings, {model: run})
    if csv_file is not None:
        write_text(csv_file, results_csv(replayed.results))
    if html_file is not None:
        _write_page(html_file, f"{model} at {url}", run, facts, replayed)
    if all(result.error is not None for result in replayed.results):
        raise CommandError(f"no request was answered: {', '.join(run['all']['errors_by_code'])}")


def _check_connection(url: str) -> None:
    """Raise CommandError if no server accepts connections at this address: every request would fail alone."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_SECONDS_MAX).close()
    except OSError as err:
        raise CommandError(f"{url}: cannot connect: {reason_of(err)}") from err


def _fields(body: str) -> dict[str, Any]:
    """Parse the value of --body. Raises CommandError."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise CommandError(f"--body: not JSON ({err})", 2) from err
    if not isinstance(fields, dict):
        raise CommandError("--body: must be a JSON object", 2)
    return fields


def _cut(request: TraceRequest, prompt_tokens_max: int, output_tokens_max: int) -> TraceRequest:
    prompt_tokens = min(request.prompt_tokens, prompt_tokens_max or request.prompt_tokens)
    return request.cut(prompt_tokens, min(request.output_tokens, output_tokens_max or request.output_tokens))


def _replay_with_progress(
    console: Console,
    requests: Sequence[TraceRequest],
    target: BenchTarget,
    callers: Sequence[Caller],
    prompts: TracePrompts,
) -> ReplayResult:
    with progress_bar(console) as shown:
        task = shown.add_task("requests", total=len(requests))
        try:
            return run_loop(replay(requests, target, callers, prompts, lambda: shown.advance(task)))
        except KeyboardInterrupt as err:
            raise typer.Exit(130) from err


def _write_page(
    file: Path, title: str, run: Mapping[str, Any], facts: Mapping[str, object], replayed: ReplayResult
) -> None:
    """Write the page with plots. Raises CommandError where they cannot be drawn."""
    try:
        write_text(file, report_page(title, run, {**facts, **machine()}, replayed.results))
    except PlotError as err:
        raise CommandError(f"bench: {err}") from err


def _remaining_settings(source: TraceSource, target: BenchTarget, seed: int) -> dict[str, object]:
    """Return the remaining settings that are needed to repeat the run."""
    return {
        "speed": source.speed,
        **({} if source.path else {"rate": source.load.rate}),
        "endpoint": target.endpoint.value,
        "body": target.body,
        "seconds_max": target.seconds_max,
        "in_flight_max": target.in_flight_max,
        "seed": seed,
    }


def _facts(
    url: str,
    model: str,
    source: str,
    requests: Sequence[TraceRequest],
    prompts: TracePrompts,
    replayed: ReplayResult,
) -> dict[str, object]:
    """Return how the run was measured, and how late the client itself sent its requests."""
    accuracy = prompts.tokens_per_word(requests[:PROMPTS_SAMPLED])
    late = [1000 * seconds for seconds in replayed.late_seconds]
    return {
        "url": url,
        "model": model,
        "trace": source,
        "seconds": round(replayed.seconds, 1),
        "hit_ratio_of_an_endless_cache": round(ideal_hit_ratio(requests), 4),
        "prompt_tokens_to_wanted": round(accuracy, 3) if accuracy is not None else "unknown (no --tokenizer)",
        "client_late_ms_p50": round(percentile(late, 50) or 0.0, 2),
        "client_late_ms_p99": round(percentile(late, 99) or 0.0, 2),
    }
