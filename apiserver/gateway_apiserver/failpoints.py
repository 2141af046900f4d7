"""The API's failpoints: the steps of creates at which a test has the process killed."""

from gateway_core.usecases import failpoints

NAMES = (
    "before-reserve",
    "after-reserve",
    "before-create",
    "after-create",
    "after-file-bytes",
    "after-file-claim",
    "after-file-object",
)


class Failpoints(failpoints.Failpoints):
    """Those of the API."""

    names = NAMES
