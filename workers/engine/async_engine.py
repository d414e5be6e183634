"""The engine behind an event loop: one thread steps, callers await.

    event loop                                      engine thread
    ----------                                      -------------
    submit, abort, flush  -- inbox (SimpleQueue) --> obey all commands, then one step, and again
    futures, streams      <- call_soon_threadsafe -- replies before the step, outputs after it

Only the thread touches the Engine, and only the loop touches streams and futures, so nothing needs a lock. When the
engine fails, everybody who waits gets EngineFailed, and so does everybody who comes later.
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
from workers.engine.errors import EngineError, EngineFailed, RequestRefused
from workers.engine.grammar.queue import CompileQueue
from workers.engine.kv.events import KVEvent
from workers.engine.loads import EngineLoads
from workers.engine.metrics import EngineMetrics
from workers.engine.request import Output, Request
from workers.engine.scheduler.limits import Limits
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
"""How soon to look again when nobody can be computed before blocks are free."""
CALL_SECONDS = 60.0


class OutputStream:
    """The outputs of one request, in order; ends after the one that has `finish`.

    Closing it early, or cancelling whoever awaits it, aborts the request: its blocks are free before the next step.
    """

    def __init__(self, abandon: Callable[[], None]) -> None:
        self._abandon = abandon
        # Holds as many outputs as the request's max_tokens at most.
        self._outputs: asyncio.Queue[Output | EngineFailed] = asyncio.Queue()
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
        if isinstance(output, EngineFailed):
            self._ended = True
            # A new one for each reader: one exception raised in many tasks would mix their tracebacks.
            raise EngineFailed(str(output)) from output
        self._ended = output.finish is not None
        return output

    async def __aenter__(self) -> "OutputStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Read no further; does nothing to a request that has ended."""
        if not self._ended:
            self._ended = True
            self._abandon()

    def put(self, output: Output | EngineFailed) -> None:
        """Hand on what the engine made; for the AsyncEngine only."""
        if not self._ended:
            self._outputs.put_nowait(output)


class AsyncEngine:
    """One Engine and its thread. Open it in the loop that will use it; close it there."""

    def __init__(self, engine: Engine) -> None:
        self.info: EngineInfo = engine.info
        self.limits: Limits = engine.limits
        self.tokenizer: Tokenizer = engine.tokenizer
        self.grammars = CompileQueue(engine.grammars)
        self.cache_flushes = 0
        """How often the cache was emptied."""
        self.on_kv_events: Callable[[list[KVEvent]], None] = lambda _: None
        """Called in the event loop with what changed in the cache."""
        self._engine = engine
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        self._streams: dict[str, OutputStream] = {}
        self._replies: set[_Reply] = set()
        self._failure: EngineFailed | None = None
        self.metrics: EngineMetrics = engine.metrics
        """Counts that the engine's thread goes on writing; to be read, and no more."""
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
        """Stop after the step that is running; whoever still waits gets EngineFailed."""
        self._inbox.put(_Stop())
        self.grammars.close()
        await asyncio.to_thread(self._thread.join)
        self._fail(EngineFailed("the engine was closed"))

    @property
    def failure(self) -> EngineFailed | None:
        """Why it answers no more, if so."""
        return self._failure

    @property
    def loads(self) -> EngineLoads:
        """How busy it was after its last step."""
        return self._loads

    async def submit(self, request: Request) -> OutputStream:
        """Queue a request. RequestRefused, QueueFull and EngineFailed are raised here, before there is a stream."""
        self._must_be_alive()
        # What can never run is told at once, and not after the step that is running.
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
        """Have the engine's thread do something between two steps and give out its outputs; from any thread."""
        call = _Call(work, Future())
        self._inbox.put(call)
        if self._failure or not self._thread.is_alive():
            self._hang_up()
        return call.done

    def abort(self, request_id: str) -> None:
        """End a request; if it was still running, its stream gets a last output with finish "abort"."""
        self._inbox.put(_Abort(request_id))

    async def flush_cache(self) -> bool:
        """Forget every cached prefix; False when requests run or wait."""
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
        # A closed stream stays listed until its request has really ended, so that its id is not taken too early:
        # the outputs of a step that was running would go to the wrong reader.
        for output in outputs:
            stream = self._streams[output.id]
            stream.put(output)
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
            while self._obey():
                outputs = self._engine.step()
                self._loads = self._engine.loads()
                self._tell_kv_events()
                if outputs:
                    self._post(self._deliver, outputs)
            self._hang_up()
        except BaseException as error:  # noqa: BLE001 - the border of a thread: what ends here must not end silently
            _log.exception("the engine failed")
            self._hang_up()
            # The loop may be gone already; then nobody is left to be told.
            with contextlib.suppress(RuntimeError):
                self._post(self._fail, EngineFailed(f"the engine failed: {error}"))

    def _obey(self) -> bool:
        """Carry out the commands that have come, and wait for one if there is nothing to compute. False: stop."""
        try:
            if self._engine.stalled and self._engine.has_work:
                command = self._inbox.get(timeout=STALL_SECONDS)
            else:
                command = self._inbox.get(block=not self._engine.has_work)
            while not isinstance(command, _Stop):
                self._carry_out(command)
                command = self._inbox.get_nowait()
        except Empty:
            self._loads = self._engine.loads()
            return True
        return False

    def _carry_out(self, command: _Submit | _Abort | _Flush | _Call) -> None:
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
                self._tell_kv_events()
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

    def _hang_up(self) -> None:
        """Nobody is left to carry out calls."""
        with contextlib.suppress(Empty):
            while True:
                command = self._inbox.get_nowait()
                if isinstance(command, _Call) and not command.done.done():
                    command.done.set_exception(EngineFailed("the engine has stopped"))

    def _tell_kv_events(self) -> None:
        if events := self._engine.tree.take_events():
            self._post(lambda: self.on_kv_events(events))

    def _post(self, callback: Callable[..., None], *values: Any) -> None:
        if self._loop is None:
            raise RuntimeError("the engine was not opened")
        self._loop.call_soon_threadsafe(callback, *values)
