"""The OpenAPI document is valid, and every answer of the running gateway fits it.

Calls are generated from the document (schemathesis), good ones and bad ones, with a key and
without; each is checked against what the document says of statuses, headers and bodies.
"""

import collections
import json
import time
import urllib.request

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.checks import CHECKS
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import GenerationMode

from gateway_apiserver.surfaces.llm.options import FALLBACKS
from gateway_core.tasks.operations import CHAT
from tests.shares import IS_WHOLE

EXAMPLES = 150 if IS_WHOLE else 40
"""Of each operation; fewer in CI, where the same generator is run on fakes too."""
PATH = "/api/v1/sim/reference_to_video"
OPERATIONS = (
    f"POST {PATH}",
    f"GET {PATH}/{{task_id}}",
    "GET /api/v1/me",
    "GET /api/v1/me/balance",
    "GET /api/v1/price_schedules",
    "POST /api/v1/price_quotes",
    "POST /v1/moderations",
    "POST /v1/batches",
    "GET /v1/batches",
    "GET /v1/batches/{batch_id}",
    "POST /v1/batches/{batch_id}/cancel",
    "POST /api/v1/files/prepare",
    "POST /api/v1/files/confirm",
    "GET /api/v1/tasks",
    f"POST {PATH}/{{task_id}}/cancel",
)
IGNORING = ("GET /v1/batches",)
"""Where a query that is not known means nothing (contract §0.2): the document cannot say that."""
NATIVE = tuple(
    f"POST {version}/models/{{model_id}}:{action}"
    for version in ("/v1", "/v1beta")
    for action in ("generateContent", "streamGenerateContent")
)
GENERATING = ("POST /v1/chat/completions", "POST /v1/responses", *NATIVE)
"""Calls of language models, most of whose fields are forwarded as they are."""
MODELS = ("sim-chat", "sim-google")
LISTING = tuple(
    f"GET {version}/models{path}" for version in ("/v1", "/v1beta") for path in ("", "/{model_id}")
)
"""Lists of models, in the dialect of the credential below /v1."""
FETCHING = "POST /api/v1/files"
"""Goes to whatever address is made up, so only fakes are asked (`test_openapi_of_fakes.py`)."""
FOR_ANYBODY = OPERATIONS[4:6]
"""Answered without a key, but not with a bad one."""
BELOW_MANAGEMENT = "/api/v1/management/"
_KEY, _GUARDRAIL = "keys/{key_id}", "guardrails/{guardrail_id}"
GOVERNING = tuple(
    f"{method} {BELOW_MANAGEMENT}{path}"
    for path, methods in {
        "keys": ("GET", "POST"),
        _KEY: ("GET", "PATCH", "DELETE"),
        f"{_KEY}/rotate": ("POST",),
        "guardrails": ("GET", "POST"),
        _GUARDRAIL: ("GET", "PATCH", "DELETE"),
        f"{_GUARDRAIL}/assignments": ("GET", "POST"),
        f"{_GUARDRAIL}/assignments/remove": ("POST",),
        "usage": ("GET",),
        "members": ("GET",),
        "members/{user_id}": ("PATCH",),
        "webhook_secret": ("GET",),
        "webhook_secret/rotate": ("POST",),
        "webhook_secret/test": ("POST",),
    }.items()
    for method in methods
)
"""Platform Management, with a management key."""
FILING = (
    "GET /v1/files",
    "POST /v1/files",
    "GET /v1/files/{file_id}",
    "DELETE /v1/files/{file_id}",
    "GET /v1/files/{file_id}/content",
    "POST /v1/uploads",
    "POST /v1/uploads/{upload_id}/parts",
    "POST /v1/uploads/{upload_id}/complete",
    "POST /v1/uploads/{upload_id}/cancel",
)
"""Files and Uploads."""
BAD_KEYS = ("", "nonsense", "sk-aaaaaaaa_" + "A" * 38)
SHAPE_CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
SETTINGS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SETTINGS_OF_SEQUENCES = settings(SETTINGS, max_examples=20 if IS_WHOLE else 8)


def authorize(key):
    return {"Authorization": f"Bearer {key}"}


def name_checks(*names):
    return [CHECKS.get_one(name) for name in names]


def ask(case, **options):
    """The answer; a 503 says when to come again, and is held against the document too."""
    for _ in range(10):
        answer = case.call(**options)
        if answer.status_code != 503:
            break
        case.validate_response(answer, checks=name_checks(*SHAPE_CHECKS[1:]))
        time.sleep(int(answer.headers["retry-after"][0]))
    return answer


def quotes_language_model(case):
    """Whether the case asks for the price of a call whose body is open.

    The gateway checks the fields that it knows in such a body, the document does not list them.
    """
    return isinstance(case.body, dict) and case.body.get("action") == CHAT.action


def find(schema, label):
    """The operation that a label such as `GET /api/v1/me` names."""
    (found,) = (result.ok() for result in schema.get_all_operations() if result.ok().label == label)
    return found


def call_often(world, cases, keys, *, examples=EXAMPLES, prepare=None, checks=None, excluded=None):
    """Make calls of these cases with keys of this strategy; how many by status, key and type.

    A key of None sends no credential. Each answer is held against the document.
    """
    seen, base_url = collections.Counter(), world.env["GATEWAY_BASE_URL"]
    has_shape_checks_only = checks is None
    checks = checks or name_checks(*SHAPE_CHECKS)

    @settings(SETTINGS, max_examples=examples)
    @given(case=cases, key=keys, data=st.data())
    def call(case, key, data):
        if has_shape_checks_only:
            # other checks look whether the credential is among what was generated badly
            case.headers.pop("Authorization", None)
        if prepare is not None:
            prepare(case, data)
        headers = {} if key is None else authorize(key)
        answer = ask(case, base_url=base_url, headers=headers)
        left_out = [] if excluded is None else excluded(case)
        case.validate_response(answer, checks=checks, excluded_checks=left_out, headers=headers)
        content_type = answer.headers.get("content-type", [""])[0].partition(";")[0]
        seen[answer.status_code, key, content_type] += 1

    call()
    return seen


def list_statuses(seen, key=None):
    """The statuses of calls with this key, or of all."""
    return {status for status, used, _ in seen if key is None or used == key}


@pytest.fixture(scope="module")
def document(world):
    """The document as it is served."""
    with urllib.request.urlopen(world.env["GATEWAY_BASE_URL"] + "/openapi.json") as answer:
        assert answer.headers["Content-Type"] == "application/json"
        return json.load(answer)


@pytest.fixture(scope="module")
def schema(document):
    """The same, as schemathesis reads it."""
    return schemathesis.openapi.from_dict(document)


def test_document_is_valid_openapi_3_1(document, schema):
    assert document["openapi"].startswith("3.1.")
    schema.validate()


def list_operations(document):
    """Each path with its operations by method; without the parameters that they share."""
    return [
        (path, {method: item for method, item in items.items() if method != "parameters"})
        for path, items in document["paths"].items()
    ]


def test_document_names_where_it_is_served_and_how_to_call(world, document):
    assert document["servers"] == [{"url": world.env["GATEWAY_BASE_URL"]}]
    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    labels = {
        f"{method.upper()} {path}" for path, ops in list_operations(document) for method in ops
    }
    governing = {label for label in labels if BELOW_MANAGEMENT in label}
    assert labels - governing == {*OPERATIONS, *FILING, FETCHING, *GENERATING, *LISTING}
    assert governing == set(GOVERNING)
    ids = [
        operation["operationId"]
        for _, methods in list_operations(document)
        for operation in methods.values()
    ]
    assert len(set(ids)) == len(ids)


def test_every_status_of_the_specification_is_documented(document):
    create = document["paths"][PATH]["post"]["responses"]
    assert {"202", "400", "401", "402", "403", "409", "413", "415", "429"} <= set(create)
    assert {"500", "503", "504"} <= set(create)
    read = document["paths"][PATH + "/{task_id}"]["get"]["responses"]
    assert {"200", "401", "403", "404"} <= set(read)


@pytest.mark.parametrize("label", GENERATING)
def test_calls_of_language_models_have_their_headers_documented(schema, label):
    operation = find(schema, label)
    names = {parameter.name for parameter in operation.headers}
    assert names >= {FALLBACKS, "x-gateway-timeout", "x-gateway-first-byte-timeout"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_answer_fits_the_document(world, key, schema, label, mode):
    checks = CHECKS.get_all()
    if label in IGNORING:
        checks.remove(CHECKS.get_one("negative_data_rejection"))
    accepted = name_checks("positive_data_acceptance")
    seen = call_often(
        world,
        find(schema, label).as_strategy(generation_mode=mode),
        st.just(key),
        checks=checks,
        excluded=lambda case: accepted if quotes_language_model(case) else [],
    )
    expected = {"positive": {200, 201, 202, 404}, "negative": {400, 401, 404, 415}}
    assert list_statuses(seen) & expected[mode.value], seen


@pytest.mark.timeout(300)
@pytest.mark.parametrize("label", OPERATIONS)
def test_every_call_without_a_good_key_is_401_and_fits_the_document(world, schema, label):
    keys = BAD_KEYS if label in FOR_ANYBODY else (None, *BAD_KEYS)
    seen = call_often(world, find(schema, label).as_strategy(), st.sampled_from(keys))
    assert list_statuses(seen) == {401}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("label", FILING)
def test_every_answer_about_files_fits_the_document(world, key, schema, label):
    """Few calls of each: what is in a form is generated by the tests of fakes."""
    keys = st.sampled_from([key] * 5 + [*BAD_KEYS])
    cases = find(schema, label).as_strategy()
    seen = call_often(world, cases, keys, examples=100 if IS_WHOLE else 12)
    assert not any(list_statuses(seen, bad) - {401} for bad in BAD_KEYS)
    assert any(status < 500 for status in list_statuses(seen, key))


PROMPTS = st.text(st.characters(codec="utf-8", exclude_characters="["), min_size=1, max_size=50)


def prompt(case, text):
    """Give the case a prompt that the provider accepts and fallback models that exist."""
    if FALLBACKS in case.headers:
        case.headers[FALLBACKS] = ",".join(MODELS)
    message = {"role": "user", "content": text}
    given = {"messages": [message], "input": text, "contents": [{"parts": [{"text": text}]}]}
    case.body = {name: given.get(name, value) for name, value in case.body.items()}
    if case.body.get("stream") is not True:
        case.body.pop("stream_options", None)


def choose_model(case, label, data):
    if "{" in label:
        case.path_parameters["model_id"] = data.draw(st.sampled_from(MODELS))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("label", GENERATING)
def test_every_answer_of_a_language_model_fits_the_document(world, key, schema, label):
    """Streams too: of a good body with a prompt, an answer or a stream comes."""

    def prepare(case, data):
        prompt(case, data.draw(PROMPTS))
        if ":stream" in label and data.draw(st.booleans()):
            case.query["alt"] = "sse"
        choose_model(case, label, data)

    cases = find(schema, label).as_strategy(generation_mode=GenerationMode.POSITIVE)
    examples = 100 if IS_WHOLE else 12
    seen = call_often(world, cases, st.just(key), examples=examples, prepare=prepare)
    kinds = {kind for status, _, kind in seen if status == 200}
    assert ("text/event-stream" if ":stream" in label else "application/json") in kinds, seen


@pytest.mark.timeout(300)
@pytest.mark.parametrize("label", GENERATING)
def test_bad_body_for_a_language_model_is_refused_as_the_document_says(world, key, schema, label):
    def has_bad_body(case):
        body = case.meta.components.get(ParameterLocation.BODY)
        return body is not None and body.mode is GenerationMode.NEGATIVE

    cases = find(schema, label).as_strategy(generation_mode=GenerationMode.NEGATIVE)
    seen = call_often(
        world,
        cases.filter(has_bad_body),
        st.sampled_from([key] * 4 + [*BAD_KEYS]),
        examples=100 if IS_WHOLE else 15,
        prepare=lambda case, data: choose_model(case, label, data),
    )
    assert {400, 401} <= list_statuses(seen) <= {400, 401, 404, 413, 415}, seen


@pytest.mark.parametrize("label", LISTING)
def test_every_list_of_models_fits_the_document(world, key, schema, label):
    def prepare(case, data):
        if data.draw(st.booleans()):
            choose_model(case, label, data)
        if data.draw(st.booleans()):
            case.headers["x-goog-api-key"] = key

    keys = st.sampled_from([key, None])
    seen = call_often(world, find(schema, label).as_strategy(), keys, examples=12, prepare=prepare)
    assert {200, 401} <= list_statuses(seen), seen


@pytest.mark.parametrize("label", FOR_ANYBODY)
def test_prices_are_public_and_fit_the_document(world, schema, label):
    def prepare(case, data):
        # a second model that differs is refused, which a schema cannot say
        params = case.body.get("params") if isinstance(case.body, dict) else None
        if params:
            params.pop("model", None)

    cases = find(schema, label).as_strategy()
    seen = call_often(world, cases, st.none(), examples=20, prepare=prepare)
    assert list_statuses(seen) == {200}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("label", GOVERNING)
def test_every_answer_to_a_management_key_fits_the_document(
    world, key, management_key, schema, label
):
    """Fewer calls for each than of tasks: the same generator is run on fakes with more."""
    keys = st.sampled_from([management_key] * 4 + [key, *BAD_KEYS])
    seen = call_often(world, find(schema, label).as_strategy(), keys, examples=12)
    assert list_statuses(seen, key) <= {403}
    assert not any(list_statuses(seen, bad) - {401} for bad in BAD_KEYS)
    assert list_statuses(seen, management_key)


@pytest.mark.timeout(300)
def test_created_task_can_be_read_at_its_location(world, key, schema):
    """Follows the document's links from one call to the next."""
    found = collections.Counter()

    class Calls(schema.include(path=[PATH, f"{PATH}/{{task_id}}"]).as_state_machine()):
        def get_call_kwargs(self, case):
            return {"base_url": world.env["GATEWAY_BASE_URL"], "headers": authorize(key)}

        def validate_response(self, response, case, additional_checks=None, **options):
            found[case.operation.label, response.status_code] += 1
            super().validate_response(response, case, additional_checks, **options)

    Calls.run(settings=settings(SETTINGS_OF_SEQUENCES, stateful_step_count=6))
    create, read = OPERATIONS[0], OPERATIONS[1]
    assert found[create, 202]
    assert found[read, 200]
