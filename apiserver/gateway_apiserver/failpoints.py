"""The API's failpoints: steps of creates and of Uploads at which a test kills the process."""

from gateway_core import failpoints

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
    "after-file-bytes",
    "after-file-claim",
    "after-file-object",
)


class Failpoints(failpoints.Failpoints):
    """Those of the API."""

    names = NAMES
