"""Upload of a local file: in one call where it is small, else in parts, several at once.

An Upload that was interrupted is resumed by the same command within its hour. Its state is a small
file for each source, key and address below `$XDG_STATE_HOME/gatewayctl/uploads` (`~/.local/state`
otherwise), written before anything is asked for and after each part. It holds no secret.
"""

import asyncio
import hashlib
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel

from gateway_cli.machine import write_private
from gateway_cli.rest.access import Access, describe_expiry, make_path
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
_OWN = {"idempotency_key", "upload_id", "expires_at", "parts", "file_id"}
"""Fields of a state that tell nothing of the source."""


class UploadState(BaseModel):
    """One upload. `parts` has the ids of those that are there, by their place from 0 on.

    `size`, `changed_ns` and `md5` say what the source was; `expires_at` is in epoch seconds, 0 as
    long as the Upload's creation is not known to have succeeded. `file_id` is kept of what is to be
    brought up once.
    """

    base_url: str
    key_id: str
    source: str
    purpose: str
    name: str
    size: int
    changed_ns: int
    md5: str
    part_size: int
    idempotency_key: str
    expires_after: int | None = None
    upload_id: str = ""
    expires_at: float = 0
    parts: dict[int, str] = {}
    once: bool = False
    file_id: str = ""

    def fits(self, other: "UploadState") -> bool:
        """Whether this is of the same bytes for the same end as `other`, and still in time."""
        is_open = not self.upload_id or time.time() < self.expires_at - SPARE_SECONDS
        same = self.model_dump(exclude=_OWN) == other.model_dump(exclude=_OWN)
        return same and (bool(self.file_id) or is_open)


class StateFile:
    """The state of one source; `read` gives None where there is none that can be read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, access: Access, source: Path, purpose: str, once: str | None) -> "StateFile":
        """The file for a source, a key and an address; `once` is what it is brought up for."""
        own = () if once is None else (once,)
        words = "\n".join((access.base_url, access.key_id, str(source), purpose, *own))
        return cls(_find_folder() / f"{hashlib.sha256(words.encode()).hexdigest()[:32]}.json")

    def read(self) -> UploadState | None:
        """The state that was kept."""
        try:
            return UploadState.model_validate_json(self.path.read_bytes())
        except (OSError, ValueError):
            return None

    def write(self, state: UploadState) -> None:
        """Keeps a state, whole or not at all. OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self.path, state.model_dump_json().encode())

    def finish(self, state: UploadState) -> None:
        """Keeps the File of a finished upload, and removes states that are too old. OSError."""
        self.write(state)
        for file, other in _read_all():
            age = time.time() - file.path.stat().st_mtime
            if other.file_id and age > KEPT_SECONDS:
                file.remove()

    def remove(self) -> None:
        """Removes the state."""
        self.path.unlink(missing_ok=True)


def list_states() -> Iterator[tuple[StateFile, UploadState]]:
    """All uploads that were not brought to an end here."""
    return (found for found in _read_all() if not found[1].file_id)


class Uploader:
    """Uploads files with one key; `report` gets notes for people."""

    def __init__(self, api: RestApi, access: Access, report: Callable[[str], None]) -> None:
        self._api = api
        self._access = access
        self._report = report

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
        """The File that it has become; `in_parts` makes an Upload of a small one too.

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
            return await self._upload_in_parts(source, purpose, name, expires_after, once)
        except OSError as error:
            raise RestError(f"{error.filename or source}: {error.strerror}") from error

    async def _upload_in_parts(
        self, source: Path, purpose: str, name: str, expires_after: int | None, once: str | None
    ) -> Body:
        path = await asyncio.to_thread(source.resolve)
        file = StateFile.of(self._access, path, purpose, once)
        fresh = await asyncio.to_thread(self._describe_source, path, purpose, name, expires_after)
        if once is not None:
            # other bytes are another File, for which a Batch of the same key is refused
            words = "\n".join((once, fresh.name, fresh.md5))
            fresh.once = True
            fresh.idempotency_key = str(uuid.uuid5(uuid.NAMESPACE_OID, words))
        kept = await asyncio.to_thread(file.read)
        state = kept if kept is not None and kept.fits(fresh) else fresh
        if state.file_id:
            return {"id": state.file_id}
        try:
            return await self._resume(path, file, state, fresh)
        except RestError as error:
            if once is None or error.code not in _ENDED:
                raise
            # a create that is repeated tells of the Upload as it was at first, not its File
            await asyncio.to_thread(file.remove)
            text = f"{source} was brought up for this Idempotency-Key before, and not from here"
            raise RestError(f"{text}: give the File's id, or leave the key out") from error

    async def _resume(
        self, path: Path, file: StateFile, state: UploadState, fresh: UploadState
    ) -> Body:
        """The File, by the Upload that `state` tells of; by another one where that has ended."""
        if state.parts:
            many = math.ceil(state.size / state.part_size)
            self._report(
                f"going on with {state.upload_id}: {len(state.parts)} of {many} parts are up"
            )
        try:
            return await self._finish(path, file, state)
        except RestError as error:
            if state is fresh or error.code not in _ENDED:
                raise
            self._report(f"{state.upload_id} has ended; beginning anew")
            await asyncio.to_thread(file.remove)
            return await self._finish(path, file, fresh)

    def _describe_source(
        self, path: Path, purpose: str, name: str, expires_after: int | None
    ) -> UploadState:
        with path.open("rb") as opened:
            about = os.fstat(opened.fileno())
            digest = hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False))
        return UploadState(
            base_url=self._access.base_url,
            key_id=self._access.key_id,
            source=str(path),
            purpose=purpose,
            name=name,
            size=about.st_size,
            changed_ns=about.st_mtime_ns,
            md5=digest.hexdigest(),
            part_size=PART_BYTES,
            idempotency_key=str(uuid.uuid4()),
            expires_after=expires_after,
        )

    async def _finish(self, path: Path, file: StateFile, state: UploadState) -> Body:
        """Makes the Upload if there is none yet, adds what is missing, and completes it."""
        if not state.upload_id:
            await asyncio.to_thread(file.write, state)
            body: Body = {
                "bytes": state.size,
                "filename": state.name,
                "mime_type": "application/octet-stream",
                "purpose": state.purpose,
            }
            if state.expires_after:
                body["expires_after"] = describe_expiry(state.expires_after)
            try:
                upload = await self._api.create("/v1/uploads", body, state.idempotency_key)
            except RestError as error:
                if error.retry_after is None:
                    await asyncio.to_thread(file.remove)
                raise
            state.upload_id, state.expires_at = str(upload["id"]), float(upload["expires_at"])
            await asyncio.to_thread(file.write, state)
        await self._add_missing(path, file, state)
        changed = (await asyncio.to_thread(path.stat)).st_mtime_ns
        if changed != state.changed_ns:
            raise RestError(f"{path} changed while it was brought up")
        ordered = [state.parts[place] for place in sorted(state.parts)]
        try:
            upload = await self._api.post(
                make_path("v1/uploads", state.upload_id, "complete"),
                {"part_ids": ordered, "md5": state.md5},
                seconds=TRANSFER_SECONDS,
            )
        except RestError as error:
            if error.code in _CORRUPT:
                await asyncio.to_thread(file.remove)
            raise
        found: Body = upload["file"]
        if state.once:
            state.file_id = str(found["id"])
            await asyncio.to_thread(file.finish, state)
        else:
            await asyncio.to_thread(file.remove)
        return found

    async def _add_missing(self, path: Path, file: StateFile, state: UploadState) -> None:
        places = iter(
            place
            for place in range(math.ceil(state.size / state.part_size))
            if place not in state.parts
        )
        with open_bars() as progress:
            here = sum(min(state.part_size, state.size - p * state.part_size) for p in state.parts)
            parts = make_path("v1/uploads", state.upload_id, "parts")
            row = progress.add_task(state.name, total=state.size, completed=here)

            async def work() -> None:
                for place in places:
                    content = await asyncio.to_thread(
                        _read_piece, path, place * state.part_size, state.part_size
                    )
                    # one whose answer is lost stays behind, to no harm
                    part = await self._api.send_file(parts, "data", content, "part")
                    state.parts[place] = str(part["id"])
                    # one after the other: the last of two writes has both parts
                    file.write(state)
                    progress.advance(row, len(content))

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(AT_ONCE):
                        group.create_task(work())
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None


def _read_piece(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb") as opened:
        opened.seek(offset)
        content = opened.read(size)
    if not content:
        raise RestError(f"{path} changed while it was brought up")
    return content


def _find_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME")
    base = Path(home) if home else Path.home() / ".local" / "state"
    return base / "gatewayctl" / "uploads"


def _read_all() -> Iterator[tuple[StateFile, UploadState]]:
    for path in sorted(_find_folder().glob("*.json")):
        file = StateFile(path)
        state = file.read()
        if state is not None:
            yield file, state
