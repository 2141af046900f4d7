"""The end of a process that is still reached: what it says to clients until everybody knows.

After SIGTERM a pod is taken out of its Service, which every node hears of at its own time, and
connections that stand stay with it anyway. So the process goes on serving for a while, and has each
connection closed with the answer that it gives: the client comes back to another pod. One that was
closed without a word would break the request that is just being sent on it.
"""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CLOSE = (b"connection", b"close")


class Drain:
    """Whether the process is leaving; told to readiness and to every answer."""

    def __init__(self) -> None:
        self.begun = False

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """`app`, each of whose answers closes its connection once the departure has begun."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            async def send_last(message: Message) -> None:
                if self.begun and message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], _CLOSE]
                await send(message)

            await app(scope, receive, send_last)

        return serve
