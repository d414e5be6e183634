"""Everything that the engine refuses, and how it fails."""


class EngineError(Exception):
    """The root of what this package raises on purpose."""


class CheckpointInvalid(EngineError):
    """The directory does not hold a model that this engine can run."""


class ConfigInvalid(EngineError):
    """The engine was asked to start with settings that cannot work."""


class RequestRefused(EngineError):
    """This request can never run. `param` names the field, `code` the kind, both in OpenAI's words."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class QueueFull(EngineError):
    """The waiting queue is at its bound; the same request may succeed later."""


class EngineFailed(EngineError):
    """The engine stopped and will not answer again; every caller that waits gets this."""


class BlockMisused(EngineError):
    """A block was freed twice, or used while free: a bug in the engine, never the fault of a request."""
