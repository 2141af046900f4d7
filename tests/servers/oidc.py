"""A real OpenID Connect provider (oidc-provider for Node.js), as a process."""

import json
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.programs import find_program

from tests.servers.node import find_node
from tests.servers.server import execute, find_free_port

SCRIPT = Path(__file__).with_name("oidc_provider.mjs")


@dataclass(frozen=True)
class OidcProvider:
    """Where it is, and the client that it knows."""

    issuer: str
    client_id: str
    client_secret: str


@contextmanager
def serve_oidc(redirect_uri: str, people: Mapping[str, Any]) -> Iterator[OidcProvider]:
    """Run a provider of these people, by login."""
    port = find_free_port()
    provider = OidcProvider(f"http://127.0.0.1:{port}", "gateway", secrets.token_urlsafe(32))
    modules = find_program("oidc-provider") / "node_modules"
    arguments = [str(modules), str(port), provider.client_id, provider.client_secret]
    command = [find_node(), str(SCRIPT), *arguments, redirect_uri, json.dumps(people)]
    process = execute(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert b"listening" in process.stdout.readline()
        yield provider
    finally:
        process.terminate()
        process.wait(10)
