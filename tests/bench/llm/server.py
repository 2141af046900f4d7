"""What the pass-through applications of the stage llm share: the server, and the ASGI messages."""

import uvicorn
from starlette.types import ASGIApp, Receive, Send


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request."""
    message = await receive()
    body: bytes = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    return body


async def start(send: Send, status: int, content_type: bytes) -> None:
    """Begin a response; uvicorn sends the body in chunks."""
    headers = [(b"content-type", content_type)]
    await send({"type": "http.response.start", "status": status, "headers": headers})


def run(app: ASGIApp, port: int) -> None:
    """Serve on loopback, on the event loop and with the parser that the API process uses."""
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        loop="asyncio",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
