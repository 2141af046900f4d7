"""The load client's pod: started before a disturbance, stopped and judged after it."""

import json

from tests.e2e.clients import LOAD, ClientPod
from tests.e2e.cluster import E2EError

GOOD = {"POST 202", "GET 200"}
LATE = {
    f"{method} 503 The task {words}."
    for method in ("GET", "POST")
    for words in ("cannot be recorded now", "could not be recorded", "cannot be looked up now")
}
"""What a Kubernetes API that says nothing for a second is told as: the node's, not the chart's."""
MOST_LATE = 0.02
"""Share of the answers: a rollout that loses its way to that API does so for longer."""


class Load:
    """Creates tasks for as long as the `with` block lasts, then waits for their ends."""

    def __init__(self, cluster, image):
        self._client = ClientPod(cluster, LOAD)
        self._image = image
        self._summary = {}

    def __enter__(self):
        self._client.start(self._image)
        self._client.wait_reached("work", 60)
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        self._client.go_on("stop")
        self._summary = json.loads(self._client.wait_ended().splitlines()[-1])
        self._client.remove()

    def check_nothing_lost(self, *, refused_allowed):
        """Every accepted task completed; with `refused_allowed` any create may have had a 503.

        So may any call while the node's Kubernetes API says nothing for a second.

        Returns the client's summary.
        """
        summary = self._summary
        print(json.dumps({k: v for k, v in summary.items() if k != "tasks"}, indent=2))
        lost = [*summary["failed"], *summary["unfinished"]]
        if lost or summary["completed"] != summary["accepted"] or not summary["accepted"]:
            raise E2EError(f"accepted tasks did not complete: {lost}")
        odd = set(summary["answers"]) - GOOD - LATE
        if refused_allowed:
            odd = {told for told in odd if not told.startswith("POST 503 ")}
        late = sum(count for told, count in summary["answers"].items() if told in LATE)
        if odd or late > MOST_LATE * sum(summary["answers"].values()):
            raise E2EError(f"answers that must not be: {odd}, {late} late; {summary['refusals']}")
        return summary
