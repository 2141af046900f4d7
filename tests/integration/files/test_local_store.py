"""The local run with an S3 server of its own: `make up STORE=s3`."""

from pathlib import Path

import boto3
import pytest

from gateway_cli.local.config import LocalConfig
from gateway_cli.local.processes import BUCKET
from tests.servers.control_plane import ROOT, BackgroundRun, free_ports

pytestmark = pytest.mark.full


def test_bytes_are_in_a_bucket_that_outlives_the_server(tmp_path: Path) -> None:
    config = LocalConfig(
        root=ROOT, directory=tmp_path, ports=free_ports(), restart=False, store="s3"
    )
    with BackgroundRun(config) as local:
        local.start("s3")
        told = local.variables
        client = boto3.client(
            "s3",
            endpoint_url=told["AWS_ENDPOINT_URL_S3"],
            region_name=told["AWS_REGION"],
            aws_access_key_id=told["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=told["AWS_SECRET_ACCESS_KEY"],
        )
        client.put_object(Bucket=BUCKET, Key="files/demo/file-a", Body=b"kept")
        local.kill("s3")
        local.restart("s3")
        got = client.get_object(Bucket=BUCKET, Key="files/demo/file-a")
        assert got["Body"].read() == b"kept"
        # what the processes of the gateway are told is the same place
        env = local._describe("media").env
        assert (env["GATEWAY_STORE"], env["GATEWAY_STORE_BUCKET"]) == ("s3", BUCKET)
        assert env["GATEWAY_STORE_ENDPOINT"] == told["AWS_ENDPOINT_URL_S3"]
        client.close()
