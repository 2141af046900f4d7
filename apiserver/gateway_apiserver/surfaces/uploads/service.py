"""Upload service: creates Uploads, and decides requests until an Upload has its outcome (§4).

Everything is read by name from the Kubernetes API and written by compare-and-set; after a
conflict the Upload is read and decided again. An expired one is first written as expired, so that
no response contradicts a later one.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import structlog

from gateway_apiserver.access import Caller
from gateway_apiserver.surfaces.uploads.models import UploadComplete, UploadCreate
from gateway_apiserver.surfaces.validation import check_id, unknown
from gateway_core.api.errors import (
    Internal,
    InvalidRequest,
    KeyReused,
    NotFound,
    TooManyCalls,
    Unavailable,
)
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    FILE_PREFIX,
    REQUEST_ID_ANNOTATION,
    SHARD_LABEL,
    STORED_FINALIZER,
    UPLOAD_PREFIX,
    IdMint,
    id_to_name,
    shard_of,
)
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.upload import GatewayUpload, PartRef
from gateway_core.files.files import FileRecord
from gateway_core.files.parts import UploadParts
from gateway_core.files.quota import StorageFull, StorageQuota
from gateway_core.files.uploads import (
    Step,
    UploadOutcomes,
    is_pending,
    is_withdrawn,
    judge_cancellation,
    judge_completion,
    judge_part,
    read_upload_file,
)
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import (
    KubernetesError,
    KubernetesUnavailable,
    ObjectNotFound,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.kube.kinds import UPLOADS
from gateway_core.kube.repository import Repository, writing
from gateway_core.kube.retries import retry_write
from gateway_core.redis.link import CountersStale, CountersUnavailable
from gateway_core.storage.objects import ObjectMissing, StoreUnavailable

PATH = "/v1/uploads"
_log = structlog.get_logger(__name__)


Judge = Callable[[Object, float], Step]
Write = Callable[[Object], Awaitable[Object]]


@contextmanager
def reading_parts() -> Iterator[None]:
    """Raise Unavailable if the object store or the counters are unavailable."""
    try:
        yield
    except (StoreUnavailable, CountersUnavailable, CountersStale) as error:
        _log.warning("an upload's parts cannot be stored or read", error=str(error))
        raise Unavailable("Parts cannot be stored or read now.", retry_after=1) from error


class UploadService:
    """Uploads of all accounts; a foreign one is not found (§0.5). `clock` gives Unix seconds."""

    def __init__(
        self,
        kube: KubernetesClient,
        repository: Repository,
        quota: StorageQuota,
        outcomes: UploadOutcomes,
        parts: UploadParts,
        mint: IdMint,
        *,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._kube = kube
        self._repository = repository
        self._quota = quota
        self._outcomes = outcomes
        self._parts = parts
        self._mint = mint
        self._clock = clock

    async def create(
        self, caller: Caller, key: str | None, wanted: UploadCreate
    ) -> tuple[Object, bool]:
        """Return the Upload, and whether another call with the Idempotency-Key made it.

        Raises:
            KeyReused: the Idempotency-Key stands for another Upload.
            StorageFull: the account has no room.
            TooManyCalls: too many of its Uploads are pending.
            Unavailable: nothing was made.
            OutcomeUnknown: it was sent and not acknowledged within 10 s.
        """
        account, limit = caller.account, caller.principal.account.storage_bytes
        if key is None:
            name = id_to_name(self._mint.mint_random(UPLOAD_PREFIX, account))
        else:
            name = id_to_name(self._mint.mint_keyed(UPLOAD_PREFIX, account, "POST", PATH, key))
            found = await self._repository.look_up(UPLOADS, name)
            if found is not None:
                return _check_same(found, wanted), True
        await self._quota.claim(account, "files", name, wanted.bytes, limit)
        try:
            await self._parts.begin(account, name)
            stands, is_new = await self._repository.create(UPLOADS, _compose(caller, name, wanted))
        except (TooManyCalls, Unavailable, Internal):
            # with a key the claim may be that of another call, whose Upload exists
            if key is None:
                await self._quota.release(account, "files", name)
                await self._parts.forget(account, name)
            raise
        if not is_new:
            if stands["spec"].get("outcome", "Pending") != "Pending":
                await self._outcomes.end_reservation(stands)
                await self._parts.forget(account, name)
            return _check_same(stands, wanted), True
        try:
            await self._quota.confirm(account, "files", name, wanted.bytes, limit)
        except StorageFull:
            await self._withdraw(stands)
            await self._parts.forget(account, name)
            raise
        return stands, False

    async def _withdraw(self, obj: Object) -> None:
        """End an Upload for which there is no room after all; if this fails, it expires."""
        try:
            await self._outcomes.withdraw(obj)
        except KubernetesError as error:
            _log.warning("an upload was not withdrawn", error=str(error))

    async def find_open(self, account: str, wire_id: str) -> Object:
        """Return the Upload, while it takes parts.

        Raises NotFound, UploadConflict, Unavailable, OutcomeUnknown; so do the others.
        """
        return await self._decide(account, wire_id, judge_part, _keep)

    async def cancel(self, account: str, wire_id: str) -> Object:
        """Return the Upload, cancelled now or before."""
        obj = await self._decide(account, wire_id, judge_cancellation, self._outcomes.cancel)
        # again after a repetition: who won may have been killed before
        await self._outcomes.end_reservation(obj)
        await self._parts.forget(account, obj["metadata"]["name"])
        return obj

    async def complete(
        self, account: str, wire_id: str, wanted: UploadComplete
    ) -> tuple[Object, FileRecord]:
        """Return the Upload, completed by these parts now or before, and the record of its File.

        Raises further InvalidRequest, after which it is still pending, and NotFound for a part.
        """
        with reading_parts():
            return await self._complete(account, wire_id, wanted)

    async def _complete(
        self, account: str, wire_id: str, wanted: UploadComplete
    ) -> tuple[Object, FileRecord]:
        def judge(obj: Object, now: float) -> Step:
            return judge_completion(obj, tuple(wanted.part_ids), now)

        obj = await self._decide(account, wire_id, judge, _keep)
        parts: list[PartRef] = []
        if is_pending(obj):
            try:
                parts = await self._weigh(obj, wanted)
            except (NotFound, InvalidRequest, StoreUnavailable):
                # The operator removes the parts of an Upload that has ended since it was read, so
                # what is wrong with the parts counts only while the Upload is still pending.
                obj = await self._decide(account, wire_id, judge, _keep)
                if is_pending(obj):
                    raise
        if is_pending(obj):

            async def write(current: Object) -> Object:
                now = self._clock()
                name = self._mint.mint_ordered(FILE_PREFIX, account, int(now * 1000))
                return await self._outcomes.complete(current, parts, name, now)

            obj = await self._decide(account, wire_id, judge, write, obj)
            await self._parts.forget(account, obj["metadata"]["name"])
        else:
            await self._check_again(obj, wanted)
        return obj, await self._describe_file(obj)

    async def _decide(
        self, account: str, wire_id: str, judge: Judge, write: Write, known: Object | None = None
    ) -> Object:
        """Return the Upload once `judge` needs no write, or `write` was applied.

        `known` is the Upload as it was read just now.
        """
        name = check_id(self._mint, UPLOAD_PREFIX, account, wire_id)

        async def attempt() -> Object:
            nonlocal known
            obj, known = known or await self._find(account, wire_id, name), None
            step = judge(obj, self._clock())
            if step is Step.EXPIRE:
                obj = await self._outcomes.expire(obj)
                step = judge(obj, self._clock())
            return obj if step is Step.REPEAT else await write(obj)

        async with writing(UPLOADS, name):
            return await retry_write(attempt, ObjectNotFound)

    async def _find(self, account: str, wire_id: str, name: str) -> Object:
        try:
            found = await self._kube.get(GatewayUpload.plural, name)
        except ObjectNotFound:
            raise unknown(UPLOAD_PREFIX, wire_id) from None
        is_theirs = found["spec"]["request"]["accountName"] == account
        if not is_theirs or found["metadata"].get("deletionTimestamp"):
            raise unknown(UPLOAD_PREFIX, wire_id)
        return found

    async def _weigh(self, obj: Object, wanted: UploadComplete) -> list[PartRef]:
        """Return the listed parts, if size and MD5 are as declared.

        Raises NotFound, InvalidRequest, StoreUnavailable.
        """
        parts = await self._parts.weigh(obj, tuple(wanted.part_ids))
        size, declared = sum(part.bytes for part in parts), obj["spec"]["request"]["bytes"]
        if size != declared:
            raise InvalidRequest(
                f"The parts have {size} bytes together; the Upload was made for {declared}.",
                code="upload_size_mismatch",
                param="part_ids",
            )
        if wanted.digest is not None:
            try:
                digest = await self._parts.digest_md5(obj, tuple(wanted.part_ids))
            except ObjectMissing as error:
                raise StoreUnavailable("bytes of a part are missing") from error
            _compare(digest, wanted.digest)
        return parts

    async def _check_again(self, obj: Object, wanted: UploadComplete) -> None:
        """Check a repeated completion: only an MD5 that the client sent is compared (§4.4)."""
        if wanted.digest is None:
            return
        try:
            _compare(await self._parts.digest_md5(obj, tuple(wanted.part_ids)), wanted.digest)
        except ObjectMissing:
            # its File has been deleted since
            return

    async def _describe_file(self, obj: Object) -> FileRecord:
        name = obj["metadata"]["name"]
        async with writing(UPLOADS, name):
            try:
                try:
                    return await self._outcomes.describe_file(obj)
                except KubernetesUnavailable:
                    # the File may have been deleted between two reads; then the Upload says so
                    current = await self._kube.get(GatewayUpload.plural, name)
                    return await self._outcomes.describe_file(current)
            except ObjectNotFound:
                return read_upload_file(obj)
            except WriteConflict as error:
                raise WriteOutcomeUnknown(str(error)) from error


def _compose(caller: Caller, name: str, wanted: UploadCreate) -> Object:
    account = caller.account
    head = skeleton(
        GatewayUpload,
        name,
        labels={ACCOUNT_LABEL: account, SHARD_LABEL: str(shard_of(name))},
        annotations={REQUEST_ID_ANNOTATION: caller.context.request_id},
        finalizers=[STORED_FINALIZER],
    )
    request = {
        "accountName": account,
        "keyName": caller.principal.key.name,
        "purpose": wanted.purpose,
        "filename": wanted.stored_name,
        "mediaType": wanted.mime_type,
        "bytes": wanted.bytes,
        **({} if wanted.life is None else {"expiresAfterSeconds": wanted.life}),
        "fingerprint": wanted.fingerprint,
    }
    return {**head, "spec": {"request": request, "outcome": "Pending"}}


def _check_same(found: Object, wanted: UploadCreate) -> Object:
    """Return the Upload as it was when it was created, if the call is a replay of its create.

    Raises KeyReused; StorageFull if that was the response to its create.
    """
    if found["spec"]["request"].get("fingerprint") != wanted.fingerprint:
        raise KeyReused
    if is_withdrawn(found):
        raise StorageFull
    return {**found, "spec": {**found["spec"], "outcome": "Pending"}}


def _compare(digest: bytes, said: bytes) -> None:
    if digest != said:
        raise InvalidRequest(
            "The parts together have another MD5.", code="md5_mismatch", param="md5"
        )


async def _keep(obj: Object) -> Object:
    return obj
