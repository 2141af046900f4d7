"""`gatewayctl fund`: adds money to an account, once for each reference, or takes it back.

`spec.funds` is everything ever paid in. A payment is added to what is there by compare-and-set, and
its reference is noted in the same write, so that repeating a command adds nothing. A payment
without a reference is given one, which is printed first: after any failure it can be repeated.
"""

import json
import secrets
import shlex
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

import typer

from gateway_cli import options as opt
from gateway_cli.admin.documents import dollars
from gateway_cli.admin.fields import Patch
from gateway_cli.cluster import FIELD_MANAGER
from gateway_cli.cluster.client import Cluster
from gateway_cli.cluster.errors import ClusterError, OutcomeUnknown
from gateway_cli.commands import cluster_command
from gateway_cli.output import Done, print_note, show_done
from gateway_core.api.account import GatewayAccount
from gateway_core.api.ids import GROUP
from gateway_core.api.money import MAX_MICROS
from gateway_core.api.resource import Object
from gateway_core.api.times import format_time

REFERENCES_ANNOTATION = f"{GROUP}/fund-references"
REMEMBERED = timedelta(days=90)
"""For how long a payment may be repeated; each reference is kept for at least as long."""
MOST_BYTES = 128 * 1024
"""Of the annotation: all annotations of an object may have 256 KiB. About 1,000 references."""
LONGEST_REFERENCE = 128
LONGEST_REASON = 256
CLIENT_SIDE_APPLY = "kubectl-client-side-apply"

Pot = Literal["paid", "bonus"]
FIELDS: dict[Pot, str] = {"paid": "paidMicros", "bonus": "bonusMicros"}

app = typer.Typer(add_completion=False)


# a negative amount is an argument, and no option
@cluster_command(app, show_done, context_settings={"ignore_unknown_options": True})
async def fund(
    cluster: Cluster,
    account: opt.AccountName,
    amount: Annotated[int, typer.Argument(parser=opt.parse_change, metavar="DOLLARS")],
    reference: Annotated[
        str | None,
        typer.Option(
            help="Identifier of the payment, so that a repetition adds nothing; default: generated."
        ),
    ] = None,
    bonus: Annotated[
        bool, typer.Option("--bonus", help="Bonus money, which is spent before paid money.")
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option(help="Why; a negative amount needs it. It is kept with the reference."),
    ] = None,
) -> Done:
    """Add DOLLARS, e.g. 12.50, to the funds of ACCOUNT; a negative amount corrects them.

    A correction needs a --reason: `gatewayctl fund acme -12.50 --reason 'invoice 7 counted twice'`.
    """
    if amount < 0 and not (reason or "").strip():
        raise typer.BadParameter("a negative amount corrects the funds, and needs a --reason")
    if reason is not None and len(reason) > LONGEST_REASON:
        raise typer.BadParameter(f"a reason has at most {LONGEST_REASON} characters")
    if reference is not None and not 0 < len(reference) <= LONGEST_REFERENCE:
        raise typer.BadParameter(f"a reference has 1 to {LONGEST_REFERENCE} characters")
    if reference is None:
        reference = f"fund-{secrets.token_hex(8)}"
        print_note(f"reference {reference}")
    payment = Payment(reference, "bonus" if bonus else "paid", amount, reason)
    try:
        changed = await cluster.change(GatewayAccount, account, payment.decide)
    except OutcomeUnknown as error:
        raise OutcomeUnknown(
            f"{error}. It is not known whether the {dollars(amount)} USD were added: repeat the"
            f" command with `--reference {shlex.quote(reference)}`, which adds them once"
        ) from error
    for manager in payment.declarers:
        print_note(
            f"! {manager} had applied the funds of {account} and may put its own figure back:"
            " add the amount there as well"
        )
    funds = changed["spec"].get("funds") or {}
    paid, given = funds.get("paidMicros", 0), funds.get("bonusMicros", 0)
    added = 0 if payment.known else amount
    document = {
        "account": account,
        "added": dollars(added),
        "added_micros": added,
        "pot": payment.pot,
        "reference": reference,
        "already_added": payment.known,
        "paid_micros": paid,
        "bonus_micros": given,
    }
    total = dollars(paid + given)
    if payment.known:
        text = f"{reference} was added before; nothing is added. Paid into {account}: {total} USD"
    else:
        done = "added" if amount > 0 else "taken back"
        text = f"{dollars(abs(amount))} USD {done}. Paid into {account} so far: {total} USD"
    return text, document


@dataclass(slots=True)
class Payment:
    """One payment.

    After `decide`, `known` tells whether it had been added before, and `declarers` who else has
    applied the account's funds: they lose the field by this write, and may take it back.
    """

    reference: str
    pot: Pot
    micros: int
    reason: str | None = None
    known: bool = False
    declarers: list[str] = field(default_factory=list)

    def decide(self, obj: Object) -> Patch | None:
        """Return the patch that adds it to the account; None if its reference is there.

        Raises:
            ClusterError: the reference is that of another amount, or it is too much, or there is
                no room to note it.
        """
        name = FIELDS[self.pot]
        references = read_references(obj)
        earlier = next((r for r in references if r["reference"] == self.reference), None)
        if earlier is not None:
            if (earlier["pot"], earlier["micros"]) != (self.pot, self.micros):
                raise ClusterError(
                    f"reference {self.reference} is that of {dollars(earlier['micros'])} USD"
                    f" ({earlier['pot']}), added at {earlier['time']}: another payment needs"
                    " another reference"
                )
            self.known = True
            return None
        self.known = False
        self.declarers = find_declarers(obj)
        total = ((obj["spec"].get("funds") or {}).get(name, 0)) + self.micros
        if total < 0:
            raise ClusterError(
                f"only {dollars(total - self.micros)} USD ({self.pot}) were ever added"
            )
        if total > MAX_MICROS:
            raise ClusterError("that is more than an account can hold")
        return {
            "spec": {"funds": {name: total}},
            "metadata": {"annotations": {REFERENCES_ANNOTATION: self._note(references)}},
        }

    def _note(self, references: list[dict[str, Any]]) -> str:
        """Return the annotation with this payment and without expired ones. ClusterError."""
        now = datetime.now(UTC)
        new = {
            "reference": self.reference,
            "pot": self.pot,
            "micros": self.micros,
            "time": format_time(now),
            **({"reason": self.reason} if self.reason else {}),
        }
        lasting = [r for r in references if _read_time(r) > now - REMEMBERED]
        text = json.dumps([*lasting, new], separators=(",", ":"), ensure_ascii=False)
        if len(text.encode()) > MOST_BYTES:
            until = format_time(_read_time(lasting[0]) + REMEMBERED)
            raise ClusterError(
                f"{len(lasting)} payments of the last {REMEMBERED.days} days are noted, which"
                f" leaves no room for another before {until}; nothing is added. Make fewer and"
                " greater payments, or raise spec.funds with kubectl"
            )
        return text


def read_references(obj: Object) -> list[dict[str, Any]]:
    """Return the payments noted on an account, the oldest first.

    Raises:
        ClusterError: the annotation is not what was written: nobody can tell what was added.
    """
    text = (obj["metadata"].get("annotations") or {}).get(REFERENCES_ANNOTATION, "[]")
    try:
        found = json.loads(text)
        if all({"reference", "pot", "micros", "time"} <= set(entry) for entry in found):
            return sorted(found, key=_read_time)
    except (ValueError, TypeError):
        pass
    raise ClusterError(
        f"the annotation {REFERENCES_ANNOTATION} cannot be read: mend or remove it, after checking"
        " which payments spec.funds has"
    )


def _read_time(entry: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(entry["time"])


def find_declarers(obj: Object) -> list[str]:
    """Return other field managers that have applied the funds, such as a GitOps controller.

    Not `gatewayctl apply`, which leaves money there that was added.
    """
    return [
        entry["manager"]
        for entry in obj["metadata"].get("managedFields") or ()
        if (entry.get("operation") == "Apply" or entry.get("manager") == CLIENT_SIDE_APPLY)
        and entry.get("manager") != FIELD_MANAGER
        and "f:funds" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
