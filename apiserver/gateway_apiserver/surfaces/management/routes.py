"""Routes of `/api/v1/management` (contract §9)."""

from gateway_apiserver.admission.authorization import Access
from gateway_apiserver.responses import Response
from gateway_apiserver.routing import Call, Handler, RouteTable
from gateway_apiserver.surfaces.management.assignments import AssignmentRoutes
from gateway_apiserver.surfaces.management.guardrails import GuardrailRoutes
from gateway_apiserver.surfaces.management.keys import KeyRoutes
from gateway_apiserver.surfaces.management.members import MemberRoutes
from gateway_apiserver.surfaces.management.usage import UsageRoutes
from gateway_apiserver.surfaces.management.validation import ROOT
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import Forbidden


def add_management_routes(
    table: RouteTable,
    keys: KeyRoutes,
    guardrails: GuardrailRoutes,
    assignments: AssignmentRoutes,
    members: MemberRoutes,
    usage: UsageRoutes,
) -> None:
    """Add all of them; each counts in the rate of management calls."""

    def add(
        method: str,
        path: str,
        handler: Handler,
        *,
        creates: bool = False,
        act: Act = Act.GOVERN,
    ) -> None:
        access = Access(act, creates=creates, rate="management")
        table.add(method, f"{ROOT}/{path}", handler, "management", access)

    add("GET", "keys", keys.list_keys)
    add("POST", "keys", keys.create, creates=True)
    add("GET", "keys/{key_id}", keys.show_key)
    add("PATCH", "keys/{key_id}", keys.change)
    add("DELETE", "keys/{key_id}", keys.revoke)
    add("POST", "keys/{key_id}/rotate", keys.rotate)
    add("GET", "guardrails", guardrails.list_guardrails)
    add("POST", "guardrails", guardrails.create, creates=True)
    add("GET", "guardrails/{guardrail_id}", guardrails.show_guardrail)
    add("PATCH", "guardrails/{guardrail_id}", guardrails.change)
    add("DELETE", "guardrails/{guardrail_id}", guardrails.delete)
    add("GET", "guardrails/{guardrail_id}/assignments", assignments.list_assignments)
    add("POST", "guardrails/{guardrail_id}/assignments", assignments.assign)
    add("POST", "guardrails/{guardrail_id}/assignments/remove", assignments.remove)
    add("GET", "usage", usage.report)
    add("GET", "members", members.list_members, act=Act.READ_MEMBERS)
    # no key may, whatever its class: roles belong to the signed-in owner and admin (§9.2)
    add("PATCH", "members/{user_id}", _refuse, act=Act.APPOINT)


async def _refuse(_: Call) -> Response:
    raise Forbidden("No API key may do this.", code="insufficient_role")
