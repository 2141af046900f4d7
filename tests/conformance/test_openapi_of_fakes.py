"""Every answer of the API on fakes fits the OpenAPI document, also where calls fetch or send forms.

Real processes get fewer calls, and none of those that a fake alone can answer (`test_openapi.py`).
"""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CHECKS

from tests.unit.apiserver.gateway import Gateway, clear_environment


def _serve() -> tuple[Gateway, Any]:
    """Made at import, since the cases are; the settings of the environment do not count."""
    with pytest.MonkeyPatch.context() as patch:
        clear_environment(patch)
        gateway = Gateway(management_calls_per_minute=10**6, file_creates_per_minute=10**6)
    gateway.put_account("demo", unlimited=True, requestsPerMinute=1_000_000, storageBytes=2**50)
    return gateway, schemathesis.openapi.from_asgi("/openapi.json", gateway.app)


_gateway, _schema = _serve()
_management_key = _gateway.put_key("demo", "Management")
_BELOW_MANAGEMENT = "^/api/v1/management/"
_OF_ACTIONS = {"unsupported_method", "allow_header_conformance"}
_SETTINGS = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.filterwarnings("ignore")
@_schema.exclude(path_regex=_BELOW_MANAGEMENT).parametrize()
@_SETTINGS
def test_every_answer_fits_the_document(case: Any) -> None:
    headers = {"Authorization": f"Bearer {_gateway.key}"}
    beyond_schemas = {
        # that a source can be fetched is more than a schema can say
        "POST /api/v1/files": {"positive_data_acceptance"},
        # too many bytes are refused by 413, which the check does not count as a refusal; and a GET
        # is answered by 404 (contract §4.6)
        "POST /v1/uploads": {"negative_data_rejection", "unsupported_method"},
        # unknown parameters and fields are passed over
        "GET /v1/files": {"negative_data_rejection"},
        "POST /v1/files": {"negative_data_rejection"},
        "GET /v1/batches": {"negative_data_rejection"},
        # the token of a page is opaque, and unknown parameters are passed over
        "GET /v1beta/models": {"positive_data_acceptance", "negative_data_rejection"},
        # an action is part of a model's path, and an unknown one is 404 (contract §8.1)
        "GET /v1/models/{model_id}": _OF_ACTIONS,
        "GET /v1beta/models/{model_id}": _OF_ACTIONS,
        # calls that would be stored at the provider are 404 (contract §7.5)
        "POST /v1/chat/completions": {"unsupported_method"},
    }
    beyond = beyond_schemas.get(case.operation.label, set())
    checks = [check for check in CHECKS.get_all() if check.__name__ not in beyond]
    case.call_and_validate(checks=checks, headers=headers)


@pytest.mark.filterwarnings("ignore")
@_schema.include(path_regex=_BELOW_MANAGEMENT).parametrize()
@_SETTINGS
def test_every_answer_to_a_management_key_fits_the_document(case: Any) -> None:
    headers = {"Authorization": f"Bearer {_management_key}"}
    # that `end` is within 93 days of `start` is more than a schema can say
    beyond_schemas = {"/api/v1/management/usage"}
    checks = [
        check
        for check in CHECKS.get_all()
        if case.path not in beyond_schemas or check.__name__ != "positive_data_acceptance"
    ]
    case.call_and_validate(checks=checks, headers=headers)
