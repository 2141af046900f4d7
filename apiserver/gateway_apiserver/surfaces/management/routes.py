"""Which handler a path and a method lead to, and who may go there.

Plain ASGI beside the task routes, so that the checks come in the contract's order (§0.9): route and
method, maintenance, credential, its class and role, the rate of §12.1a; all else is the handlers'.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from gateway_apiserver.admission.authentication import Authenticator
from gateway_apiserver.admission.free_rates import FreeRateLimiter
from gateway_apiserver.admission.intake import Intake
from gateway_apiserver.context import get_context
from gateway_apiserver.responses import Answer, send_answer
from gateway_apiserver.surfaces.management.assignments import AssignmentRoutes
from gateway_apiserver.surfaces.management.calls import ROOT, Call
from gateway_apiserver.surfaces.management.guardrails import GuardrailRoutes
from gateway_apiserver.surfaces.management.keys import KeyRoutes
from gateway_apiserver.surfaces.management.members import MemberRoutes
from gateway_apiserver.surfaces.management.usage import UsageRoutes
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import Forbidden, MethodNotAllowed, NotFound

Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What is done, whether it makes something, and what one has to be allowed for it."""

    handler: Handler
    creates: bool = False
    act: Act = Act.GOVERN


class ManagementRoutes:
    """Everything below `/api/v1/management`."""

    def __init__(
        self,
        authenticator: Authenticator,
        rates: FreeRateLimiter,
        keys: KeyRoutes,
        guardrails: GuardrailRoutes,
        assignments: AssignmentRoutes,
        members: MemberRoutes,
        usage: UsageRoutes,
        intake: Intake,
    ) -> None:
        self._authenticator = authenticator
        self._rates = rates
        self._intake = intake
        self._endpoints: Mapping[str, Mapping[str, Endpoint]] = {
            "keys": {
                "GET": Endpoint(keys.list_keys),
                "POST": Endpoint(keys.create, creates=True),
            },
            "keys/*": {
                "GET": Endpoint(keys.show_key),
                "PATCH": Endpoint(keys.change),
                "DELETE": Endpoint(keys.revoke),
            },
            "keys/*/rotate": {"POST": Endpoint(keys.rotate)},
            "guardrails": {
                "GET": Endpoint(guardrails.list_guardrails),
                "POST": Endpoint(guardrails.create, creates=True),
            },
            "guardrails/*": {
                "GET": Endpoint(guardrails.show_guardrail),
                "PATCH": Endpoint(guardrails.change),
                "DELETE": Endpoint(guardrails.delete),
            },
            "guardrails/*/assignments": {
                "GET": Endpoint(assignments.list_assignments),
                "POST": Endpoint(assignments.assign),
            },
            "guardrails/*/assignments/remove": {"POST": Endpoint(assignments.remove)},
            "usage": {"GET": Endpoint(usage.report)},
            "members": {"GET": Endpoint(members.list_members, act=Act.READ_MEMBERS)},
            # no key may, whatever its class: this is the signed-in owner's and admin's (§9.2)
            "members/*": {"PATCH": Endpoint(_refuse, act=Act.APPOINT)},
        }

    def takes(self, path: str) -> bool:
        """Whether this path is answered here."""
        return path == ROOT or path.startswith(ROOT + "/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        template, wire_id = _read_path(scope["path"])
        methods = self._endpoints.get(template)
        if methods is None:
            raise NotFound("Not found.")
        is_head = scope["method"] == "HEAD"
        endpoint = methods.get("GET" if is_head else scope["method"])
        if endpoint is None:
            allowed = {*methods, "HEAD"} if "GET" in methods else set(methods)
            raise MethodNotAllowed(", ".join(sorted(allowed)))
        trace = get_context(scope)
        trace.route, trace.template = "management", f"{ROOT}/{template.replace('*', '{id}')}"
        if endpoint.creates:
            self._intake.check()
        caller = await self._authenticator.authenticate(scope["headers"], endpoint.act)
        trace.account = caller.account.name
        await self._rates.count(caller.account.name, "management")
        call = Call(
            caller=caller,
            template=template,
            wire_id=wire_id,
            query=scope["query_string"],
            headers=scope["headers"],
            receive=receive,
            request_id=trace.request_id,
        )
        answer = await endpoint.handler(call)
        await send_answer(send, answer, with_body=not is_head)


def _read_path(path: str) -> tuple[str, str]:
    """The template of a path, and the id in it."""
    parts = path.removeprefix(ROOT + "/").split("/")
    wire_id = parts[1] if len(parts) > 1 else ""
    if wire_id:
        parts[1] = "*"
    return "/".join(parts), wire_id


async def _refuse(_: Call) -> Answer:
    raise Forbidden("No API key may do this.", code="insufficient_role")
