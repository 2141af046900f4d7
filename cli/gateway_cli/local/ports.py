"""The ports of a local run: fixed defaults, changed singly or as a block, checked before use."""

import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gateway_cli.local.errors import LocalRunError, PortBusyError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Ports:
    """One port for each listener of the run, all on loopback."""

    api: int = 8080
    media: int = 8081
    simulator: int = 8082
    operator: int = 8083
    redis: int = 16379
    etcd: int = 12379
    etcd_peer: int = 12380
    kube_apiserver: int = 16443
    s3: int = 8084
    api_health: int = 8085
    media_health: int = 8086

    @classmethod
    def block(cls, base: int) -> "Ports":
        """The eleven ports from `base` on, in the order of the fields."""
        if not 1024 <= base <= 65535 - len(PORT_NAMES):
            raise LocalRunError(
                f"the port base must be from 1024 to {65535 - len(PORT_NAMES)}, not {base}"
            )
        return cls(*range(base, base + len(PORT_NAMES)))

    @classmethod
    def free(cls) -> "Ports":
        """A block that nobody listens on now, this process's for as long as it lives (tests).

        Below the range that systems hand out to clients, so that a port stays free over a restart.

        Raises:
            LocalRunError: none was found.
        """
        for _ in range(_DRAWS):
            base = 20_000 + 16 * secrets.randbelow(625)
            ports, mark = cls.block(base), _reserve(base)
            if mark is None:
                continue
            if not any(_is_busy(ports.of(name)) for name in PORT_NAMES):
                _reserved.append(mark)
                return ports
            mark.close()
        raise LocalRunError("no block of ports is free")

    @classmethod
    def from_environment(cls, env: Mapping[str, str], base: int | None = None) -> "Ports":
        """The defaults or the block from `base` on, overridden by `GATEWAY_LOCAL_PORT_<NAME>`.

        Raises:
            LocalRunError: if a variable holds no port.
        """
        ports = cls() if base is None else cls.block(base)
        for name in PORT_NAMES:
            text = env.get(_variable(name))
            if text:
                if not text.isdecimal() or not 0 < int(text) < 65536:
                    raise LocalRunError(f"{_variable(name)} must be a port number, not {text!r}")
                ports = replace(ports, **{name: int(text)})
        return ports

    def of(self, name: str) -> int:
        """The port of the listener `name`, a field's name."""
        port: int = getattr(self, name)
        return port


PORT_NAMES = tuple(Ports.__dataclass_fields__)


def check_ports(ports: Ports, names: Iterable[str]) -> None:
    """Refuses to begin where somebody listens on a port the run needs, or two need the same.

    Raises:
        PortBusyError: names every such port, the process that wants it, and the way out.
    """
    taken: dict[int, str] = {}
    problems = []
    for name in names:
        port = ports.of(name)
        if port in taken:
            problems.append(f"port {port} is wanted by both {taken[port]} and {_title(name)}")
        elif _is_busy(port):
            problems.append(
                f"port {port}, wanted by {_title(name)}, is in use by another process; "
                f"set {_variable(name)} to change it"
            )
        taken[port] = _title(name)
    if problems:
        raise PortBusyError(
            "\n".join([*problems, "`--port-base N` (make: PORT_BASE=N) moves all ports at once."])
        )


_DRAWS = 5_000
_reserved: list[socket.socket] = []


def _reserve(port: int) -> socket.socket | None:
    """Keeps who else chooses ports from this one while it is open; TCP does not notice."""
    mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        mark.bind((LOOPBACK, port))
    except OSError:
        mark.close()
        return None
    return mark


def _is_busy(port: int) -> bool:
    # a bind alone misses, on some systems, a listener on the wildcard address
    with socket.socket() as probe:
        probe.settimeout(0.5)
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return True
    with socket.socket() as probe:
        # as servers do: a port in TIME_WAIT is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def _variable(name: str) -> str:
    return f"GATEWAY_LOCAL_PORT_{name.upper()}"


def _title(name: str) -> str:
    return "etcd (peers)" if name == "etcd_peer" else name.replace("_", "-")
