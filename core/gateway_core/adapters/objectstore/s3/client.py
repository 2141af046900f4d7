"""The boto3 client, set up for any S3-compatible store."""

from typing import TYPE_CHECKING, Literal

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

CONNECTIONS = 72
CONNECT_SECONDS = 3
READ_SECONDS = 30
ATTEMPTS = 3


def build_client(
    endpoint: str | None, region: str | None, addressing: Literal["auto", "path", "virtual"]
) -> "S3Client":
    """A client, safe to use from many threads; credentials by boto3's usual chain.

    The signature covers the SHA-256 of every body, so the store refuses what was damaged on the
    way. boto3's newer checksums are asked for only where S3 demands one: many compatible stores
    refuse them.
    """
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        config=Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            tcp_keepalive=True,
            s3={"addressing_style": addressing, "payload_signing_enabled": True},
        ),
    )
