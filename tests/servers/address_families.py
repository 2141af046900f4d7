"""Pods in a network of one address family or both, probed as the kubelet probes them.

`unshare --net python -m tests.servers.address_families` reads `{"network": …, "pods": […]}` as
JSON: a name of `NETWORKS`, and the name, container, and variables of each pod. It starts one after
the other and prints what was wrong with each, `{name: [problem, …]}`.
"""

import base64
import ctypes
import fcntl
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
UP, SET_ADDRESS, GET_FLAGS, SET_FLAGS = 1, 0x8916, 0x8913, 0x8914
KUBECONFIG = """
current-context: away
contexts: [{name: away, context: {cluster: away, user: away}}]
clusters: [{name: away, cluster: {server: "http://localhost:1"}}]
users: [{name: away, user: {token: none}}]
"""


def set_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = fcntl.ioctl(control, GET_FLAGS, struct.pack("16sh14x", b"lo", 0))
        (_, old) = struct.unpack("16sh14x", flags)
        fcntl.ioctl(control, SET_FLAGS, struct.pack("16sh14x", b"lo", old | UP))


def set_ipv4(interface: bytes, address: str) -> None:
    """Set an address of an interface; 0.0.0.0 removes it."""
    peer = struct.pack("H2x4s8x", socket.AF_INET, socket.inet_aton(address))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SET_ADDRESS, struct.pack("16s16s8x", interface, peer))


def add_ipv6() -> None:
    request = struct.pack(
        "16sIi", socket.inet_pton(socket.AF_INET6, IPV6), 128, socket.if_nametoindex("lo")
    )
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SET_ADDRESS, request)


def disable_ipv6() -> None:
    for interface in ("all", "lo"):
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")


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


def make_ipv4() -> None:
    set_ipv4(b"lo:1", IPV4)
    disable_ipv6()


def make_ipv4_kernel() -> None:
    set_ipv4(b"lo:1", IPV4)
    forbid_ipv6()


def make_ipv6() -> None:
    set_ipv4(b"lo", "0.0.0.0")
    add_ipv6()


def make_dual() -> None:
    set_ipv4(b"lo:1", IPV4)
    add_ipv6()


NETWORKS: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "IPv4": (make_ipv4, (IPV4,)),
    "IPv4, kernel without IPv6": (make_ipv4_kernel, (IPV4,)),
    "IPv6": (make_ipv6, (IPV6,)),
    "both": (make_dual, (IPV4, IPV6)),
}
"""Set-up of each kind of network, and the addresses of its pods."""


def check_port(address: str, port: int) -> None:
    socket.create_connection((address, port), 5).close()


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
        return text.replace("/tmp", folder)

    env = {name: localize(value) for name, value in pod["env"].items()}
    env |= {"KUBECONFIG": f"{folder}/kube.yaml", "PATH": os.environ["PATH"]}

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        local = list(map(localize, command))
        return subprocess.Popen(local, env=env, start_new_session=True, **options)

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    deadline = time.monotonic() + SECONDS
    with Path(folder, "log").open("w+b") as log:
        process = start(command, stdout=log, stderr=log)
        while True:
            problems = []
            for address in addresses:
                try:
                    for port in ports.values():
                        check_port(address, port)
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
    set_up_loopback()
    make, addresses = NETWORKS[given["network"]]
    make()
    os.environ["PATH"] = f"{ROOT / '.venv/bin'}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kube.yaml").write_text(KUBECONFIG)
        for name in ("id-key", "media-key", "pepper-1"):
            Path(folder, name).write_bytes(base64.urlsafe_b64encode(os.urandom(32)))
        print(json.dumps({pod["name"]: check_pod(pod, addresses, folder) for pod in given["pods"]}))


if __name__ == "__main__":
    main()
