"""The settings of a local run: where it lives, its ports, and which cluster it uses."""

import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from gateway_cli.session import CommandError

SERVICE = "sim"
MODEL = "sim-q4-reference-to-video"
MODERATION_MODEL = "sim-moderation"
"""The names of the first objects, which come from examples/local."""
LOOPBACK = "127.0.0.1"

MAX_WORKERS = 64
"""API processes of a run."""

Store = Literal["directory", "s3"]


class LocalRunError(CommandError):
    """The local run cannot go on; the text says what the user can do."""


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
    mcp: int = 8087
    mcp_health: int = 8088

    @classmethod
    def block(cls, base: int) -> "Ports":
        """Return the thirteen ports from `base` on, in the order of the fields."""
        highest = 65535 - len(PORT_NAMES) - MAX_WORKERS
        if not 1024 <= base <= highest:
            raise LocalRunError(f"the port base must be from 1024 to {highest}, not {base}")
        return cls(*range(base, base + len(PORT_NAMES)))

    @classmethod
    def from_environment(cls, env: Mapping[str, str], base: int | None = None) -> "Ports":
        """Return the defaults or a block, changed by `GATEWAY_LOCAL_PORT_<NAME>`. LocalRunError."""
        ports = cls() if base is None else cls.block(base)
        for name in PORT_NAMES:
            if text := env.get(_variable(name)):
                if not text.isdecimal() or not 0 < int(text) < 65536:
                    raise LocalRunError(f"{_variable(name)} must be a port number, not {text!r}")
                ports = replace(ports, **{name: int(text)})
        return ports

    def of(self, name: str) -> int:
        """Return the port of a field, or of `api_N_health`: from `api_2` on after `mcp_health`."""
        if name in PORT_NAMES:
            port: int = getattr(self, name)
            return port
        return self.mcp_health + int(name.split("_")[1]) - 1


PORT_NAMES = tuple(Ports.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """The settings of one run.

    Attributes:
        root: the checkout: CRDs, examples and the modules of the control plane are read from it.
        directory: the folder that everything is written to.
        ports: where the processes listen, on loopback.
        namespace: the namespace of the gateway's objects.
        kubeconfig: use this cluster and start no control plane.
        allow_remote: the cluster of `kubeconfig` may be on another machine.
        first_objects: whether to make the first provider, model, accounts and keys.
        restart: whether a process that dies is started again.
        extra_env: further environment by process name.
        store: where bytes are: a directory, or an S3 server that is part of the run. What the
            environment says of a store goes before the former.
        workers: how many API processes serve the port.
        sync_to_disk: whether etcd waits for the disk; off is faster and survives kill -9, not a
            power failure.
    """

    root: Path
    directory: Path
    ports: Ports = field(default_factory=Ports)
    namespace: str = "model-gateway"
    kubeconfig: Path | None = None
    allow_remote: bool = False
    first_objects: bool = True
    restart: bool = True
    extra_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    sync_to_disk: bool = True
    store: Store = "directory"
    workers: int = 1

    @property
    def log_directory(self) -> Path:
        """One log a process: `NAME.log`; that of the run before: `NAME.log.1`."""
        return self.directory / "log"

    @property
    def run_directory(self) -> Path:
        """One pid file a process: `NAME.pid`."""
        return self.directory / "run"

    @property
    def secrets_directory(self) -> Path:
        """The keys that the processes share: `id-key`, `pepper-1`, `media-key`."""
        return self.directory / "secrets"

    @property
    def store_directory(self) -> Path:
        """The object store."""
        return self.directory / "store"

    @property
    def env_file(self) -> Path:
        """Addresses and keys for clients, as shell assignments."""
        return self.directory / "gateway.env"

    @property
    def cluster_kubeconfig(self) -> Path:
        """The kubeconfig of the cluster in use, own or given."""
        return self.kubeconfig or self.directory / "kubeconfig"

    @property
    def base_url(self) -> str:
        """Address of the REST API."""
        return self.url("api")

    @property
    def media_url(self) -> str:
        """Address of the media host: another origin than the API's."""
        return self.url("media")

    @property
    def mcp_url(self) -> str:
        """Address of the MCP endpoint's host: the audience of OAuth access tokens."""
        return self.url("mcp")

    @property
    def simulator_url(self) -> str:
        """Address of the simulated provider."""
        return self.url("simulator")

    def url(self, port: str) -> str:
        """Return the address of a listener by the name of its port."""
        return f"http://{LOOPBACK}:{self.ports.of(port)}"


def find_root() -> Path:
    """Return the checkout that holds this package, else the one around the current folder.

    Raises:
        LocalRunError: neither is one; an installed wheel alone has no CRDs to apply.
    """
    for folder in (*Path(__file__).resolve().parents, Path.cwd(), *Path.cwd().parents):
        if (folder / "crds").is_dir() and (folder / "examples" / "local").is_dir():
            return folder
    raise LocalRunError("the local run needs a checkout of the repository; none is here")


def read_config(
    env: Mapping[str, str],
    port_base: int | None = None,
    use_kubeconfig: bool = False,
    allow_remote: bool = False,
    store: Store = "directory",
    workers: int = 1,
) -> LocalConfig:
    """Return the settings of a run from the environment and the command line's options.

    Reads `GATEWAY_LOCAL_DIR`, `GATEWAY_LOCAL_PORT_<NAME>`, `GATEWAY_NAMESPACE` and, if
    `use_kubeconfig`, `KUBECONFIG` (one file).

    Raises:
        LocalRunError: a setting makes no sense.
    """
    root = find_root()
    kubeconfig = None
    if use_kubeconfig:
        named = env.get("KUBECONFIG", "")
        kubeconfig = Path(named).expanduser().resolve()
        if not kubeconfig.is_file():
            raise LocalRunError(f"--use-kubeconfig needs one file in KUBECONFIG, not {named!r}")
    return LocalConfig(
        root=root,
        directory=Path(env.get("GATEWAY_LOCAL_DIR") or root / ".local").expanduser().resolve(),
        ports=Ports.from_environment(env, port_base),
        namespace=env.get("GATEWAY_NAMESPACE") or "model-gateway",
        kubeconfig=kubeconfig,
        allow_remote=allow_remote,
        store=store,
        workers=workers,
    )


def check_ports(ports: Ports, names: Iterable[str]) -> None:
    """Refuse to begin where a port that the run needs has a listener, or two need the same.

    Raises:
        LocalRunError: names every such port, the process that wants it, and the way out.
    """
    taken: dict[int, str] = {}
    problems = []
    for name in names:
        port, title = ports.of(name), name.replace("_", "-")
        if port in taken:
            problems.append(f"port {port} is wanted by both {taken[port]} and {title}")
        elif is_busy(port):
            way_out = f"; set {_variable(name)} to change it" if name in PORT_NAMES else ""
            problems.append(
                f"port {port}, wanted by {title}, is in use by another process{way_out}"
            )
        taken[port] = title
    if problems:
        raise LocalRunError(
            "\n".join([*problems, "`--port-base N` (make: PORT_BASE=N) moves all ports at once."])
        )


def is_busy(port: int) -> bool:
    """Return whether a port of loopback has a listener."""
    # a bind alone misses, on some systems, a listener on the wildcard address
    with socket.socket() as probe:
        probe.settimeout(0.5)
        if probe.connect_ex((LOOPBACK, port)) == 0:
            return True
    try:
        # as servers do: a port in TIME_WAIT is free
        socket.create_server((LOOPBACK, port)).close()
    except OSError:
        return True
    return False


def _variable(name: str) -> str:
    return f"GATEWAY_LOCAL_PORT_{name.upper()}"
