"""Accounts, keys and models that tests make with kubectl, as an admin would.

A test with an account of its own has the whole rate and its own money, and disturbs no other.
"""

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gateway_cli.cluster.errors import ClusterError
from gateway_cli.local.state import PEPPER, read_shared_secret
from gateway_core.api.ids import API_VERSION
from gateway_core.api.key import KeyClass, digest, mint_key
from tests.servers.world import Answer, Client, World, wait_for


@dataclass(frozen=True, slots=True)
class Key:
    """An API key: its object's name and what its owner was given."""

    name: str
    plaintext: str


def unique(prefix: str) -> str:
    """A name that no other test uses."""
    return f"{prefix}-{secrets.token_hex(4)}"


def describe(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """An object of the gateway's group."""
    return {
        "apiVersion": API_VERSION,
        "kind": f"Gateway{kind}",
        "metadata": {"name": name},
        "spec": dict(spec),
    }


def describe_account(name: str, **spec: Any) -> dict[str, Any]:
    """A GatewayAccount with 100 dollars."""
    return describe(
        "Account",
        name,
        {
            "displayName": f"Account {name}",
            "owner": {"name": "Olga Owner", "email": "olga@example.com"},
            "funds": {"paidMicros": 100_000_000},
            **spec,
        },
    )


def describe_token(world: World, key_class: KeyClass = "Standard") -> tuple[str, dict[str, Any]]:
    """A new key's plaintext, and its entry in `spec.tokens`."""
    minted = mint_key(key_class)
    world.secrets.add(minted.plaintext)
    pepper = read_shared_secret(world.config.secrets_directory, PEPPER)
    token = {
        "id": minted.id,
        "digest": digest(minted.plaintext, pepper),
        "pepperVersion": 1,
        "hint": minted.hint,
    }
    return minted.plaintext, token


def describe_key(
    world: World, account: str, key_class: KeyClass = "Standard", **spec: Any
) -> tuple[Key, dict[str, Any]]:
    plaintext, token = describe_token(world, key_class)
    name = unique("key")
    whole = {
        "accountName": account,
        "class": key_class,
        "displayName": "of a test",
        "tokens": [token],
        **spec,
    }
    return Key(name, plaintext), describe("Key", name, whole)


def make_key(world: World, account: str, key_class: KeyClass = "Standard", **spec: Any) -> Key:
    """Applies a key of an account."""
    key, obj = describe_key(world, account, key_class, **spec)
    world.apply(obj)
    return key


def describe_user(name: str, roles: Mapping[str, str], **spec: Any) -> dict[str, Any]:
    """A GatewayUser with these roles by account."""
    memberships = [{"accountName": account, "role": role} for account, role in roles.items()]
    whole = {
        "displayName": f"User {name}",
        "email": f"{name}@example.com",
        "memberships": memberships,
        **spec,
    }
    return describe("User", name, whole)


def describe_declared_key(account: str, secret: str, **spec: Any) -> dict[str, Any]:
    """A GatewayKey whose plaintext the operator is to write into a Secret."""
    whole = {"accountName": account, "displayName": "declared", "secretName": secret, **spec}
    return describe("Key", unique("key"), whole)


async def read_declared(world: World, secret: str, *, but: str = "") -> str:
    """The plaintext in the Secret, once it is there and another than `but`."""

    def read() -> str | None:
        try:
            encoded = world.read("secret", secret)["data"]["api-key"]
        except ClusterError:
            return None
        plaintext = base64.b64decode(encoded).decode()
        return None if plaintext == but else plaintext

    plaintext: str = await wait_for(read, seconds=15, what=f"a key in Secret {secret}")
    world.secrets.add(plaintext)
    return plaintext


def describe_model(world: World, name: str, **changes: Any) -> dict[str, Any]:
    """A GatewayModel like the first one, at a service of its own unless `changes` name one.

    A change to None leaves the field out.
    """
    spec = dict(world.read("gatewaymodel", world.env["GATEWAY_MODEL"])["spec"])
    spec |= {"modelId": name, "service": name, **changes}
    return describe("Model", name, {key: value for key, value in spec.items() if value is not None})


def describe_task(
    client: Client, name: str, *, changes: Mapping[str, Any] | None = None, **given: Any
) -> dict[str, Any]:
    """A GatewayTask as an admin writes it; `given` goes into its input, None leaves a field out.

    `changes` are those of the request beside the input.
    """
    values = {key: value for key, value in client.body(**given).items() if key != "model"}
    request = {
        "accountName": client.account,
        "service": client.world.env["GATEWAY_SERVICE"],
        "action": "reference_to_video",
        "modelId": client.world.env["GATEWAY_MODEL"],
        "input": json.dumps(values),
        **(changes or {}),
    }
    return describe("Task", name, {"request": request})


def describe_guardrail(name: str, account: str, *keys: Key, **spec: Any) -> dict[str, Any]:
    """A GatewayGuardrail of these keys."""
    whole = {"accountName": account, "displayName": name, "keyNames": [key.name for key in keys]}
    return describe("Guardrail", name, {**whole, **spec})


@asynccontextmanager
async def open_tenant(
    world: World, *, limit: Mapping[str, Any] | None = None, **spec: Any
) -> AsyncIterator[Client]:
    """A client of a new account, once the API knows both account and key.

    `limit` is the key's, and that of a guardrail of its own.
    """
    account = unique("acct")
    limits = {} if limit is None else {"limit": limit}
    key, key_object = describe_key(world, account, **limits)
    pool = describe_guardrail(unique("grd"), account, key, **limits)
    guardrails = [] if limit is None else [pool]
    world.apply(describe_account(account, **spec), key_object, *guardrails)
    async with world.client(key.plaintext, account) as client:
        # how soon a change is known is for tests to claim, not for what they begin with
        await wait_known(client, seconds=30)
        yield client


async def wait_known(
    client: Client, key: str = "", *, base: str | None = None, seconds: float = 5
) -> None:
    """Waits until the API takes the client's key, or another one."""
    await wait_status(client, 200, key=key, base=base, seconds=seconds)


async def wait_status(
    client: Client,
    status: int,
    path: str = "/api/v1/me",
    *,
    method: str = "GET",
    seconds: float = 5,
    **options: Any,
) -> Answer:
    """Asks until the answer has `status`: a change has to be known within 5 s (contract §0.10)."""
    last: list[Answer] = []

    async def ask() -> bool:
        last[:] = [await client.request(method, path, **options)]
        return last[0].status == status

    await wait_for(ask, seconds=seconds, what=f"{status} at {path}")
    return last[0]


async def ask_patiently(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """The answer to a keyed create, repeated as an SDK does while Kubernetes stalls.

    A stall has a 503 of its own; every other answer is given back.
    """

    async def find() -> Answer | None:
        answer = await ask()
        if answer.status != 503 or b"cannot be looked up now" not in answer.raw:
            return answer
        await asyncio.sleep(int(answer.headers["Retry-After"]))
        return None

    answer: Answer = await wait_for(find, seconds=20, what="the end of the stall")
    return answer


async def create_patiently(client: Client, key: str, **changes: Any) -> Answer:
    """`client.create` under an Idempotency-Key, see `ask_patiently`."""
    return await ask_patiently(lambda: client.create(idempotency_key=key, **changes))


async def read_balance(client: Client) -> dict[str, int]:
    """The five figures."""
    answer = await client.request("GET", "/api/v1/me/balance")
    assert answer.status == 200, answer.raw
    balance: dict[str, int] = answer.body
    return balance


def read_ready(world: World, kind: str, name: str) -> dict[str, Any] | None:
    """`Ready` of the object as it is now, None until it has been judged."""
    obj = world.read(kind, name)
    conditions = {c["type"]: c for c in obj.get("status", {}).get("conditions", [])}
    ready: dict[str, Any] | None = conditions.get("Ready")
    if ready is None or ready["observedGeneration"] != obj["metadata"]["generation"]:
        return None
    return ready


def list_objects(client: Client) -> list[dict[str, Any]]:
    """The GatewayTasks of the client's account."""
    selector = f"--field-selector=spec.request.accountName={client.account}"
    text = client.world.run.kubectl("get", "gatewaytasks", selector, "-o", "json")
    items: list[dict[str, Any]] = json.loads(text)["items"]
    return items
