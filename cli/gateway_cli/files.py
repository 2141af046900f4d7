"""Files that several processes share: private, written whole, locked."""

import fcntl
import os
from pathlib import Path
from typing import IO, Any


def write_private(path: Path, content: bytes) -> None:
    """Writes `content` to `path` with mode 0600, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    # private from its first byte on
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(partial, path)


def try_lock(file: IO[Any]) -> bool:
    """Whether this process now has the lock of an open file; it ends with the file."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
