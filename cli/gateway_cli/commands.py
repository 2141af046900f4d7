"""Commands made of async functions of a client.

A function whose first parameter is a `Cluster` or a `RestApi` becomes a command: it gets the
options that all such commands have, its client is opened for it, and its result is printed.
"""

import asyncio
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import typer

from gateway_cli import options as opt
from gateway_cli.cluster.client import on_cluster
from gateway_cli.output import Format, Output, print_note
from gateway_cli.session import exit_on_error
from gateway_core.api.key import parse_key

if TYPE_CHECKING:
    from gateway_cli.rest.client import RestApi

Function = TypeVar("Function", bound=Callable[..., Awaitable[Any]])
Options = Mapping[str, tuple[Any, Any]]
"""Type and default of each option or argument."""
Show = Callable[[Any, Format], None]
REQUIRED = inspect.Parameter.empty


def cluster_command(
    app: typer.Typer,
    show: Show | None,
    *,
    name: str = "",
    interrupted: str = "",
    options: Options = MappingProxyType({}),
    **settings: Any,
) -> Callable[[Function], Function]:
    """Make a command of an async function of a `Cluster`; `show`, if any, prints its result.

    `interrupted` is the note after Ctrl-C; the function takes `options` that it
    does not name as `**given`.
    """

    def decorate(function: Function) -> Function:
        def run(namespace: str | None, **given: Any) -> Any:
            return on_cluster(namespace, partial(function, **given), interrupted=interrupted)

        common = {"namespace": (opt.Namespace, None)}
        own = _list_options(function)
        whole = {**own, **options, **own, **common}
        _add_command(app, name or function.__name__, function, run, whole, show, settings)
        return function

    return decorate


def rest_command(
    app: typer.Typer, show: Show | None, *, name: str = "", interrupted: str = "", **settings: Any
) -> Callable[[Function], Function]:
    """Make a command of an async function of a `RestApi`; `show`, if any, prints its result.

    `interrupted` is the note after Ctrl-C.
    """

    def decorate(function: Function) -> Function:
        def run(base_url: str, key_file: Path | None, **given: Any) -> Any:
            check_address(base_url)
            return _call_api(base_url, _read_key(key_file), partial(function, **given), interrupted)

        common = {"base_url": (opt.BaseUrl, REQUIRED), "key_file": (opt.KeyFile, None)}
        whole = {**_list_options(function), **common}
        _add_command(app, name or function.__name__, function, run, whole, show, settings)
        return function

    return decorate


def _list_options(function: Callable[..., Any]) -> Options:
    """Return the options of a function: its parameters but the first, which is the client."""
    _client, *own = inspect.signature(function).parameters.values()
    return {
        each.name: (each.annotation, each.default) for each in own if each.kind != each.VAR_KEYWORD
    }


def _add_command(
    app: typer.Typer,
    name: str,
    function: Callable[..., Any],
    run: Callable[..., Any],
    options: Options,
    show: Show | None,
    settings: Mapping[str, Any],
) -> None:
    """Add a command that gives `run` the values of the options, and `show` what it returns."""
    if show is not None:
        options = {**options, "output": (Output, "table")}

    def call(**given: Any) -> None:
        output: Format = given.pop("output") if show is not None else "table"
        result = run(**given)
        if show is not None:
            show(result, output)

    parameters = [
        inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
        for word, (kind, value) in options.items()
    ]
    # typer reads a function's options from its signature
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {word: kind for word, (kind, _) in options.items()}
    help_text = settings.get("help") or inspect.getdoc(function)
    app.command(name, **{**settings, "help": help_text})(call)


def _call_api(
    base_url: str, key: str, work: Callable[["RestApi"], Awaitable[Any]], interrupted: str
) -> Any:
    # loaded here: help and completion do without
    from gateway_cli.rest.client import RestApi

    async def run() -> Any:
        async with RestApi(base_url, key, print_note) as api:
            return await work(api)

    with exit_on_error(interrupted=interrupted):
        return asyncio.run(run())


def check_address(base_url: str) -> None:
    """Raise BadParameter where it is no address of an API."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.query:
        raise typer.BadParameter(
            f"{base_url!r} is no address of an API: https://gateway.example.com",
            param_hint="--base-url",
        )


def _read_key(key_file: Path | None) -> str:
    """Return the key of the environment or a file: others can see a command's arguments."""
    try:
        if key_file is None:
            text = os.environ.get(opt.KEY_VARIABLE, "")
        elif str(key_file) == "-":
            text = sys.stdin.read()
        else:
            text = key_file.read_text()
    except OSError as error:
        raise typer.BadParameter(f"--key-file {key_file}: {error.strerror}") from error
    except ValueError as error:
        raise typer.BadParameter(f"--key-file {key_file} is no text") from error
    key = text.strip()
    if not key:
        raise typer.BadParameter(
            f"an API key is needed: set {opt.KEY_VARIABLE}, or give --key-file"
        )
    if parse_key(key) is None:
        raise typer.BadParameter(
            "the API key is not well-formed (sk-, 8 characters, _, 38 characters): was it copied"
            " whole?"
        )
    return key
