"""The Expect header (RFC 9110, 10.1.1): a client may wait for `100 Continue` before it sends its body.

The gateway sends `100 Continue` only when it reads the body, after it has checked the key and the length, so that a
refused request never costs an upload.
"""

from aiohttp import web

_ASKED = web.RequestKey("radixgate body asked for", bool)


async def defer_expect(http: web.Request) -> None:
    """Send no answer yet; `ask_for_body` sends it later.

    By default aiohttp would request the body at once, and quote other values of the header in an answer of its own.
    """


async def ask_for_body(http: web.Request) -> None:
    """Send `100 Continue` once to a client that waits for it; other values of Expect are ignored."""
    if http.headers.get("expect", "").lower() == "100-continue" and _ASKED not in http:
        http[_ASKED] = True
        await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # These bytes are not part of the answer.
        http.writer.output_size = 0
