"""Routes of `/api/v1/management` (contract §9)."""

from gateway_apiserver.responses import Response
from gateway_apiserver.routing import Call, Docs, Handler, RouteTable
from gateway_apiserver.surfaces.management.assignments import AssignmentRoutes
from gateway_apiserver.surfaces.management.guardrails import GuardrailRoutes
from gateway_apiserver.surfaces.management.keys import KeyRoutes
from gateway_apiserver.surfaces.management.members import MemberRoutes
from gateway_apiserver.surfaces.management.replays import ROOT
from gateway_apiserver.surfaces.management.requests import (
    DeleteQuery,
    GuardrailCreate,
    GuardrailPatch,
    KeyCreate,
    KeyIds,
    KeyPatch,
    KeyQuery,
    ListQuery,
    Rotation,
)
from gateway_apiserver.surfaces.management.responses import (
    Assigned,
    Assignment,
    DeletedGuardrail,
    DeletedKey,
    Guardrail,
    Key,
    KeyWithSecret,
    Member,
    Unassigned,
)
from gateway_apiserver.surfaces.management.usage import REPORT, UsageQuery, UsageRoutes
from gateway_apiserver.surfaces.models import Page
from gateway_core.accounts.roles import Act
from gateway_core.admission.admission import Access
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
        docs: Docs,
        *,
        creates: bool = False,
        act: Act = Act.GOVERN,
    ) -> None:
        access = Access(act, creates=creates, rate="management")
        table.add(method, f"{ROOT}/{path}", handler, "management", access, docs=docs)

    one_key, one_guardrail = "keys/{key_id}", "guardrails/{guardrail_id}"
    assigned = one_guardrail + "/assignments"
    add(
        "GET",
        "keys",
        keys.list_keys,
        Docs(
            name="listKeys",
            summary="Standard keys",
            response=Page[Key],
            query=KeyQuery,
            also=(404,),
        ),
    )
    add(
        "POST",
        "keys",
        keys.create,
        Docs(
            name="createKey",
            summary="Make a standard key",
            response=KeyWithSecret,
            status=201,
            body=KeyCreate,
            makes="key",
            also=(409, 504),
        ),
        creates=True,
    )
    add("GET", one_key, keys.show_key, Docs(name="showKey", summary="One key", response=Key))
    add(
        "PATCH",
        one_key,
        keys.change,
        Docs(
            name="changeKey",
            summary="Change a key",
            response=Key,
            body=KeyPatch,
            also=(409, 504),
        ),
    )
    add(
        "DELETE",
        one_key,
        keys.revoke,
        Docs(
            name="revokeKey", summary="Revoke a key for good", response=DeletedKey, also=(400, 504)
        ),
    )
    add(
        "POST",
        one_key + "/rotate",
        keys.rotate,
        Docs(
            name="rotateKey",
            summary="Give a key a new secret",
            response=KeyWithSecret,
            body=Rotation,
            has_optional_body=True,
            makes="secret",
            also=(409, 504),
        ),
    )
    add(
        "GET",
        "guardrails",
        guardrails.list_guardrails,
        Docs(
            name="listGuardrails",
            summary="Guardrails",
            response=Page[Guardrail],
            query=ListQuery,
            also=(404,),
        ),
    )
    add(
        "POST",
        "guardrails",
        guardrails.create,
        Docs(
            name="createGuardrail",
            summary="Make a guardrail",
            response=Guardrail,
            status=201,
            body=GuardrailCreate,
            makes="guardrail",
            also=(409, 504),
        ),
        creates=True,
    )
    add(
        "GET",
        one_guardrail,
        guardrails.show_guardrail,
        Docs(name="showGuardrail", summary="One guardrail", response=Guardrail),
    )
    add(
        "PATCH",
        one_guardrail,
        guardrails.change,
        Docs(
            name="changeGuardrail",
            summary="Change a guardrail",
            response=Guardrail,
            body=GuardrailPatch,
            also=(409, 504),
        ),
    )
    add(
        "DELETE",
        one_guardrail,
        guardrails.delete,
        Docs(
            name="deleteGuardrail",
            summary="Delete a guardrail",
            response=DeletedGuardrail,
            query=DeleteQuery,
            also=(409,),
        ),
    )
    add(
        "GET",
        assigned,
        assignments.list_assignments,
        Docs(
            name="listAssignments",
            summary="Keys that a guardrail holds for",
            response=Page[Assignment],
            query=ListQuery,
        ),
    )
    for path, handler, name, summary, response in (
        (assigned, assignments.assign, "assignKeys", "Put keys under a guardrail", Assigned),
        (
            assigned + "/remove",
            assignments.remove,
            "unassignKeys",
            "Take keys out of a guardrail",
            Unassigned,
        ),
    ):
        docs = Docs(
            name=name,
            summary=summary,
            response=response,
            body=KeyIds,
            makes="change",
            also=(409, 504),
        )
        add("POST", path, handler, docs)
    add(
        "GET",
        "usage",
        usage.report,
        Docs(name="reportUsage", summary="What was charged", response=REPORT, query=UsageQuery),
    )
    add(
        "GET",
        "members",
        members.list_members,
        Docs(
            name="listMembers",
            summary="Who has a role in the account",
            response=Page[Member],
            query=ListQuery,
            also=(404,),
        ),
        act=Act.READ_MEMBERS,
    )
    # no key may, whatever its class: roles belong to the signed-in owner and admin (§9.2)
    add(
        "PATCH",
        "members/{user_id}",
        _refuse,
        Docs(name="changeMember", summary="Change a role: only signed in, with no key"),
        act=Act.APPOINT,
    )


async def _refuse(_: Call) -> Response:
    raise Forbidden("No API key may do this.", code="insufficient_role")
