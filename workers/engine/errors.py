"""The exceptions of the engine."""


class EngineError(Exception):
    """The base class of all exceptions that this package raises on purpose."""


class CheckpointInvalid(EngineError):
    """A checkpoint directory does not hold a model that this engine can run."""


class ConfigInvalid(EngineError):
    """The engine's settings cannot work, or contradict each other or the checkpoint."""


class RequestRefused(EngineError):
    """A request can never run. `param` names the wrong field and `code` the kind of error, as in OpenAI's API."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFull(EngineError):
    """The waiting queue is at its bound; the same request may be accepted later."""


class StepFailed(EngineError):
    """A computation failed, for lack of memory for example; the request has ended and may be sent again."""


class EngineFailed(EngineError):
    """The engine stopped and will not answer again; every waiting caller gets this error."""


class BlockMisused(EngineError):
    """A KV block was freed twice, or used while free: a bug in the engine, not an error of the request."""
