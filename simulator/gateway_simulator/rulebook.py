"""Which rule applies to a request: match, count and probability; used by `provider`."""

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from gateway_simulator.behaviours import Control, Limit, Point, Rule

R = TypeVar("R", bound=Rule)


class Rulebook:
    """The rules in force, with how often each has been applied."""

    def __init__(self) -> None:
        self.replace(Control())

    def replace(self, control: Control) -> None:
        """Put other rules in force, their counts starting afresh."""
        self.control = control
        # Only tests depend on the draws, so a seedable generator is the right one.
        self.source = random.Random(control.seed)  # noqa: S311
        self._applied = [0] * len(control.rules)
        self._admitted: dict[int, deque[float]] = {
            index: deque() for index, rule in enumerate(control.rules) if isinstance(rule, Limit)
        }

    def take(
        self,
        kind: type[R],
        point: Point,
        prompts: Sequence[str] = (),
        *,
        accept: Callable[[R], bool] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> R | None:
        """Return the first rule of a kind that applies to a request, counting it as applied.

        `prompts` are those of the jobs that the request is about: none where they are unknown.
        A rule that matches and loses its draw leaves the request to the next one.
        """
        for index, rule in enumerate(self.control.rules):
            if (
                isinstance(rule, kind)
                and _matches(rule, point, prompts, headers)
                and (accept is None or accept(rule))
                and (rule.count is None or self._applied[index] < rule.count)
                and (rule.probability >= 1 or self.source.random() < rule.probability)
            ):
                self._applied[index] += 1
                return rule
        return None

    def admit(
        self, now: float, point: Point, prompts: Sequence[str], headers: Mapping[str, str]
    ) -> float | None:
        """Count a request against the limits in force; None if all of them admit it.

        Otherwise return the seconds until the first that refuses would admit one; a request that is
        refused takes no place, so that in any second exactly as many are admitted as the limit
        says, if as many come.
        """
        concerned = list[deque[float]]()
        for index, admitted in self._admitted.items():
            rule = self.control.rules[index]
            if not isinstance(rule, Limit) or not _matches(rule, point, prompts, headers):
                continue
            if rule.count is not None and self._applied[index] >= rule.count:
                continue
            if rule.probability < 1 and self.source.random() >= rule.probability:
                continue
            while admitted and admitted[0] <= now - 1:
                admitted.popleft()
            if len(admitted) >= rule.per_second:
                self._applied[index] += 1
                return admitted[0] + 1 - now
            concerned.append(admitted)
        for admitted in concerned:
            admitted.append(now)
        return None

    def describe(self) -> dict[str, Any]:
        """Return the document in force, each rule with how often it has been `applied`."""
        document = self.control.model_dump(mode="json")
        for rule, applied in zip(document["rules"], self._applied, strict=True):
            rule["applied"] = applied
        return document


def _matches(
    rule: Rule, point: Point, prompts: Sequence[str], headers: Mapping[str, str] | None
) -> bool:
    if point not in rule.points or rule.match.on not in (None, point):
        return False
    header = rule.match.header
    if header is not None:
        given = None if headers is None else headers.get(header.name)
        if given is None or header.value not in (None, given):
            return False
    wanted = rule.match.prompt_contains
    return wanted is None or any(wanted in prompt for prompt in prompts)
