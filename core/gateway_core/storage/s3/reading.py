"""Reader of one object, which resumes where a response breaks off."""

import threading
from typing import TYPE_CHECKING, Any

from gateway_core.storage.objects import ObjectMissing, StoreUnavailable
from gateway_core.storage.s3.client import (
    FAILURES,
    MISSING,
    explain,
    read_code,
    read_status,
)

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

BREAKS = 4
"""Responses in a row that may break off within `PROGRESS_BYTES`; boto3 itself retries only before a
response has begun."""

PROGRESS_BYTES = 1024 * 1024
PAUSE_SECONDS = 0.25


class ObjectReader:
    """Blocking reads of an object from `start`, at most `length` bytes.

    A response that breaks off is continued by a request for the rest, unless the object was
    replaced meanwhile. May be closed from any thread while another reads.
    """

    def __init__(
        self,
        client: "S3Client",
        bucket: str,
        name: str,
        start: int = 0,
        length: int | None = None,
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._name = name
        self._position = start
        self._end = None if length is None else start + length
        self._body: Any = None
        self._tag: str | None = None
        self._breaks, self._broken_at = 0, start
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most `size`; none at the end.

        Raises ObjectMissing or StoreUnavailable.
        """
        with self._lock:
            while True:
                if self._closed.is_set() or self._position == self._end:
                    return b""
                if self._body is None and not self._open():
                    return b""
                try:
                    return self._read_on(size)
                except FAILURES as error:
                    self._drop_body()
                    self._count_break(error)
                    self._closed.wait(PAUSE_SECONDS * self._breaks)

    def read_all(self, size: int) -> bytes:
        """Return all bytes, read in pieces of `size`. ObjectMissing, StoreUnavailable."""
        pieces = []
        while piece := self.read(size):
            pieces.append(piece)
        return b"".join(pieces)

    def release(self) -> None:
        """Give up the connection after the read under way; the next read opens another."""
        with self._lock:
            self._drop_body()

    def close(self) -> None:
        """Close the connection after the read under way."""
        self._closed.set()
        with self._lock:
            self._drop_body()

    def _open(self) -> bool:
        """Request the rest; False where the object has ended."""
        options: dict[str, Any] = {}
        if self._position or self._end is not None:
            last = "" if self._end is None else self._end - 1
            options["Range"] = f"bytes={self._position}-{last}"
        if self._tag is not None:
            options["IfMatch"] = self._tag
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._name, **options)
        except FAILURES as error:
            if read_status(error) == 416:
                self._end = self._position
                return False
            raise self._translate(error) from error
        self._tag = answer.get("ETag")
        self._body = answer["Body"]
        return True

    def _read_on(self, size: int) -> bytes:
        chunk: bytes = self._body.read(size)
        self._position += len(chunk)
        if not chunk:
            self._end = self._position
            self._drop_body()
        return chunk

    def _count_break(self, error: Exception) -> None:
        if self._position - self._broken_at >= PROGRESS_BYTES:
            self._breaks = 0
        self._breaks += 1
        self._broken_at = self._position
        if self._breaks == BREAKS:
            raise explain("GetObject", self._bucket, error) from error

    def _drop_body(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def _translate(self, error: Exception) -> Exception:
        if read_code(error) in MISSING:
            return ObjectMissing(self._name)
        if read_status(error) == 412:
            text = f"bucket {self._bucket}: GetObject: the object was replaced while it was read"
            return StoreUnavailable(text)
        return explain("GetObject", self._bucket, error)
