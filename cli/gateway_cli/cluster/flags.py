"""kubectl's global flags, with kubectl's meaning; they stand before the noun or after it."""

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway_cli.session import SELECTED, Selection

PANEL = "Cluster and identity, as with kubectl"
FILE, EXTRA, TIMEOUT = "--kubeconfig", "--as-user-extra", "--request-timeout"
CHOICES: dict[str, tuple[Any, str]] = {
    FILE: (Path, "A kubeconfig file instead of $KUBECONFIG or ~/.kube/config."),
    "--context": (str, "A context of the kubeconfig instead of its current one."),
    "--cluster": (str, "A cluster of the kubeconfig."),
    "--user": (str, "A user of the kubeconfig."),
    TIMEOUT: (str, "Time limit of one call to the Kubernetes API, e.g. 30s; 0 is the default."),
}
"""Types and help of the flags that choose; those below replace a field of the kubeconfig."""
CLUSTER_FLAGS: dict[str, tuple[Any, str]] = {
    "--server": (str, "The API server's address."),
    "--certificate-authority": (Path, "File of the certificate authority to trust."),
    "--insecure-skip-tls-verify": (bool, "Do not verify the server's certificate."),
    "--tls-server-name": (str, "Name in the server's certificate."),
    "--disable-compression": (bool, "Ask for uncompressed responses."),
}
USER_FLAGS: dict[str, tuple[Any, str]] = {
    "--token": (str, "Bearer token for the API server."),
    "--username": (str, "User name for basic authentication."),
    "--password": (str, "Password for basic authentication."),
    "--client-certificate": (Path, "File of the client certificate."),
    "--client-key": (Path, "File of the client's private key."),
    "--as": (str, "User or service account to impersonate."),
    "--as-group": (list[str], "Group to impersonate; may be repeated."),
    "--as-uid": (str, "UID to impersonate."),
    EXTRA: (list[str], "Extra information to impersonate; may be repeated."),
}
_MORE_NAMES = {"--server": ("-s",)}
_METAVARS = {EXTRA: "KEY=VALUE", TIMEOUT: "DURATION"}
_FIELDS = {"--as-group": "as-groups"}
"""Fields of a kubeconfig that are not called as the flag."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_TRUE = {"1", "t", "T", "true", "TRUE", "True"}
_FALSE = {"0", "f", "F", "false", "FALSE", "False"}


def parse_timeout(text: str) -> float:
    """Return the seconds of `90`, `90s`, `500ms`, `1m30s` or `2h`; 0 stands for the default."""
    if text.isdecimal():
        return float(text)
    if not _DURATION.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is no duration: it is written like 30s, 2m or 1m30s")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def add_flags(callback: Callable[..., None]) -> Callable[..., None]:
    """Give the callback of the root command an option for each flag."""
    signature = inspect.signature(callback)
    parameters = [each for each in signature.parameters.values() if each.kind != each.VAR_KEYWORD]
    for flag, (kind, text) in (CHOICES | CLUSTER_FLAGS | USER_FLAGS).items():
        option = typer.Option(
            *(flag, *_MORE_NAMES.get(flag, ())),
            help=text,
            metavar=_METAVARS.get(flag),
            rich_help_panel=PANEL,
        )
        annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(
                _name(flag), inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None
            )
        )
    callback.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return callback


def select_cluster(options: Mapping[str, Any]) -> Selection:
    """Return the cluster and identity that the options of the root command choose."""
    user_fields = _list_fields(options, USER_FLAGS)
    if entries := user_fields.pop("as-user-extra", None):
        extra = user_fields["as-user-extra"] = dict[str, list[str]]()
        for entry in entries:
            key, equals, value = entry.partition("=")
            if not equals or not key:
                raise typer.BadParameter(f"--as-user-extra {entry!r} is written KEY=VALUE")
            extra.setdefault(key, []).append(value)
    return Selection(
        kubeconfig=options.get(_name(FILE)),
        overrides={
            **{name: options.get(_name(f"--{name}")) for name in ("context", "cluster", "user")},
            "cluster_fields": _list_fields(options, CLUSTER_FLAGS),
            "user_fields": user_fields,
        },
        namespace=options.get("namespace"),
        call_seconds=parse_timeout(options.get(_name(TIMEOUT)) or "0") or None,
    )


def _name(flag: str) -> str:
    """Return the name of a flag's parameter, which no argument of a command has."""
    return f"kubectl_{flag.removeprefix('--').replace('-', '_')}"


def _list_fields(options: Mapping[str, Any], flags: Iterable[str]) -> dict[str, Any]:
    """Return the options that are set as fields of a kubeconfig, with absolute paths."""
    return {
        _FIELDS.get(flag, flag.removeprefix("--")): str(value.absolute())
        if isinstance(value, Path)
        else value
        for flag in flags
        if (value := options.get(_name(flag)))
    }


def take_flags(command: Any, options: Sequence[Any]) -> bool:
    """Let the commands of a noun that use the cluster take kubectl's flags too; whether any does.

    `options` are those of the root command. A command's own option of the same name precedes.
    """
    inner = getattr(command, "commands", {}).values()
    # each of them, so no generator
    are_users = [take_flags(each, options) for each in inner]
    own = {text for parameter in command.params for text in parameter.opts}
    uses_cluster = any(are_users) or "--namespace" in own
    if uses_cluster:
        command.params += [_copy(option) for option in options if not own & {*option.opts}]
    return uses_cluster


def _copy(option: Any) -> Any:
    """Return the hidden copy of a root command's option, which also sets the selection."""

    def select(ctx: Any, parameter: Any, value: Any) -> None:
        source = ctx.get_parameter_source(parameter.name)
        if source is not None and source.name == "COMMANDLINE":
            chosen = ctx.find_root().params
            earlier = (chosen.get(option.name) or []) if option.multiple else None
            chosen[option.name] = value if earlier is None else [*earlier, *value]
            SELECTED.set(select_cluster(chosen))

    repeated = copy.copy(option)
    repeated.hidden, repeated.expose_value, repeated.callback = True, False, select
    return repeated


def spell_out(arguments: Iterable[str]) -> Iterator[str]:
    """Yield the arguments with kubectl's `--flag=true` as a flag, without `--flag=false`."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        if CLUSTER_FLAGS.get(name, (str,))[0] is not bool or value not in _TRUE | _FALSE:
            yield argument
        elif value in _TRUE:
            yield name
