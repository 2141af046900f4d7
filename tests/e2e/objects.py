"""Names of what the test adds to the cluster, and its objects (`manifests`)."""

from pathlib import Path
from string import Template

import yaml

from gateway_core.accounts.passwords import generate_password, hash_password

SETUP = "model-gateway-e2e-setup"
NAMESPACE = "model-gateway-e2e"
RELEASE = "model-gateway"
CLAIM = "e2e-store"
VOLUME = "model-gateway-e2e"
FOLDER = "model-gateway-e2e"
"""Below /tmp of the node."""
SHELL = "node"
"""The pod that acts on the node, in the namespace SETUP."""
SURROUNDINGS = "model-gateway-e2e-surroundings"
"""The namespace of what an installation finds outside of the gateway."""
SHORT_NAME = "gwtask"
"""What the kind of tasks lacks in the older chart."""
USER = 10001
LOAD_RATE = 4
BATCH_LINES = 3_000
ACCOUNT = "load"
LIVE_DATA = "live-data"
"""The account of data that lives through an upgrade."""
FUNDS_MICROS = 1_000_000_000_000
PERSON = "e2e@example.com"
PASSWORD = generate_password()
PASSWORD_HASH = hash_password(PASSWORD)
"""Made once: an upgrade that changed it would sign the user out."""


def read_manifest(name, /, **values):
    """Return the documents of a manifest. A `$name` in it is one of `values` or of this module."""
    text = Path(__file__).with_name("manifests").joinpath(f"{name}.yaml").read_text()
    return list(yaml.safe_load_all(Template(text).substitute({**globals(), **values})))
