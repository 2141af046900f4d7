"""`/keys`: standard keys are created, shown, changed, rotated and revoked (contract §9)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from gateway_apiserver.access import Caller
from gateway_apiserver.surfaces.management.changes import record_change
from gateway_apiserver.surfaces.management.objects import (
    Creation,
    ManagedObjects,
    check_made,
    check_others,
    find_note,
    make_intent,
    note,
)
from gateway_apiserver.surfaces.management.requests import (
    KeyCreate,
    KeyPatch,
    KeyQuery,
    Rotation,
    write_patch,
    write_spec,
)
from gateway_apiserver.surfaces.management.responses import (
    BudgetReader,
    DeletedKey,
    Key,
    KeyWithSecret,
    find_status,
    render_key,
    view_unused,
)
from gateway_apiserver.surfaces.models import Page
from gateway_core.accounts.authentication import Principal
from gateway_core.accounts.key_use import KeyUse
from gateway_core.accounts.records import KeyRecord, UserRecord
from gateway_core.api.errors import Conflict, KeyReused, Unavailable
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    FIRST_HINT_ANNOTATION,
    REMAINS_FINALIZER,
    REVOKED_AT_ANNOTATION,
    SEQUENCE_ANNOTATION,
    id_to_name,
)
from gateway_core.api.key import MOST_REVOKED, GatewayKey, MintedKey, digest, mint_key
from gateway_core.api.limits import subject_of_key
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.times import format_time
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.informer import Cache
from gateway_core.kube.kinds import GUARDRAILS, KEYS, Kind
from gateway_core.kube.lists import find_position
from gateway_core.kube.repository import Repository, unknown

_DEFAULTS: Mapping[str, Any] = {"disabled": False, "metadata": {}}
MOST_WAITING = MOST_REVOKED
"""Revoked keys that may wait for their removal, beyond those that are kept."""


class KeyQuota:
    """Number of standard keys of each account, from the informer.

    Bounds what one account stores in etcd and in the memory of every process. Concurrent creates
    may exceed it by their number.
    """

    def __init__(self, keys: Cache[KeyRecord], most: int) -> None:
        self._keys = keys
        self._most = most
        self._known: dict[str, tuple[str, bool]] = {}
        self._counts = Counter[tuple[str, bool]]()
        for name in dict(keys.items()):
            self._note(name)
        keys.subscribe(self._note)

    def check_room(self, account: str) -> None:
        """Raise Conflict if the account may have no further key.

        Unavailable if it revokes keys faster than the operator removes them.
        """
        lasting, revoked = self._counts[account, False], self._counts[account, True]
        if lasting >= self._most:
            raise Conflict(f"The account has {lasting} keys; at most {self._most} are allowed.")
        if revoked >= MOST_REVOKED + MOST_WAITING:
            raise Unavailable(f"{revoked} revoked keys are being removed.", retry_after=60)

    def _note(self, name: str) -> None:
        before = self._known.pop(name, None)
        if before is not None:
            self._counts[before] -= 1
        record = self._keys.get(name)
        if record is not None and record.key_class == "Standard":
            self._known[name] = now = (record.account, record.revoked)
            self._counts[now] += 1


class KeyService:
    """Creates, lists, shows, changes, revokes and rotates standard keys."""

    def __init__(
        self,
        repository: Repository,
        objects: ManagedObjects,
        users: Cache[UserRecord],
        uses: KeyUse,
        budgets: BudgetReader,
        quota: KeyQuota,
        peppers: Mapping[int, bytes],
    ) -> None:
        self._repository = repository
        self._objects = objects
        self._users = users
        self._uses = uses
        self._budgets = budgets
        self._quota = quota
        self._pepper_version = max(peppers)
        self._pepper = peppers[self._pepper_version]

    async def create(
        self, caller: Caller, key: str | None, body: KeyCreate
    ) -> tuple[KeyWithSecret, bool]:
        """Create a key; whether an earlier call did. Its secret is shown only in this response."""
        values = body.model_dump(exclude_none=True)
        spec = write_spec(values)
        # an omitted value equals its default (contract §2.2)
        creation = await self._objects.begin_creation(caller, key, KEYS, {**_DEFAULTS, **values})
        if creation.found is not None:
            _check_replays(caller, creation.found)
            return _add_secret(self._render_new(creation.found, spec), None), True
        self._quota.check_room(caller.account)
        minted = mint_key()
        obj = await self._compose(caller, creation, spec, minted)
        stands, is_new = await self._repository.create(KEYS, obj)
        if not is_new and creation.intent is not None:
            check_made(stands, creation.intent)
            _check_replays(caller, stands)
            return _add_secret(self._render_new(stands, spec), None), True
        return _add_secret(self._render_new(stands, spec), minted.plaintext), False

    async def list_page(self, caller: Caller, query: KeyQuery) -> Page[Key]:
        """Return a page of the account's keys, including revoked ones."""
        now, part = CLOCK.now(), (query.name_contains or "").casefold()

        def is_wanted(obj: Object) -> bool:
            if not _governs(caller, obj):
                return False
            has_status = query.status in (None, find_status(obj["spec"], now))
            return has_status and part in obj["spec"]["displayName"].casefold()

        page, more = await self._objects.read_page(KEYS, caller.account, query, is_wanted)
        return Page[Key].of(await self._render_all(caller.account, page), has_more=more)

    async def show(self, caller: Caller, key_id: str) -> Key:
        """Return one key."""
        obj = await self._repository.find(KEYS, caller.account, key_id)
        _check_governs(caller, obj)
        return await self._render(obj)

    async def change(self, caller: Caller, key_id: str, body: KeyPatch) -> Key:
        """Apply a merge patch to a key."""
        values = body.model_dump(exclude_unset=True)

        def decide(obj: Object) -> Mapping[str, Any] | None:
            _check_governs(caller, obj)
            _check_not_revoked(obj)
            patch = write_patch(obj["spec"], values)
            if not patch:
                return None
            changes = record_change(obj, caller.principal, f"changed {', '.join(patch)}")
            return {"metadata": {"annotations": changes}, "spec": patch}

        changed = await self._repository.change(KEYS, caller.account, key_id, decide)
        return await self._render(changed)

    async def rotate(
        self, caller: Caller, key: str | None, key_id: str, body: Rotation
    ) -> tuple[KeyWithSecret, bool]:
        """Give a key a new secret; whether an earlier call did.

        The old secret is valid until the overlap ends.
        """
        intent = None
        if key is not None:
            values = {"id": key_id, **body.model_dump()}
            intent = make_intent(caller, key, values)
            listing = await self._repository.list_all(KEYS, caller.account)
            check_others(listing.objects.values(), id_to_name(key_id), intent)
        minted = mint_key()
        token = self._describe_token(minted)

        def decide(obj: Object) -> Mapping[str, Any] | None:
            _check_governs(caller, obj)
            tokens = obj["spec"].get("tokens") or []
            # after a lost response the write is decided again, and may have been applied
            if any(known["id"] == minted.id for known in tokens):
                return None
            if intent is not None and find_note(obj, intent):
                return None
            _check_not_revoked(obj)
            if not tokens:
                raise Conflict(
                    "The secret of this key is kept in the cluster: raise spec.rotations of"
                    f" GatewayKey {obj['metadata']['name']} there."
                )
            left = _retire(tokens, body.overlap_seconds)
            return {
                "metadata": {
                    "annotations": {
                        **note(obj, intent),
                        **record_change(obj, caller.principal, "new secret"),
                    }
                },
                "spec": {"tokens": [token, *left]},
            }

        changed = await self._repository.change(KEYS, caller.account, key_id, decide)
        is_ours = any(known["id"] == minted.id for known in changed["spec"].get("tokens") or ())
        secret = minted.plaintext if is_ours else None
        return _add_secret(await self._render(changed), secret), not is_ours

    async def revoke(self, caller: Caller, key_id: str) -> DeletedKey:
        """Revoke a key for good. Idempotent."""
        await revoke_key(
            self._repository, KEYS, caller.principal, key_id, partial(_check_governs, caller)
        )
        return DeletedKey(id=key_id)

    def _describe_token(self, minted: MintedKey) -> dict[str, Any]:
        return {
            "id": minted.id,
            "digest": digest(minted.plaintext, self._pepper),
            "pepperVersion": self._pepper_version,
            "hint": minted.hint,
        }

    async def _compose(
        self, caller: Caller, creation: Creation, spec: Mapping[str, Any], minted: MintedKey
    ) -> Object:
        version = await self._repository.read_version(KEYS)
        annotations = {**creation.annotations, SEQUENCE_ANNOTATION: version}
        if creation.intent is not None:
            annotations[FIRST_HINT_ANNOTATION] = minted.hint
        labels = {ACCOUNT_LABEL: caller.account}
        creator = caller.principal.key.creator
        return {
            **skeleton(
                GatewayKey,
                creation.name,
                labels=labels,
                annotations=annotations,
                finalizers=[REMAINS_FINALIZER],
            ),
            "spec": {
                "accountName": caller.account,
                "class": "Standard",
                **({"createdBy": creator} if creator is not None else {}),
                "tokens": [self._describe_token(minted)],
                **spec,
            },
        }

    def _render_new(self, obj: Object, spec: Mapping[str, Any]) -> Key:
        """Return the key as it was when it was made of `spec`."""
        meta = obj["metadata"]
        hint = (meta.get("annotations") or {}).get(FIRST_HINT_ANNOTATION)
        tokens = [{"hint": hint}] if hint else obj["spec"]["tokens"]
        made = datetime.fromisoformat(meta["creationTimestamp"])
        first = {
            "metadata": {"name": meta["name"], "creationTimestamp": meta["creationTimestamp"]},
            "spec": {**spec, "accountName": obj["spec"]["accountName"], "tokens": tokens},
        }
        creator, budget = self._find_creator(obj), view_unused(spec, made)
        return render_key(first, now=made, creator=creator, guardrails=(), budget=budget)

    async def _render(self, obj: Object) -> Key:
        return (await self._render_all(obj["spec"]["accountName"], [obj]))[0]

    async def _render_all(self, account: str, objects: Sequence[Object]) -> list[Key]:
        if not objects:
            return []
        guardrails = (await self._repository.list_all(GUARDRAILS, account)).objects
        order = sorted(guardrails.values(), key=find_position)
        subjects = {subject_of_key(obj["metadata"]["name"]): obj for obj in objects}
        budgets = await self._budgets.read(account, subjects)
        used = await self._uses.find(account, [obj["metadata"]["name"] for obj in objects])
        now = CLOCK.now()
        shown = []
        for subject, obj in subjects.items():
            name = obj["metadata"]["name"]
            above = [
                guardrail["metadata"]["name"]
                for guardrail in order
                if name in (guardrail["spec"].get("keyNames") or ())
            ]
            shown.append(
                render_key(
                    obj,
                    now=now,
                    creator=self._find_creator(obj),
                    guardrails=above,
                    budget=budgets[subject],
                    used=used.get(name),
                )
            )
        return shown

    def _find_creator(self, obj: Object) -> UserRecord | None:
        name = obj["spec"].get("createdBy")
        return None if name is None else self._users.get(name)


async def revoke_key(
    repository: Repository,
    kind: Kind,
    caller: Principal,
    key_id: str,
    check: Callable[[Object], None],
) -> None:
    """Revoke a key of the caller's account for good; `check` raises where they may not.

    Raises as `Repository.change`.
    """
    now = format_time(CLOCK.now())

    def decide(obj: Object) -> Mapping[str, Any] | None:
        check(obj)
        if obj["spec"].get("revoked"):
            return None
        annotations = {REVOKED_AT_ANNOTATION: now, **record_change(obj, caller, "revoked")}
        return {"metadata": {"annotations": annotations}, "spec": {"revoked": True}}

    await repository.change(kind, caller.account.name, key_id, decide)


def _governs(caller: Caller, obj: Object) -> bool:
    """Return whether the caller governs the key: a member only their own (contract §9.2)."""
    user = caller.principal.confined_to
    return user is None or obj["spec"].get("createdBy") == user


def _check_governs(caller: Caller, obj: Object) -> None:
    if not _governs(caller, obj):
        raise unknown(KEYS)


def _check_replays(caller: Caller, obj: Object) -> None:
    """Raise KeyReused where the key that an equal call made is not shown to the caller."""
    if not _governs(caller, obj):
        raise KeyReused


def _check_not_revoked(obj: Object) -> None:
    if obj["spec"].get("revoked"):
        raise Conflict("The key is revoked.")


def _retire(tokens: Sequence[Mapping[str, Any]], seconds: int) -> list[Mapping[str, Any]]:
    """Return tokens of a key that stay beside a new one: the newest, for the overlap."""
    if not seconds:
        return []
    end = format_time(CLOCK.now() + timedelta(seconds=seconds))
    newest = next((token for token in tokens if "expirationTime" not in token), tokens[0])
    known = newest.get("expirationTime")
    if known and datetime.fromisoformat(known) < datetime.fromisoformat(end):
        end = known
    return [{**newest, "expirationTime": end}]


def _add_secret(key: Key, secret: str | None) -> KeyWithSecret:
    return KeyWithSecret(**key.model_dump(by_alias=True), secret=secret)
