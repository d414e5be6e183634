"""`radixgate bench`: a trace, or a made-up workload, against any OpenAI-compatible server."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from gateway.bench.client import Endpoint
from gateway.bench.machine import machine, versions
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
from gateway.settings.urls import url_problem
from policies.simulation.trace import TraceRequest, ideal_hit_ratio
from policies.simulation.trial import Source
from policies.simulation.workloads import WORKLOADS, Load

KEY_VARIABLE = "RADIXGATE_KEY"
SAMPLED = 20
"""Prompts that are encoded to see how true lengths are."""


def bench(
    url: Annotated[str, typer.Argument(help="Of the server, with or without /v1.")],
    model: Annotated[str, typer.Option(help="Name of the model.")],
    trace: Annotated[
        Path | None, typer.Option(help="A trace in Mooncake's format (JSON lines).", show_default=False)
    ] = None,
    workload: Annotated[
        str, typer.Option(help=f"Without a trace: one that is generated ({', '.join(WORKLOADS)}).")
    ] = "chat",
    speed: Annotated[float, typer.Option(help="How much faster than recorded.", min=0.001, max=10_000)] = 1.0,
    requests: Annotated[
        int, typer.Option(help="The first so many; 0: all of a trace, 200 of a workload.", min=0, max=10**7)
    ] = 0,
    rate: Annotated[
        float, typer.Option(help="Of a workload: sessions a second.", min=0.001, max=100_000)
    ] = 1.0,
    prompt_tokens_max: Annotated[
        int, typer.Option(help="Longer prompts are cut; 0: none.", min=0, max=10**7)
    ] = 0,
    output_tokens_max: Annotated[
        int, typer.Option(help="Longer answers are cut; 0: none.", min=0, max=10**7)
    ] = 0,
    callers_file: Annotated[
        Path | None,
        typer.Option(
            "--tenants",
            help="YAML: a list of {name, key, headers, ttft_ms, tpot_ms}.",
            show_default="one, with --key",
        ),
    ] = None,
    key: Annotated[
        str, typer.Option(envvar=KEY_VARIABLE, help="Without --tenants: the API key.", show_default=False)
    ] = "",
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Directory with tokenizer.json: prompts get exact lengths.", show_default=False),
    ] = None,
    endpoint: Annotated[Endpoint, typer.Option(help="What is asked for.")] = Endpoint.CHAT,
    body: Annotated[
        str, typer.Option(help="JSON: further fields of every request.")
    ] = '{"temperature": 0, "ignore_eos": true}',
    ttft_ms: Annotated[float, typer.Option(help="Objective, for goodput.", min=0)] = 2000.0,
    tpot_ms: Annotated[float, typer.Option(help="Objective, for goodput.", min=0)] = 60.0,
    seconds_max: Annotated[float, typer.Option(help="Longest wait for one answer.", min=0.1)] = 600.0,
    in_flight_max: Annotated[
        int, typer.Option(help="Requests under way; further ones count as errors.", min=1, max=100_000)
    ] = 5000,
    seed: Annotated[int, typer.Option(help="Of texts, and of times within a trace's bucket.", min=0)] = 0,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.", show_default=False)
    ] = None,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write a line for each request.", show_default=False)
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write a page with plots.", show_default=False)
    ] = None,
) -> None:
    """Replay a trace against a running server, in open loop, and measure TTFT, TPOT, ITL, E2E, goodput and hits.

    Prompts are made up so that equal blocks of the trace are equal text: the server's prefix cache sees what it
    would have seen. Any OpenAI-compatible URL will do.
    """
    if problem := "expected http:// or https://" if "://" not in url else url_problem(url):
        raise CommandError(f"{url}: {problem}", 2)
    if trace is None and workload not in WORKLOADS:
        raise CommandError(f"--workload: {workload!r} is not one of {', '.join(WORKLOADS)}", 2)
    check_writable("--json", json_file)
    check_writable("--csv", csv_file)
    check_writable("--html", html_file, has_plots=True)
    usual = LatencyObjectives(ttft_seconds=ttft_ms / 1000, tpot_seconds=tpot_ms / 1000)
    try:
        callers = read_callers(callers_file) if callers_file else [Caller(name="all", key=key)]
        source = Source(
            path=trace,
            workload=workload,
            load=Load(requests=requests or 200, rate=rate, tenants=len(callers)),
            speed=speed,
            requests_max=requests or None,
        )
        replayed = [_cut(one, prompt_tokens_max, output_tokens_max) for one in source.trace(seed)]
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
    console = Console()
    ran = _watched(console, replayed, target, callers, prompts)

    objectives = {caller.name: caller.objectives(usual) for caller in callers}
    run = summary_by_tenant(ran.results, ran.seconds, objectives.__getitem__)
    facts = _facts(url, model, trace.name if trace else workload, replayed, prompts, ran)
    console.print(report_table(run))
    for name, value in facts.items():
        console.print(f"{name:32} {value}", soft_wrap=True)
    try:
        if json_file is not None:
            settings = {
                **facts,
                **_asked(source, target, seed),
                "tenants": len(callers),
                "requests": len(replayed),
                "prompt_tokens_max": prompt_tokens_max,
                "output_tokens_max": output_tokens_max,
                "ttft_ms": ttft_ms,
                "tpot_ms": tpot_ms,
            }
            written = {
                "machine": machine(),
                "versions": versions(),
                "settings": settings,
                "runs": {model: run},
            }
            write_text(json_file, orjson.dumps(written, option=orjson.OPT_INDENT_2).decode() + "\n")
        if csv_file is not None:
            write_text(csv_file, results_csv(ran.results))
        if html_file is not None:
            write_text(html_file, report_page(f"{model} at {url}", run, {**facts, **machine()}, ran.results))
    except PlotError as err:
        raise CommandError(f"bench: {err}") from err
    if all(result.error is not None for result in ran.results):
        raise CommandError(f"no request was answered: {', '.join(run['all']['errors_by_code'])}")


def _fields(body: str) -> dict[str, Any]:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as err:
        raise CommandError(f"--body: no JSON ({err})", 2) from err
    if not isinstance(fields, dict):
        raise CommandError("--body: must be a JSON object", 2)
    return fields


def _cut(request: TraceRequest, prompt_tokens_max: int, output_tokens_max: int) -> TraceRequest:
    prompt_tokens = min(request.prompt_tokens, prompt_tokens_max or request.prompt_tokens)
    return request.cut(prompt_tokens, min(request.output_tokens, output_tokens_max or request.output_tokens))


def _watched(
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


def _asked(source: Source, target: BenchTarget, seed: int) -> dict[str, object]:
    """What else it takes to send the same again."""
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
    ran: ReplayResult,
) -> dict[str, object]:
    """How it was measured, and how much of what is shown may be the client's own."""
    true = prompts.tokens_per_word(requests[:SAMPLED])
    late = [1000 * seconds for seconds in ran.late_seconds]
    return {
        "url": url,
        "model": model,
        "trace": source,
        "seconds": round(ran.seconds, 1),
        "hit_ratio_of_an_endless_cache": round(ideal_hit_ratio(requests), 4),
        "prompt_tokens_to_wanted": round(true, 3) if true is not None else "unknown (no --tokenizer)",
        "client_late_ms_p50": round(percentile(late, 50) or 0.0, 2),
        "client_late_ms_p99": round(percentile(late, 99) or 0.0, 2),
    }
