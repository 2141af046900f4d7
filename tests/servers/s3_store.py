"""The adapter on a test's S3 server, below a prefix of its own."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway_core.storage.s3.client import build_client
from gateway_core.storage.s3.store import S3Store
from tests.servers.s3_server import REGION, S3Server


@contextmanager
def open_bucket(
    server: S3Server,
    *,
    endpoint: str | None = None,
    bucket: str | None = None,
    prefix: str | None = None,
    credentials: dict[str, str] | None = None,
) -> Iterator[S3Store]:
    """The store, with the server's credentials or others, perhaps by way of a proxy."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (credentials or server.credentials).items():
            patch.setenv(name, value)
        client = build_client(endpoint or server.url, REGION, "auto")
        # found now, while the variables stand
        client._request_signer._credentials.get_frozen_credentials()
    name = f"t-{secrets.token_hex(6)}" if prefix is None else prefix
    store = S3Store(client, bucket or server.bucket, name)
    try:
        yield store
    finally:
        store.close()
