"""Runs variants of cases against a gateway, each with a model and providers of its own."""

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import Object
from gateway_core.billing.journal import CallRecord, decode_object
from gateway_core.concurrency import map_bounded
from gateway_core.kube.client import KubernetesClient
from tests.llm_cases.cases import PRICES, Variant, build_request, write_results
from tests.llm_cases.provider import CaseProvider, Route
from tests.llm_cases.view import View, read_answer
from tests.servers.llm_provider import Received
from tests.servers.server import execute
from tests.servers.tenants import describe, open_tenant, unique
from tests.servers.world import Answer, Client, World, wait_for

AT_ONCE = 12
RECORD_SECONDS = 3
"""A call is in the record within a second of its end."""
CHARGE_SECONDS = 60
"""Longest wait for the record of a call that is charged, on a machine that stalls."""
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}
_PLURALS = {"GatewayModel": GatewayModel.plural, "GatewayProvider": GatewayProvider.plural}


@dataclass
class Turn:
    """One call of a variant: what its upstreams received, and what its client."""

    expected: Mapping[str, Any]
    answer: Answer
    view: View | None
    """None where the answer cannot be read, for the reason `problem`."""
    problem: Exception | None
    received: list[Received]


@dataclass
class Outcome:
    """The turns of a variant and its records, or the error that kept it from running."""

    turns: list[Turn] = field(default_factory=list)
    records: dict[str, CallRecord] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def charge(self) -> int:
        """Micro-dollars of all turns."""
        return sum(record.micros for record in self.records.values())


async def run_variants(world: World, variants: list[Variant]) -> dict[str, Outcome]:
    """Call the gateway as each variant says; the outcomes by the variants' ids."""
    models = {variant.id: unique("case") for variant in variants}
    outcomes = {model: Outcome() for model in models.values()}
    async with (
        open_tenant(world, requestsPerMinute=1_000_000) as client,
        CaseProvider() as provider,
        world.kube() as kube,
    ):
        objects = [
            described
            for variant in variants
            for described in describe_objects(variant, models[variant.id], provider.url)
        ]
        journal = Journal(world.config.directory)
        try:
            await map_bounded(AT_ONCE, lambda obj: create(kube, obj), objects)
            await wait_served(client, set(outcomes))
            journal.begin(world.config.store_directory)

            async def run(variant: Variant) -> None:
                model = models[variant.id]
                provider.routes[model] = Route(None)
                try:
                    await run_variant(client, provider.routes[model], variant, model, outcomes)
                except Exception as error:  # any: the variant's own test reports it
                    outcomes[model].error = error

            await map_bounded(AT_ONCE, run, variants)
            await wait_recorded(journal, variants, models, outcomes)
        finally:
            journal.end()
            await map_bounded(AT_ONCE, lambda obj: delete(kube, obj), objects)
    return {id_: outcomes[model] for id_, model in models.items()}


async def run_variant(
    client: Client, route: Route, variant: Variant, model: str, outcomes: dict[str, Outcome]
) -> None:
    """Make the calls of a variant in turn, each with the history of those before."""
    history: list[Any] = []
    for turn in variant.turns:
        route.begin(turn["upstream"])
        body = build_request(variant, turn, history)
        answer = await send(client, variant, model, body, turn)
        expected = variant.choose_expected(turn.get("expect", {}))
        view, problem = None, None
        try:
            view = read_answer(
                variant.client,
                answer.raw,
                # an error before the stream is a document
                stream=variant.stream and answer.status == 200,
                strict=expected.get("strict", True),
            )
        except Exception as error:  # any: the variant's own test reports it
            problem = error
        outcomes[model].turns.append(Turn(expected, answer, view, problem, list(route.received)))
        if view is not None:
            name = {"chat": "messages", "responses": "input", "google": "contents"}[variant.client]
            history = [*body[name], *view.history]
            if "results" in turn:
                history += write_results(variant.client, view.calls, turn["results"])


async def send(
    client: Client, variant: Variant, model: str, body: dict[str, Any], turn: Mapping[str, Any]
) -> Answer:
    """Make one call as the client's SDK does."""
    headers = {name: str(value) for name, value in turn.get("headers", {}).items()}
    if variant.client == "google":
        action = "streamGenerateContent?alt=sse" if variant.stream else "generateContent"
        path = f"/v1beta/models/{model}:{action}"
        headers = {"x-goog-api-key": client.key, **headers}
        return await client.request("POST", path, headers=headers, body=body, key=None)
    path = PATHS[variant.client]
    return await client.request("POST", path, headers=headers, body={**body, "model": model})


def describe_objects(variant: Variant, model: str, url: str) -> list[dict[str, Any]]:
    """The model of a variant, and its providers in order of preference."""
    objects, routes = [], []
    for place, kind in enumerate(variant.routes):
        name = f"{model}-{place}"
        type_ = "google" if kind == "google" else "openai"
        version = "v1beta" if kind == "google" else "v1"
        declared = {"baseUrl": f"{url}/{model}/{version}", **variant.case.get("provider", {})}
        if kind == "responses":
            declared["hasResponses"] = True
        objects.append(describe("Provider", name, {"type": type_, type_: declared}))
        routes.append(
            {"name": name, "providerName": name, "upstreamModel": "up-1", "priority": place}
        )
    prices = {**PRICES, **variant.case.get("prices", {})}
    price = {f"{name}PerMillionMicros": int(1_000_000 * each) for name, each in prices.items()}
    spec = {"modelId": model, "service": model, "action": "chat", "routes": routes}
    spec |= {"prices": [price], **variant.case.get("model", {})}
    return [*objects, describe("Model", model, spec)]


async def create(kube: KubernetesClient, obj: Object) -> None:
    """Create an object."""
    await kube.create(_PLURALS[obj["kind"]], obj)


async def delete(kube: KubernetesClient, obj: Object) -> None:
    """Delete an object."""
    await kube.delete(_PLURALS[obj["kind"]], obj["metadata"]["name"])


async def wait_served(client: Client, models: set[str]) -> None:
    """Wait until the gateway serves all models."""

    async def are_served() -> bool:
        listed = (await client.request("GET", "/v1/models")).body["data"]
        return models <= {entry["id"] for entry in listed}

    await wait_for(are_served, what="the models of the cases", seconds=60)


KEEP = """
import os, sys, time
from contextlib import suppress
from pathlib import Path

store, kept = map(Path, sys.argv[1:])
while True:
    with suppress(FileNotFoundError):
        for path in (store / "journal").glob("*/*.json"):
            link = kept / path.relative_to(store)
            if not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, link)
    time.sleep(0.02)
"""


class Journal:
    """Links to the journal's files in `folder`, since the operator removes what it aggregated.

    A process makes them: a thread of the tests may wait for a second for its turn.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / unique("kept")
        self._keeper: subprocess.Popen[bytes] | None = None
        self._read = set[str]()

    def begin(self, store: Path) -> None:
        """Keep the files of the journal of a store from now on."""
        self._keeper = execute([sys.executable, "-c", KEEP, str(store), str(self._folder)])

    def end(self) -> None:
        """Keep no more."""
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait()

    def read(self, outcomes: dict[str, Outcome]) -> None:
        """Note the records of the calls of the outcomes."""
        for path in self._folder.glob("journal/*/*.json"):
            key = str(path.relative_to(self._folder))
            if key in self._read:
                continue
            for record in decode_object(key, path.read_bytes()).records:
                if record.model_id in outcomes:
                    outcomes[record.model_id].records[record.call] = record
            self._read.add(key)


async def wait_recorded(
    journal: Journal,
    variants: list[Variant],
    models: Mapping[str, str],
    outcomes: dict[str, Outcome],
) -> None:
    """Wait until each call is in the record; rejected ones never are."""
    charges = {
        models[variant.id]: variant.choose_expected(variant.turns[-1].get("expect", {})).get(
            "charge", 0
        )
        for variant in variants
    }

    def are_charged() -> bool:
        journal.read(outcomes)
        return all(outcomes[model].charge >= charge for model, charge in charges.items())

    def are_recorded() -> bool:
        journal.read(outcomes)
        return all(len(each.records) >= len(each.turns) for each in outcomes.values())

    with suppress(AssertionError):
        await wait_for(are_charged, seconds=CHARGE_SECONDS)
    with suppress(AssertionError):
        await wait_for(are_recorded, seconds=RECORD_SECONDS)
