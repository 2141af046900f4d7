"""Names and first fields of objects that commands create, find and delete."""

from gateway_cli.admin.fields import Given, Patch, make_limit
from gateway_cli.admin.tokens import name_declared
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import AlreadyThere, NotThere
from gateway_cli.cluster.gateways import require_gateway
from gateway_cli.output import count
from gateway_core.api.account import GatewayAccount
from gateway_core.api.guardrail import GUARDRAIL_PREFIX, GatewayGuardrail
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel
from gateway_core.providers.suggestions import find_nearest

MAX_SHOWN = 20
"""Largest number of models that an error names; those nearest to the wanted one are first."""


async def find_model(cluster: Cluster, text: str) -> str:
    """Return the object's name of a modelId or a name. NotThere, with the nearest names first."""
    models = await cluster.list_all(GatewayModel)
    names = {obj["metadata"]["name"]: obj["metadata"]["name"] for obj in models}
    names |= {obj["spec"]["modelId"]: obj["metadata"]["name"] for obj in models}
    if text not in names:
        if not models:
            await require_gateway(cluster)
        known = sorted(obj["spec"]["modelId"] for obj in models)
        near = find_nearest(text, known)
        others = [model for model in known if model not in near]
        shown = ", ".join([*near, *others][:MAX_SHOWN]) or "none"
        raise NotThere(f"there is no model {text}; there are {shown}")
    return str(names[text])


async def name_account(_: Cluster, name: str, spec: Patch, given: Given) -> str:
    """Complete the spec of a new account."""
    spec.setdefault("displayName", name)
    spec["owner"].setdefault("name", given["owner_email"].partition("@")[0])
    return name


async def name_user(cluster: Cluster, name: str, spec: Patch, given: Given) -> str:
    """Complete the spec of a new user. NotThere if the account does not exist."""
    spec.setdefault("displayName", name)
    if given["account"]:
        await cluster.get(GatewayAccount, given["account"])
        spec["memberships"] = [{"accountName": given["account"], "role": given["role"]}]
    return name


async def name_guardrail(cluster: Cluster, account: str, spec: Patch, given: Given) -> str:
    """Name a new guardrail. AlreadyThere if the account has another one of that display name."""
    spec |= {"accountName": account, "limit": make_limit(given["limit"], given["window"])}
    await cluster.get(GatewayAccount, account)
    for other in await cluster.list_all(GatewayGuardrail, **{"spec.accountName": account}):
        if other["spec"]["displayName"] == given["name"]:
            raise AlreadyThere(
                f"account {account} has a guardrail called {given['name']}:"
                f" {other['metadata']['name']}"
            )
    return name_declared(given["name"], GUARDRAIL_PREFIX)


async def ask_account(cluster: Cluster, name: str) -> str:
    """Return the question before an account is deleted, with the number of usable keys."""
    keys = await cluster.list_all(GatewayKey, **{"spec.accountName": name})
    usable = sum(not key["spec"].get("revoked") for key in keys)
    verb = "is" if usable == 1 else "are"
    return f"Delete account {name}, which has {count(usable, 'key')} that {verb} not revoked?"
