"""Where the REST API is and with which key it is called.

The key comes from the environment or a file, never from the arguments, which others can see.
"""

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlsplit

import typer

from gateway_cli.admin.amounts import parse_period
from gateway_core.contract.keys import parse_key

KEY_VARIABLE = "GATEWAY_API_KEY"

BaseUrl = Annotated[str, typer.Option(envvar="GATEWAY_BASE_URL", help="The API's address.")]
Service = Annotated[
    str, typer.Option(envvar="GATEWAY_SERVICE", help="Provider segment of the REST path.")
]
Action = Annotated[str, typer.Option(help="The operation's second segment.")]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        allow_dash=True,
        help=f"A file with the API key, - for standard input; else ${KEY_VARIABLE}.",
    ),
]

Timeout = Annotated[
    int,
    typer.Option(
        parser=parse_period,
        metavar="PERIOD",
        help="How long to wait, e.g. 15m; then the exit code is 3.",
    ),
]


@dataclass(frozen=True, slots=True)
class Access:
    """An API, and a key of it."""

    base_url: str
    key: str = field(repr=False)

    @property
    def key_id(self) -> str:
        """What tells the key from others, and opens nothing."""
        return self.key[:11]


def make_access(base_url: str, key_file: Path | None) -> Access:
    """What the options say; a usage error where it cannot be."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
        raise typer.BadParameter(
            f"{base_url!r} is no address of an API: https://gateway.example.com",
            param_hint="--base-url",
        )
    return Access(base_url, _read_key(key_file))


def make_operation(service: str, action: str) -> str:
    """The segments of the operation's path."""
    return f"{quote(service, safe='')}/{quote(action, safe='')}"


def _read_key(key_file: Path | None) -> str:
    try:
        if key_file is None:
            text = os.environ.get(KEY_VARIABLE, "")
        elif str(key_file) == "-":
            text = sys.stdin.read()
        else:
            text = key_file.read_text()
    except OSError as error:
        raise typer.BadParameter(f"--key-file {key_file}: {error.strerror}") from error
    key = text.strip()
    if not key:
        raise typer.BadParameter(f"an API key is needed: set {KEY_VARIABLE}, or give --key-file")
    if parse_key(key) is None:
        raise typer.BadParameter(
            "the API key is not well-formed (sk-, 8 characters, _, 38 characters): was it copied"
            " whole?"
        )
    return key
