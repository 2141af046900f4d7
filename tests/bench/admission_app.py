"""Admission of paid calls on a route that does nothing else: what an admission costs.

`/paid` lets each call in and holds money for it, `/free` is the same route without that. Run by the
stage `admission`, with the environment of an API process.
"""

import asyncio
from itertools import count

from starlette.types import Receive, Scope, Send

from gateway_apiserver.compose import configure_logging, open_api
from gateway_apiserver.failpoints import Failpoints
from gateway_apiserver.parts import ApiParts
from gateway_apiserver.settings import ApiSettings
from gateway_core.accounts.authentication import Authenticator, PolicyView
from gateway_core.admission.admission import Admission
from gateway_core.admission.intake import Intake
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.key import GatewayKey
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import Rebuilder
from gateway_core.kube.read_through import ReadThrough
from gateway_web.context import Drain, get_context
from gateway_web.middleware.bodies import read_json_body
from gateway_web.middleware.requests import RequestMiddleware
from gateway_web.responses import Response, send_response
from gateway_web.server import serve, serve_health

MICROS = 1000


class Routes:
    """Both routes, and `/readyz`."""

    def __init__(self, parts: ApiParts) -> None:
        kube = parts.kube
        self._parts = parts
        self._numbers = count()
        self._admission = Admission(
            Authenticator(
                ReadThrough(parts.tables.keys, kube, GatewayKey.plural),
                ReadThrough(parts.tables.accounts, kube, GatewayAccount.plural),
                ReadThrough(parts.tables.users, kube, GatewayUser.plural),
                parts.peppers,
            ),
            PolicyView(parts.tables.keys, parts.tables.guardrails, kube),
            RateLimiter(
                parts.counters,
                Rebuilder(kube, JournalStore(parts.store), parts.counters).rebuild,
            ),
            Failpoints(""),
            Intake(),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/readyz":
            ready = self._parts.tables.synced and self._parts.is_prepared()
            await send_response(send, Response(200 if ready else 503, b"{}"))
            return
        await read_json_body(scope["headers"], receive, 1024)
        if scope["path"] == "/paid":
            context = get_context(scope)
            payer = await self._admission.authenticate(scope["headers"], context)
            hold = payer.make_hold(f"task-{next(self._numbers)}", MICROS)
            await self._admission.reserve(payer, context, hold)
        await send_response(send, Response(202, b"{}"))


async def main() -> None:
    """Serves until a signal, as the API process does."""
    settings = ApiSettings()
    configure_logging("warning", settings.log_format)
    async with open_api(settings.model_copy(update={"log_level": "warning"})) as parts:
        app = RequestMiddleware(Routes(parts))
        async with serve_health(app, settings.health_host, settings.health_port):
            await serve(app, settings.api_host, settings.api_port, Drain(), 0)


if __name__ == "__main__":
    asyncio.run(main())
