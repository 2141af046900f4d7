"""Files that hold secrets: readable by their owner alone, from their first byte on."""

import os
from pathlib import Path


def write_private(path: Path, content: bytes) -> None:
    """Writes `content` to `path` with mode 0600, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.replace(partial, path)
