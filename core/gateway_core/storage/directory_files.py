"""Blocking file operations of the directory store, and the syntax of object keys."""

import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from gateway_core.storage.content import Digests
from gateway_core.storage.objects import Entry, ObjectMissing

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of files that are not objects yet; no part of a key has it."""

MAX_KEY = 1024
MAX_PART = 255

_ALLOWED = re.compile(r"[A-Za-z0-9._/-]*\Z")


def check_key(key: str) -> None:
    """Raise ValueError unless `key` is a relative path of `[A-Za-z0-9._/-]` without `..`."""
    if not _ALLOWED.match(key) or len(key) > MAX_KEY:
        raise ValueError(f"not an object key: {key!r}")
    for part in key.split("/"):
        _check_part(part, key)
        if not part:
            raise ValueError(f"an object key has no empty parts: {key!r}")


def check_prefix(prefix: str) -> None:
    """Raise ValueError unless a key may begin with `prefix`."""
    if not _ALLOWED.match(prefix) or len(prefix) > MAX_KEY:
        raise ValueError(f"not the prefix of an object key: {prefix!r}")
    for part in prefix.split("/")[:-1]:
        _check_part(part, prefix)
        if not part:
            raise ValueError(f"an object key has no empty parts: {prefix!r}")


def is_part(name: str) -> bool:
    """Return whether a file or folder of that name can be part of a key."""
    return bool(_ALLOWED.match(name)) and not name.startswith(TEMPORARY_PREFIX)


def _check_part(part: str, key: str) -> None:
    if part in {".", ".."} or part.startswith(TEMPORARY_PREFIX) or len(part) > MAX_PART:
        raise ValueError(f"not a part of an object key: {part!r} in {key!r}")


LEFTOVER_SECONDS = 24 * 3600

_RENAME_ATTEMPTS = 100


class FileWriter:
    """Writer of one object: `write` any number of times, then `commit` or `discard`.

    `bytes` and `digests` are of the data written. The file is created by the first write.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._path = root / f"{TEMPORARY_PREFIX}{secrets.token_hex(16)}"
        self._file: FileIO | None = None
        self.digests = Digests()
        self.bytes = 0

    def write(self, data: bytes) -> None:
        """Append `data`."""
        if self._file is None:
            self._file = FileIO(self._path, "xb")
        self.digests.update(data)
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) :]
        self.bytes += len(data)

    def commit(self, target: Path) -> None:
        """Move the file to `target`, durably; at least one write came before."""
        assert self._file is not None
        os.fsync(self._file.fileno())
        self._file.close()
        for attempt in range(1, _RENAME_ATTEMPTS + 1):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                self._path.replace(target)
                break
            except (FileNotFoundError, FileExistsError):
                # a concurrent deletion removed the empty folder in between
                if attempt == _RENAME_ATTEMPTS:
                    raise
        folder = target.parent
        while True:
            # every folder: another writer may have created one and not synced it yet
            _sync_folder(folder)
            if folder == self._root:
                return
            folder = folder.parent

    def discard(self) -> None:
        """Remove the file, unless it was committed."""
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)


def write_whole(root: Path, target: Path, data: bytes) -> Digests:
    """Write `data` to `target`, durably."""
    writer = FileWriter(root)
    try:
        writer.write(data)
        writer.commit(target)
    except BaseException:
        writer.discard()
        raise
    return writer.digests


def open_file(path: Path) -> FileIO:
    """Return the object's file, open for reading. ObjectMissing."""
    with _missing(path):
        return FileIO(path, "rb")


def read_block(
    file: FileIO,
    position: int,
    end: int | None,
    most: int,
    examine: Callable[[bytes], object] | None,
) -> bytes:
    """At most `most` bytes from `position`, before `end`; none at the end of the file."""
    wanted = most if end is None else min(most, end - position)
    block = os.pread(file.fileno(), wanted, position)
    if examine is not None and block:
        examine(block)
    return block


def read_cached(file: FileIO, position: int, end: int | None, most: int) -> bytes | None:
    """As `read_block`, from the page cache alone; None where the read would wait for the disk.

    It does not block, so it needs no thread, whose wake-up costs more than the copy of a chunk.
    """
    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return None
    block = bytearray(most if end is None else min(most, end - position))
    try:
        size = os.preadv(file.fileno(), [block], position, flag)
    except OSError:
        # not in the cache, or not supported by the file system; the thread meets any real error
        return None
    return bytes(memoryview(block)[:size])


def read_whole(path: Path) -> bytes:
    """Return all bytes of the object. ObjectMissing."""
    with open_file(path) as file:
        return file.readall()


def measure(path: Path) -> int:
    """Return the object's size in bytes. ObjectMissing."""
    with open_file(path) as file:
        return os.fstat(file.fileno()).st_size


def delete_file(root: Path, path: Path) -> None:
    """Remove the object, if it exists, and the folders that it leaves empty."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        path.unlink()
    for folder in path.parents:
        if folder == root:
            return
        try:
            folder.rmdir()
        except OSError:
            return


def delete_files(root: Path, paths: Iterable[Path]) -> None:
    """Remove each as `delete_file` does."""
    for path in paths:
        delete_file(root, path)


def list_names(root: Path, folder: str, prefix: str, after: str) -> list[str]:
    """Sorted entries of `folder` that start with `prefix` and come after `after`.

    Subfolders end with a slash and are included where they may contain such keys; keys below a
    folder sort where the folder does. Other files, like a volume's `lost+found`, are ignored. Empty
    where the folder is gone.
    """
    base = f"{folder}/" if folder else ""
    try:
        with os.scandir(root / folder) as entries:
            names = [
                f"{base}{entry.name}/" if entry.is_dir(follow_symlinks=False) else base + entry.name
                for entry in entries
                if is_part(entry.name)
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(name for name in names if _is_wanted(name, prefix, after))


def _is_wanted(name: str, prefix: str, after: str) -> bool:
    if not name.endswith("/"):
        return name.startswith(prefix) and name > after
    may_hold = name.startswith(prefix) or prefix.startswith(name)
    return may_hold and (name > after or after.startswith(name))


def measure_all(root: Path, keys: Iterable[str]) -> list[Entry]:
    """Entries of these objects, without deleted ones."""
    entries = []
    for key in keys:
        with suppress(FileNotFoundError, NotADirectoryError):
            state = os.stat(root / key)
            modified = datetime.fromtimestamp(state.st_mtime, UTC)
            entries.append(Entry(key, state.st_size, modified))
    return entries


def remove_leftovers(root: Path) -> None:
    """Remove files of writes that were killed more than a day ago.

    A process that may only read, like the media host, leaves that to the others.
    """
    if not os.access(root, os.W_OK):
        return
    # the files' times are this machine's, not the API server's
    oldest = time.time() - LEFTOVER_SECONDS
    with os.scandir(root) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.name.startswith(TEMPORARY_PREFIX) and entry.stat().st_mtime < oldest:
                    Path(entry).unlink()


@contextmanager
def _missing(path: Path) -> Iterator[None]:
    """Raise ObjectMissing for a file that does not exist."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise ObjectMissing(path.name) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
