"""What the account's callbacks are signed with: its state, a new secret, and a test delivery."""

import secrets
from typing import Any

from gateway_apiserver.endpoints import Call
from gateway_apiserver.surfaces.console.inner import InnerApi
from gateway_apiserver.surfaces.console.parts import (
    NOTHING,
    Cell,
    Facts,
    Field,
    Hint,
    Part,
    Screen,
    at,
    show_secret,
    state,
)
from gateway_apiserver.surfaces.console.seats import Console, Seat, Section, Values
from gateway_apiserver.surfaces.management import ROOT as MANAGEMENT
from gateway_core.accounts.roles import Act

_OPERATION = f"{MANAGEMENT}/webhook_secret"
_HOW = "Receivers verify the signature with it, as Standard Webhooks describes."


class WebhookPage:
    """Shows it."""

    def __init__(self, console: Console, api: InnerApi) -> None:
        self._api = api
        console.add_section(Section("Webhooks", "/webhooks", Act.APPOINT))
        console.add_page("/webhooks", self.show, "webhooks")
        console.add_form("/webhooks/rotate", self.rotate, "webhooks_rotate", self.show)
        console.add_form("/webhooks/test", self.test, "webhooks_test", self.show)

    async def show(self, call: Call, seat: Seat) -> Screen:
        """Return the state of the secret, and both forms."""
        return await self._compose(call, seat)

    async def rotate(self, call: Call, seat: Seat, values: Values) -> Screen:
        """Make a new secret; it is on the page that answers, and nowhere else."""
        once = values.get("idempotency_key", "")
        made = await self._api.write(call, seat, "POST", f"{_OPERATION}/rotate", key=once)
        parts = show_secret(made["secret"], _HOW)
        if made["previous_signs_until"]:
            text = (
                "The previous secret signs beside it for 24 hours: change your receivers by then."
            )
            parts.append(Hint(text))
        return Screen("The webhook secret", parts, back=("Webhooks", f"{seat.home}/webhooks"))

    async def test(self, call: Call, seat: Seat, values: Values) -> Screen:
        """Send a test, and show what has become of it above the forms."""
        url = values.get("url", "").strip()
        done = await self._api.write(call, seat, "POST", f"{_OPERATION}/test", {"url": url})
        items = [
            ("State", state("delivered" if done["delivered"] else "undelivered")),
            ("Address", Cell(url, "code")),
            ("Status", Cell(str(done["status"] or NOTHING))),
            ("Result", Cell(done["result"])),
            ("Took", Cell(f"{done['seconds']} s")),
        ]
        return await self._compose(call, seat, Facts(items, "Result of the test"), url=url)

    async def _compose(self, call: Call, seat: Seat, *results: Part, url: str = "") -> Screen:
        found: Any = await self._api.read(call, seat, _OPERATION)
        path = f"{seat.home}/webhooks"
        until = found["previous_signs_until"]
        items = [
            ("Secret", state("active" if found["is_set"] else "missing")),
            ("Previous secret signs until", at(until)),
        ]
        once = (("idempotency_key", secrets.token_urlsafe(24)),)
        rotate = seat.offer(
            f"{path}/rotate",
            "Make a new secret",
            hidden=once,
            text="It is shown once. The previous secret signs beside it for 24 hours.",
            opener="New secret",
        )
        hint = (
            "A public http or https address. It gets one signed callback of a task without videos."
        )
        test = seat.offer(
            f"{path}/test",
            "Send a test",
            (Field("url", "Address", "url", url, hint, required=True, most=2048),),
            title="Test delivery",
        )
        text = "Tasks send their result to their callback_url; a task's page shows the attempts."
        return Screen("Webhooks", [*results, Facts(items), Hint(text), rotate, test])
