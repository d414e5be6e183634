"""Every error of the inference API that a client can see: its HTTP status, code, type, message and headers.

No other file chooses an HTTP status of that API; the admin API has errors of its own, gateway/adminapi/problems.py.
An error is raised where the request fails, and written to the client by gateway/web/error_response.py.

Packages below raise errors of their own; their callers translate those into the errors of this file and keep the
cause for the log (`raise ... from err`). The metric label of an error is its `code`, so the number of labels is
bounded.

SDKs retry after 408, 409, 429 and 5xx; the header `x-should-retry` overrides that where a retry is known to fail.
"""

from collections.abc import Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import ClassVar

import msgspec

from gateway.quotas.headers import openai_headers
from gateway.quotas.limit_text import limit_in_words, scope_in_words, short_time, whole_time
from gateway.quotas.quota_store import Refusal

RETRY_SECONDS_MAX = 60.0
"""Longest `retry-after` for which SDKs are to wait by themselves, and not to report the error at once."""

CLIENT_CLOSED_STATUS = 499
"""The status in records of a request that its client abandoned: neither a success nor a failure (nginx's code)."""

NO_FIELD_NAMES: Mapping[str, str] = MappingProxyType({})
"""For the APIs that name all fields as chat completions do."""

MODELS_LISTED_MAX = 20
"""Names that the error for an unknown model lists."""


class GatewayError(Exception):
    """An error that is answered to a client.

    Its message is safe for clients: it quotes what the client sent, and names no worker and nothing internal.
    """

    status: int = 500
    """The HTTP status."""
    code: str = "internal_error"
    """The field `code` of the OpenAI error object; also the label of the error in metrics and traces."""
    type: ClassVar[str] = "server_error"
    """The field `type` of the OpenAI error object."""

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        """The request field at fault, by its name in chat completions; None where no field is at fault."""
        self.retry_after_seconds = retry_after_seconds

    def body(self, field_names: Mapping[str, str] = NO_FIELD_NAMES) -> bytes:
        """Return the OpenAI error object as JSON, with all four keys; for `field_names` see `message_and_param`."""
        message, param = self.message_and_param(field_names)
        fields = {**self.fields(), "message": message, "param": param}
        try:
            return msgspec.json.encode({"error": fields})
        except UnicodeEncodeError:
            # A client may have sent invalid text that the message quotes: half of a surrogate pair in a URL.
            return msgspec.json.encode(
                {"error": {name: text and _as_text(text) for name, text in fields.items()}}
            )

    def server_sent_event(self) -> bytes:
        """Return the error object as a server-sent event, for a stream that has already begun."""
        return b"data: " + self.body() + b"\n\n"

    def fields(self) -> dict[str, str | None]:
        """Return the fields of the OpenAI error object."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def message_and_param(self, field_names: Mapping[str, str]) -> tuple[str, str | None]:
        """Return the message and `param` for an API that has other names for the fields of chat completions.

        Args:
            field_names: The API's names, by the names in chat completions. A message that begins with the field's
                name begins with the API's name instead.
        """
        name = field_names.get(self.param or "")
        if name is None:
            return self.message, self.param
        begins_with_name = self.message.startswith((f"{self.param} ", f"{self.param}:"))
        message = name + self.message.removeprefix(self.param or "") if begins_with_name else self.message
        return message, name

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer: when to retry, where that is known.

        SDKs do not wait by themselves for longer than RETRY_SECONDS_MAX; Anthropic's would sleep for days.
        """
        if self.retry_after_seconds is None:
            return {}
        retry_after = {
            "retry-after": str(ceil(self.retry_after_seconds)),
            "retry-after-ms": str(ceil(self.retry_after_seconds * 1000)),
        }
        if self.retry_after_seconds > RETRY_SECONDS_MAX:
            return retry_after | {"x-should-retry": "false"}
        return retry_after


def _as_text(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


class BadRequest(GatewayError):
    """The request is malformed, or needs something that the gateway does not support."""

    status, code, type = 400, "invalid_request", "invalid_request_error"


class PromptTooLong(GatewayError):
    """The prompt and the requested answer exceed the context length of the model or of the tenant's plan.

    Args:
        prompt_tokens: Tokens of the prompt, or a lower bound of them.
        output_tokens: The most tokens of its answer that the request allows.
        context_length: Tokens that prompt and answer may have together.
        exact: Whether the prompt's tokens were counted; if not, `prompt_tokens` is a lower bound.
    """

    status, code, type = 400, "context_length_exceeded", "invalid_request_error"

    def __init__(
        self, *, prompt_tokens: int, output_tokens: int, context_length: int, exact: bool = True
    ) -> None:
        self.least = "" if exact else "at least "
        self.tokens = prompt_tokens + output_tokens
        self.context_length = context_length
        super().__init__(
            f"This model's maximum context length is {context_length} tokens, but the request asks for {self.least}"
            f"{self.tokens} ({prompt_tokens} in the prompt, {output_tokens} for the answer).",
            param="messages",
        )


class Unauthenticated(GatewayError):
    """The request has no API key, one that does not exist, or different ones in one header."""

    status, code, type = 401, "invalid_api_key", "invalid_request_error"

    def __init__(self, message: str = "Incorrect API key provided.") -> None:
        super().__init__(message)

    def headers(self) -> dict[str, str]:
        """Return the challenge of a 401 (RFC 9110, 11.6.1), and a header against retries by SDKs."""
        return {"www-authenticate": "Bearer", "x-should-retry": "false"}


class InvalidToken(GatewayError):
    """A token comes from a known issuer, but is not valid.

    Args:
        reason: Why, in words for the token's holder.
    """

    status, code, type = 401, "invalid_token", "invalid_request_error"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The token is not valid: {reason}.")

    def headers(self) -> dict[str, str]:
        """Return the challenge of a 401 to an invalid token (RFC 6750, 3.1)."""
        return {"www-authenticate": 'Bearer error="invalid_token"'}


class TenantNotNamed(GatewayError):
    """The token is valid, but its claims name no tenant of this gateway."""

    status, code, type = 403, "tenant_not_named", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("The token is valid, but names no tenant of this service.")


class ModelNotAllowed(GatewayError):
    """The plan, the tenant or the key does not allow the requested model."""

    status, code, type = 403, "model_not_allowed", "invalid_request_error"

    def __init__(self, model: str) -> None:
        super().__init__(f"This key may not use the model {model!r}.", param="model")


class ClassNotAllowed(GatewayError):
    """The tenant's plan does not allow the requested service class."""

    status, code, type = 403, "class_not_allowed", "invalid_request_error"

    def __init__(self, name: str) -> None:
        super().__init__(f"The plan of this key does not have the service class {name!r}.")


class ScopeNotAllowed(GatewayError):
    """The key lacks the scope that the called API requires."""

    status, code, type = 403, "scope_not_allowed", "invalid_request_error"

    def __init__(self, scope: str) -> None:
        super().__init__(f"This key does not have the scope {scope!r}.")


class AddressNotAllowed(GatewayError):
    """The client's address is outside the networks from which the key may be used."""

    status, code, type = 403, "address_not_allowed", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("This key may not be used from your address.")


class AccountDisabled(GatewayError):
    """An operator has disabled the tenant, or its organisation."""

    status, code, type = 403, "account_disabled", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("The account of this key is disabled.")


class OriginNotAllowed(GatewayError):
    """A foreign web page sent the request, although the gateway has no API keys."""

    status, code, type = 403, "origin_not_allowed", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("Web pages may call this gateway only if listen.origins names them.")


class HostNotAllowed(GatewayError):
    """The Host header does not name loopback, although the gateway has no API keys.

    Without keys, this check keeps a foreign web page from reaching the gateway through a browser on this machine
    (DNS rebinding).
    """

    status, code, type = 403, "host_not_allowed", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__(
            "This gateway answers only requests to the host names localhost, 127.0.0.1 and [::1]."
        )


class NotFound(GatewayError):
    """The path or the requested object does not exist."""

    status, code, type = 404, "not_found", "invalid_request_error"


class PreviousResponseNotFound(GatewayError):
    """The response that `previous_response_id` names is not stored.

    A client that handles this code sends the whole conversation again.
    """

    status, code, type = 400, "previous_response_not_found", "invalid_request_error"

    def __init__(self, identity: str) -> None:
        super().__init__(
            f"The previous response {identity[:100]!r} does not exist.", param="previous_response_id"
        )


class ModelNotFound(GatewayError):
    """No model has the requested name or alias."""

    status, code, type = 404, "model_not_found", "invalid_request_error"

    def __init__(self, model: str, known: Sequence[str] = ()) -> None:
        """`known`: the names that the tenant may request instead."""
        listed = ", ".join(known[:MODELS_LISTED_MAX])
        more = f" and {len(known) - MODELS_LISTED_MAX} more" if len(known) > MODELS_LISTED_MAX else ""
        hint = f" You may use: {listed}{more}." if known else ""
        super().__init__(f"The model {model!r} does not exist.{hint}", param="model")


class MethodNotAllowed(GatewayError):
    """The path exists, but not for this HTTP method."""

    status, code, type = 405, "method_not_allowed", "invalid_request_error"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"This path allows only the methods {allowed}.")
        self.allowed = allowed

    def headers(self) -> dict[str, str]:
        """Return the header that lists the allowed methods (RFC 9110, 10.2.1)."""
        return {"allow": self.allowed}


class BodyTimeout(GatewayError):
    """The request body took too long to arrive."""

    status, code, type = 408, "body_timeout", "invalid_request_error"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request body did not arrive within {seconds:g} seconds.")


class PayloadTooLarge(GatewayError):
    """The request body is larger than the settings allow."""

    status, code, type = 413, "payload_too_large", "invalid_request_error"

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"The request body is larger than {bytes_max} bytes.")


class UnsupportedEncoding(GatewayError):
    """The request body is compressed in a way that the gateway does not support."""

    status, code, type = 415, "unsupported_encoding", "invalid_request_error"

    def __init__(self, encoding: str) -> None:
        super().__init__(
            f"The content encoding {encoding[:100]!r} is not supported here; send the body as it is."
        )


class TooManyFailures(GatewayError):
    """A client address has presented too many invalid API keys."""

    status, code, type = 429, "too_many_failures", "invalid_request_error"

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(
            "Too many incorrect API keys came from your address.", retry_after_seconds=retry_after_seconds
        )

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer, one of which tells SDKs not to retry."""
        return {**super().headers(), "x-should-retry": "false"}


class TooManyConnections(GatewayError):
    """A client address has too many open connections."""

    status, code, type = 429, "too_many_connections", "rate_limit_error"

    def __init__(self) -> None:
        super().__init__("Your address has too many connections open.", retry_after_seconds=1.0)


class RefusedByLimit(GatewayError):
    """A limit of the tenant refuses the request. The answer has the headers of all limits."""

    def __init__(self, refusal: Refusal, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message, retry_after_seconds=retry_after_seconds)
        self.refusal = refusal
        """The decision of the limit, for APIs that have rate-limit headers of their own."""

    def headers(self) -> dict[str, str]:
        """Return the state of all limits, and when to retry."""
        return {**openai_headers(self.refusal.limit_statuses, self.refusal), **super().headers()}


class QuotaExceeded(RefusedByLimit):
    """A limit refused the request for now; nothing was charged."""

    status, code, type = 429, "rate_limit_exceeded", "rate_limit_error"

    def __init__(self, refusal: Refusal) -> None:
        seconds = refusal.retry_after_seconds or 0.0
        super().__init__(
            refusal,
            f"The limit of {limit_in_words(refusal.limit)} of {scope_in_words(refusal.scope)} is used up. "
            f"Try again in {short_time(seconds)}.",
            retry_after_seconds=seconds,
        )


class BudgetExhausted(RefusedByLimit):
    """A budget refused the request; a retry is useless until the budget's window ends."""

    status, code, type = 429, "insufficient_quota", "insufficient_quota"

    def __init__(self, refusal: Refusal) -> None:
        seconds = refusal.retry_after_seconds or 0.0
        super().__init__(
            refusal,
            f"The budget of {limit_in_words(refusal.limit)} of {scope_in_words(refusal.scope)} does not suffice. "
            f"The next budget begins in {whole_time(seconds)}.",
            retry_after_seconds=seconds,
        )

    def headers(self) -> dict[str, str]:
        """Return the state of all limits, and that SDKs must not retry."""
        return {**super().headers(), "x-should-retry": "false"}


class RequestExceedsLimit(RefusedByLimit):
    """The request can never fit into one of its limits; nothing was charged."""

    status, code, type = 429, "request_exceeds_limit", "rate_limit_error"

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(
            refusal,
            f"The request needs more than the limit of {limit_in_words(refusal.limit)} of "
            f"{scope_in_words(refusal.scope)} ever allows.",
        )

    def headers(self) -> dict[str, str]:
        """Return the state of all limits, and that SDKs must not retry."""
        return {**super().headers(), "x-should-retry": "false"}


class IdempotencyKeyInUse(GatewayError):
    """Another request with the same `Idempotency-Key` is still running."""

    status, code, type = 409, "idempotency_key_in_use", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__(
            "A request with this Idempotency-Key is still being answered.", retry_after_seconds=1.0
        )


class IdempotencyKeyReused(GatewayError):
    """The `Idempotency-Key` belongs to a different request, or was used for too many attempts."""

    status, code, type = 422, "idempotency_key_reused", "invalid_request_error"

    def __init__(self, *, different: bool) -> None:
        super().__init__(
            "This Idempotency-Key was used for another request."
            if different
            else "This Idempotency-Key was used for too many attempts; use a new one."
        )

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer, one of which tells SDKs not to retry."""
        return {"x-should-retry": "false"}


class TenantQueueFull(GatewayError):
    """The tenant has as many requests in the waiting room, or prompts being encoded, as it may have.

    Raised by gateway/queueing/room_occupancy.py, for prompts by gateway/tokenization/encoder_threads.py, for
    media by gateway/media/media_fetch.py. In a full waiting room that is an even share: tenants below theirs
    get Overloaded (503), since they are not at fault.
    """

    status, code, type = 429, "too_many_waiting", "rate_limit_error"

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(
            "Too many requests of this tenant are waiting.", retry_after_seconds=retry_after_seconds
        )


class Overloaded(GatewayError):
    """The workers, the waiting room or the gateway's memory have no room for the request.

    Args:
        retry_after_seconds: When to try again.
        reported_by_workers: Whether all workers that could take the request answered that they
            are full; the workers of another model may still have room.
    """

    status, code, type = 503, "overloaded", "server_error"

    def __init__(self, retry_after_seconds: float, *, reported_by_workers: bool = False) -> None:
        super().__init__("The service is overloaded.", retry_after_seconds=retry_after_seconds)
        self.reported_by_workers = reported_by_workers


class WorkerRateLimited(Overloaded):
    """The only worker that could take the request answered that it has too many requests (429)."""

    status, code, type = 429, "rate_limited_by_worker", "rate_limit_error"

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__(retry_after_seconds, reported_by_workers=True)
        self.message = "The worker that serves this model has too many requests."


class AdmissionTimeout(GatewayError):
    """The request waited for a worker as long as the settings allow."""

    status, code, type = 503, "admission_timeout", "server_error"

    def __init__(self, seconds: float, retry_after_seconds: float) -> None:
        super().__init__(
            f"The request waited {seconds:g} seconds, and no worker had room for it.",
            retry_after_seconds=retry_after_seconds,
        )


class TargetMissed(GatewayError):
    """No first token can be expected within the TTFT target of a service class that rejects late requests."""

    status, code, type = 503, "target_missed", "server_error"

    def __init__(self, name: str, retry_after_seconds: float) -> None:
        super().__init__(
            f"The service class {name!r} cannot keep its target for the time to the first token at present.",
            retry_after_seconds=retry_after_seconds,
        )


class ClientTimeoutPassed(GatewayError):
    """The timeout that the client announced is over, or would be before a first token."""

    status, code, type = 504, "deadline_exceeded", "server_error"

    def __init__(self) -> None:
        super().__init__("The timeout that the request sets leaves too little time for an answer.")


class KeysUnavailable(GatewayError):
    """The store of API keys cannot be read now.

    The status is not 401, since clients would take that as the end of their key.
    """

    status, code, type = 503, "keys_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("API keys cannot be checked at present.", retry_after_seconds=1.0)


class ResponsesUnavailable(GatewayError):
    """The store of responses cannot be read now.

    The status is not 404, since that would mean that the response does not exist.
    """

    status, code, type = 503, "responses_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("Stored responses cannot be read at present.", retry_after_seconds=1.0)


class FilesUnavailable(GatewayError):
    """The store of files and batches cannot be reached now, or is full.

    The status is not 404, since that would mean that the file or batch does not exist.
    """

    status, code, type = 503, "files_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("Files and batches cannot be reached at present.", retry_after_seconds=1.0)


class FileInUse(GatewayError):
    """The file cannot be deleted while a batch reads it."""

    status, code, type = 409, "file_in_use", "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("An unfinished batch reads this file.")

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer, one of which tells SDKs not to retry."""
        return {"x-should-retry": "false"}


class StorageExceeded(GatewayError):
    """The tenant's files would take more bytes than the tenant may store."""

    status, code, type = 429, "storage_exceeded", "insufficient_quota"

    def __init__(self, bytes_max: int) -> None:
        super().__init__(
            f"The files of this tenant would take more than {bytes_max} bytes; delete some of them."
        )

    def headers(self) -> dict[str, str]:
        """Return the headers of the answer, one of which tells SDKs not to retry."""
        return {"x-should-retry": "false"}


class TooManyBatches(GatewayError):
    """The tenant has as many unfinished batches as it may have."""

    status, code, type = 429, "too_many_batches", "rate_limit_error"

    def __init__(self, unfinished_max: int) -> None:
        super().__init__(
            f"This tenant has {unfinished_max} unfinished batches, which is the most allowed; wait until one ends.",
            retry_after_seconds=60.0,
        )


class QuotasUnavailable(GatewayError):
    """Limits cannot be checked together with the other gateways now, and the tenant's plan requires that.

    See the setting `without_redis: closed`.
    """

    status, code, type = 503, "quotas_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("Limits cannot be checked at present.", retry_after_seconds=1.0)


class UsageUnavailable(GatewayError):
    """The store of usage records cannot be read now."""

    status, code, type = 503, "usage_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("Usage cannot be read at present.", retry_after_seconds=1.0)


class NoWorker(GatewayError):
    """No worker serves the requested model now."""

    status, code, type = 503, "no_worker", "server_error"

    def __init__(self, model: str) -> None:
        super().__init__(f"No worker serves the model {model!r} at present.", retry_after_seconds=1.0)


class ShuttingDown(GatewayError):
    """The gateway is shutting down and accepts no new requests."""

    status, code, type = 503, "shutting_down", "server_error"

    def __init__(self) -> None:
        super().__init__("This gateway is shutting down.", retry_after_seconds=1.0)


class CellUnavailable(GatewayError):
    """The cell that serves the tenant broke off the request before it answered."""

    status, code, type = 503, "cell_unavailable", "server_error"

    def __init__(self) -> None:
        super().__init__("The request was interrupted before it was answered.", retry_after_seconds=1.0)


class WorkerError(GatewayError):
    """Every attempt at a worker failed, or a worker's answer is malformed.

    `reported`: the error text of the last worker that failed, without addresses; empty if it sent none.
    """

    status, code, type = 502, "worker_error", "server_error"

    def __init__(self, reported: str = "") -> None:
        message = f"The worker failed on this request: {reported}"
        super().__init__(message if reported else "No worker could answer the request.")


class RefusedByWorker(GatewayError):
    """The worker found a mistake in the client's request; the answer has the worker's message and code.

    In metrics and traces the code is `refused_by_worker`, since the codes of workers are unbounded.
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
        """Return the fields of the error object, with the worker's own code."""
        return {**super().fields(), "code": self.worker_code}


class ContextExceeded(RefusedByWorker):
    """The worker refused a request whose prompt and answer exceed its context.

    Args:
        message: The worker's own words.
        param: The request field at fault, if the worker names one.
        prompt_tokens: Tokens of the prompt, as the worker counted them; None if it does not report them.
        output_tokens: The most tokens that the request allows for its answer; None if not reported.
        context_length: Tokens that prompt and answer may have together; None if the worker does not report it.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        context_length: int | None = None,
    ) -> None:
        super().__init__(
            PromptTooLong.status,
            message or "The request exceeds the context of the model.",
            param=param,
            code=PromptTooLong.code,
        )
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.context_length = context_length


class WorkerTimeout(GatewayError):
    """The worker sent nothing for too long."""

    status, code, type = 504, "worker_timeout", "server_error"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"No token came within {seconds:g} seconds.")


class StreamInterrupted(GatewayError):
    """The worker's answer ended before it was complete; a client that has read nothing yet gets a 502."""

    status, code, type = 502, "stream_interrupted", "server_error"

    def __init__(self) -> None:
        super().__init__("The answer was interrupted before it was complete.")


class InternalError(GatewayError):
    """The gateway itself failed; the log has the cause under the request's id."""

    status, code, type = 500, "internal_error", "server_error"

    def __init__(self, request_id: str) -> None:
        super().__init__(f"The gateway failed. Please report request {request_id}.")
