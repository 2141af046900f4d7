"""The API's failpoints: the steps of a paid create at which a test has the process killed."""

from gateway_core.usecases import failpoints

NAMES = (
    "before-reserve",
    "after-reserve",
    "before-create",
    "after-create",
)


class Failpoints(failpoints.Failpoints):
    """Those of the API."""

    names = NAMES
