"""A real S3 server (versitygw) for tests, on a free port of 127.0.0.1, that can be killed.

Used by whatever needs the bucket's adapter. It keeps what it holds over a kill, as its files are on
disk. `S3Server.settings` is what a process of the gateway is told of it.
"""

import os
import secrets
import urllib.request
from collections.abc import Mapping, Sequence

import boto3
from botocore.config import Config
from tools.programs import find_program

from tests.servers.serverprocess import ServerProcess

REGION = "us-east-1"


class S3Server(ServerProcess):
    """One server with the bucket `objects`; `with` starts it and ends it with all it holds."""

    name = "s3"
    bucket = "objects"

    def __init__(self) -> None:
        super().__init__()
        self._has_bucket = False
        self.access_key = "test" + secrets.token_hex(8)
        self.secret_key = secrets.token_hex(20)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials(self) -> dict[str, str]:
        """The variables that boto3 reads them from."""
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}

    def settings(self, prefix: str = "", endpoint: str | None = None) -> dict[str, str]:
        """The variables that have a process of the gateway use it."""
        return {
            "GATEWAY_STORE": "s3",
            "GATEWAY_STORE_BUCKET": self.bucket,
            "GATEWAY_STORE_PREFIX": prefix,
            "GATEWAY_STORE_ENDPOINT": endpoint or self.url,
            "GATEWAY_STORE_REGION": REGION,
            **self.credentials,
        }

    def start(self) -> None:
        """Starts it with what it held before, or with the bucket and nothing in it."""
        super().start()
        if not self._has_bucket:
            self.client().create_bucket(Bucket=self.bucket)
            self._has_bucket = True

    def client(self):
        """A plain client, for what the adapter has no word for."""
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
        )

    def list_names(self) -> list[str]:
        """Names of all objects in the bucket."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def list_uploads(self) -> list[str]:
        """Names of the objects whose parts are there and not complete."""
        found = self.client().list_multipart_uploads(Bucket=self.bucket)
        return [item["Key"] for item in found.get("Uploads", [])]

    def empty(self) -> None:
        """Removes all objects."""
        client = self.client()
        for name in self.list_names():
            client.delete_object(Bucket=self.bucket, Key=name)

    def command(self) -> Sequence[str]:
        """A gateway onto files, which keep all it holds over a kill."""
        for name in ("data", "sidecar"):
            (self.folder / name).mkdir(exist_ok=True)
        return (
            *(str(find_program("versitygw")), "--port", f"127.0.0.1:{self.port}"),
            *("--health", "/healthz", "--region", REGION, "--quiet", "--keep-alive"),
            # not every filesystem has the extended attributes it would use otherwise
            *("posix", "--sidecar", str(self.folder / "sidecar"), str(self.folder / "data")),
        )

    def environment(self) -> Mapping[str, str]:
        """Its credentials, and nothing of the tests'."""
        return {
            "PATH": os.environ["PATH"],
            "ROOT_ACCESS_KEY_ID": self.access_key,
            "ROOT_SECRET_ACCESS_KEY": self.secret_key,
        }

    def answers(self) -> bool:
        """Whether it says that it is well."""
        with urllib.request.urlopen(f"{self.url}/healthz", timeout=0.5) as answer:
            return answer.status == 200
