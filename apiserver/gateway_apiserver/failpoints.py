"""The API's failpoints: steps of creates, Uploads and links at which a test kills the process."""

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
    "before-link",
    "after-link",
    "before-password",
    "after-password",
    "after-password-session",
)


class Failpoints(failpoints.Failpoints):
    """Those of the API."""

    names = NAMES
