"""The table of nouns: each kind with its columns, and the fields that may be set.

`gateway_cli.admin.objects` makes commands of a row. A module beside this one has only what follows
rules of its own, such as the secrets of keys.
"""

from typing import Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.admin import documents, naming
from gateway_cli.admin.fields import Create, Filter, Switch, show_limit
from gateway_cli.admin.objects import Noun
from gateway_cli.output import Document
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import ACCOUNT_LABEL, id_to_name
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel, GatewayPrompt
from gateway_core.api.oauth import GatewayGrant, GatewayOAuthClient
from gateway_core.api.price import Price
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.task import PENDING, GatewayTask, TaskPhase
from gateway_core.billing.price_text import describe_price

WITH_KUBECTL = "With kubectl credentials"
_Since = Annotated[
    str | None,
    typer.Option(
        parser=opt.parse_since,
        metavar="TIME",
        help="Only created since a time or a day, or within a period such as 15m.",
    ),
]
_ACCOUNT = opt.only_of(GatewayAccount, "--account", "-a")
_BUDGET = {
    "limit": show_limit,
    "window": lambda _: None,
    "allowed_models": lambda it: _show_entries(it["allowed_models"]),
    "allowed_providers": lambda it: _show_entries(it["allowed_providers"]),
}
_LIMITS = (
    "rpm=requests_per_minute cache=cache_seconds model=allowed_models provider=allowed_providers"
)
_CATALOG = "errors_%=error_percent> latency_ms>"


def _show_entries(entries: list[str] | None) -> Any:
    """Return the entries for people: an empty list, unlike an absent one, allows nothing."""
    return "none at all" if entries == [] else entries


def _show_route(route: Document) -> str:
    text = f"{route['provider']} ({route['upstream_model']}"
    if route["priority"] or route["weight"] != 1:
        text += f", priority {route['priority']}, weight {route['weight']}"
    return text + ")"


def _show_prices(prices: list[Document]) -> list[str] | None:
    """Return all prices with their begin; None for a single one, which is the price in force."""
    if len(prices) < 2:
        return None
    parsed = [Price.model_validate(price) for price in prices]
    return [
        f"{describe_price(each)} (from {each.effective_time or 'the start'})" for each in parsed
    ]


_OF_ACCOUNT = {"account": Filter("spec.accountName", _ACCOUNT)}
ACCOUNTS = Noun(
    kind=GatewayAccount,
    word="account",
    describe=documents.describe_account,
    columns="name display=display_name balance charged> rpm=requests_per_minute> ready reason",
    argument=opt.AccountName,
    show={
        "balance": lambda it: "unlimited" if it["unlimited"] else it["balance"],
        "owner": lambda it: f"{it['owner']['name']} <{it['owner']['email']}>",
    },
    settings="display_name owner_name=owner.name owner_email=owner.email unlimited suspended"
    " rpm=requests_per_minute storage_bytes",
    options={"paid": opt.PaidDollars},
    create=Create(
        "Create an account. Add money with `gatewayctl fund`, keys with `gatewayctl keys create`.",
        naming.name_account,
        required=("owner_email",),
        settings="paid=funds.paid_micros",
    ),
    switches={
        "suspend": Switch(
            {"suspended": True}, "suspended", "Refuse all keys of an account, until `resume`."
        ),
        "resume": Switch({"suspended": False}, "resumed", "Enable a suspended account's keys."),
    },
    delete=True,
    complete=documents.complete_account,
    ask=naming.ask_account,
    help={
        "list": "List all accounts, with their money as of a few seconds ago.",
        "describe": "Show an account: its money, its limits, and why it cannot be used.",
        "delete": """Delete an account and all that belongs to it, but its charges.

    It waits until it is gone. Its keys become invalid at once. Its charges move to the folder
    `closed` of the object store. To disable it temporarily, use
    `gatewayctl accounts suspend ACCOUNT`.
    """,
    },
)
USERS = Noun(
    kind=GatewayUser,
    word="user",
    describe=documents.describe_user,
    columns="name display=display_name email roles=memberships suspended ready reason",
    argument=opt.UserName,
    filters={
        "account": Filter(
            option=_ACCOUNT,
            keep=lambda user, name: name in user["memberships"],
        )
    },
    settings="email display_name",
    create=Create(
        "Create a user, optionally with a role in --account.",
        naming.name_user,
        required=("email",),
        given={"account": (opt.MemberOf, None), "role": (opt.Role, "member")},
    ),
    switches={
        "suspend": Switch(
            {"suspended": True},
            "suspended",
            "Refuse a user's sign-in and all keys that they created, until `resume`.",
        ),
        "resume": Switch({"suspended": False}, "resumed", "Enable the keys of a suspended user."),
    },
    delete=True,
    help={
        "delete": """Delete a user, and wait until it is gone.

    Keys that they created are revoked, and access that they gave to applications ends.
    """,
    },
)
KEYS = Noun(
    kind=GatewayKey,
    word="key",
    describe=documents.describe_key,
    columns="name account display=display_name hint state limit used> resets=resets_at ready"
    " reason",
    argument=opt.KeyName,
    show=_BUDGET,
    filters=_OF_ACCOUNT,
    settings=f"display_name {_LIMITS} expires=expiration_time",
    options={"model": opt.ModelEntries, "expires": opt.Expiration},
    switches={
        "disable": Switch({"disabled": True}, "disabled", "Refuse a key until `enable`."),
        "enable": Switch({"disabled": False}, "enabled", "Enable a disabled key."),
        "revoke": Switch(
            {"revoked": True},
            "revoked",
            "Revoke a key permanently. Its usage stays.",
            "Revoke key {} for good?",
        ),
    },
    complete=documents.complete_budget,
    help={
        "list": "List keys, of all accounts or one, with their use as of a few seconds ago.",
        "describe": "Show a key: its restrictions, the use of its limit, and its next reset.",
        "set": "Change the given fields. Effective within 5 seconds.",
    },
)
GUARDRAILS = Noun(
    kind=GatewayGuardrail,
    word="guardrail",
    describe=documents.describe_guardrail,
    columns="name account display=display_name keys=key_count> limit used> resets=resets_at"
    " ready reason",
    argument=opt.GuardrailName,
    show={**_BUDGET, "key_count": lambda it: len(it["keys"])},
    filters=_OF_ACCOUNT,
    settings=f"name=display_name description {_LIMITS} deny_model=denied_models"
    " deny_provider=denied_providers",
    options={"model": opt.ModelEntries},
    create=Create(
        "Create a guardrail of ACCOUNT; add keys with `assign`.",
        naming.name_guardrail,
        required=("name",),
        argument=opt.AccountName,
        given={"limit": (opt.LimitDollars, None), "window": (opt.LimitWindow, None)},
        labels=lambda account: {ACCOUNT_LABEL: account},
    ),
    complete=documents.complete_budget,
    help={
        "list": "List guardrails, of all accounts or one, with their use of a few seconds ago.",
        "set": "Change the given fields. Effective within 5 seconds.",
    },
)
MODELS = Noun(
    kind=GatewayModel,
    word="model",
    describe=documents.describe_model,
    columns=f"model service action ready reason health {_CATALOG} price_(USD)=price",
    argument=opt.ModelName,
    show={
        "routes": lambda it: [_show_route(route) for route in it["routes"]],
        "prices": lambda it: _show_prices(it["prices"]),
    },
    filters={
        "provider": Filter(
            option=opt.only_of(GatewayProvider),
            keep=lambda it, name: name in {route["provider"] for route in it["routes"]},
        ),
        "service": Filter("spec.service"),
        "action": Filter("spec.action"),
    },
    settings="disabled deprecated display_name",
    delete=True,
    find=naming.find_model,
)
PROVIDERS = Noun(
    kind=GatewayProvider,
    word="provider",
    describe=documents.describe_provider,
    columns=f"name type ready reason health calls/min=calls_per_minute> {_CATALOG} url",
    argument=opt.ProviderName,
    filters={"type": Filter("spec.type")},
    settings="max_concurrent_requests requests_per_second",
    delete=True,
)
PROMPTS = Noun(
    kind=GatewayPrompt,
    word="prompt",
    describe=documents.describe_spec(GatewayPrompt),
    columns="name title service action model=model_id category featured",
    argument=Annotated[str, opt.name_of(GatewayPrompt)],
    settings="title prompt service action model=model_id category tags featured",
    create=Create(
        "Create a prompt, an example for users.",
        required=("title", "prompt", "service", "action"),
    ),
    delete=True,
)
CLIENTS = Noun(
    kind=GatewayOAuthClient,
    word="client",
    describe=documents.describe_spec(GatewayOAuthClient),
    columns="name client=client_name redirects=redirect_uris authorized last_used=last_used_time",
    argument=Annotated[str, opt.name_of(GatewayOAuthClient, "CLIENT")],
    delete=True,
)
GRANTS = Noun(
    kind=GatewayGrant,
    word="grant",
    describe=documents.describe_spec(GatewayGrant),
    columns="name user=user_name account=account_name client=client_name host=redirect_host"
    " scopes last_used=last_used_time",
    argument=Annotated[str, opt.name_of(GatewayGrant)],
    filters={
        **_OF_ACCOUNT,
        "user": Filter("spec.userName", opt.only_of(GatewayUser)),
    },
    delete=True,
    help={"delete": "Delete a grant: the application's access ends at once."},
)
TASKS = Noun(
    kind=GatewayTask,
    word="task",
    describe=documents.describe_task,
    columns="name account model phase reason cost> callback=callback_state created=created_at",
    argument=opt.TaskName,
    filters={
        "account": Filter("spec.request.accountName", _ACCOUNT),
        "phase": Filter(
            "status.phase",
            Annotated[TaskPhase | None, typer.Option(help="Only in this phase.")],
            # one that the operator has not written to has no phase
            convert=lambda phase: None if phase == PENDING else phase,
            keep=lambda task, phase: task["phase"] == phase,
        ),
        "model": Filter("spec.request.modelId", opt.only_of(GatewayModel)),
        "provider": Filter("status.upstream.providerName", opt.only_of(GatewayProvider)),
        "key": Filter(
            option=opt.only_of(GatewayKey), keep=lambda task, key: task["key"] == id_to_name(key)
        ),
        "since": Filter(
            option=_Since, keep=lambda task, since: (task["created_at"] or "") >= since
        ),
    },
    limit=100,
    panel=WITH_KUBECTL,
    help={"list": "List tasks with objects, newest first: all open ones, and recently ended ones."},
)

models, prompts, clients, grants = (noun.make_app() for noun in (MODELS, PROMPTS, CLIENTS, GRANTS))
