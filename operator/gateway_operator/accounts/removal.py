"""Removal of what belongs to a deleted account or user, before the object itself goes.

Objects refer to an account and a user by name, so what outlived them would belong to the next of
their name. A finalizer keeps the object, and with it the name, until nothing is left (decision 71).
Meanwhile every process refuses it. Of a user the grants are deleted and the keys revoked. Of an
account everything is deleted but its charges, which are moved to the folder `CLOSED_FOLDER` of the
object store. The rows that the audit of an account has of a deleted user are archived there.

Each round can be repeated, also by another process at the same time: objects are listed first, then
the owner is read, then what was listed is deleted by its uid. So nothing of a successor goes.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog

from gateway_core.accounts.changes import (
    GATEWAY,
    note_change,
    read_changes,
    read_ending,
    write_changes,
)
from gateway_core.accounts.records import project_user
from gateway_core.accounts.remains import archive_removed
from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.conditions import Reason
from gateway_core.api.file import GatewayFile
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import REMAINS_FINALIZER, REVOKED_AT_ANNOTATION
from gateway_core.api.key import GatewayKey
from gateway_core.api.oauth import GatewayGrant
from gateway_core.api.resource import Object, Resource
from gateway_core.api.task import GatewayTask
from gateway_core.api.times import format_time, parse_time
from gateway_core.api.upload import GatewayUpload
from gateway_core.api.usage import GatewayUsage
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.redis_counters import Counters
from gateway_core.billing.usage_store import close_archive, close_usage
from gateway_core.kube.client import Page
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_core.kube.informer import Cache
from gateway_core.kube.lists import list_pages
from gateway_core.providers.catalog import Problem
from gateway_core.redis.link import CountersStale
from gateway_core.storage.content import FOLDERS
from gateway_core.tasks.archive import ACCOUNT_FOLDERS
from gateway_operator.accounts.readiness import Finding
from gateway_operator.context import Context
from gateway_operator.files.storage import delete_all
from gateway_operator.retention.objects import Deletions, Listed

QUIET_SECONDS = 10.0
"""Time without remains before a deleted object is released: longer than a process may take
to see the deletion, and than a create may be repeated."""
PAUSE_SECONDS = 1.0
MOST_PAUSE = 30.0
MOST_WRITES = 4
"""Finalizers that are added at the same time: an upgrade finds all accounts without one."""

LATE = timedelta(minutes=2)
"""Time after a deletion in which a request that was admitted before may still make an object."""
_DECLARED: tuple[type[Resource], ...] = (GatewayKey, GatewayGuardrail)
"""Kinds that may be declared before their account."""

_OF_ACCOUNT: tuple[tuple[type[Resource], str], ...] = (
    (GatewayKey, "spec.accountName"),
    (GatewayGrant, "spec.accountName"),
    (GatewayGuardrail, "spec.accountName"),
    (GatewayBatch, "spec.request.accountName"),
    (GatewayTask, "spec.request.accountName"),
    (GatewayUpload, "spec.request.accountName"),
    (GatewayFile, "spec.request.accountName"),
)
"""First what more can be made with."""

_log = structlog.get_logger(__name__)

Decide = Callable[[Object], Mapping[str, Any] | None]
Left = Counter[str]
"""Numbers of what is left, by the word for it."""


@dataclass(frozen=True, slots=True)
class _Round:
    """A round: what was left, since when rounds have found nothing, and when the next one is due.

    Times are those of the event loop.
    """

    problem: Problem
    quiet_since: float | None
    due: float


_ENDING = Finding(Problem(Reason.REMOVING, "being removed"))


class OwnerGone(Exception):
    """The deleted object is gone: another process has removed its remains."""


@dataclass(eq=False)
class RemainsRemoval:
    """Guards accounts and users by the finalizer, and removes the remains of deleted ones."""

    context: Context
    counters: Counters
    users: Cache[GatewayUser]
    keys: Cache[GatewayKey]
    quiet_seconds: float = QUIET_SECONDS
    _rounds: dict[str, "_Round"] = field(default_factory=dict, init=False)
    """The last round by the owner's uid."""

    def __post_init__(self) -> None:
        kube = self.context.kube
        self._deletions = Deletions(kube, self.context.failpoints, exact=False)
        self._journal = JournalStore(self.context.store)
        self._writes = asyncio.Semaphore(MOST_WRITES)

    async def guard(self, owner: GatewayAccount | GatewayUser) -> None:
        """Raise WriteConflict after adding the finalizer: the watch shows the new version.

        Raises what the Kubernetes API raises.
        """
        meta = owner.metadata
        is_ending = self.context.termination.covers(owner.plural)
        if REMAINS_FINALIZER in meta.finalizers or is_ending:
            return
        known = {"name": meta.name, "resourceVersion": meta.resource_version}
        finalizers = {"finalizers": [*meta.finalizers, REMAINS_FINALIZER]}
        async with self._writes:
            await self.context.kube.patch(
                owner.plural, {"metadata": known}, {"metadata": finalizers}
            )
        raise WriteConflict(f"{meta.name} has got its finalizer")

    async def remove(self, owner: GatewayAccount | GatewayUser) -> Finding:
        """Make one round over the remains of a deleted object; what is left, as a problem.

        Raises what the stores raise.
        """
        termination = self.context.termination
        uid, loop = owner.metadata.uid, asyncio.get_running_loop()
        began = loop.time()
        last = self._rounds.pop(uid, None)
        if REMAINS_FINALIZER not in owner.metadata.finalizers:
            return _ENDING
        if termination.is_of_namespace or termination.is_overdue(owner.plural):
            # the whole kind goes: no other object gets the name
            with suppress(OwnerGone):
                await self._release(owner)
            return _ENDING
        if last is not None and began < last.due:
            self._rounds[uid] = last
            # the write of the last round's message is a change of the object too
            return Finding(last.problem, again_in=last.due - began)
        quiet_since = last.quiet_since if last else None
        is_account = isinstance(owner, GatewayAccount)
        try:
            left = await (self._clear_account if is_account else self._clear_user)(owner)
            quiet_since = None if left else quiet_since or began
            if quiet_since is not None and began - quiet_since >= self.quiet_seconds:
                await self._end(owner)
                return _ENDING
        except OwnerGone:
            return _ENDING
        problem, now = Problem(Reason.REMOVING, describe_left(left)), loop.time()
        pause = min(MOST_PAUSE, max(PAUSE_SECONDS, now - began))
        self._rounds[uid] = _Round(problem, quiet_since, now + pause)
        return Finding(problem, again_in=pause)

    async def _clear_account(self, account: Resource) -> Left:
        name, left = account.metadata.name, Left()
        for kind, path in _OF_ACCOUNT:
            left[_name(kind)] = await self._delete(account, kind, f"{path}={name}")
        for user in [user for _, user in self.users.items()]:
            if _refers(user, name):
                left["memberships"] += await self._end_membership(account, user.metadata.name)
        if left := +left:
            return left
        # stale ones are rebuilt from the objects, of which there are none
        with suppress(CountersStale):
            left["calls under way"] = len(await self.counters.list_holds(name, 0))
        journal = await self._journal.read_whole()
        records = (record for obj in journal.objects for record in obj.records)
        left["charges of calls"] = sum(record.account == name for record in records)
        return +left

    async def _clear_user(self, user: Resource) -> Left:
        name, left = user.metadata.name, Left()
        left["grants"] = await self._delete(user, GatewayGrant, f"spec.userName={name}")
        for key, known in list(self.keys.items()):
            if known.spec.created_by == name and not known.spec.revoked:
                left["keys"] += await self._revoke(user, key)
        return +left

    async def _delete(self, owner: Resource, kind: type[Resource], selector: str) -> int:
        """Delete objects of a kind; how many there were."""
        found = 0
        async for page in self._list(kind, selector, metadata_only=True):
            metas = [obj["metadata"] for obj in page.items if not _is_next(owner, kind, obj)]
            found += len(metas)
            due = [
                Listed.read(meta, parse_time(meta["creationTimestamp"]))
                for meta in metas
                if not meta.get("deletionTimestamp")
            ]
            if due:
                await self._confirm(owner)
                await self._deletions.delete(kind.plural, due)
                self.context.failpoints.reach("after-remains-page")
        return found

    async def _list(
        self, kind: type[Resource], selector: str, **options: Any
    ) -> AsyncIterator[Page]:
        pages = list_pages(self.context.kube, kind.plural, field_selector=selector, **options)
        # without its CRD there is nothing of a kind
        with suppress(ObjectNotFound):
            async for page in pages:
                yield page

    async def _end_membership(self, account: Resource, user: str) -> int:
        """Remove a user's role in the account and its changes; 1, or 0 where there is neither."""

        def decide(obj: Object) -> Mapping[str, Any] | None:
            name = account.metadata.name
            if name not in project_user(obj).list_accounts():
                return None
            present = obj["spec"].get("memberships") or []
            kept = [one for one in present if one["accountName"] != name]
            # the audit of the next account of that name has no rows of this one
            rows = write_changes(row for row in read_changes(obj) if row.account != name)
            return {"metadata": {"annotations": rows}, "spec": {"memberships": kept}}

        return await self._change(account, GatewayUser, user, decide)

    async def _revoke(self, user: Resource, key: str) -> int:
        """Revoke a key that the user made; 1, or 0 where it is revoked."""
        now = self.context.now()

        def decide(obj: Object) -> Mapping[str, Any] | None:
            spec = obj["spec"]
            if spec.get("revoked") or spec.get("createdBy") != user.metadata.name:
                return None
            noted = {
                REVOKED_AT_ANNOTATION: format_time(now),
                **note_change(obj, GATEWAY, "revoked: its user was removed", now),
            }
            return {"metadata": {"annotations": noted}, "spec": {"revoked": True}}

        return await self._change(user, GatewayKey, key, decide)

    async def _change(
        self, owner: Resource, kind: type[Resource], name: str, decide: Decide
    ) -> int:
        kube = self.context.kube
        try:
            obj = await kube.get(kind.plural, name)
            patch = decide(obj)
            if patch is None:
                return 0
            await self._confirm(owner)
            await kube.patch(kind.plural, obj, patch)
        except (ObjectNotFound, WriteConflict):
            # the next round looks again
            pass
        return 1

    async def _confirm(self, owner: Resource) -> Object:
        """Return the owner as it is now. OwnerGone where another process has removed it."""
        try:
            obj = await self.context.kube.get(owner.plural, owner.metadata.name)
        except ObjectNotFound:
            raise OwnerGone from None
        if obj["metadata"]["uid"] != owner.metadata.uid:
            raise OwnerGone
        return obj

    async def _end(self, owner: Resource) -> None:
        """Remove what is no object, and the finalizer with it."""
        context, name = self.context, owner.metadata.name
        if isinstance(owner, GatewayAccount):
            await self._confirm(owner)
            await self._close_books(owner)
            context.failpoints.reach("after-books-closed")
            await self.counters.forget_account(name)
            for folder in (*FOLDERS, *ACCOUNT_FOLDERS):
                entries = context.store.list_entries(f"{folder}{name}/")
                await delete_all(context.store, (entry.key async for entry in entries))
            context.failpoints.reach("after-remains")
        else:
            obj = await self._confirm(owner)
            for account in sorted(project_user(obj).list_accounts()):
                await self._archive_member(account, obj)
            context.failpoints.reach("after-remains")
        await self._release(owner)

    async def _archive_member(self, account: str, user: Object) -> None:
        """Archive the rows that the account's audit has of a deleted user."""
        try:
            await self.context.kube.get(GatewayAccount.plural, account)
        except ObjectNotFound:
            return
        rows = [*project_user(user).list_changes(account), read_ending(user)]
        await archive_removed(self.context.store, GatewayUser.plural, account, user, rows)

    async def _release(self, owner: Resource) -> None:
        context, name = self.context, owner.metadata.name
        obj = await self._confirm(owner)
        kept = [one for one in obj["metadata"].get("finalizers") or () if one != REMAINS_FINALIZER]
        await context.kube.patch(owner.plural, obj, {"metadata": {"finalizers": kept}})
        _log.info("remains removed", kind=owner.plural, object=name)

    async def _close_books(self, account: GatewayAccount) -> None:
        """Move the account's charges to the folder of closed accounts."""
        kube, store, name = self.context.kube, self.context.store, account.metadata.name
        await close_archive(store, name, account.metadata.uid)
        selector = f"spec.accountName={name}"
        async for page in self._list(GatewayUsage, selector):
            for usage in page.items:
                await close_usage(store, usage, account.metadata.uid)
                meta = usage["metadata"]
                await kube.delete(GatewayUsage.plural, meta["name"], uid=meta["uid"])


def _is_next(owner: Resource, kind: type[Resource], obj: Object) -> bool:
    """Return whether an admin declared the object for the next owner of that name.

    No process makes one so long after the deletion. A GitOps tool makes each again that is removed,
    so that the account would never go.
    """
    if kind not in _DECLARED:
        return False
    deleted = parse_time(owner.metadata.deletion_timestamp)
    return parse_time(obj["metadata"]["creationTimestamp"]) > deleted + LATE


def _refers(user: GatewayUser, account: str) -> bool:
    """Return whether the user has a role in the account, or changes that concern it."""
    if any(part.account_name == account for part in user.spec.memberships or ()):
        return True
    rows = read_changes({"metadata": {"annotations": user.metadata.annotations}})
    return any(row.account == account for row in rows)


def _name(kind: type[Resource]) -> str:
    """Return the word for several objects of a kind, for example `tasks`."""
    return kind.plural.removeprefix("gateway")


def describe_left(left: Mapping[str, int]) -> str:
    """Return the message of `Ready` of an object whose remains are being removed."""
    if not left:
        return "being removed: nothing is left, it goes in some seconds"
    return "being removed; left: " + ", ".join(f"{word} ({n})" for word, n in left.items())
