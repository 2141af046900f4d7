"""Which object store a deployment has chosen; `adapters.objectstore.choice` opens it."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import StringConstraints, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_PREFIX = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*\Z")


class StoreSettings(BaseSettings):
    """The part of a process's settings that says where bytes are, the same for every process.

    Environment variables are these names in capitals with the prefix GATEWAY_. Credentials of S3
    are none of them: boto3 finds them where every tool for AWS does.
    """

    model_config = SettingsConfigDict(env_prefix="GATEWAY_", frozen=True)

    store: Literal["directory", "s3"] = "directory"
    store_dir: Path | None = None
    """The directory."""
    store_bucket: str = ""
    """The bucket of S3, which has to be there."""
    store_prefix: Annotated[str, StringConstraints(max_length=256)] = ""
    """What the names of all objects begin with, up to a slash that is put between."""
    store_endpoint: str = ""
    """The URL of a store other than AWS."""
    store_region: str = ""
    """The bucket's region; where it is empty, what boto3 finds (`AWS_REGION`)."""
    store_addressing: Literal["auto", "path", "virtual"] = "auto"
    """Where the bucket stands in a URL; `auto`: in the path if there is an endpoint."""

    @model_validator(mode="after")
    def _check_store(self) -> Self:
        if self.store == "directory":
            if self.store_dir is None:
                raise ValueError("GATEWAY_STORE_DIR has to name the directory of the object store")
            return self
        if not self.store_bucket:
            raise ValueError("GATEWAY_STORE is s3: GATEWAY_STORE_BUCKET has to name the bucket")
        if self.store_prefix and not _PREFIX.match(self.store_prefix):
            raise ValueError("GATEWAY_STORE_PREFIX has to be like `gateway` or `team/gateway`")
        if self.store_endpoint:
            _check_endpoint(self.store_endpoint)
        return self


def _check_endpoint(text: str) -> None:
    """ValueError unless it is an http(s) URL; its text is not repeated, as it may hold a secret."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("GATEWAY_STORE_ENDPOINT has to be a URL with http or https")
    if url.username is not None or url.query or url.fragment:
        raise ValueError("GATEWAY_STORE_ENDPOINT holds no credentials, query or fragment")
