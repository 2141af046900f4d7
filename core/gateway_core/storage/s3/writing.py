"""Multipart upload of one object, visible only once complete."""

import secrets
import threading
from typing import TYPE_CHECKING, cast

import structlog

from gateway_core.storage.content import Digests
from gateway_core.storage.s3.client import FAILURES, explain, explaining, read_code

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client
    from types_boto3_s3.type_defs import CompletedPartTypeDef

PART_BYTES = 5 * 1024 * 1024
MAX_PARTS = 10_000
"""S3's limit: with parts of 5 MiB, the smallest that S3 accepts, 48 GiB for each object."""

_MARK = "gateway-write"

_log = structlog.get_logger(__name__)


class Aborted(Exception):
    """Another thread aborted the upload."""


class PartsUpload:
    """Blocking upload: `add` parts in order, then `finish`, or `abort` at any time.

    `abort` waits for a call under way in another thread; later calls raise Aborted. `bytes` and
    `digests` are of the parts added.
    """

    def __init__(self, client: "S3Client", bucket: str, name: str) -> None:
        self._client = client
        self._bucket = bucket
        self._name = name
        self._mark = secrets.token_hex(16)
        self._upload_id: str | None = None
        self._parts: list[CompletedPartTypeDef] = []
        self._lock = threading.Lock()
        self._aborted = False
        self.digests = Digests()
        self.bytes = 0

    def add(self, part: bytearray) -> None:
        """Send a part of 5 MiB; the last may be shorter. StoreUnavailable."""
        with self._lock:
            self._check()
            if self._upload_id is None:
                with explaining("CreateMultipartUpload", self._bucket):
                    answer = self._client.create_multipart_upload(
                        Bucket=self._bucket, Key=self._name, Metadata={_MARK: self._mark}
                    )
                self._upload_id = answer["UploadId"]
            number = len(self._parts) + 1
            with explaining("UploadPart", self._bucket):
                sent = self._client.upload_part(
                    Bucket=self._bucket,
                    Key=self._name,
                    UploadId=self._upload_id,
                    PartNumber=number,
                    Body=_as_body(part),
                )
            self._parts.append({"PartNumber": number, "ETag": sent["ETag"]})
            self.digests.update(part)
            self.bytes += len(part)

    def finish(self, part: bytearray) -> None:
        """Send the last part and complete the object. StoreUnavailable.

        Without earlier parts one PUT creates the object.
        """
        with self._lock:
            self._check()
            if self._upload_id is None:
                with explaining("PutObject", self._bucket):
                    self._client.put_object(
                        Bucket=self._bucket, Key=self._name, Body=_as_body(part)
                    )
                self.digests.update(part)
                self.bytes = len(part)
                return
        if part:
            self.add(part)
        with self._lock:
            self._check()
            self._complete()

    def abort(self) -> None:
        """Remove the parts. A failure is logged: `remove_leftovers` removes them later."""
        with self._lock:
            self._aborted = True
            if self._upload_id is None:
                return
            upload_id, self._upload_id = self._upload_id, None
            try:
                self._client.abort_multipart_upload(
                    Bucket=self._bucket, Key=self._name, UploadId=upload_id
                )
            except FAILURES as error:
                if read_code(error) != "NoSuchUpload":
                    reason = str(explain("AbortMultipartUpload", self._bucket, error))
                    _log.warning("parts of an upload were left", error=reason)

    def _check(self) -> None:
        if self._aborted:
            raise Aborted

    def _complete(self) -> None:
        assert self._upload_id is not None
        try:
            self._client.complete_multipart_upload(
                Bucket=self._bucket,
                Key=self._name,
                UploadId=self._upload_id,
                MultipartUpload={"Parts": self._parts},
            )
        except FAILURES as error:
            if read_code(error) != "NoSuchUpload" or not self._is_there():
                raise explain("CompleteMultipartUpload", self._bucket, error) from error
        self._upload_id = None

    def _is_there(self) -> bool:
        """Return whether this upload made the object: the response to its end may be lost."""
        with explaining("HeadObject", self._bucket):
            found = self._client.head_object(Bucket=self._bucket, Key=self._name)
        return found["Metadata"].get(_MARK) == self._mark


def _as_body(part: bytearray) -> bytes:
    """Return the part for boto3's types: it accepts a bytearray, which saves a copy."""
    return cast("bytes", part)
