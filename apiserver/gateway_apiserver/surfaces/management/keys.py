"""`/keys`: standard keys are made, shown, changed, rotated and revoked (contract §9)."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from gateway_apiserver.responses import Response, to_json
from gateway_apiserver.routing import Call
from gateway_apiserver.surfaces.bodies import read_idempotency_key
from gateway_apiserver.surfaces.management.budgets import BudgetReader, BudgetView, view_unused
from gateway_apiserver.surfaces.management.quotas import KeyQuota
from gateway_apiserver.surfaces.management.replays import (
    Intent,
    RemovedObjects,
    check_made,
    check_others,
    find_note,
    make_intent,
    note,
)
from gateway_apiserver.surfaces.management.requests import KeyCreate, KeyPatch, KeyQuery, Rotation
from gateway_apiserver.surfaces.management.responses import (
    DeletedKey,
    Key,
    KeyWithSecret,
    render_key,
    tell_status,
)
from gateway_apiserver.surfaces.management.specs import write_patch, write_spec
from gateway_apiserver.surfaces.validation import read_body, read_query
from gateway_core.accounts.key_use import KeyUse
from gateway_core.accounts.records import UserRecord
from gateway_core.api.errors import Conflict
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    FINGERPRINT_ANNOTATION,
    FIRST_HINT_ANNOTATION,
    REQUEST_ID_ANNOTATION,
    REVOKED_AT_ANNOTATION,
    SEQUENCE_ANNOTATION,
    IdMint,
    id_to_name,
)
from gateway_core.api.key import KEY_PREFIX, GatewayKey, MintedKey, digest, mint_key
from gateway_core.api.limits import subject_of_key
from gateway_core.api.resource import Object, skeleton
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import find_position, take_page, wrap_page
from gateway_core.kube.repository import GUARDRAILS, KEYS, Repository, unknown

_DEFAULTS: Mapping[str, Any] = {"disabled": False, "metadata": {}}


class KeyRoutes:
    """The handlers; their routes have authorized the caller."""

    def __init__(
        self,
        repository: Repository,
        removed: RemovedObjects,
        users: Cache[UserRecord],
        uses: KeyUse,
        budgets: BudgetReader,
        quota: KeyQuota,
        mint: IdMint,
        peppers: Mapping[int, bytes],
    ) -> None:
        self._repository = repository
        self._removed = removed
        self._users = users
        self._uses = uses
        self._budgets = budgets
        self._quota = quota
        self._mint = mint
        self._pepper_version = max(peppers)
        self._pepper = peppers[self._pepper_version]

    async def create(self, call: Call) -> Response:
        """A new key, with its secret this once."""
        body = await read_body(call, KeyCreate)
        idempotency_key = read_idempotency_key(call.headers)
        values = body.model_dump(exclude_none=True)
        spec = write_spec(values)
        intent = None
        wire_id = self._mint.mint_random(KEY_PREFIX, call.account)
        if idempotency_key is not None:
            # what is left out is the same as what it then is (contract §2.2)
            intent = make_intent(call, idempotency_key, {**_DEFAULTS, **values})
            wire_id = self._mint.mint_keyed(
                KEY_PREFIX, call.account, "POST", "keys", idempotency_key
            )
            name = id_to_name(wire_id)
            found = await self._repository.look_up(KEYS, name)
            found = found or await self._removed.find(KEYS, call.account, name)
            if found is not None:
                return self._replay(found, intent, spec)
        self._quota.check_room(call.account)
        minted = mint_key()
        obj = await self._compose(call, id_to_name(wire_id), spec, minted, intent)
        stands, is_new = await self._repository.create(KEYS, obj)
        if not is_new and intent is not None:
            return self._replay(stands, intent, spec)
        return to_json(_add_secret(self._render_new(stands, spec), minted.plaintext), 201)

    async def list_keys(self, call: Call) -> Response:
        """A page of the account's keys, revoked ones among them."""
        query = read_query(KeyQuery, call.query)
        listing = await self._repository.list_all(KEYS, call.account)
        after = None
        if query.after is not None:
            name = self._repository.check_id(KEYS, call.account, query.after)
            cursor = None if name is None else listing.objects.get(name)
            if cursor is None and name is not None:
                cursor = await self._removed.find(KEYS, call.account, name)
            if cursor is None:
                raise unknown(KEYS)
            after = find_position(cursor)
        now, part = CLOCK.now(), (query.name_contains or "").casefold()
        chosen = [
            obj
            for obj in listing.objects.values()
            if query.status in (None, tell_status(obj["spec"], now))
            and part in obj["spec"]["displayName"].casefold()
        ]
        page, more = take_page(
            chosen, find_position, after=after, limit=query.limit, order=query.order
        )
        names = [obj["metadata"]["name"] for obj in page]
        whole = await self._repository.show_each(KEYS, call.account, names, lambda obj: obj)
        shown = await self._render_all(call.account, whole)
        return to_json(wrap_page([key.model_dump(by_alias=True) for key in shown], more))

    async def show_key(self, call: Call) -> Response:
        """One key."""
        obj = await self._repository.find(KEYS, call.account, call.wire_id)
        return to_json(await self._render(obj))

    async def change(self, call: Call) -> Response:
        """A key after a merge patch."""
        body = await read_body(call, KeyPatch)
        values = body.model_dump(exclude_unset=True)

        def decide(obj: Object) -> Mapping[str, Any] | None:
            _check_open(obj)
            patch = write_patch(obj["spec"], values)
            return {"spec": patch} if patch else None

        changed = await self._repository.change(KEYS, call.account, call.wire_id, decide)
        return to_json(await self._render(changed))

    async def rotate(self, call: Call) -> Response:
        """The key with a new secret; the old one ends now, or after the overlap."""
        body = await read_body(call, Rotation, optional=True)
        idempotency_key = read_idempotency_key(call.headers)
        intent = None
        if idempotency_key is not None:
            values = {"id": call.wire_id, **body.model_dump()}
            intent = make_intent(call, idempotency_key, values)
            listing = await self._repository.list_all(KEYS, call.account)
            check_others(listing.objects.values(), id_to_name(call.wire_id), intent)
        minted = mint_key()
        token = self._describe_token(minted)

        def decide(obj: Object) -> Mapping[str, Any] | None:
            tokens = obj["spec"].get("tokens") or []
            if any(known["id"] == minted.id for known in tokens):
                return None
            if intent is not None and find_note(obj, intent):
                return None
            _check_open(obj)
            if not tokens:
                raise Conflict(
                    "The secret of this key is kept in the cluster: raise spec.rotations of"
                    f" GatewayKey {obj['metadata']['name']} there."
                )
            left = _retire(tokens, body.overlap_seconds)
            return {
                "metadata": {"annotations": note(obj, intent)},
                "spec": {"tokens": [token, *left]},
            }

        changed = await self._repository.change(KEYS, call.account, call.wire_id, decide)
        is_ours = any(known["id"] == minted.id for known in changed["spec"].get("tokens") or ())
        key = _add_secret(await self._render(changed), minted.plaintext if is_ours else None)
        return to_json(key, replayed=not is_ours)

    async def revoke(self, call: Call) -> Response:
        """That the key opens nothing any more, for good; the same however often it is asked."""
        noted = CLOCK.now().strftime("%Y-%m-%dT%H:%M:%SZ")

        def decide(obj: Object) -> Mapping[str, Any] | None:
            if obj["spec"].get("revoked"):
                return None
            annotations = {REVOKED_AT_ANNOTATION: noted}
            return {"metadata": {"annotations": annotations}, "spec": {"revoked": True}}

        await self._repository.change(KEYS, call.account, call.wire_id, decide)
        return to_json(DeletedKey(id=call.wire_id))

    def _describe_token(self, minted: MintedKey) -> dict[str, Any]:
        return {
            "id": minted.id,
            "digest": digest(minted.plaintext, self._pepper),
            "pepperVersion": self._pepper_version,
            "hint": minted.hint,
        }

    async def _compose(
        self,
        call: Call,
        name: str,
        spec: Mapping[str, Any],
        minted: MintedKey,
        intent: Intent | None,
    ) -> Object:
        annotations = {
            REQUEST_ID_ANNOTATION: call.context.request_id,
            SEQUENCE_ANNOTATION: await self._repository.read_version(KEYS),
        }
        if intent is not None:
            annotations[FINGERPRINT_ANNOTATION] = intent.input
            annotations[FIRST_HINT_ANNOTATION] = minted.hint
        labels = {ACCOUNT_LABEL: call.account}
        creator = call.caller.key.creator
        return {
            **skeleton(GatewayKey, name, labels=labels, annotations=annotations),
            "spec": {
                "accountName": call.account,
                "class": "Standard",
                **({"createdBy": creator} if creator is not None else {}),
                "tokens": [self._describe_token(minted)],
                **spec,
            },
        }

    def _replay(self, obj: Object, intent: Intent, spec: Mapping[str, Any]) -> Response:
        """The response of the call that made it, without the secret. Raises KeyReused."""
        check_made(obj, intent)
        return to_json(_add_secret(self._render_new(obj, spec), None), 201, replayed=True)

    def _render_new(self, obj: Object, spec: Mapping[str, Any]) -> Key:
        """The key as it was made of `spec`."""
        meta = obj["metadata"]
        hint = (meta.get("annotations") or {}).get(FIRST_HINT_ANNOTATION)
        tokens = [{"hint": hint}] if hint else obj["spec"]["tokens"]
        made = datetime.fromisoformat(meta["creationTimestamp"])
        first = {
            "metadata": {"name": meta["name"], "creationTimestamp": meta["creationTimestamp"]},
            "spec": {**spec, "accountName": obj["spec"]["accountName"], "tokens": tokens},
        }
        return render_key(
            first,
            now=made,
            creator=self._find_creator(obj),
            guardrails=(),
            budget=view_unused(spec, made),
        )

    async def _render(self, obj: Object) -> Key:
        return (await self._render_all(obj["spec"]["accountName"], [obj]))[0]

    async def _render_all(self, account: str, objects: Sequence[Object]) -> list[Key]:
        if not objects:
            return []
        guardrails = (await self._repository.list_all(GUARDRAILS, account)).objects
        order = sorted(guardrails.values(), key=find_position)
        subjects = {subject_of_key(obj["metadata"]["name"]): obj for obj in objects}
        budgets: Mapping[str, BudgetView] = await self._budgets.read(account, subjects)
        used = await self._uses.find(account, [obj["metadata"]["name"] for obj in objects])
        now = CLOCK.now()
        return [
            render_key(
                obj,
                now=now,
                creator=self._find_creator(obj),
                guardrails=[
                    guardrail["metadata"]["name"]
                    for guardrail in order
                    if obj["metadata"]["name"] in (guardrail["spec"].get("keyNames") or ())
                ],
                budget=budgets[subject],
                used=used.get(obj["metadata"]["name"]),
            )
            for subject, obj in subjects.items()
        ]

    def _find_creator(self, obj: Object) -> UserRecord | None:
        name = obj["spec"].get("createdBy")
        return None if name is None else self._users.get(name)


def _check_open(obj: Object) -> None:
    if obj["spec"].get("revoked"):
        raise Conflict("The key is revoked.")


def _retire(tokens: Sequence[Mapping[str, Any]], seconds: int) -> list[Mapping[str, Any]]:
    """What is left of a key's tokens beside a new one: the newest, for the overlap."""
    if not seconds:
        return []
    end = (CLOCK.now() + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    newest = next((token for token in tokens if "expirationTime" not in token), tokens[0])
    known = newest.get("expirationTime")
    if known and datetime.fromisoformat(known) < datetime.fromisoformat(end):
        end = known
    return [{**newest, "expirationTime": end}]


def _add_secret(key: Key, secret: str | None) -> KeyWithSecret:
    return KeyWithSecret(**key.model_dump(by_alias=True), secret=secret)
