"""Upload service: requests are judged against an Upload until its outcome stands (§4.2 to §4.5).

Everything is read by name from the Kubernetes API and written by compare-and-set; after a lost
race the Upload is read and judged again. One whose hour is over is first written as expired, so
that no response contradicts a later one.
"""

from collections.abc import Awaitable, Callable

import structlog

from gateway_apiserver.surfaces.ids import check_id, unknown
from gateway_apiserver.surfaces.uploads.models import UploadComplete
from gateway_core.api.errors import (
    Internal,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from gateway_core.api.ids import FILE_PREFIX, UPLOAD_PREFIX, IdMint
from gateway_core.api.resource import Object
from gateway_core.api.upload import GatewayUpload, PartRef
from gateway_core.files.files import FileRecord
from gateway_core.files.parts import UploadParts
from gateway_core.files.uploads import (
    Step,
    UploadOutcomes,
    is_pending,
    judge_cancellation,
    judge_completion,
    judge_part,
    read_upload_file,
)
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import (
    KubernetesUnavailable,
    ObjectNotFound,
    RequestRejected,
    WriteConflict,
    WriteOutcomeUnknown,
)
from gateway_core.kube.retries import retry_write
from gateway_core.storage.objects import ObjectMissing, StoreUnavailable

_log = structlog.get_logger(__name__)

Judge = Callable[[Object, float], Step]
Write = Callable[[Object], Awaitable[Object]]


class UploadService:
    """Uploads of all accounts; another's is as good as unknown (§0.5). `clock`: Unix seconds."""

    def __init__(
        self,
        kube: KubernetesClient,
        outcomes: UploadOutcomes,
        parts: UploadParts,
        mint: IdMint,
        *,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._kube = kube
        self._outcomes = outcomes
        self._parts = parts
        self._mint = mint
        self._clock = clock

    async def find_open(self, account: str, wire_id: str) -> Object:
        """The Upload, while it takes parts.

        Raises NotFound, UploadConflict, Unavailable, OutcomeUnknown; so do the others.
        """
        return await self._decide(account, wire_id, judge_part, _keep)

    async def cancel(self, account: str, wire_id: str) -> Object:
        """The Upload, cancelled now or before."""
        obj = await self._decide(account, wire_id, judge_cancellation, self._outcomes.cancel)
        # again after a repetition: who won may have been killed before
        await self._outcomes.end_reservation(obj)
        await self._parts.forget(account, obj["metadata"]["name"])
        return obj

    async def complete(
        self, account: str, wire_id: str, wanted: UploadComplete
    ) -> tuple[Object, FileRecord]:
        """The Upload, completed by these parts now or before, and the record of its File.

        Raises further InvalidRequest, after which it is still pending, NotFound for a part, and
        StoreUnavailable.
        """

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
        """The Upload once `judge` has nothing to be written any more, or `write` has landed.

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

        try:
            return await retry_write(attempt, ObjectNotFound)
        except WriteOutcomeUnknown as error:
            raise _unknown_outcome() from error
        except (KubernetesUnavailable, WriteConflict, ObjectNotFound) as error:
            raise _unavailable() from error
        except RequestRejected as error:
            _log.error("an upload's outcome was rejected", upload=name, error=str(error))
            raise Internal("The upload could not be changed.") from error

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
        """The wanted parts, if they are what was declared.

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
        """The same of what stands already: only an MD5 that is said is looked at (§4.4)."""
        if wanted.digest is None:
            return
        try:
            _compare(await self._parts.digest_md5(obj, tuple(wanted.part_ids)), wanted.digest)
        except ObjectMissing:
            # its File has been deleted since
            return

    async def _describe_file(self, obj: Object) -> FileRecord:
        try:
            try:
                return await self._outcomes.describe_file(obj)
            except KubernetesUnavailable:
                # it may have been deleted between two looks, which the Upload tells by now
                current = await self._kube.get(GatewayUpload.plural, obj["metadata"]["name"])
                return await self._outcomes.describe_file(current)
        except ObjectNotFound:
            return read_upload_file(obj)
        except KubernetesUnavailable as error:
            raise _unavailable() from error
        except (WriteOutcomeUnknown, WriteConflict) as error:
            raise _unknown_outcome() from error
        except RequestRejected as error:
            _log.error("a file was refused", upload=obj["metadata"]["name"], error=str(error))
            raise Internal("The file could not be recorded.") from error


def _compare(digest: bytes, said: bytes) -> None:
    if digest != said:
        raise InvalidRequest(
            "The parts together have another MD5.", code="md5_mismatch", param="md5"
        )


async def _keep(obj: Object) -> Object:
    return obj


def _unavailable() -> Unavailable:
    return Unavailable("Uploads cannot be read or changed now.", retry_after=1)


def _unknown_outcome() -> OutcomeUnknown:
    return OutcomeUnknown("The change was not acknowledged in time; it may have been made.")
