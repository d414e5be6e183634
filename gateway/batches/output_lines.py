"""The result lines of a batch, in the format of the API that the batch was created with.

          a row with a result                    a row without one, as the batch ended before
OpenAI    output_file, or error_file if failed   expired: error_file; else no line
Anthropic output_file                            output_file: canceled, expired, or why the batch failed
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


class OutputLines(Protocol):
    """Formats the results of rows as lines of the output files."""

    single_file: bool
    """Whether good and failed results are in one file."""

    def result_line(self, custom_id: str, exchange: RowExchange) -> tuple[bool, str]:
        """Return whether the row succeeded, and its line."""
        ...

    def missing_line(self, custom_id: str, status: str, errors: Sequence[Json]) -> str:
        """Return the line of a row without a result; `status` and `errors` are those that its batch ended with."""
        ...


class OpenAIOutputLines:
    """Result lines in the format of OpenAI's Batch API."""

    single_file = False

    def result_line(self, custom_id: str, exchange: RowExchange) -> tuple[bool, str]:
        """Return whether the row succeeded, and its line."""
        error = exchange.error
        if error is None and len(exchange.body) > BODY_BYTES_MAX:
            return False, self._line(custom_id, None, TOO_LARGE)
        status = error.status if error is not None else exchange.status
        response = {
            "status_code": status,
            "request_id": exchange.id,
            "body": _on_one_line(exchange.response_body),
        }
        return error is None, self._line(custom_id, response, None)

    def missing_line(self, custom_id: str, status: str, errors: Sequence[Json]) -> str:
        """Return the line of a row that had no time left."""
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


class MessageOutputLines:
    """Result lines in the format of Anthropic's Message Batches API.

    See https://platform.claude.com/docs/en/api/messages/batches/results
    """

    single_file = True

    def result_line(self, custom_id: str, exchange: RowExchange) -> tuple[bool, str]:
        """Return whether the row succeeded, and its line."""
        if exchange.error is not None:
            return False, self._line(custom_id, type="errored", error=_on_one_line(exchange.response_body))
        if len(exchange.body) > BODY_BYTES_MAX:
            return False, self._line(custom_id, type="errored", error=_error("api_error", TOO_LARGE[1]))
        return True, self._line(custom_id, type="succeeded", message=_on_one_line(exchange.response_body))

    def missing_line(self, custom_id: str, status: str, errors: Sequence[Json]) -> str:
        """Return the line of a row without a result."""
        ended = {CANCELLED: "canceled", EXPIRED: "expired"}.get(status)
        if ended is not None:
            return self._line(custom_id, type=ended)
        why = errors[0]["message"] if errors else "The batch has failed."
        kind = "permission_error" if why == KEY_ENDED else "api_error"
        return self._line(custom_id, type="errored", error=_error(kind, why))

    def _line(self, custom_id: str, **result: Any) -> str:
        return _encoded({"custom_id": custom_id, "result": result})


def output_lines_for(endpoint: str) -> OutputLines:
    """Return the format for batches with this endpoint."""
    return MessageOutputLines() if endpoint == MESSAGES else OpenAIOutputLines()


def _error(kind: str, message: str) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}


def _on_one_line(body: bytes) -> msgspec.Raw:
    """Replace line breaks by spaces: in JSON they stand only between values, where a worker may have put some."""
    return msgspec.Raw(body.replace(b"\n", b" ").replace(b"\r", b" "))


def _encoded(line: Json) -> str:
    return msgspec.json.encode(line).decode("utf-8", "replace")
