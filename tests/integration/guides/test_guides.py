"""Every program of docs/guides runs as it is, and prints what its page says."""

import base64
import contextlib
import hashlib
import hmac
import os
import re
import shutil
import socket
import subprocess
import sys
import time

import pytest
import requests
from tools.guides import ROOT, list_programs
from tools.programs import find_program

from tests.servers.node import find_node
from tests.servers.tenants import open_tenant
from tests.servers.world import wait_for

pytestmark = pytest.mark.full

PROGRAMS = {str(each.path.relative_to(ROOT)): each for each in list_programs()}
RECEIVERS = [name for name in PROGRAMS if "/receiver." in name]
CHANGING = (
    (re.compile(r"\b(task|file)([_-])[a-z0-9]{20,}"), r"\1\2ID"),
    (re.compile(r"http://127\.0\.0\.1:\d+/media/\S+/video\.mp4"), "VIDEO"),
    # the simulator draws another video for another seed
    (re.compile(r"video\.mp4: \d{4,6} bytes"), "video.mp4: MANY bytes"),
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """The files of the guides, those of Node.js beside the packages that they import."""
    made = tmp_path_factory.mktemp("guides")
    shutil.copytree(ROOT / "examples" / "guides", made / "examples" / "guides")
    (made / "node_modules").symlink_to(find_program("node-sdks") / "node_modules")
    return made


@pytest.fixture(scope="session")
def variables(world, shared_account):
    """The environment that `.local/gateway.env` gives a client."""
    names = ("BASE_URL", "SERVICE", "MODEL", "MODERATION_MODEL", "WEBHOOK_SECRET")
    own = {f"GATEWAY_{name}": world.env[f"GATEWAY_{name}"] for name in names}
    return {"PATH": os.environ["PATH"], "GATEWAY_API_KEY": shared_account[1], **own}


def find_command(name):
    program = {".py": sys.executable, ".mjs": find_node(), ".sh": "bash"}
    return [program[os.path.splitext(name)[1]], name]


def mask(text):
    """The text without ids and other things that are new each time."""
    for pattern, word in CHANGING:
        text = pattern.sub(word, text)
    return text.strip()


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in RECEIVERS])
def test_program_prints_what_its_page_says(folder, variables, name):
    done = subprocess.run(
        find_command(name), cwd=folder, env=variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    expected = PROGRAMS[name].output
    if expected is not None:
        assert mask(done.stdout) == mask(expected)


@contextlib.asynccontextmanager
async def run_receiver(folder, name, secret):
    """The address of a receiver, and a function that gives the lines which it has printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"PATH": os.environ["PATH"], "PORT": str(port), "GATEWAY_WEBHOOK_SECRET": secret}
    log = folder / f"receiver-{port}.log"
    with log.open("w") as output:
        process = subprocess.Popen(find_command(name), cwd=folder, env=env, stdout=output)
        try:
            await wait_for(lambda: accepts(port), what="an open port")
            yield f"http://127.0.0.1:{port}/", lambda: log.read_text().splitlines()
        finally:
            process.kill()
            process.wait()


def accepts(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def sign(secret, body, *, at, message="msg_1"):
    """Headers as the gateway sends them (contract §11.2)."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.digest(key, f"{message}.{at}.".encode() + body, hashlib.sha256)
    signature = "v1," + base64.b64encode(digest).decode()
    return {
        "webhook-id": message,
        "webhook-timestamp": str(at),
        "webhook-signature": signature,
        "Content-Type": "application/json",
    }


@pytest.mark.parametrize("name", RECEIVERS)
async def test_receiver_takes_what_the_gateway_sends(world, folder, name):
    # signed with the secret that a local run prints
    reference = world.read("gatewayaccount", "demo")["spec"]["webhookSecretRef"]
    secret = world.env["GATEWAY_WEBHOOK_SECRET"]
    async with (
        open_tenant(world, webhookSecretRef=reference) as client,
        run_receiver(folder, name, secret) as (url, read_lines),
    ):
        task = await client.create_surely(f"guide {name}", duration_seconds=3, callback_url=url)
        await wait_for(read_lines, what="a callback")
        assert read_lines() == [f"{task} completed"]


@pytest.mark.parametrize("name", RECEIVERS)
async def test_receiver_refuses_forgeries_and_works_once(folder, name):
    secret = "whsec_" + base64.b64encode(bytes(32)).decode()
    body, now = b'{"id":"task_a","status":"completed"}', int(time.time())
    genuine = sign(secret, body, at=now)
    async with run_receiver(folder, name, secret) as (url, read_lines):

        def send(headers, content=body):
            return requests.post(url, data=content, headers=headers, timeout=10).status_code

        other = "whsec_" + base64.b64encode(bytes(31) + b"1").decode()
        assert send(sign(other, body, at=now)) == 401
        assert send(sign(secret, body, at=now - 3600)) == 401
        assert send(genuine, body.replace(b"task_a", b"task_b")) == 401
        assert send({"Content-Type": "application/json"}) == 401
        assert read_lines() == []
        assert [send(genuine), send(genuine)] == [204, 204]
        both = genuine | {"webhook-signature": "v1,AAAA " + genuine["webhook-signature"]}
        assert send(both) == 204
        assert read_lines() == ["task_a completed"]
