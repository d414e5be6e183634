"""The latency that a gateway adds to one call: one caller, kept-alive connections, subjects that take turns.

    round 1   case A: direct, radixgate, smg, ...   case B: radixgate, smg, ..., direct   ...
    round 2   case A: radixgate, smg, ..., direct   ...

The caller is a plain socket: nothing but the kernel stands between the clock and the subject. `warm`: the same
prompt again; `cold`: a new text each time.
"""

import asyncio
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice, repeat
from statistics import median

from gateway.bench.results import percentile
from tests.benchmarks.subjects import DIRECT, Subject
from tests.benchmarks.wire import Answer, BadAnswer, Texts, request

CHUNKS = 16
CHARACTERS = (200, 16_000)
ANSWER_SECONDS_MAX = 30.0
RECEIVE_BYTES = 256 * 1024
WARM_UP_CALLS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kind of call."""

    stream: bool
    characters: int
    cold: bool

    @property
    def name(self) -> str:
        kind = "stream" if self.stream else "whole"
        return f"{kind}_{self.characters}_{'cold' if self.cold else 'warm'}"


CASES = tuple(
    Case(stream=stream, characters=characters, cold=cold)
    for stream in (False, True)
    for characters in CHARACTERS
    for cold in (False, True)
)


@dataclass(slots=True)
class Samples:
    """The milliseconds of each call to the first byte of the body, and to the last."""

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)


class Caller:
    """A connection to one subject."""

    def __init__(self, subject: Subject) -> None:
        self._socket = socket.create_connection((subject.host, subject.port), ANSWER_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, data: bytes, samples: Samples) -> None:
        """Make one call and add its times. Raises BadAnswer and OSError."""
        answer, first = Answer(), 0.0
        sent = time.perf_counter()
        self._socket.sendall(data)
        while True:
            received = self._socket.recv(RECEIVE_BYTES)
            now = time.perf_counter()
            if not received:
                raise BadAnswer("the connection was closed")
            done = answer.feed(received)
            if not first and answer.begun:
                first = now
            if done:
                samples.first.append((first - sent) * 1000)
                samples.whole.append((now - sent) * 1000)
                return


async def measure(subjects: Sequence[Subject], *, rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """Return the figures by subject: each case is called `calls` times in each of `rounds` rounds."""
    taken = {(subject.name, case): Samples() for subject in subjects for case in CASES}
    texts = Texts()
    with ExitStack() as stack:
        callers = {subject.name: stack.enter_context(Caller(subject)) for subject in subjects}
        prompts = {case: _prompts(case, texts) for case in CASES}
        for number in range(-1, rounds):  # the first round only warms up
            for at, case in enumerate(CASES):
                chosen = list(islice(prompts[case], calls if number >= 0 else WARM_UP_CALLS))
                first = (number + at) % len(subjects)
                for subject in (*subjects[first:], *subjects[:first]):
                    samples = taken[subject.name, case] if number >= 0 else Samples()
                    chunks = CHUNKS if case.stream else None
                    for data in [request(subject, text, chunks=chunks) for text in chosen]:
                        callers[subject.name].call(data, samples)
                await asyncio.sleep(0)  # lets the output of child processes be read
    return {
        subject.name: _figures(
            {case: taken[subject.name, case] for case in CASES},
            {case: taken[DIRECT, case] for case in CASES} if (DIRECT, CASES[0]) in taken else {},
            calls,
        )
        for subject in subjects
    }


def _prompts(case: Case, texts: Texts) -> Iterator[str]:
    return texts.forever(case.characters) if case.cold else repeat(texts.new(case.characters))


def _figures(taken: Mapping[Case, Samples], direct: Mapping[Case, Samples], calls: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    for case, samples in taken.items():
        base = direct.get(case)
        figures |= _figure(case.name, samples.whole, base.whole if base else None, calls)
        if case.stream:
            figures |= _figure(f"{case.name}_first_byte", samples.first, base.first if base else None, calls)
    return figures


def _figure(name: str, values: list[float], direct: list[float] | None, calls: int) -> dict[str, float]:
    """Return percentiles, and their excess over direct calls; low and high are quartiles of the rounds' medians."""
    figures = {f"{name}_ms_p50": _percentile(values, 50), f"{name}_ms_p99": _percentile(values, 99)}
    if direct is None or direct is values:
        return figures
    rounds = [
        median(values[at : at + calls]) - median(direct[at : at + calls])
        for at in range(0, len(values), calls)
    ]
    return figures | {
        f"{name}_added_ms_p50": figures[f"{name}_ms_p50"] - _percentile(direct, 50),
        f"{name}_added_ms_p50_low": _percentile(rounds, 25),
        f"{name}_added_ms_p50_high": _percentile(rounds, 75),
        f"{name}_added_ms_p99": figures[f"{name}_ms_p99"] - _percentile(direct, 99),
    }


def _percentile(values: Sequence[float], percent: float) -> float:
    value = percentile(values, percent)
    assert value is not None
    return value
