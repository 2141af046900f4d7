"""Graceful shutdown: the process serves on after SIGTERM and closes each connection it answers.

A pod that ends leaves its Service, but each node learns of that at its own time, and open
connections stay with the pod. A response with `Connection: close` sends the client to another pod;
a connection that is closed without one breaks the request that is just being sent on it.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CLOSE = (b"connection", b"close")


class Drain:
    """Whether the process is shutting down; readiness and every response depend on it."""

    def __init__(self) -> None:
        self.begun = False

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """`app`, each of whose responses closes its connection once the drain has begun."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_last(message: Message) -> None:
                if self.begun and message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], _CLOSE]
                await send(message)

            await app(scope, receive, send_last)

        return serve
