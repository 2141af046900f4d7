"""kubectl's global flags, with kubectl's meaning; they stand before the noun or after it."""

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway_cli.session import SELECTED, Selection

PANEL = "Cluster and identity, as with kubectl"

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")


def parse_timeout(text: str) -> float:
    """Return the seconds of `90`, `90s`, `500ms`, `1m30s` or `2h`; 0 stands for the default."""
    if text.isdecimal():
        return float(text)
    if not _DURATION.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is no duration: it is written like 30s, 2m or 1m30s")
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


ClusterOption = Annotated[
    str | None, typer.Option(help="A cluster of the kubeconfig.", rich_help_panel=PANEL)
]
UserOption = Annotated[
    str | None, typer.Option(help="A user of the kubeconfig.", rich_help_panel=PANEL)
]
ServerOption = Annotated[
    str | None,
    typer.Option("--server", "-s", help="The API server's address.", rich_help_panel=PANEL),
]
AuthorityOption = Annotated[
    Path | None,
    typer.Option(help="File of the certificate authority to trust.", rich_help_panel=PANEL),
]
InsecureOption = Annotated[
    bool | None,
    typer.Option(
        "--insecure-skip-tls-verify",
        help="Do not verify the server's certificate.",
        rich_help_panel=PANEL,
    ),
]
ServerNameOption = Annotated[
    str | None, typer.Option(help="Name in the server's certificate.", rich_help_panel=PANEL)
]
CompressionOption = Annotated[
    bool | None,
    typer.Option(
        "--disable-compression", help="Ask for uncompressed responses.", rich_help_panel=PANEL
    ),
]
TokenOption = Annotated[
    str | None, typer.Option(help="Bearer token for the API server.", rich_help_panel=PANEL)
]
UsernameOption = Annotated[
    str | None, typer.Option(help="User name for basic authentication.", rich_help_panel=PANEL)
]
PasswordOption = Annotated[
    str | None, typer.Option(help="Password for basic authentication.", rich_help_panel=PANEL)
]
CertificateOption = Annotated[
    Path | None, typer.Option(help="File of the client certificate.", rich_help_panel=PANEL)
]
PrivateKeyOption = Annotated[
    Path | None, typer.Option(help="File of the client's private key.", rich_help_panel=PANEL)
]
AsOption = Annotated[
    str | None,
    typer.Option("--as", help="User or service account to impersonate.", rich_help_panel=PANEL),
]
AsGroupOption = Annotated[
    list[str] | None,
    typer.Option(help="Group to impersonate; may be repeated.", rich_help_panel=PANEL),
]
AsUidOption = Annotated[str | None, typer.Option(help="UID to impersonate.", rich_help_panel=PANEL)]
AsExtraOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Extra information to impersonate; may be repeated.",
        rich_help_panel=PANEL,
    ),
]
RequestTimeoutOption = Annotated[
    float | None,
    typer.Option(
        parser=parse_timeout,
        metavar="DURATION",
        help="Time limit of one call to the Kubernetes API, e.g. 30s; 0 is the default.",
        rich_help_panel=PANEL,
    ),
]

_FLAGS = ("--insecure-skip-tls-verify", "--disable-compression")
_TRUE = {"1", "t", "T", "true", "TRUE", "True"}
_FALSE = {"0", "f", "F", "false", "FALSE", "False"}
_CLUSTER_FIELDS = {
    "server": "server",
    "certificate_authority": "certificate-authority",
    "insecure_skip_tls_verify": "insecure-skip-tls-verify",
    "tls_server_name": "tls-server-name",
    "disable_compression": "disable-compression",
}
_USER_FIELDS = {
    "token": "token",
    "username": "username",
    "password": "password",
    "client_certificate": "client-certificate",
    "client_key": "client-key",
    "as_user": "as",
    "as_group": "as-groups",
    "as_uid": "as-uid",
}


def select_cluster(options: Mapping[str, Any]) -> Selection:
    """Return the cluster and identity that the options of the root command choose."""
    kubeconfig = options.get("kubeconfig")
    user_fields = _rename(options, _USER_FIELDS)
    extra: dict[str, list[str]] = {}
    for entry in options.get("as_user_extra") or ():
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise typer.BadParameter(f"--as-user-extra {entry!r} is written KEY=VALUE")
        extra.setdefault(key, []).append(value)
    if extra:
        user_fields["as-user-extra"] = extra
    overrides = {name: options.get(name) for name in ("context", "cluster", "user")}
    cluster_fields = _rename(options, _CLUSTER_FIELDS)
    return Selection(
        kubeconfig=Path(kubeconfig) if kubeconfig else None,
        overrides={**overrides, "cluster_fields": cluster_fields, "user_fields": user_fields},
        namespace=options.get("namespace"),
        call_seconds=options.get("request_timeout") or None,
    )


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
    """The hidden copy of a root command's option, which sets the selection like the original."""

    def select(ctx: Any, parameter: Any, value: Any) -> None:
        source = ctx.get_parameter_source(parameter.name)
        if source is not None and source.name == "COMMANDLINE":
            chosen = ctx.find_root().params
            earlier = (chosen.get(option.name) or []) if option.multiple else None
            chosen[option.name] = value if earlier is None else [*earlier, *value]
            SELECTED.set(select_cluster(chosen))

    repeated = copy.copy(option)
    # the command may have an argument of the same name
    repeated.name = f"kubectl_{option.name}"
    repeated.hidden, repeated.expose_value, repeated.callback = True, False, select
    return repeated


def spell_out(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments with kubectl's `--flag=true` and `--flag=false` as a flag, or without it."""
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in _FLAGS or value not in _TRUE | _FALSE:
            yield argument
        elif value in _TRUE:
            yield name


def _rename(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the options that are set as fields of a kubeconfig, with absolute paths."""
    chosen = {names[name]: options[name] for name in names if options.get(name)}
    return {
        name: str(value.absolute()) if isinstance(value, Path) else value
        for name, value in chosen.items()
    }
