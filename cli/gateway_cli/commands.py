"""Commands made of async functions of a client.

A function whose first parameter is a `Cluster` or a `RestApi` becomes a command: it gets the
options that all such commands have, its client is opened for it, and its result is printed.
"""

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import typer

from gateway_cli import options as opt
from gateway_cli.cluster.client import on_cluster
from gateway_cli.output import Format, Output, print_note
from gateway_cli.session import confirm, exit_on_error
from gateway_core.api.key import parse_key

Function = TypeVar("Function", bound=Callable[..., Any])
Options = Mapping[str, tuple[Any, Any]]
"""Type and default of each option or argument."""
Show = Callable[[Any, Format], None]
REQUIRED = inspect.Parameter.empty


def add_command(
    app: typer.Typer, name: str, run: Callable[..., None], options: Options, **settings: Any
) -> None:
    """Add a command that calls `run` with the values of `options` by their names."""

    def call(**given: Any) -> None:
        run(**given)

    parameters = [
        inspect.Parameter(word, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=value)
        for word, (kind, value) in options.items()
    ]
    # typer reads a function's options from its signature
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {word: kind for word, (kind, _) in options.items()}
    app.command(name, **settings)(call)


def cluster_command(
    app: typer.Typer, show: Show, name: str = "", **settings: Any
) -> Callable[[Function], Function]:
    """Make a command of an async function of a `Cluster`; `show` prints its result."""

    def decorate(function: Function) -> Function:
        def run(namespace: str | None, output: Format, **given: Any) -> None:
            show(on_cluster(namespace, lambda cluster: function(cluster, **given)), output)

        common = {"namespace": (opt.Namespace, None), "output": (Output, "table")}
        _add(app, name, function, run, common, settings)
        return function

    return decorate


def rest_command(
    app: typer.Typer,
    show: Show | None,
    name: str = "",
    *,
    interrupted: str = "",
    question: str = "",
    **settings: Any,
) -> Callable[[Function], Function]:
    """Make a command of an async function of a `RestApi`; `show`, if any, prints its result.

    `interrupted` is the note after Ctrl-C. The `question`, filled with what is given, is asked
    before the API is.
    """

    def decorate(function: Function) -> Function:
        def run(
            base_url: str,
            key_file: Path | None,
            output: Format = "table",
            yes: bool = True,
            **given: Any,
        ) -> None:
            _check_address(base_url)
            key = _read_key(key_file)
            if question:
                confirm(question.format(**given), yes)
            result = _call_api(base_url, key, function, given, interrupted)
            if show:
                show(result, output)

        common = {
            "base_url": (opt.BaseUrl, REQUIRED),
            **({"yes": (opt.Yes, False)} if question else {}),
            "key_file": (opt.KeyFile, None),
            **({"output": (Output, "table")} if show else {}),
        }
        _add(app, name, function, run, common, settings)
        return function

    return decorate


def _add(
    app: typer.Typer,
    name: str,
    function: Callable[..., Any],
    run: Callable[..., None],
    common: Options,
    settings: Mapping[str, Any],
) -> None:
    _client, *own = inspect.signature(function).parameters.values()
    options = {each.name: (each.annotation, each.default) for each in own}
    help_text = inspect.getdoc(function)
    add_command(
        app, name or function.__name__, run, {**options, **common}, help=help_text, **settings
    )


def _call_api(
    base_url: str, key: str, function: Callable[..., Any], given: Mapping[str, Any], note: str
) -> Any:
    # loaded here: help and completion do without
    from gateway_cli.rest.client import RestApi

    async def run() -> Any:
        async with RestApi(base_url, key, print_note) as api:
            return await function(api, **given)

    with exit_on_error(interrupted=note):
        return asyncio.run(run())


def _check_address(base_url: str) -> None:
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
