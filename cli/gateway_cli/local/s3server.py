"""The S3 server of a local run, where bytes are to be in a bucket: versitygw, onto files.

It comes from PATH or from pinned Go modules, built once (`tools/programs.py` of the checkout).
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway_cli.local.config import LocalConfig
from gateway_cli.local.errors import LocalRunError
from gateway_cli.local.ports import LOOPBACK
from gateway_cli.local.process import ProcessSpec
from gateway_cli.local.readiness import answers_ok
from gateway_cli.local.state import Credentials

BUCKET = "gateway"
REGION = "us-east-1"
ACCESS_KEY = "local"


async def find_s3_server(root: Path) -> Path:
    """The program, built if need be, which takes a minute or two.

    Raises:
        LocalRunError: there is none and it cannot be built; the text says why.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tools.programs", "versitygw"),
        cwd=root,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        told, wrong = await process.communicate()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    lines = told.decode().splitlines()
    if process.returncode or not lines:
        raise LocalRunError(f"there is no S3 server: {wrong.decode().strip()}")
    return Path(lines[-1])


def describe_s3(config: LocalConfig, program: Path, credentials: Credentials) -> ProcessSpec:
    """The server, with its bucket made."""
    folder = config.directory / "s3"
    # a bucket is a folder
    (folder / "data" / BUCKET).mkdir(parents=True, exist_ok=True)
    (folder / "sidecar").mkdir(exist_ok=True)
    command = (
        *(str(program), "--port", f"{LOOPBACK}:{config.ports.s3}", "--health", "/healthz"),
        *("--region", REGION, "--quiet", "--keep-alive"),
        # not every filesystem has the extended attributes it would use otherwise
        *("posix", "--sidecar", str(folder / "sidecar"), str(folder / "data")),
    )
    env = {
        "PATH": os.environ.get("PATH", ""),
        "ROOT_ACCESS_KEY_ID": ACCESS_KEY,
        "ROOT_SECRET_ACCESS_KEY": credentials.s3_secret,
    }
    return ProcessSpec("s3", command, env, answers_ok(f"{config.s3_url}/healthz"))


def list_client_variables(config: LocalConfig, credentials: Credentials) -> Mapping[str, str]:
    """What any client of S3 is told of the server by; boto3 and the aws command read it."""
    return {
        "AWS_ENDPOINT_URL_S3": config.s3_url,
        "AWS_REGION": REGION,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": credentials.s3_secret,
    }


def list_store_variables(config: LocalConfig, credentials: Credentials) -> Mapping[str, str]:
    """What has a process of the gateway keep its bytes there."""
    return {
        "GATEWAY_STORE": "s3",
        "GATEWAY_STORE_BUCKET": BUCKET,
        "GATEWAY_STORE_PREFIX": "",
        "GATEWAY_STORE_ENDPOINT": config.s3_url,
        "GATEWAY_STORE_REGION": REGION,
        "GATEWAY_STORE_ADDRESSING": "path",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": credentials.s3_secret,
    }
