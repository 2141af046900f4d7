"""The secret keys that processes read from a mounted folder; used by their `compose` modules.

Each file holds at least 16 bytes in urlsafe base64.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from pathlib import Path

LEAST_BYTES = 16
_PEPPER = re.compile(r"pepper-(\d{1,4})")


class SecretsUnusable(Exception):
    """A key is missing or malformed; the text names the file and tells nothing of its content."""


def load_key(folder: Path, name: str) -> bytes:
    """The key in the file `name`. SecretsUnusable."""
    try:
        text = (folder / name).read_bytes().strip().rstrip(b"=")
        value = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    except OSError as error:
        raise SecretsUnusable(f"{folder / name}: {error.strerror}") from error
    except binascii.Error as error:
        raise SecretsUnusable(f"{folder / name} is not urlsafe base64") from error
    if len(value) < LEAST_BYTES:
        raise SecretsUnusable(f"{folder / name} must hold at least {LEAST_BYTES} bytes")
    return value


def load_peppers(folder: Path) -> Mapping[int, bytes]:
    """All peppers by version, of the files `pepper-<version>`. SecretsUnusable if none."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise SecretsUnusable(f"{folder}: {error.strerror}") from error
    found = [match for name in names if (match := _PEPPER.fullmatch(name))]
    if not found:
        raise SecretsUnusable(f"{folder} has no file pepper-1")
    return {int(match[1]): load_key(folder, match[0]) for match in found}
