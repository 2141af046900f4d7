"""The price list and quotes (contract §2.6, §2.7)."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from gateway_apiserver.surfaces.quotes import QuoteRequest, quote_call
from gateway_core.api.money import ceil_cents
from gateway_core.billing.prices import bound_task, charge, select_price
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.providers.catalog import Catalog, build_catalog
from gateway_core.providers.price_schedules import BillingConfig
from gateway_core.tasks import drafts
from gateway_core.tasks.drafts import draft_task, price_draft
from tests.unit.apiserver.gateway import MODEL, Answer, Gateway, body, call

CONFIG_KEYS = BillingConfig.model_fields
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
    async def test_response_has_every_key(self, gateway: Gateway) -> None:
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
                **dict.fromkeys(CONFIG_KEYS),
                "per_second": [{"resolution": name, "micros": 100_000} for name in RESOLUTIONS],
            },
        }

    async def test_seconds_by_resolution_and_combined_prices_have_no_one_price(
        self, gateway: Gateway
    ) -> None:
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
        item = await find(gateway, "tokens")
        assert item["catalog_status"] == "unavailable"
        assert (item["billing_unit"], item["billing_strategy"]) == ("token", "per_token")
        assert item["unit_price_cents"] is None
        for name, cents, micros in (
            ("input", 15, 150_000),
            ("output", 61, 600_001),
            # what has no price of its own costs as much as other input
            ("cache_read", 15, 150_000),
            ("cache_write", 15, 150_000),
            ("cache_write_1h", 15, 150_000),
        ):
            assert item[f"{name}_price_per_1m_cents"] == cents
            assert item[f"{name}_price_per_1m_micros"] == micros

    async def test_tiers_and_kinds_of_tokens_are_shown(self, gateway: Gateway) -> None:
        long = {
            "abovePromptTokens": 200_000,
            "inputPerMillionMicros": 6_000_000,
            "cacheWritePerMillionMicros": 7_500_000,
        }
        price = {
            "inputPerMillionMicros": 3_000_000,
            "cachedPerMillionMicros": 300_000,
            "cacheWritePerMillionMicros": 3_750_000,
            "cacheWriteHourPerMillionMicros": 6_000_000,
            "audioInputPerMillionMicros": 10_000_000,
            "outputPerMillionMicros": 15_000_000,
            "imageOutputPerMillionMicros": 30_000_000,
            "tiers": [long],
        }
        gateway.put_model("long", service="chat", action="chat", prices=[price])
        item = await find(gateway, "long")
        assert item["cache_write_price_per_1m_cents"] == 375
        assert item["cache_write_5m_price_per_1m_micros"] == 3_750_000
        assert item["cache_write_1h_price_per_1m_micros"] == 6_000_000
        first = {
            "input_per_1m_micros": 3_000_000,
            "cache_read_per_1m_micros": 300_000,
            "cache_read_audio_per_1m_micros": 300_000,
            "cache_write_per_1m_micros": 3_750_000,
            "cache_write_1h_per_1m_micros": 6_000_000,
            "audio_input_per_1m_micros": 10_000_000,
            "image_input_per_1m_micros": 3_000_000,
            "output_per_1m_micros": 15_000_000,
            "audio_output_per_1m_micros": 15_000_000,
            "image_output_per_1m_micros": 30_000_000,
        }
        # a rate that the tier lacks is the price's own
        above = {
            "above_prompt_tokens": 200_000,
            "input_per_1m_micros": 6_000_000,
            "cache_write_per_1m_micros": 7_500_000,
            "image_input_per_1m_micros": 6_000_000,
        }
        assert item["billing_config"] == {
            **dict.fromkeys(CONFIG_KEYS),
            **first,
            "tiers": [first | above],
        }

    @pytest.mark.parametrize(
        ("spec", "catalog", "pricing", "create_status"),
        [
            ({"deprecated": True}, "deprecated", "priced", 202),
            ({"disabled": True}, "unavailable", "priced", 400),
            ({"prices": []}, "unavailable", "unpriced", 400),
            (
                {"prices": [{"perCallMicros": 1, "effectiveTime": FUTURE}]},
                "available",
                "unpriced",
                409,
            ),
        ],
    )
    async def test_status_follows_the_model_and_its_price(
        self,
        gateway: Gateway,
        spec: dict[str, Any],
        catalog: str,
        pricing: str,
        create_status: int,
    ) -> None:
        gateway.put_model("other", **spec)
        item = await find(gateway, "other")
        assert (item["catalog_status"], item["pricing_status"]) == (catalog, pricing)
        names = ("billing_unit", "billing_strategy", "unit_price_cents", "billing_config")
        assert any(item[name] for name in names) == (pricing == "priced")
        assert (await gateway.create(body(model="other"))).status == create_status

    @pytest.mark.parametrize(
        ("ready", "listed"), [("True", "available"), ("False", "unavailable"), (None, "available")]
    )
    async def test_model_without_a_ready_provider_is_unavailable(
        self, gateway: Gateway, ready: str | None, listed: str
    ) -> None:
        gateway.put_model("other")
        obj: dict[str, Any] = gateway.kube.find("gatewaymodels", "other") or {}
        condition = {
            "type": "Ready",
            "status": ready,
            "reason": "ProviderNotFound",
            "message": "no GatewayProvider is called simulated",
            "lastTransitionTime": PAST,
        }
        status = {"conditions": [condition]} if ready else {}
        gateway.kube.put("gatewaymodels", {**obj, "status": status})
        assert (await find(gateway, "other"))["catalog_status"] == listed
        # a durable task waits for its provider
        assert (await gateway.create(body(model="other"))).status == 202

    async def test_price_in_force_is_shown(self, gateway: Gateway) -> None:
        prices = [
            {"perCallMicros": 10_000},
            {"perCallMicros": 20_000, "effectiveTime": PAST},
            {"perCallMicros": 30_000, "effectiveTime": FUTURE},
        ]
        gateway.put_model("dated", prices=prices)
        item = await find(gateway, "dated")
        assert item["unit_price_cents"] == 2
        assert item["billing_config"]["effective_time"] == PAST

    async def test_models_are_sorted_by_service_action_and_model(self, gateway: Gateway) -> None:
        for service, model_id in (("zeta", "a"), ("alpha", "z"), ("sim", "a"), ("alpha", "b")):
            gateway.put_model(model_id + service, service=service, modelId=model_id)
        gateway.put_model("gone", service="alpha", disabled=True)
        shown = (await ask(gateway)).json["price_schedules"]
        keys = [(item["service"], item["action"], item["model"]) for item in shown]
        assert keys == sorted(keys)
        assert len(keys) == 6

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
    async def test_filters_match_exactly(self, gateway: Gateway, query: str, found: int) -> None:
        gateway.put_model("other", service="other", modelId="a/b:c")
        answer = await ask(gateway, query)
        assert answer.status == 200
        assert len(answer.json["price_schedules"]) == found

    @pytest.mark.parametrize("query", ["mode=x", "model=a&model=b"])
    async def test_unknown_or_repeated_filter_is_400(self, gateway: Gateway, query: str) -> None:
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

    async def test_prices_are_public_and_uncounted_but_a_bad_credential_is_401(
        self, gateway: Gateway, route: Any
    ) -> None:
        for key in (None, gateway.key):
            answer = await route(gateway, key)
            assert answer.status == 200
            assert not any(name.startswith("x-ratelimit") for name in answer.headers)
        created = await gateway.create()
        assert created.headers["x-ratelimit-remaining-rpm"] == "299"
        answer = await route(gateway, "sk-aaaaaaaa_" + "A" * 38)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")

    @pytest.mark.parametrize("anonymous", [True, False])
    async def test_setting_decides_whether_prices_are_public(
        self, route: Any, anonymous: bool
    ) -> None:
        gateway = Gateway(pricing_anonymous=anonymous)
        assert (await route(gateway, None)).status == (200 if anonymous else 401)
        assert (await route(gateway, gateway.key)).status == 200
        paths = (await call(gateway.app, "GET", "/openapi.json")).json["paths"]
        for operation in (paths[SCHEDULES]["get"], paths[QUOTES]["post"]):
            expected = [{}, {"apiKey": []}] if anonymous else None
            assert operation.get("security") == expected


class TestQuotes:
    async def test_response_has_every_key(self, gateway: Gateway) -> None:
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
    async def test_quote_without_params_uses_the_defaults(
        self, gateway: Gateway, given: Any
    ) -> None:
        gateway.put_model(fields=[{"name": "duration_seconds", "default": "8"}])
        quote = (await post_quote(gateway, question(params=given))).json["price_quote"]
        assert (quote["reservation_amount_cents"], quote["estimate_basis"]) == (
            80,
            "default_params",
        )

    async def test_reservation_is_rounded_up_to_cents(self, gateway: Gateway) -> None:
        for micros, cents in ((0, 0), (1, 1), (10_000, 1), (10_001, 2)):
            gateway.put_model(prices=[{"perCallMicros": micros}])
            quote = (await post_quote(gateway, question())).json["price_quote"]
            assert quote["reservation_amount_cents"] == cents
            assert quote["pricing_status"] == ("priced" if micros else "free")

    async def test_quote_without_a_model_is_that_of_the_dearest_that_takes_the_params(
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

    async def test_params_may_name_the_model(self, gateway: Gateway) -> None:
        asked = question(model=..., params=body())
        assert (await post_quote(gateway, asked)).json["price_quote"]["model"] == MODEL

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
            ({"params": params(other=None)}, "other"),
            ({"params": params(other=None), "model": ...}, "other"),
            ({"params": params(duration_seconds=99), "model": "unknown"}, "duration_seconds"),
            ({"params": body(model="another")}, "model"),
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
    async def test_body_without_json_object_gets_the_simple_form(
        self, gateway: Gateway, raw: bytes
    ) -> None:
        answer = await post_quote(gateway, raw)
        assert (answer.status, set(answer.json)) == (400, {"error"})

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
    async def test_unknown_or_disabled_model_is_404(
        self, gateway: Gateway, changes: dict[str, Any]
    ) -> None:
        gateway.put_model("gone", disabled=True)
        answer = await post_quote(gateway, question(**changes))
        assert (answer.status, set(answer.json)) == (404, {"error"})

    async def test_value_or_price_that_the_model_has_not_is_409(self, gateway: Gateway) -> None:
        gateway.put_model(fields=[{"name": "duration_seconds", "maximum": 10}])
        for asked in (question(), question(model=...)):
            asked["params"] = params(duration_seconds=12)
            answer = await post_quote(gateway, asked)
            assert (answer.status, set(answer.json)) == (409, {"error"})
        gateway.put_model(prices=[{"perCallMicros": 1, "effectiveTime": FUTURE}])
        assert (await post_quote(gateway, question())).status == 409
        assert (await post_quote(gateway, question(params=...))).status == 409


async def test_params_are_checked_once_however_many_models_are_asked(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
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


START = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def make_catalog(prices: list[dict[str, Any]]) -> Catalog:
    gateway = Gateway()
    gateway.put_model(prices=prices)
    return build_catalog(model for _, model in gateway.models.items())[0]


@pytest.mark.parametrize(
    ("per_second", "chosen"),
    [
        (100_000, {}),
        (3_333, {"duration_seconds": 16, "output_resolution": "4k"}),
        (1, {"duration_seconds": 3, "audio": False}),
    ],
)
async def test_quote_and_reservation_agree_on_the_wire(
    gateway: Gateway, per_second: int, chosen: dict[str, Any]
) -> None:
    gateway.put_account("demo", unlimited=True)
    gateway.put_model(prices=[{"perSecond": [{"micros": per_second}], "perCallMicros": 7}])
    quoted = await post_quote(gateway, question(params=params(**chosen)))
    created = await gateway.create(body(**chosen))
    reserved = gateway.task_object(created.json["id"])["spec"]["request"]["reservedMicros"]
    amount = quoted.json["price_quote"]["reservation_amount_cents"]
    assert amount == ceil_cents(reserved)
    assert await gateway.held() == reserved


def test_price_that_changes_between_quote_and_create_is_dated() -> None:
    later = (START + timedelta(seconds=1)).isoformat()
    catalog = make_catalog([{"perCallMicros": 10}, {"perCallMicros": 20, "effectiveTime": later}])
    addresses = AddressPolicy((), ())
    subject = QuoteRequest(service="sim", action="reference_to_video", model=MODEL, params=params())
    operation = catalog.find_operation("sim", "reference_to_video")
    assert operation is not None
    draft = draft_task(catalog, operation, "sim", orjson.dumps(body()), addresses)
    assert draft.model is not None
    for milliseconds, micros in ((0, 10), (999, 10), (1000, 20), (1999, 20)):
        moment = START + timedelta(milliseconds=milliseconds)
        assert quote_call(catalog, subject, addresses, moment).micros == micros
        reserved = price_draft(draft, draft.model, moment)
        bound = bound_task(draft.complete)
        # the task's creation time is the API server's, whole and a little off
        created = moment.replace(microsecond=0) + timedelta(seconds=1)
        at_charge = select_price(draft.model.prices, created)
        assert reserved == micros
        assert charge(at_charge, bound, bound, reserved=reserved) == reserved
