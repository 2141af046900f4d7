"""Whole answers, and how they are sent; used by the hot routes and for every error.

Plain ASGI: a poll is little else than these two messages.
"""

from dataclasses import dataclass

from starlette.types import Send

from gateway_apiserver.trace import Header

JSON: Header = (b"content-type", b"application/json")
NO_STORE: Header = (b"cache-control", b"no-store")


@dataclass(frozen=True, slots=True)
class Answer:
    """A status, a JSON body and the headers that come with it (without its length)."""

    status: int
    body: bytes
    headers: tuple[Header, ...] = (JSON, NO_STORE)


async def send_answer(send: Send, answer: Answer, *, with_body: bool = True) -> None:
    """Sends `answer`; without its body for a HEAD."""
    body = answer.body
    headers = [*answer.headers, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": body if with_body else b""})
