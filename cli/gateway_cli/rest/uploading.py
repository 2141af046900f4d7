"""Upload of a local file: in one call where it is small, else in parts, several at once.

An Upload that was interrupted is resumed by the same command within its hour. Its state is a small
file below `$XDG_STATE_HOME/gatewayctl/uploads` (`~/.local/state` otherwise), written before
anything is asked for and after each part. It holds no secret.
"""

import asyncio
import hashlib
import math
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gateway_cli.machine import write_private
from gateway_cli.output import print_note
from gateway_cli.rest.access import describe_expiry, make_path
from gateway_cli.rest.client import TRANSFER_SECONDS, Body, RestApi
from gateway_cli.rest.errors import RestError
from gateway_cli.rest.transfers import open_bars

PART_BYTES = 8 << 20
AT_ONCE = 4
SPARE_SECONDS = 60.0
"""An Upload that ends sooner than this is not resumed."""
KEPT_SECONDS = 31 * 86_400
"""How long the state of a finished upload is kept: longer than a Batch exists."""
_CORRUPT = ("md5_mismatch", "upload_size_mismatch")
_ENDED = ("upload_state_conflict", "upload_not_found", "part_not_found")
_PROGRESS = {"idempotency_key", "upload_id", "expires_at", "parts", "file_id"}


class UploadState(BaseModel):
    """One upload; the name of its file is a digest of all fields but those of its progress.

    `expires_at` is in epoch seconds, 0 as long as the Upload's creation is not known to have
    succeeded. `parts` has the ids of the stored parts, by their place from 0 on. `file_id` is
    kept of an upload for one purpose alone, which `once` names.
    """

    base_url: str
    key_id: str
    source: str
    purpose: str
    name: str
    size: int
    md5: str
    part_size: int
    expires_after: int | None
    once: str | None
    idempotency_key: str
    upload_id: str = ""
    expires_at: float = 0
    parts: dict[int, str] = {}
    file_id: str = ""

    @property
    def path(self) -> Path:
        """The file of this state."""
        words = self.model_dump_json(exclude=_PROGRESS)
        return _find_folder() / f"{hashlib.sha256(words.encode()).hexdigest()[:32]}.json"

    def find_earlier(self) -> "UploadState | None":
        """Return the state of an earlier attempt that is finished or can be resumed."""
        state = _read(self.path)
        is_late = state and state.upload_id and time.time() > state.expires_at - SPARE_SECONDS
        return None if state is None or (is_late and not state.file_id) else state

    def save(self) -> None:
        """Write the state, whole or not at all. OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.path, self.model_dump_json().encode())

    def remove(self) -> None:
        """Remove the file, and files that are too old to be of use. OSError."""
        self.path.unlink(missing_ok=True)
        for path in _find_folder().glob("*.json"):
            if time.time() - path.stat().st_mtime > KEPT_SECONDS:
                path.unlink(missing_ok=True)

    def describe(self) -> dict[str, Any]:
        """Return the document of an interrupted upload."""
        return {
            "id": self.upload_id,
            "source": self.source,
            "purpose": self.purpose,
            "bytes": self.size,
            "parts_there": len(self.parts),
            "parts": math.ceil(self.size / self.part_size),
            "expires_at": int(self.expires_at) or None,
            "base_url": self.base_url,
        }


def list_pending() -> Iterator[UploadState]:
    """Yield the uploads that were interrupted here and can be resumed."""
    for path in sorted(_find_folder().glob("*.json")):
        state = _read(path)
        if state and not state.file_id and (not state.upload_id or time.time() < state.expires_at):
            yield state


class Uploader:
    """Uploads files with one key."""

    def __init__(self, api: RestApi) -> None:
        self._api = api

    async def upload(
        self,
        source: Path,
        purpose: str,
        name: str | None = None,
        expires_after: int | None = None,
        *,
        in_parts: bool = False,
        once: str | None = None,
    ) -> Body:
        """Return the File that it has become; `in_parts` makes an Upload of a small one too.

        With `once`, any text, the same bytes become one File for the same text, however often they
        are brought up for it; of one that was so before, the id alone, since it may be gone.

        Raises:
            RestError: it cannot be read, is refused, or changed meanwhile.
        """
        name = name or source.name
        try:
            size = (await asyncio.to_thread(source.stat)).st_size
            if size <= PART_BYTES and not in_parts and once is None:
                content = await asyncio.to_thread(source.read_bytes)
                expiry = describe_expiry(expires_after).items()
                fields = {f"expires_after[{word}]": str(value) for word, value in expiry}
                return await self._api.send_file(
                    *("/v1/files", "file", content, name),
                    fields={"purpose": purpose, **fields},
                    repeat=False,
                )
            state, changed = await asyncio.to_thread(
                self._describe, source, purpose, name, expires_after, once
            )
            return await self._upload_in_parts(state, changed)
        except OSError as error:
            raise RestError(f"{error.filename or source}: {error.strerror}") from error

    def _describe(
        self, source: Path, purpose: str, name: str, expires_after: int | None, once: str | None
    ) -> tuple[UploadState, int]:
        """Return the state of a new upload, and when the source last changed."""
        path = source.resolve()
        with path.open("rb") as opened:
            about = os.fstat(opened.fileno())
            digest = hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False))
        md5 = digest.hexdigest()
        # other bytes are another File, for which a Batch of the same key is refused
        words = "\n".join((once, name, md5)) if once else ""
        key = uuid.uuid5(uuid.NAMESPACE_OID, words) if once else uuid.uuid4()
        state = UploadState(
            base_url=self._api.base_url,
            key_id=self._api.key_id,
            source=str(path),
            purpose=purpose,
            name=name,
            size=about.st_size,
            md5=md5,
            part_size=PART_BYTES,
            expires_after=expires_after,
            once=once,
            idempotency_key=str(key),
        )
        return state, about.st_mtime_ns

    async def _upload_in_parts(self, fresh: UploadState, changed: int) -> Body:
        state = await asyncio.to_thread(fresh.find_earlier) or fresh
        if state.file_id:
            return {"id": state.file_id}
        if state.parts:
            many = math.ceil(state.size / state.part_size)
            print_note(
                f"going on with {state.upload_id}: {len(state.parts)} of {many} parts are up"
            )
        try:
            return await self._finish(state, changed)
        except RestError as error:
            if error.code not in _ENDED:
                raise
            await asyncio.to_thread(state.remove)
            if state is not fresh:
                print_note(f"{state.upload_id} has ended; beginning anew")
                return await self._upload_in_parts(fresh, changed)
            if state.once is None:
                raise
            # a repeated create returns the Upload as it was at first, without its File
            text = (
                f"{state.source} was brought up for this Idempotency-Key before, and not from here"
            )
            raise RestError(f"{text}: give the File's id, or leave the key out") from error

    async def _finish(self, state: UploadState, changed: int) -> Body:
        """Make the Upload if there is none yet, add what is missing, and complete it."""
        if not state.upload_id:
            await self._create(state)
        await self._add_missing(state)
        if (await asyncio.to_thread(Path(state.source).stat)).st_mtime_ns != changed:
            raise RestError(f"{state.source} changed while it was brought up")
        ordered = [state.parts[place] for place in sorted(state.parts)]
        try:
            upload = await self._api.post(
                make_path("v1/uploads", state.upload_id, "complete"),
                {"part_ids": ordered, "md5": state.md5},
                seconds=TRANSFER_SECONDS,
            )
        except RestError as error:
            if error.code in _CORRUPT:
                await asyncio.to_thread(state.remove)
            raise
        file: Body = upload["file"]
        state.file_id = str(file["id"])
        await asyncio.to_thread(state.save if state.once else state.remove)
        return file

    async def _create(self, state: UploadState) -> None:
        body: Body = {
            "bytes": state.size,
            "filename": state.name,
            "mime_type": "application/octet-stream",
            "purpose": state.purpose,
        }
        if state.expires_after:
            body["expires_after"] = describe_expiry(state.expires_after)
        await asyncio.to_thread(state.save)
        try:
            upload = await self._api.create("/v1/uploads", body, state.idempotency_key)
        except RestError as error:
            if error.retry_after is None:
                await asyncio.to_thread(state.remove)
            raise
        state.upload_id, state.expires_at = str(upload["id"]), float(upload["expires_at"])
        await asyncio.to_thread(state.save)

    async def _add_missing(self, state: UploadState) -> None:
        count = math.ceil(state.size / state.part_size)
        places = iter([place for place in range(count) if place not in state.parts])
        path = make_path("v1/uploads", state.upload_id, "parts")
        with open_bars() as progress:
            here = sum(min(state.part_size, state.size - p * state.part_size) for p in state.parts)
            row = progress.add_task(state.name, total=state.size, completed=here)

            async def work() -> None:
                for place in places:
                    content = await asyncio.to_thread(_read_piece, state, place)
                    # one whose answer is lost stays behind, to no harm
                    part = await self._api.send_file(path, "data", content, "part")
                    state.parts[place] = str(part["id"])
                    # one after the other: the last of two writes has both parts
                    state.save()
                    progress.advance(row, len(content))

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(AT_ONCE):
                        group.create_task(work())
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None


def _read_piece(state: UploadState, place: int) -> bytes:
    with open(state.source, "rb") as opened:
        opened.seek(place * state.part_size)
        content = opened.read(state.part_size)
    if not content:
        raise RestError(f"{state.source} changed while it was brought up")
    return content


def _find_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME")
    base = Path(home) if home else Path.home() / ".local" / "state"
    return base / "gatewayctl" / "uploads"


def _read(path: Path) -> UploadState | None:
    """Return the state in a file; None where there is none that can be read."""
    try:
        return UploadState.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None
