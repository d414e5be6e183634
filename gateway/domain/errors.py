"""Every error that a client can see: status, code, type, wording. No other file knows status codes.

Lower floors raise their own errors; the rooms above translate them into these at the border and keep the cause for
the log (`raise ... from err`). The metric label of an error is its `code`, so labels are bounded.

SDKs retry 408, 409, 429 and 5xx; `x-should-retry` overrides that where retrying is known to be of no use.
"""

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType
from typing import ClassVar

import orjson

from gateway.quotas.headers import openai_headers
from gateway.quotas.limit_text import limit_in_words, owner_in_words, short_time, whole_time
from gateway.quotas.quota import Refusal

NO_NAMES: Mapping[str, str] = MappingProxyType({})


class GatewayError(Exception):
    """`message` is safe for clients: it names what they sent, never workers or internals."""

    status: int = 500
    code: str = "internal_error"
    type: ClassVar[str] = "server_error"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds

    def body(self, names: Mapping[str, str] = NO_NAMES) -> bytes:
        """The OpenAI error object, all four keys. `names`: see called."""
        message, param = self.called(names)
        fields = {**self.fields(), "message": message, "param": param}
        try:
            return orjson.dumps({"error": fields})
        except TypeError:
            # What a client sent and we quote may be no text: half of a surrogate pair in an address.
            return orjson.dumps({"error": {name: text and _as_text(text) for name, text in fields.items()}})

    def frame(self) -> bytes:
        """The same as a server-sent event, for streams that have begun."""
        return b"data: " + self.body() + b"\n\n"

    def fields(self) -> dict[str, str | None]:
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def called(self, names: Mapping[str, str]) -> tuple[str, str | None]:
        """Message and param for an API that has other names for fields of chat completions."""
        name = names.get(self.param or "")
        if name is None:
            return self.message, self.param
        named = self.message.startswith((f"{self.param} ", f"{self.param}:"))
        return (name + self.message.removeprefix(self.param or "") if named else self.message), name

    def headers(self) -> dict[str, str]:
        if self.retry_after_seconds is None:
            return {}
        return {
            "retry-after": str(ceil(self.retry_after_seconds)),
            "retry-after-ms": str(ceil(self.retry_after_seconds * 1000)),
        }


def _as_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class BadRequest(GatewayError):
    status, code, type = 400, "invalid_request", "invalid_request_error"


class PromptTooLong(GatewayError):
    """`exact`: the prompt was counted; else it has so many tokens at least."""

    status, code, type = 400, "context_length_exceeded", "invalid_request_error"

    def __init__(
        self, *, prompt_tokens: int, output_tokens: int, context_length: int, exact: bool = True
    ) -> None:
        self.least = "" if exact else "at least "
        self.tokens = prompt_tokens + output_tokens
        self.context_length = context_length
        super().__init__(
            f"The context length is {context_length} tokens, but the request asks for {self.least}"
            f"{self.tokens} ({prompt_tokens} in the prompt, {output_tokens} for the answer).",
            param="messages",
        )


class Unauthenticated(GatewayError):
    status, code, type = 401, "invalid_api_key", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("Incorrect API key provided.")

    def headers(self) -> dict[str, str]:
        return {"www-authenticate": "Bearer"}


class InvalidToken(GatewayError):
    """A token of an issuer that is known here, which opens nothing. `reason`: in words for its holder."""

    status, code, type = 401, "invalid_token", "invalid_request_error"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The token is not valid: {reason}.")

    def headers(self) -> dict[str, str]:
        # RFC 6750, 3.1.
        return {"www-authenticate": 'Bearer error="invalid_token"'}


class TenantNotNamed(GatewayError):
    status, code, type = 403, "tenant_not_named", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("The token is valid, but names no tenant of this service.")


class Forbidden(GatewayError):
    status, code, type = 403, "model_not_allowed", "invalid_request_error"

    def __init__(self, model: str) -> None:
        super().__init__(f"This key may not use the model {model!r}.", param="model")


class ClassNotAllowed(GatewayError):
    status, code, type = 403, "class_not_allowed", "invalid_request_error"

    def __init__(self, name: str) -> None:
        super().__init__(f"The plan of this key does not have the service class {name!r}.")


class ScopeNotAllowed(GatewayError):
    status, code, type = 403, "scope_not_allowed", "invalid_request_error"

    def __init__(self, scope: str) -> None:
        super().__init__(f"This key is not for {scope}.")


class AddressNotAllowed(GatewayError):
    status, code, type = 403, "address_not_allowed", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("This key may not be used from your address.")


class AccountDisabled(GatewayError):
    status, code, type = 403, "account_disabled", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("The account of this key is disabled.")


class ForbiddenHost(GatewayError):
    """Without keys, only who names this machine may ask: a page of somebody else's may not."""

    status, code, type = 403, "host_not_allowed", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("This address answers to localhost, 127.0.0.1 and [::1] only.")


class NotFound(GatewayError):
    status, code, type = 404, "not_found", "invalid_request_error"


class PreviousResponseNotFound(GatewayError):
    """A client that knows the code says the whole conversation again."""

    status, code, type = 400, "previous_response_not_found", "invalid_request_error"

    def __init__(self, identity: str) -> None:
        super().__init__(
            f"The previous response {identity[:100]!r} does not exist.", param="previous_response_id"
        )


class ModelNotFound(GatewayError):
    status, code, type = 404, "model_not_found", "invalid_request_error"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model {model!r} does not exist.", param="model")


class MethodNotAllowed(GatewayError):
    status, code, type = 405, "method_not_allowed", "invalid_request_error"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"This address answers {allowed} only.")
        self.allowed = allowed

    def headers(self) -> dict[str, str]:
        return {"allow": self.allowed}


class BodyTimeout(GatewayError):
    status, code, type = 408, "body_timeout", "invalid_request_error"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request body did not arrive within {seconds:g} seconds.")


class PayloadTooLarge(GatewayError):
    status, code, type = 413, "payload_too_large", "invalid_request_error"

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"The request body is larger than {bytes_max} bytes.")


class UnsupportedEncoding(GatewayError):
    status, code, type = 415, "unsupported_encoding", "invalid_request_error"

    def __init__(self, encoding: str) -> None:
        super().__init__(f"The content encoding {encoding[:100]!r} is not supported; send the body as it is.")


class TooManyFailures(GatewayError):
    """An address that has presented too many keys that open nothing."""

    status, code, type = 429, "too_many_failures", "invalid_request_error"

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(
            "Too many incorrect API keys came from your address.", retry_after_seconds=retry_after_seconds
        )

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "x-should-retry": "false"}


class TooManyConnections(GatewayError):
    status, code, type = 429, "too_many_connections", "rate_limit_error"

    def __init__(self) -> None:
        super().__init__("Your address has too many connections open.", retry_after_seconds=1.0)


class QuotaExceeded(GatewayError):
    """Refused by a limit, for now; nothing was charged. `refusal`: for who has header names of another API."""

    status, code, type = 429, "rate_limit_exceeded", "rate_limit_error"

    def __init__(self, refusal: Refusal) -> None:
        seconds = refusal.retry_after_seconds or 0.0
        super().__init__(
            f"The limit of {limit_in_words(refusal.limit)} of {owner_in_words(refusal.scope)} is used up. "
            f"Try again in {short_time(seconds)}.",
            retry_after_seconds=seconds,
        )
        self.refusal = refusal

    def headers(self) -> dict[str, str]:
        return {**openai_headers(self.refusal.standings, self.refusal), **super().headers()}


class BudgetExhausted(GatewayError):
    """Refused by a budget, until its window ends: trying again before that is of no use."""

    status, code, type = 429, "insufficient_quota", "insufficient_quota"

    def __init__(self, refusal: Refusal) -> None:
        seconds = refusal.retry_after_seconds or 0.0
        super().__init__(
            f"The budget of {limit_in_words(refusal.limit)} of {owner_in_words(refusal.scope)} does not suffice. "
            f"It begins anew in {whole_time(seconds)}.",
            retry_after_seconds=seconds,
        )
        self.refusal = refusal

    def headers(self) -> dict[str, str]:
        told = openai_headers(self.refusal.standings, self.refusal)
        return {**told, **super().headers(), "x-should-retry": "false"}


class RequestExceedsLimit(GatewayError):
    """Refused by a limit that it can never fit into; nothing was charged."""

    status, code, type = 429, "request_exceeds_limit", "rate_limit_error"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(
            f"The request needs more than the limit of {limit_in_words(refusal.limit)} of "
            f"{owner_in_words(refusal.scope)} ever allows."
        )
        self.refusal = refusal

    def headers(self) -> dict[str, str]:
        told = openai_headers(self.refusal.standings, self.refusal)
        return {**told, **super().headers(), "x-should-retry": "false"}


class RepeatRunning(GatewayError):
    """Another request under the same `Idempotency-Key` has not ended yet."""

    status, code, type = 409, "idempotency_key_in_use", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__(
            "A request with this Idempotency-Key is still being answered.", retry_after_seconds=1.0
        )


class RepeatRefused(GatewayError):
    """Under this `Idempotency-Key` there was another request, or this one too often."""

    status, code, type = 422, "idempotency_key_reused", "invalid_request_error"

    def __init__(self, *, different: bool) -> None:
        super().__init__(
            "This Idempotency-Key was used for another request."
            if different
            else "This Idempotency-Key was used too often; a new one begins a new request."
        )

    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "false"}


class TenantQueueFull(GatewayError):
    """This tenant's own share of the waiting room is taken."""

    status, code, type = 429, "too_many_waiting", "rate_limit_error"

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(
            "Too many requests of this tenant are waiting.", retry_after_seconds=retry_after_seconds
        )


class Overloaded(GatewayError):
    """`by_workers`: all that could take it are full, as they say; another model's may not be."""

    status, code, type = 503, "overloaded", "server_error"

    def __init__(self, retry_after_seconds: float, *, by_workers: bool = False) -> None:
        super().__init__("The service is overloaded.", retry_after_seconds=retry_after_seconds)
        self.by_workers = by_workers


class AdmissionTimeout(GatewayError):
    status, code, type = 503, "admission_timeout", "server_error"

    def __init__(self, seconds: float, retry_after_seconds: float) -> None:
        super().__init__(
            f"The request waited {seconds:g} seconds without getting a turn.",
            retry_after_seconds=retry_after_seconds,
        )


class TargetMissed(GatewayError):
    """No first token can be expected within the target of a service class that would rather have none."""

    status, code, type = 503, "target_missed", "server_error"

    def __init__(self, name: str, retry_after_seconds: float) -> None:
        super().__init__(
            f"The time to the first token of the service class {name!r} cannot be kept at present.",
            retry_after_seconds=retry_after_seconds,
        )


class DeadlinePassed(GatewayError):
    """The time that the client said it would wait is over, or would be before a first token."""

    status, code, type = 504, "deadline_exceeded", "server_error"

    def __init__(self) -> None:
        super().__init__("The request's own timeout does not leave the time for an answer.")


class KeysUnavailable(GatewayError):
    """Whoever knows this key cannot be asked: not a 401, which clients take for the end of their key."""

    status, code, type = 503, "keys_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("API keys cannot be checked at present.", retry_after_seconds=1.0)


class ResponsesUnavailable(GatewayError):
    """Where responses are kept cannot be asked: not a 404, which says that there is none."""

    status, code, type = 503, "responses_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("Stored responses cannot be read at present.", retry_after_seconds=1.0)


class FilesUnavailable(GatewayError):
    """Where files and batches are kept cannot be asked, or is full: not a 404, which says that there is none."""

    status, code, type = 503, "files_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("Files and batches cannot be reached at present.", retry_after_seconds=1.0)


class FileInUse(GatewayError):
    status, code, type = 409, "file_in_use", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("A batch that has not ended reads this file.")

    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "false"}


class StorageExceeded(GatewayError):
    """The tenant keeps as many bytes as it may."""

    status, code, type = 429, "storage_exceeded", "insufficient_quota"

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            f"The files of this tenant would take more than {bytes_max} bytes; delete some of them."
        )

    def headers(self) -> dict[str, str]:
        return {"x-should-retry": "false"}


class TooManyBatches(GatewayError):
    """The tenant has as many as it may have that have not ended."""

    status, code, type = 429, "too_many_batches", "rate_limit_error"

    def __init__(self, unfinished_max: int) -> None:
        super().__init__(
            f"This tenant has {unfinished_max} batches that have not ended; more have to wait for one of them.",
            retry_after_seconds=60.0,
        )


class QuotasUnavailable(GatewayError):
    """Limits cannot be held against those of other gateways, and the tenant wants no answer without that."""

    status, code, type = 503, "quotas_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("Limits cannot be checked at present.", retry_after_seconds=1.0)


class UsageUnavailable(GatewayError):
    """Whoever keeps the accounts cannot be asked now."""

    status, code, type = 503, "usage_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("Usage cannot be read at present.", retry_after_seconds=1.0)


class NoWorker(GatewayError):
    status, code, type = 503, "no_worker", "server_error"

    def __init__(self, model: str) -> None:
        super().__init__(f"No worker serves the model {model!r} at present.", retry_after_seconds=1.0)


class ShuttingDown(GatewayError):
    status, code, type = 503, "shutting_down", "server_error"

    def __init__(self) -> None:
        super().__init__("This gateway is shutting down.", retry_after_seconds=1.0)


class WorkerError(GatewayError):
    status, code, type = 502, "worker_error", "server_error"

    def __init__(self) -> None:
        super().__init__("No worker could answer the request.")


class RefusedByWorker(GatewayError):
    """The worker found a mistake of the client's; its own words, and its own code, if it has one.

    In metrics and traces the code is `refused_by_worker`: workers' codes have no bound.
    """

    type: ClassVar[str] = "invalid_request_error"

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.worker_code = code
        self.code = "refused_by_worker"

    def fields(self) -> dict[str, str | None]:
        return {**super().fields(), "code": self.worker_code}


class WorkerTimeout(GatewayError):
    status, code, type = 504, "worker_timeout", "server_error"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"No token came within {seconds:g} seconds.")


class StreamInterrupted(GatewayError):
    """The worker broke off in the middle of an answer. A client that has read nothing yet gets a 502."""

    status, code, type = 502, "stream_interrupted", "server_error"

    def __init__(self) -> None:
        super().__init__("The answer was interrupted before it was complete.")


class InternalError(GatewayError):
    status, code, type = 500, "internal_error", "server_error"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"The gateway failed. Please report request {request_id}.")
