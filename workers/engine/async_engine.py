"""The engine behind an event loop: a thread computes the steps, and the callers await their outputs.

    event loop                                      engine thread
    ----------                                      -------------
    submit, abort, flush  -- inbox (SimpleQueue) --> run all commands, then one step, and again
    futures, streams      <- call_soon_threadsafe -- replies before the step, outputs after it

Only the thread touches the Engine, and only the loop touches streams and futures, so nothing needs a lock. When a
step fails, the requests in it get StepFailed and all others continue. When the engine fails, every waiting caller
gets EngineFailed, and so does every later one.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from workers.engine.engine import Engine
from workers.engine.engine_parts import EngineInfo
from workers.engine.errors import EngineError, EngineFailed, RequestRefused, StepFailed
from workers.engine.grammar.queue import CompileQueue
from workers.engine.kv.kv_events import KVEvent
from workers.engine.loads import EngineLoads
from workers.engine.metrics import EngineMetrics
from workers.engine.request import Output, Request
from workers.engine.scheduler.limits import Limits
from workers.engine.scheduler.sequence import FinishReason
from workers.engine.tokenization.tokenizer import Tokenizer

_log = logging.getLogger("radixgate.engine")

_Reply = asyncio.Future[bool]


@dataclass(frozen=True, slots=True)
class _Submit:
    request: Request
    reply: _Reply


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Flush:
    reply: _Reply


@dataclass(frozen=True, slots=True)
class _Call:
    work: Callable[[], list[Output]]
    done: Future[None]


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


_Command = _Submit | _Abort | _Flush | _Call | _Stop

STALL_SECONDS = 0.01
"""The wait before the next step when no sequence can be computed before blocks are free."""
_STEP_FAILED = "a step that computed this request failed"


class OutputStream:
    """The outputs of one request, in order; the stream ends after the output that has `finish`.

    Closing it early, or cancelling the task that awaits it, aborts the request: its blocks are free before the next
    step.
    """

    def __init__(self, abandon: Callable[[], None]) -> None:
        self._abandon = abandon
        # Holds as many outputs as the request's max_tokens at most.
        self._outputs: asyncio.Queue[Output | EngineError] = asyncio.Queue()
        self._ended = False

    def __aiter__(self) -> "OutputStream":
        return self

    async def __anext__(self) -> Output:
        if self._ended:
            raise StopAsyncIteration
        try:
            output = await self._outputs.get()
        except asyncio.CancelledError:
            self.close()
            raise
        if isinstance(output, EngineError):
            self._ended = True
            # A new exception for each reader: one exception raised in many tasks would mix their tracebacks.
            raise type(output)(str(output)) from output
        self._ended = output.finish is not None
        return output

    async def __aenter__(self) -> "OutputStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading, and abort the request unless it has ended."""
        if not self._ended:
            self._ended = True
            self._abandon()

    def put(self, output: Output | EngineError) -> None:
        """Queue an output or a failure for the reader; for the AsyncEngine only."""
        if not self._ended:
            self._outputs.put_nowait(output)


class AsyncEngine:
    """An Engine and the thread that runs it. Open and close it in the event loop that uses it."""

    def __init__(self, engine: Engine) -> None:
        self.info: EngineInfo = engine.info
        self.limits: Limits = engine.limits
        self.loras: frozenset[str] = engine.loras
        """The names of the LoRA adapters."""
        self.tokenizer: Tokenizer = engine.tokenizer
        self.grammars = CompileQueue(engine.grammars)
        self.cache_flushes = 0
        """How often the prefix cache was flushed."""
        self.on_kv_events: Callable[[list[KVEvent]], None] = lambda _: None
        """Called in the event loop with the new events of the prefix cache."""
        self._engine = engine
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        self._streams: dict[str, OutputStream] = {}
        self._replies: set[_Reply] = set()
        self._failure: EngineFailed | None = None
        self.metrics: EngineMetrics = engine.metrics
        """The engine's metrics, which its thread still writes; read-only here."""
        self._loads = engine.loads()
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> "AsyncEngine":
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def close(self) -> None:
        """Stop the thread after the running step; callers that still wait get EngineFailed."""
        self._inbox.put(_Stop())
        self.grammars.close()
        await asyncio.to_thread(self._thread.join)
        self._fail(EngineFailed("the engine was closed"))

    @property
    def failure(self) -> EngineFailed | None:
        """The reason why the engine stopped, or None while it runs."""
        return self._failure

    @property
    def loads(self) -> EngineLoads:
        """The engine's load after its last step."""
        return self._loads

    async def submit(self, request: Request) -> OutputStream:
        """Queue a request, and return the stream of its outputs.

        Raises:
            RequestRefused: the request can never run.
            QueueFull: the waiting queue is at its bound.
            EngineFailed: the engine has stopped.
        """
        self._must_be_alive()
        # A request that can never run is refused at once, not after the running step.
        request.check_limits(self.limits)
        if request.id in self._streams:
            raise RequestRefused(f"request {request.id} is running already", param="rid")
        stream = OutputStream(lambda: self.abort(request.id))
        self._streams[request.id] = stream
        try:
            await self._ask(lambda reply: _Submit(request, reply))
        except asyncio.CancelledError:
            stream.close()
            raise
        return stream

    def call(self, work: Callable[[], list[Output]]) -> Future[None]:
        """Run `work` in the engine's thread between two steps, and deliver its outputs; call it from any thread."""
        call = _Call(work, Future())
        self._inbox.put(call)
        if self._failure or not self._thread.is_alive():
            self._fail_pending_calls()
        return call.done

    def abort(self, request_id: str) -> None:
        """End a request. If it was still running, its stream gets a last output with the finish reason "abort"."""
        self._inbox.put(_Abort(request_id))

    async def flush_cache(self) -> bool:
        """Remove every cached prefix and return True, or return False while requests run or wait."""
        self._must_be_alive()
        flushed: bool = await self._ask(_Flush)
        self.cache_flushes += flushed
        return flushed

    # In the event loop

    def _must_be_alive(self) -> None:
        if self._failure:
            raise EngineFailed(str(self._failure)) from self._failure

    async def _ask(self, command: Callable[[_Reply], _Command]) -> bool:
        reply: _Reply = asyncio.get_running_loop().create_future()
        self._replies.add(reply)
        self._inbox.put(command(reply))
        try:
            return await reply
        finally:
            self._replies.discard(reply)

    def _answer(self, reply: _Reply, value: bool) -> None:
        if not reply.done():
            reply.set_result(value)

    def _refuse(self, command: _Submit, error: EngineError) -> None:
        del self._streams[command.request.id]
        if not command.reply.done():
            command.reply.set_exception(error)

    def _deliver(self, outputs: list[Output]) -> None:
        # A closed stream stays listed until its request has really ended, so that its id is not reused too early:
        # the outputs of a running step would go to the wrong reader.
        for output in outputs:
            stream = self._streams[output.id]
            stream.put(StepFailed(_STEP_FAILED) if output.finish is FinishReason.ERROR else output)
            if output.finish:
                del self._streams[output.id]

    def _fail(self, failure: EngineFailed) -> None:
        self._failure = self._failure or failure
        for stream in self._streams.values():
            stream.put(failure)
        self._streams.clear()
        for reply in self._replies:
            if not reply.done():
                reply.set_exception(EngineFailed(str(failure)))

    # In the engine thread

    def _work(self) -> None:
        try:
            while self._run_commands():
                outputs = self._engine.step()
                self._loads = self._engine.loads()
                self._notify_kv_events()
                if outputs:
                    self._post(self._deliver, outputs)
            self._fail_pending_calls()
        except BaseException as error:  # noqa: BLE001 - the end of a thread: no error may pass silently
            _log.exception("the engine failed")
            self._fail_pending_calls()
            # The loop may be closed already; then no caller is left to notify.
            with contextlib.suppress(RuntimeError):
                self._post(self._fail, EngineFailed(f"the engine failed: {error}"))

    def _run_commands(self) -> bool:
        """Run all queued commands, waiting for one if there is nothing to compute; return False to stop."""
        try:
            if self._engine.stalled and self._engine.has_work:
                command = self._inbox.get(timeout=STALL_SECONDS)
            else:
                command = self._inbox.get(block=not self._engine.has_work)
            while not isinstance(command, _Stop):
                self._run_command(command)
                command = self._inbox.get_nowait()
        except Empty:
            self._loads = self._engine.loads()
            return True
        return False

    def _run_command(self, command: _Submit | _Abort | _Flush | _Call) -> None:
        match command:
            case _Submit(request, reply):
                try:
                    self._engine.submit(request)
                except EngineError as error:
                    self._post(self._refuse, command, error)
                else:
                    self._post(self._answer, reply, True)
            case _Abort(request_id):
                if last := self._engine.abort(request_id):
                    self._post(self._deliver, [last])
            case _Flush(reply):
                flushed = self._engine.flush_cache()
                self._notify_kv_events()
                self._post(self._answer, reply, flushed)

            case _Call(work, done):
                try:
                    outputs = work()
                except EngineError as error:
                    done.set_exception(error)
                else:
                    if outputs:
                        self._post(self._deliver, outputs)
                    done.set_result(None)

    def _fail_pending_calls(self) -> None:
        """Fail the queued calls, because the thread runs no more commands."""
        with contextlib.suppress(Empty):
            while True:
                command = self._inbox.get_nowait()
                if isinstance(command, _Call) and not command.done.done():
                    command.done.set_exception(EngineFailed("the engine has stopped"))

    def _notify_kv_events(self) -> None:
        if events := self._engine.tree.take_events():
            self._post(lambda: self.on_kv_events(events))

    def _post(self, callback: Callable[..., None], *values: Any) -> None:
        if self._loop is None:
            raise RuntimeError("the engine was not opened")
        self._loop.call_soon_threadsafe(callback, *values)
