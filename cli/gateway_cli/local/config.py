"""What a local run is told: where it lives, its ports, and which cluster it uses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gateway_cli.local.errors import LocalRunError
from gateway_cli.local.ports import Ports

SERVICE = "sim"
MODEL = "sim-q4-reference-to-video"
MODERATION_MODEL = "sim-moderation"
"""What the first objects are called; they come from examples/local."""

Store = Literal["directory", "s3"]


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
        return f"http://127.0.0.1:{self.ports.api}"

    @property
    def media_url(self) -> str:
        """Address of the media host: another origin than the API's."""
        return f"http://127.0.0.1:{self.ports.media}"

    @property
    def s3_url(self) -> str:
        """Address of the S3 server, where there is one."""
        return f"http://127.0.0.1:{self.ports.s3}"

    @property
    def simulator_url(self) -> str:
        """Address of the simulated provider."""
        return f"http://127.0.0.1:{self.ports.simulator}"


def find_root(start: Path | None = None) -> Path:
    """The checkout that holds this package, else the one around the current folder.

    Raises:
        LocalRunError: if neither is one; an installed wheel alone has no CRDs to apply.
    """
    for place in (start or Path(__file__).resolve(), Path.cwd()):
        for folder in (place, *place.parents):
            if (folder / "crds").is_dir() and (folder / "examples" / "local").is_dir():
                return folder
    raise LocalRunError("the local run needs a checkout of the repository; none is here")


def read_config(
    env: Mapping[str, str],
    *,
    port_base: int | None = None,
    use_kubeconfig: bool = False,
    allow_remote: bool = False,
    store: Store = "directory",
) -> LocalConfig:
    """The settings of a run from the environment and the command line's options.

    Reads `GATEWAY_LOCAL_DIR`, `GATEWAY_LOCAL_PORT_<NAME>`, `GATEWAY_NAMESPACE` and, if
    `use_kubeconfig`, `KUBECONFIG` (one file).

    Raises:
        LocalRunError: if a setting makes no sense.
    """
    root = find_root()
    kubeconfig = None
    if use_kubeconfig:
        named = env.get("KUBECONFIG")
        if not named:
            raise LocalRunError(
                "a cluster is asked for by --use-kubeconfig, and KUBECONFIG is not set"
            )
        kubeconfig = Path(named).expanduser().resolve()
        if not kubeconfig.is_file():
            raise LocalRunError(f"KUBECONFIG names {named}, which is not a file")
    return LocalConfig(
        root=root,
        directory=Path(env.get("GATEWAY_LOCAL_DIR") or root / ".local").expanduser().resolve(),
        ports=Ports.from_environment(env, port_base),
        namespace=env.get("GATEWAY_NAMESPACE") or "model-gateway",
        kubeconfig=kubeconfig,
        allow_remote=allow_remote,
        store=store,
    )
