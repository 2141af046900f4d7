"""The API's failpoints: steps of paid creates and Uploads at which a test kills the process."""

from gateway_core.usecases import failpoints

NAMES = (
    "before-reserve",
    "after-reserve",
    "before-create",
    "after-create",
    "before-part-put",
    "after-part-put",
    "before-upload-outcome",
    "after-upload-outcome",
    "before-upload-file",
    "after-upload-file",
)


class Failpoints(failpoints.Failpoints):
    """Those of the API."""

    names = NAMES
