"""What a deployment may choose for the MCP process."""

from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints
from pydantic_settings import NoDecode

from gateway_web.settings import Count, Origin, Port, ServiceSettings, split_commas

Host = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.\[\]:-]{1,260}$")]


class McpSettings(ServiceSettings):
    """The MCP process."""

    health_port: Port = 8088
    """Where probes and metrics are served: a port that clients do not reach."""
    mcp_host: str = "127.0.0.1"
    """Address that MCP clients are served on; empty for all of both families."""
    mcp_port: Port = 8087
    """Port that MCP clients are served on."""
    mcp_allowed_origins: Annotated[tuple[Origin, ...], NoDecode, BeforeValidator(split_commas)] = ()
    """Origins of pages that may call the endpoint, beside its own, the API's and loopback."""
    mcp_allowed_hosts: Annotated[tuple[Host, ...], NoDecode, BeforeValidator(split_commas)] = ()
    """Values of `Host` that are served, beside that of `mcp_url` and loopback."""
    mcp_wait_seconds: Annotated[float, Field(gt=0, le=300)] = 300.0
    """How long a call of `create_task` waits for its task at most."""
    mcp_max_concurrent_waits: Count = 1000
    """Calls that wait at once; further ones return at once and name `get_task`."""
    mcp_max_account_waits: Count = 600
    """Of one account."""
    replicas: Annotated[int, Field(ge=1, le=10000)] = 1
    """Processes of the API and pods of the MCP process: they share the accounts' rates for the time
    without a counter store (§12.5)."""
