"""What became of paid calls, counted; the surfaces have it from `entrance`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from starlette.requests import ClientDisconnect

from gateway_apiserver.errors import to_gateway_error
from gateway_apiserver.series import find_surface
from gateway_apiserver.trace import Trace


class DecisionCounter(Protocol):
    """What is told of each paid call."""

    def count_admission(self, surface: str, outcome: str) -> None:
        """Counts one paid call by its surface and what became of it."""
        ...


@dataclass(slots=True)
class Decision:
    """What becomes of a paid call; its surface says so in `outcome` where it knows more."""

    outcome: str = "accepted"


@contextmanager
def count_decision(counter: DecisionCounter, trace: Trace) -> Iterator[Decision]:
    """Counts the call of `trace` once: by what is raised within, else by its decision."""
    decision = Decision()
    try:
        yield decision
    except ClientDisconnect:
        decision.outcome = "client_gone"
        raise
    except Exception as error:
        decision.outcome = to_gateway_error(error, trace.request_id).code
        raise
    except BaseException:
        decision.outcome = "cut_short"
        raise
    finally:
        counter.count_admission(find_surface(trace.route), decision.outcome)
