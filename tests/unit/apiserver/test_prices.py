"""The price list and quotes (contract §2.6, §2.7)."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway_apiserver.surfaces.quotes import QuoteRequest, quote_call
from gateway_core.api.money import ceil_cents
from gateway_core.billing.prices import bound_task, charge, select_price
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers.catalog import Catalog, build_catalog
from gateway_core.tasks import drafts
from gateway_core.tasks.drafts import draft_task, find_model, price_draft
from tests.unit.apiserver.gateway import MODEL, Answer, Gateway, body, call

SCHEDULES = "/api/v1/price_schedules"
QUOTES = "/api/v1/price_quotes"
RESOLUTIONS = ("540p", "720p", "1080p", "2k", "4k")
ITEM_KEYS = {
    "service",
    "action",
    "model",
    "pricing_status",
    "catalog_status",
    "currency",
    "billing_unit",
    "billing_strategy",
    *(
        f"{price}_{unit}"
        for unit in ("cents", "micros")
        for price in (
            "unit_price",
            "input_price_per_1m",
            "output_price_per_1m",
            "cache_read_price_per_1m",
            "cache_write_price_per_1m",
            "cache_write_5m_price_per_1m",
            "cache_write_1h_price_per_1m",
        )
    ),
    "billing_config",
}
PAST, FUTURE = "2020-01-01T00:00:00Z", "2120-01-01T00:00:00Z"


async def ask(gateway: Gateway, query: str = "", key: str | None = "") -> Answer:
    """GETs the price list; without a key if `key` is None."""
    headers = [] if key is None else [("Authorization", f"Bearer {key or gateway.key}")]
    return await call(gateway.app, "GET", SCHEDULES, query=query, headers=headers)


async def post_quote(gateway: Gateway, content: Any, key: str | None = "") -> Answer:
    headers = [("Content-Type", "application/json")]
    if key is not None:
        headers.append(("Authorization", f"Bearer {key or gateway.key}"))
    raw = content if isinstance(content, bytes) else orjson.dumps(content)
    return await call(gateway.app, "POST", QUOTES, headers=headers, content=raw)


def params(**changes: Any) -> dict[str, Any]:
    """A create's body without its model."""
    return body(**{"model": ..., **changes})


def question(**changes: Any) -> dict[str, Any]:
    """A quote's body; a change to `...` leaves the member out."""
    base = {
        "service": "sim",
        "action": "reference_to_video",
        "model": MODEL,
        "params": params(),
    }
    return {name: value for name, value in {**base, **changes}.items() if value is not ...}


async def find(gateway: Gateway, model_id: str) -> dict[str, Any]:
    (item,) = (await ask(gateway, f"model={model_id}")).json["price_schedules"]
    found: dict[str, Any] = item
    return found


class TestSchedules:
    async def test_every_key_is_there(self, gateway: Gateway) -> None:
        answer = await ask(gateway)
        assert answer.status == 200
        assert answer.headers["cache-control"] == "no-store"
        assert set(answer.json) == {"as_of", "price_schedules"}
        as_of = datetime.strptime(answer.json["as_of"], "%Y-%m-%dT%H:%M:%S%z")
        assert abs(as_of - datetime.now(UTC)) < timedelta(seconds=30)
        (item,) = answer.json["price_schedules"]
        assert set(item) == ITEM_KEYS
        assert item == {
            **dict.fromkeys(ITEM_KEYS),
            "service": "sim",
            "action": "reference_to_video",
            "model": MODEL,
            "pricing_status": "priced",
            "catalog_status": "available",
            "currency": "USD",
            "billing_unit": "second",
            "billing_strategy": "per_second",
            "unit_price_cents": 10,
            "unit_price_micros": 100_000,
            "billing_config": {
                "effective_time": None,
                "per_call_micros": None,
                "per_second": [{"resolution": name, "micros": 100_000} for name in RESOLUTIONS],
                "per_image_micros": None,
                "input_per_1m_micros": None,
                "cache_read_per_1m_micros": None,
                "output_per_1m_micros": None,
            },
        }

    async def test_seconds_by_resolution_have_no_one_price(self, gateway: Gateway) -> None:
        gateway.put_model(
            "by-size",
            prices=[{"perSecond": [{"resolution": "4k", "micros": 9}, {"micros": 5}]}],
            fields=[{"name": "output_resolution", "allowed": ["4k", "720p"]}],
        )
        item = await find(gateway, "by-size")
        assert item["billing_unit"] == "second"
        assert item["billing_strategy"] == "per_second_by_resolution"
        assert item["unit_price_cents"] is None
        assert item["billing_config"]["per_second"] == [
            {"resolution": "720p", "micros": 5},
            {"resolution": "4k", "micros": 9},
        ]

    async def test_a_price_of_several_parts_is_combined(self, gateway: Gateway) -> None:
        gateway.put_model("both", prices=[{"perCallMicros": 10_000, "perSecond": [{"micros": 1}]}])
        item = await find(gateway, "both")
        assert (item["billing_unit"], item["billing_strategy"]) == (None, "combined")
        assert item["unit_price_cents"] is None
        assert item["billing_config"]["per_call_micros"] == 10_000

    @pytest.mark.parametrize(
        ("micros", "cents"),
        [(0, 0), (1, None), (100, None), (9_999, None), (10_000, 1), (10_001, 2), (60_000, 6)],
    )
    async def test_prices_are_exact_in_micros_and_rounded_up_to_cents_from_one_cent_on(
        self, gateway: Gateway, micros: int, cents: int | None
    ) -> None:
        gateway.put_model("call", prices=[{"perCallMicros": micros}])
        item = await find(gateway, "call")
        assert (item["billing_unit"], item["billing_strategy"]) == ("call", "per_call")
        assert item["unit_price_cents"] == cents
        assert item["unit_price_micros"] == micros
        assert item["billing_config"]["per_call_micros"] == micros
        assert item["pricing_status"] == ("priced" if micros else "free")

    async def test_tokens_have_their_own_columns(self, gateway: Gateway) -> None:
        # no operation takes such a price yet, so the model cannot be called; its price is told
        gateway.put_model(
            "tokens", prices=[{"inputPerMillionMicros": 150_000, "outputPerMillionMicros": 600_001}]
        )
        gateway.put_model("cheap-tokens", prices=[{"inputPerMillionMicros": 9_000}])
        item = await find(gateway, "tokens")
        assert item["catalog_status"] == "unavailable"
        assert (item["billing_unit"], item["billing_strategy"]) == ("token", "per_token")
        assert item["unit_price_cents"] is None
        assert item["input_price_per_1m_cents"] == 15
        assert item["output_price_per_1m_cents"] == 61
        assert item["cache_read_price_per_1m_cents"] == 15
        assert item["input_price_per_1m_micros"] == 150_000
        assert item["output_price_per_1m_micros"] == 600_001
        assert item["cache_read_price_per_1m_micros"] == 150_000
        cheap = await find(gateway, "cheap-tokens")
        assert cheap["input_price_per_1m_cents"] is None
        assert cheap["input_price_per_1m_micros"] == 9_000

    async def test_a_model_that_is_going(self, gateway: Gateway) -> None:
        gateway.put_model("old", deprecated=True)
        item = await find(gateway, "old")
        assert (item["catalog_status"], item["pricing_status"]) == ("deprecated", "priced")
        assert (await gateway.create(body(model="old"))).status == 202

    async def test_a_model_that_is_gone(self, gateway: Gateway) -> None:
        gateway.put_model("gone", disabled=True)
        item = await find(gateway, "gone")
        assert (item["catalog_status"], item["pricing_status"]) == ("unavailable", "priced")
        assert item["unit_price_cents"] == 10

    @pytest.mark.parametrize("status", ["available", "unavailable"])
    async def test_a_model_without_a_price_in_force(self, gateway: Gateway, status: str) -> None:
        prices = [{"perCallMicros": 1, "effectiveTime": FUTURE}] if status == "available" else []
        gateway.put_model("new", prices=prices)
        item = await find(gateway, "new")
        assert (item["catalog_status"], item["pricing_status"]) == (status, "unpriced")
        empty = ("billing_unit", "billing_strategy", "unit_price_cents", "billing_config")
        assert [item[name] for name in empty] == [None] * 4

    async def test_the_price_in_force_is_shown(self, gateway: Gateway) -> None:
        prices = [
            {"perCallMicros": 10_000},
            {"perCallMicros": 20_000, "effectiveTime": PAST},
            {"perCallMicros": 30_000, "effectiveTime": FUTURE},
        ]
        gateway.put_model("dated", prices=prices)
        item = await find(gateway, "dated")
        assert item["unit_price_cents"] == 2
        assert item["billing_config"]["effective_time"] == PAST

    async def test_sorted_by_service_action_and_model(self, gateway: Gateway) -> None:
        for service, model_id in (("zeta", "a"), ("alpha", "z"), ("sim", "a"), ("alpha", "b")):
            gateway.put_model(model_id + service, service=service, modelId=model_id)
        gateway.put_model("gone", service="alpha", disabled=True)
        shown = (await ask(gateway)).json["price_schedules"]
        keys = [(item["service"], item["action"], item["model"]) for item in shown]
        assert keys == sorted(keys)
        assert len(keys) == 6

    async def test_a_change_of_the_catalog_shows_at_once(self, gateway: Gateway) -> None:
        for cents in (1, 2, 3):
            gateway.put_model("call", prices=[{"perCallMicros": cents * 10_000}])
            assert (await find(gateway, "call"))["unit_price_cents"] == cents

    @pytest.mark.parametrize(
        ("query", "found"),
        [
            ("", 2),
            ("service=sim", 1),
            ("service=sim&action=reference_to_video", 1),
            ("action=reference_to_video", 2),
            (f"service=sim&action=reference_to_video&model={MODEL}", 1),
            ("service=&model=", 2),
            ("service=unknown", 0),
            ("action=text_to_video", 0),
            ("model=SIM", 0),
            (f"service=other&model={MODEL}", 0),
            ("model=a%2Fb%3Ac", 1),
        ],
    )
    async def test_filters(self, gateway: Gateway, query: str, found: int) -> None:
        gateway.put_model("other", service="other", modelId="a/b:c")
        answer = await ask(gateway, query)
        assert answer.status == 200
        assert len(answer.json["price_schedules"]) == found

    @pytest.mark.parametrize("query", ["mode=x", "model=a&model=b"])
    async def test_a_filter_that_is_none_is_400(self, gateway: Gateway, query: str) -> None:
        answer = await ask(gateway, query)
        assert answer.status == 400
        assert list(answer.json["errors"]) == [query.partition("=")[0]]


class TestWhoMayAsk:
    @pytest.fixture(params=["schedules", "quotes"])
    def route(self, request: pytest.FixtureRequest) -> Any:
        async def asked(gateway: Gateway, key: str | None) -> Answer:
            if request.param == "schedules":
                return await ask(gateway, key=key)
            return await post_quote(gateway, question(), key=key)

        return asked

    async def test_anybody(self, gateway: Gateway, route: Any) -> None:
        assert (await route(gateway, None)).status == 200
        assert (await route(gateway, gateway.key)).status == 200

    async def test_a_bad_credential_is_401(self, gateway: Gateway, route: Any) -> None:
        revoked = gateway.put_key("demo", revoked=True)
        for key in ("nonsense", "sk-aaaaaaaa_" + "A" * 38, revoked):
            answer = await route(gateway, key)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"

    async def test_a_management_key_is_403(self, gateway: Gateway, route: Any) -> None:
        key = gateway.put_key("demo", key_class="Management")
        assert (await route(gateway, key)).status == 403

    async def test_only_those_with_a_key_where_the_deployment_says_so(self, route: Any) -> None:
        gateway = Gateway(pricing_anonymous=False)
        assert (await route(gateway, None)).status == 401
        assert (await route(gateway, gateway.key)).status == 200

    async def test_the_document_says_who(self) -> None:
        for anonymous in (True, False):
            gateway = Gateway(pricing_anonymous=anonymous)
            paths = (await call(gateway.app, "GET", "/openapi.json")).json["paths"]
            for operation in (paths[SCHEDULES]["get"], paths[QUOTES]["post"]):
                expected = [{}, {"apiKey": []}] if anonymous else None
                assert operation.get("security") == expected

    async def test_nothing_is_counted(self, gateway: Gateway, route: Any) -> None:
        for _ in range(3):
            answer = await route(gateway, gateway.key)
            assert not any(name.startswith("x-ratelimit") for name in answer.headers)
        created = await gateway.create()
        assert created.headers["x-ratelimit-remaining-rpm"] == "299"

    async def test_maintenance_lets_prices_be_read(self, route: Any) -> None:
        gateway = Gateway(maintenance=True)
        assert (await route(gateway, gateway.key)).status == 200

    async def test_another_method_is_405(self, gateway: Gateway) -> None:
        for path, allowed in ((SCHEDULES, "GET"), (QUOTES, "POST")):
            answer = await call(gateway.app, "DELETE", path)
            assert (answer.status, answer.headers["allow"]) == (405, allowed)
            assert (await call(gateway.app, allowed, path + "/")).status == 404


class TestQuotes:
    async def test_every_key_is_there(self, gateway: Gateway) -> None:
        answer = await post_quote(gateway, question())
        assert answer.status == 200
        assert answer.headers["cache-control"] == "no-store"
        assert set(answer.json) == {"price_quote"}
        quote = answer.json["price_quote"]
        assert datetime.strptime(quote.pop("as_of"), "%Y-%m-%dT%H:%M:%S%z")
        assert quote == {
            "service": "sim",
            "action": "reference_to_video",
            "model": MODEL,
            "pricing_status": "priced",
            "currency": "USD",
            "reservation_amount_cents": 50,
            "estimate_basis": "exact",
        }

    @pytest.mark.parametrize("given", [..., None, {}])
    async def test_without_params_the_defaults_count(self, gateway: Gateway, given: Any) -> None:
        gateway.put_model(fields=[{"name": "duration_seconds", "default": "8"}])
        quote = (await post_quote(gateway, question(params=given))).json["price_quote"]
        assert (quote["reservation_amount_cents"], quote["estimate_basis"]) == (
            80,
            "default_params",
        )

    async def test_the_reservation_is_rounded_up(self, gateway: Gateway) -> None:
        for micros, cents in ((0, 0), (1, 1), (10_000, 1), (10_001, 2)):
            gateway.put_model(prices=[{"perCallMicros": micros}])
            quote = (await post_quote(gateway, question())).json["price_quote"]
            assert quote["reservation_amount_cents"] == cents
            assert quote["pricing_status"] == ("priced" if micros else "free")

    async def test_without_a_model_it_is_the_most_of_those_that_take_it(
        self, gateway: Gateway
    ) -> None:
        asked = question(model=...)
        quote = (await post_quote(gateway, asked)).json["price_quote"]
        assert quote["model"] is None
        assert (quote["reservation_amount_cents"], quote["estimate_basis"]) == (50, "exact")
        gateway.put_model("dear", prices=[{"perCallMicros": 700_000}])
        only_4k = [
            {"name": "output_resolution", "allowed": ["4k"], "default": '"4k"'},
        ]
        gateway.put_model("dearest", prices=[{"perCallMicros": 900_000}], fields=only_4k)
        asked["params"] = params(output_resolution="720p")
        quote = (await post_quote(gateway, asked)).json["price_quote"]
        assert (quote["reservation_amount_cents"], quote["estimate_basis"]) == (70, "maximum")
        asked["params"] = params(output_resolution="4k")
        quote = (await post_quote(gateway, asked)).json["price_quote"]
        assert quote["reservation_amount_cents"] == 90

    async def test_the_params_may_name_the_model(self, gateway: Gateway) -> None:
        asked = question(model=..., params=body())
        assert (await post_quote(gateway, asked)).json["price_quote"]["model"] == MODEL
        answer = await post_quote(gateway, question(params=body(model="another")))
        assert (answer.status, list(answer.json["errors"])) == (400, ["model"])

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"service": ...}, "service"),
            ({"service": None}, "service"),
            ({"action": ...}, "action"),
            ({"service": 1}, "service"),
            ({"action": ""}, "action"),
            ({"model": 5}, "model"),
            ({"model": ""}, "model"),
            ({"params": []}, "params"),
            ({"params": "x"}, "params"),
            ({"extra": 1}, "extra"),
            ({"params": params(prompt=...)}, "prompt"),
            ({"params": params(duration_seconds=99)}, "duration_seconds"),
            ({"params": params(duration_seconds="5")}, "duration_seconds"),
            ({"params": params(output_resolution="8k")}, "output_resolution"),
            ({"params": params(colour="red")}, "colour"),
            ({"params": params(model=7)}, "model"),
            ({"params": params(model={}), "model": ...}, "model"),
            ({"params": params(callback_url="http://127.0.0.1/x")}, "callback_url"),
        ],
    )
    async def test_bad_input_is_the_validation_form(
        self, gateway: Gateway, changes: dict[str, Any], field: str
    ) -> None:
        answer = await post_quote(gateway, question(**changes))
        assert answer.status == 400
        assert set(answer.json) == {"error", "errors"}
        assert list(answer.json["errors"]) == [field]

    async def test_bad_params_get_the_error_of_a_create(self, gateway: Gateway) -> None:
        bad = {"duration_seconds": 2, "reference_image_urls": ["x"], "colour": 1}
        quoted = await post_quote(gateway, question(params=params(**bad)))
        created = await gateway.create(body(**bad))
        assert quoted.status == created.status == 400
        assert quoted.json == created.json

    @pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'"x"'])
    async def test_what_is_no_object_is_the_simple_form(self, gateway: Gateway, raw: bytes) -> None:
        answer = await post_quote(gateway, raw)
        assert (answer.status, set(answer.json)) == (400, {"error"})

    async def test_type_and_size_of_the_body(self, gateway: Gateway) -> None:
        content = orjson.dumps(question())
        assert (await call(gateway.app, "POST", QUOTES, content=content)).status == 415
        assert (await post_quote(gateway, b" " * (1024 * 1024 + 1))).status == 413

    @pytest.mark.parametrize(
        "changes",
        [
            {"service": "unknown"},
            {"action": "text_to_video"},
            {"model": "unknown"},
            {"model": "unknown", "params": ...},
            {"model": "gone"},
        ],
    )
    async def test_what_is_not_offered_is_404(
        self, gateway: Gateway, changes: dict[str, Any]
    ) -> None:
        gateway.put_model("gone", disabled=True)
        answer = await post_quote(gateway, question(**changes))
        assert (answer.status, set(answer.json)) == (404, {"error"})

    async def test_params_are_checked_once_however_many_models_are_asked(
        self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Anybody may ask, so a large body must not cost the number of models times its size."""
        for number in range(30):
            gateway.put_model(f"model-{number}", prices=[{"perCallMicros": number}])
        done: Counter[str] = Counter()

        def count(name: str) -> None:
            whole = getattr(drafts, name)

            def counted(*given: Any) -> Any:
                done[name] += 1
                return whole(*given)

            monkeypatch.setattr(drafts, name, counted)

        for name in ("check_shape", "fingerprint", "to_canonical_json"):
            count(name)
        asked = question(model=..., params=params(callback_url="https://a.example/x"))
        assert (await post_quote(gateway, asked)).json["price_quote"]["estimate_basis"] == "maximum"
        assert done == {"check_shape": 1}

    @pytest.mark.parametrize("model", [MODEL, ...])
    async def test_a_member_that_the_operation_has_not_is_400_also_where_it_is_null(
        self, gateway: Gateway, model: Any
    ) -> None:
        answer = await post_quote(gateway, question(model=model, params=params(other=None)))
        assert (answer.status, set(answer.json["errors"])) == (400, {"other"})

    async def test_bad_params_go_before_an_unknown_model(self, gateway: Gateway) -> None:
        asked = question(model="unknown", params=params(duration_seconds=99))
        assert (await post_quote(gateway, asked)).status == 400

    async def test_what_the_model_does_not_take_is_409(self, gateway: Gateway) -> None:
        gateway.put_model(fields=[{"name": "duration_seconds", "maximum": 10}])
        for asked in (question(), question(model=...)):
            asked["params"] = params(duration_seconds=12)
            answer = await post_quote(gateway, asked)
            assert (answer.status, set(answer.json)) == (409, {"error"})

    async def test_a_model_without_a_price_is_409_as_for_a_create(self, gateway: Gateway) -> None:
        gateway.put_model(prices=[{"perCallMicros": 1, "effectiveTime": FUTURE}])
        assert (await post_quote(gateway, question())).status == 409
        assert (await post_quote(gateway, question(params=...))).status == 409
        assert (await gateway.create()).status == 409


rates = st.integers(min_value=0, max_value=10**8)
price_lists = st.lists(
    st.fixed_dictionaries(
        {"perSecond": st.tuples(*[rates] * 5)}, optional={"perCallMicros": rates}
    ).map(
        lambda made: {
            **made,
            "perSecond": [
                {"resolution": name, "micros": micros}
                for name, micros in zip(RESOLUTIONS, made["perSecond"], strict=True)
            ],
        }
    ),
    min_size=1,
    max_size=4,
).map(
    lambda made: [
        {**price, "effectiveTime": (START + timedelta(seconds=3 * index)).isoformat()}
        for index, price in enumerate(made)
    ]
)
START = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
choices = st.fixed_dictionaries(
    {},
    optional={
        "duration_seconds": st.integers(min_value=3, max_value=16),
        "output_resolution": st.sampled_from(RESOLUTIONS),
        "audio": st.booleans(),
    },
)


def make_catalog(prices: list[dict[str, Any]]) -> Catalog:
    gateway = Gateway()
    gateway.put_model(prices=prices)
    return build_catalog(model for _, model in gateway.models.items())[0]


class TestQuoteReservationAndCharge:
    """One figure for one call: before it, with it and after it."""

    @settings(deadline=None, max_examples=60)
    @given(prices=price_lists, chosen=choices)
    async def test_agree_on_the_wire(
        self, prices: list[dict[str, Any]], chosen: dict[str, Any]
    ) -> None:
        gateway = Gateway()
        gateway.put_account("demo", unlimited=True)
        gateway.put_model(prices=[{**prices[0], "effectiveTime": PAST}])
        quoted = await post_quote(gateway, question(params=params(**chosen)))
        created = await gateway.create(body(**chosen))
        reserved = gateway.task_object(created.json["id"])["spec"]["request"]["reservedMicros"]
        amount = quoted.json["price_quote"]["reservation_amount_cents"]
        assert amount == ceil_cents(reserved)
        assert await gateway.held() == reserved

    @settings(deadline=None, max_examples=100)
    @given(
        prices=price_lists,
        chosen=choices,
        asked=st.integers(min_value=0, max_value=12_999_999),
        waited=st.integers(min_value=0, max_value=3_000_000),
    )
    def test_agree_at_every_moment(
        self, prices: list[dict[str, Any]], chosen: dict[str, Any], asked: int, waited: int
    ) -> None:
        catalog = make_catalog(prices)
        addresses = AddressPolicy((), ())
        moment = START + timedelta(microseconds=asked)
        subject = QuoteRequest(
            service="sim", action="reference_to_video", model=MODEL, params=params(**chosen)
        )
        quoted = quote_call(catalog, subject, addresses, moment)
        operation = catalog.find_operation("sim", "reference_to_video")
        assert operation is not None
        raw = orjson.dumps(body(**chosen))
        draft = draft_task(catalog, operation, "sim", raw, addresses)
        later = moment + timedelta(microseconds=waited)
        model = find_model(draft)
        reserved = price_draft(draft, model, later)
        bound = bound_task(draft.complete)
        # the task's creation time is the API server's, whole and a little off
        at_charge = select_price(model.prices, later.replace(microsecond=0) + timedelta(seconds=1))
        assert charge(at_charge, bound, bound, reserved=reserved) == reserved
        told = moment.replace(microsecond=0)
        if later.replace(microsecond=0) == told:
            assert quoted.micros == reserved
        in_force = [select_price(model.prices, when) for when in (told, later)]
        if in_force[0] == in_force[1]:
            assert quoted.micros == reserved

    def test_price_that_changes_between_quote_and_create_is_dated(self) -> None:
        later = (START + timedelta(seconds=1)).isoformat()
        catalog = make_catalog(
            [{"perCallMicros": 10}, {"perCallMicros": 20, "effectiveTime": later}]
        )
        addresses = AddressPolicy((), ())
        subject = QuoteRequest(service="sim", action="reference_to_video", model=MODEL)
        for milliseconds, micros in ((0, 10), (999, 10), (1000, 20), (1999, 20)):
            moment = START + timedelta(milliseconds=milliseconds)
            assert quote_call(catalog, subject, addresses, moment).micros == micros
