"""The MCP process's failpoints: steps of creates at which a test kills it."""

from gateway_core import failpoints

NAMES = ("before-reserve", "after-reserve", "before-create", "after-create")


class Failpoints(failpoints.Failpoints):
    """Those of the MCP process."""

    names = NAMES
