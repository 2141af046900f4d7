"""Credential plugins of kubeconfigs: programs that print an ExecCredential.

`kubernetes.config` runs them too, but it hides their errors and the text of a device login, omits
the cluster's certificates, and ignores interactiveMode and the time at which credentials expire.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from gateway_core.kube.connection import Credentials, NoCluster
from gateway_core.kube.kubeconfig_files import Fields, check_fields

_GROUP = "client.authentication.k8s.io"
VERSIONS = (f"{_GROUP}/v1", f"{_GROUP}/v1beta1")
KIND = "ExecCredential"
MODES = ("Never", "IfAvailable", "Always")
_FIELDS: dict[str, type] = {
    "command": str,
    "args": list,
    "env": list,
    "apiVersion": str,
    "installHint": str,
    "provideClusterInfo": bool,
    "interactiveMode": str,
}
_CLUSTER_FIELDS = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
    "disable-compression",
)


class CredentialPlugin:
    """The plugin of a user's `exec` field, which `check` has accepted."""

    def __init__(self, fields: Fields, cluster: Fields, place: str) -> None:
        self._fields = fields
        self._cluster = cluster
        self._place = f"{place}: the credential plugin {fields['command']}"

    @staticmethod
    def check(fields: Fields, place: str) -> None:
        """Raise NoCluster where kubectl would not run the plugin."""
        place = f"{place}: exec"
        fields = check_fields(fields, _FIELDS, place)
        version, mode = fields.get("apiVersion"), fields.get("interactiveMode")
        if "command" not in fields:
            raise NoCluster(f"{place}: command is missing")
        if version not in VERSIONS:
            raise NoCluster(f"{place}: apiVersion must be {' or '.join(VERSIONS)}")
        if mode not in MODES and not (mode is None and version != VERSIONS[0]):
            raise NoCluster(f"{place}: interactiveMode must be one of {', '.join(MODES)}")
        if not all(isinstance(text, str) for text in fields.get("args", ())):
            raise NoCluster(f"{place}: args must be a list of text")
        for variable in fields.get("env", ()):
            pair = variable if isinstance(variable, dict) else {}
            texts = (pair.get("name"), _read_value(pair))
            if not pair.get("name") or not all(isinstance(text, str) for text in texts):
                raise NoCluster(f"{place}: env must have entries with name and value")

    def run(self, certificate: tuple[str | None, str | None]) -> Credentials:
        """Return the credentials that the plugin prints, with `certificate` if it prints none.

        Raises NoCluster.
        """
        interactive = self._is_interactive()
        command = [self._fields["command"], *(self._fields.get("args") or ())]
        variables = {entry["name"]: _read_value(entry) for entry in self._fields.get("env") or ()}
        # by the PATH of this process: that of the plugin's own variables does not decide
        program = shutil.which(command[0])
        # a program of the current folder, by a relative entry of PATH, might be anyone's
        if program is None or not os.path.isabs(program):
            hint = self._fields.get("installHint")
            raise NoCluster(f"{self._place} was not found{f': {hint.strip()}' if hint else ''}")
        info = json.dumps(self._describe(interactive))
        try:
            done = subprocess.run(  # noqa: S603 - the user's kubeconfig names it
                command,
                executable=program,
                env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": info},
                stdin=None if interactive else subprocess.DEVNULL,
                # its messages are for the user, such as the address and code of a device login
                stderr=None,
                stdout=subprocess.PIPE,
                check=False,
            )
        except OSError as error:
            raise NoCluster(f"{self._place} cannot be run: {error.strerror}") from error
        if done.returncode:
            raise NoCluster(f"{self._place} failed with exit code {done.returncode}")
        return self._parse(done.stdout, certificate)

    def _is_interactive(self) -> bool:
        mode = self._fields.get("interactiveMode") or "IfAvailable"
        is_terminal = sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not is_terminal:
            raise NoCluster(f"{self._place} needs a terminal (interactiveMode: Always)")
        return mode != "Never" and is_terminal

    def _describe(self, interactive: bool) -> Fields:
        """Return the ExecCredential for the plugin."""
        spec: Fields = {"interactive": interactive}
        if self._fields.get("provideClusterInfo"):
            cluster = {
                name: self._cluster[name] for name in _CLUSTER_FIELDS if name in self._cluster
            }
            if "certificate-authority" in self._cluster:
                content = Path(self._cluster["certificate-authority"]).read_bytes()
                cluster["certificate-authority-data"] = base64.b64encode(content).decode()
            for extension in self._cluster.get("extensions", ()):
                if isinstance(extension, dict) and extension.get("name") == f"{_GROUP}/exec":
                    cluster["config"] = extension.get("extension")
            spec["cluster"] = cluster
        return {"apiVersion": self._fields["apiVersion"], "kind": KIND, "spec": spec}

    def _parse(self, output: bytes, certificate: tuple[str | None, str | None]) -> Credentials:
        try:
            answer = json.loads(output)
            version, status = answer["apiVersion"], answer["status"]
            _check_kind(answer)
            token = _text(status, "token")
            own = (_text(status, "clientCertificateData"), _text(status, "clientKeyData"))
            expiry = _text(status, "expirationTimestamp")
            expires_at = _parse_time(expiry) if expiry else None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise NoCluster(f"{self._place} printed no ExecCredential with a status") from None
        if version != self._fields["apiVersion"]:
            raise NoCluster(
                f"{self._place} printed {version} instead of {self._fields['apiVersion']}"
            )
        if bool(own[0]) != bool(own[1]) or not (token or own[0]):
            raise NoCluster(f"{self._place} printed neither a token nor a certificate with its key")
        if token and not token.isprintable():
            raise NoCluster(f"{self._place} printed a token with a character that is no text")
        header = f"Bearer {token}" if token else None
        return Credentials(header, *(own if own[0] else certificate), expires_at=expires_at)


def _read_value(variable: Mapping[str, Any]) -> Any:
    value = variable.get("value")
    return "" if value is None else value


def _check_kind(answer: Mapping[str, Any]) -> None:
    if answer.get("kind", KIND) != KIND:
        raise ValueError("another kind of object")


def _parse_time(text: str) -> float:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a time without an offset")
    return time.timestamp()


def _text(status: Mapping[str, Any], name: str) -> str | None:
    value = status.get(name)
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value or None
