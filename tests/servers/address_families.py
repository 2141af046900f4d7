"""Pods in a network of one address family or both, probed as the kubelet probes them.

`unshare --net python -m tests.servers.address_families` reads `{"network": …, "pods": […]}` as
JSON: a name of `NETWORKS`, and the name, container, and variables of each pod. It starts one after
the other and prints what was wrong with each, `{name: [problem, …]}`.
"""

import base64
import ctypes
import http.client
import json
import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.servers.control_plane import ROOT

SECONDS = 30.0
IPV4, IPV6 = "10.9.8.7", "fd00::5"
POD_ADDRESS = "{pod address}"
"""Stands for the pod's first address in its variables."""
KUBECONFIG = """
current-context: away
contexts: [{name: away, context: {cluster: away, user: away}}]
clusters: [{name: away, cluster: {server: "http://localhost:1"}}]
users: [{name: away, user: {token: none}}]
"""


def run_ip(*arguments: str) -> None:
    subprocess.run(("ip", *arguments), check=True)


def disable_ipv6() -> None:
    for interface in ("all", "lo"):
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")


def remove_ipv4() -> None:
    run_ip("address", "delete", "127.0.0.1/8", "dev", "lo")


def forbid_ipv6() -> None:
    """Let sockets of IPv6 fail as in a kernel without it, here and in every child (seccomp)."""
    number = {"x86_64": 41, "aarch64": 198}[platform.machine()]
    load, equal, answer = 0x20, 0x15, 0x06
    steps = (
        (load, 0, 0, 0),  # the number of the system call
        (equal, 0, 3, number),
        (load, 0, 0, 16),  # its first argument
        (equal, 0, 1, socket.AF_INET6),
        (answer, 0, 0, 0x00050000 | 97),  # EAFNOSUPPORT
        (answer, 0, 0, 0x7FFF0000),
    )
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(
        struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    )
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in ((38, 1, 0, 0, 0), (22, 2, ctypes.addressof(program), 0, 0)):
        if libc.prctl(*map(ctypes.c_ulong, arguments)) != 0:
            raise OSError(ctypes.get_errno(), "seccomp")


NETWORKS: dict[str, tuple[Callable[[], None] | None, tuple[str, ...]]] = {
    "IPv4": (disable_ipv6, (IPV4,)),
    "IPv4, kernel without IPv6": (forbid_ipv6, (IPV4,)),
    "IPv6": (remove_ipv4, (IPV6,)),
    "both": (None, (IPV4, IPV6)),
}
"""What each kind of network lacks, and the addresses of its pods."""


def check_probe(probe: dict, ports: dict[str, int], address: str, start: Callable) -> None:
    if "exec" in probe:
        done = start(probe["exec"]["command"], stdout=subprocess.PIPE)
        said = done.communicate(timeout=10)[0].decode()
        if done.returncode != 0 or said != "PONG\n":
            raise OSError(f"{probe['exec']['command']}: {done.returncode} {said}")
        return
    link = http.client.HTTPConnection(address, ports[probe["httpGet"]["port"]], timeout=10)
    link.request("GET", probe["httpGet"]["path"])
    status = link.getresponse().status
    link.close()
    if status != 200:
        raise OSError(f"{probe['httpGet']}: {status}")


def check_pod(pod: dict[str, Any], addresses: tuple[str, ...], folder: str) -> list[str]:
    """Run a container until its ports are reached and its liveness probe succeeds."""
    container = pod["container"]
    command = [*container.get("command", ()), *container.get("args", ())]

    def localize(text: str) -> str:
        return text.replace("/tmp", folder).replace(POD_ADDRESS, addresses[0])

    env = {name: localize(value) for name, value in pod["env"].items()}
    env |= {"KUBECONFIG": f"{folder}/kube.yaml", "PATH": os.environ["PATH"]}

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        local = list(map(localize, command))
        return subprocess.Popen(local, env=env, start_new_session=True, **options)

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    # kopf's endpoint listens once the operator has started, which takes a control plane
    if ports.pop("liveness", None) is not None:
        container["livenessProbe"] = {"httpGet": {"path": "/healthz", "port": "health"}}
    deadline = time.monotonic() + SECONDS
    with Path(folder, "log").open("w+b") as log:
        process = start(command, stdout=log, stderr=log)
        while True:
            problems = []
            for address in addresses:
                try:
                    for port in ports.values():
                        socket.create_connection((address, port), 5).close()
                    check_probe(container["livenessProbe"], ports, address, start)
                except OSError as error:
                    problems.append(f"{address}: {error}")
            if not problems or time.monotonic() > deadline or process.poll() is not None:
                break
            time.sleep(0.1)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0)
        return [*problems, log.read()[-2000:].decode()] if problems else []


def main() -> None:
    """Make the network and check the pods in it."""
    given = json.load(sys.stdin)
    limit, addresses = NETWORKS[given["network"]]
    run_ip("link", "set", "lo", "up")
    for address in addresses:
        run_ip("address", "add", address, "dev", "lo", "nodad")
    if limit is not None:
        limit()
    os.environ["PATH"] = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kube.yaml").write_text(KUBECONFIG)
        for name in ("id-key", "media-key", "pepper-1"):
            Path(folder, name).write_bytes(base64.urlsafe_b64encode(os.urandom(32)))
        print(json.dumps({pod["name"]: check_pod(pod, addresses, folder) for pod in given["pods"]}))


if __name__ == "__main__":
    main()
