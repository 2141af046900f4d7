"""What the adapters tell of the bytes that they have written."""

import hashlib

import xxhash


class Digests:
    """Both digests of bytes that are given in order, each in hex."""

    def __init__(self, data: bytes | bytearray = b"") -> None:
        self._sha256 = hashlib.sha256(data)
        self._xxh3 = xxhash.xxh3_128(data)

    def update(self, data: bytes | bytearray) -> None:
        """Adds bytes. Blocking: a MiB takes about a millisecond."""
        self._sha256.update(data)
        self._xxh3.update(data)

    @property
    def sha256(self) -> str:
        """By which others may check the bytes."""
        return self._sha256.hexdigest()

    @property
    def xxh3(self) -> str:
        """By which the gateway does, each time it reads them."""
        return self._xxh3.hexdigest()
