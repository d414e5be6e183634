"""The Expect header (RFC 9110, 10.1.1): a client that waits for `100 Continue` before it sends its body.

It is told to send the body only when the body is read: after the key and the length have been checked, so that a
refused request never costs an upload.
"""

from aiohttp import web

_ASKED = web.RequestKey("radixgate body asked for", bool)


async def defer_expect(http: web.Request) -> None:
    """Answer nothing before the request is looked at; `ask_for_body` answers.

    aiohttp itself would ask for the body at once, and quote other values of the header in an answer of its own.
    """


async def ask_for_body(http: web.Request) -> None:
    """Tell a client that waits for it to send the body; other values of Expect are ignored."""
    if http.headers.get("Expect", "").lower() == "100-continue" and _ASKED not in http:
        http[_ASKED] = True
        await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # These bytes are not part of the answer.
        http.writer.output_size = 0
