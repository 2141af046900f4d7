"""Which object keys are good: what a directory and an S3 bucket both take as it is."""

import re

TEMPORARY_PREFIX = ".tmp-"
"""How files that are not objects yet begin; no part of a key does."""

MAX_KEY = 1024
MAX_PART = 255

_ALLOWED = re.compile(r"[A-Za-z0-9._/-]*\Z")


def check_key(key: str) -> None:
    """Raises ValueError unless `key` is relative, of `[A-Za-z0-9._/-]` and leads nowhere else."""
    if not _ALLOWED.match(key) or len(key) > MAX_KEY:
        raise ValueError(f"not an object key: {key!r}")
    for part in key.split("/"):
        _check_part(part, key)
        if not part:
            raise ValueError(f"an object key has no empty parts: {key!r}")


def check_prefix(prefix: str) -> None:
    """Raises ValueError unless some key may begin with `prefix`."""
    if not _ALLOWED.match(prefix) or len(prefix) > MAX_KEY:
        raise ValueError(f"not the prefix of an object key: {prefix!r}")
    for part in prefix.split("/")[:-1]:
        _check_part(part, prefix)
        if not part:
            raise ValueError(f"an object key has no empty parts: {prefix!r}")


def is_part(name: str) -> bool:
    """Whether a file or folder of that name can be part of a key."""
    return bool(_ALLOWED.match(name)) and not name.startswith(TEMPORARY_PREFIX)


def _check_part(part: str, key: str) -> None:
    if part in {".", ".."} or part.startswith(TEMPORARY_PREFIX) or len(part) > MAX_PART:
        raise ValueError(f"not a part of an object key: {part!r} in {key!r}")
