"""The bare stores: what an upload or download is compared with, without a line of the gateway.

A directory is written as durably as the gateway does it (fsync of the file, rename, fsync of the
folder), or by `cp`; a bucket by boto3's `put_object`.
"""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.bench.harness import BLOCK
from tests.servers.s3 import S3Server


class PlainStore(Protocol):
    """Takes and gives one object; blocking."""

    def steps(self, content: bytes) -> Mapping[str, Any]: ...

    def get(self) -> int: ...


class PlainDirectory:
    """Files in a folder, which is on the file system that the gateway's store is on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "plain"

    def steps(self, content: bytes) -> Mapping[str, Any]:
        source = self._folder / "source"
        source.write_bytes(content)
        return {
            "cp": lambda: subprocess.run(["cp", source, self._folder / "copy"], check=True),
            "write and fsync": lambda: self._put(content),
        }

    def _put(self, content: bytes) -> None:
        fresh = self._folder / "plain.tmp"
        with fresh.open("wb", buffering=0) as file:
            for start in range(0, len(content), BLOCK):
                file.write(content[start : start + BLOCK])
            os.fsync(file.fileno())
        fresh.replace(self._path)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def get(self) -> int:
        size = 0
        with self._path.open("rb", buffering=0) as file:
            while block := file.read(BLOCK):
                size += len(block)
        return size


class PlainBucket:
    """One object of an S3 server by a plain boto3 client."""

    def __init__(self, server: S3Server) -> None:
        self._client, self._bucket = server.client(), server.bucket

    def steps(self, content: bytes) -> Mapping[str, Any]:
        return {
            "put_object": lambda: self._client.put_object(
                Bucket=self._bucket, Key="plain", Body=content
            )
        }

    def get(self) -> int:
        body = self._client.get_object(Bucket=self._bucket, Key="plain")["Body"]
        return sum(len(block) for block in body.iter_chunks(BLOCK))
