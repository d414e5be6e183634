"""A line for each row of a batch, in the shape of the API that the batch came by.

          a result, good or not                  none, as the batch was ended before
OpenAI    output_file, or error_file             expired: error_file; else nothing
Anthropic output_file, all of them               output_file: canceled, expired, or why the batch failed
"""

import secrets
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from gateway.batches.row_exchange import RowExchange
from gateway.database.batch_store import CANCELLED, EXPIRED
from gateway.web.anthropic.batch_body import ENDPOINT as MESSAGES

BODY_BYTES_MAX = 32 * 1024 * 1024
TOO_LARGE = ("answer_too_large", f"The answer has more than {BODY_BYTES_MAX} bytes.")
NO_TIME = ("batch_expired", "This request could not be executed before the completion window expired.")
FILE_LOST = ("file_not_found", "The input file is not there any more.")
KEY_ENDED = "The key that made this batch may not be used any more."

Json = dict[str, Any]


class Lines(Protocol):
    """`together`: is there one file, of rows that went well and of those that did not?"""

    together: bool

    def answered(self, custom_id: str, exchange: RowExchange) -> tuple[bool, str]:
        """Whether it went well, and the line for it."""
        ...

    def unanswered(self, custom_id: str, status: str, errors: Sequence[Json]) -> str:
        """The line of a row that has no result. `status`, `errors`: how its batch ended."""
        ...


class OpenAILines:
    """See Lines."""

    together = False

    def answered(self, custom_id: str, exchange: RowExchange) -> tuple[bool, str]:
        error = exchange.error
        if error is None and len(exchange.body) > BODY_BYTES_MAX:
            return False, self._line(custom_id, None, TOO_LARGE)
        status = error.status if error is not None else exchange.status
        response = {"status_code": status, "request_id": exchange.id, "body": _on_one_line(exchange.said)}
        return error is None, self._line(custom_id, response, None)

    def unanswered(self, custom_id: str, status: str, errors: Sequence[Json]) -> str:
        return self._line(custom_id, None, NO_TIME)

    def _line(self, custom_id: str, response: Json | None, error: tuple[str, str] | None) -> str:
        return _encoded(
            {
                "id": f"batch_req_{secrets.token_hex(16)}",
                "custom_id": custom_id,
                "response": response,
                "error": {"code": error[0], "message": error[1]} if error is not None else None,
            }
        )


class MessageLines:
    """See Lines. Shapes: https://platform.claude.com/docs/en/api/messages/batches/results"""

    together = True

    def answered(self, custom_id: str, exchange: RowExchange) -> tuple[bool, str]:
        if exchange.error is not None:
            return False, self._line(custom_id, type="errored", error=_on_one_line(exchange.said))
        if len(exchange.body) > BODY_BYTES_MAX:
            return False, self._line(custom_id, type="errored", error=_error("api_error", TOO_LARGE[1]))
        return True, self._line(custom_id, type="succeeded", message=_on_one_line(exchange.said))

    def unanswered(self, custom_id: str, status: str, errors: Sequence[Json]) -> str:
        ended = {CANCELLED: "canceled", EXPIRED: "expired"}.get(status)
        if ended is not None:
            return self._line(custom_id, type=ended)
        why = errors[0]["message"] if errors else "The batch has failed."
        kind = "permission_error" if why == KEY_ENDED else "api_error"
        return self._line(custom_id, type="errored", error=_error(kind, why))

    def _line(self, custom_id: str, **result: Any) -> str:
        return _encoded({"custom_id": custom_id, "result": result})


def lines_of(endpoint: str) -> Lines:
    """Of the batches that ask this."""
    return MessageLines() if endpoint == MESSAGES else OpenAILines()


def _error(kind: str, message: str) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def _on_one_line(body: bytes) -> msgspec.Raw:
    """In JSON line breaks stand between values only: a worker may have laid them out for readers."""
    return msgspec.Raw(body.replace(b"\n", b" ").replace(b"\r", b" "))


def _encoded(line: Json) -> str:
    return msgspec.json.encode(line).decode("utf-8", "replace")
