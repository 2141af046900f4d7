"""What an admin is told after the installation: the commands of the notes, run as they stand."""

import shlex
import time

from tests.e2e.cluster import E2EError, wait_for
from tests.e2e.objects import RELEASE

ASK = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=5).status)"


def try_notes(cluster):
    """Runs each command of the notes; the seconds that the one with `helm test` takes.

    Raises:
        E2EError: the notes hold other than three commands, or one fails.
    """
    text = cluster.helm("get", "notes", RELEASE)
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("  ")]
    if [command[0] for command in commands] != ["helm", "kubectl", "kubectl"]:
        raise E2EError(f"the notes do not hold three commands:\n{text}")
    test, look, forward = commands
    begin = time.monotonic()
    told = cluster.run(*test)
    seconds = time.monotonic() - begin
    print(told[told.find("202:") :] if "202:" in told else told)
    listed = cluster.run(*look)
    for name in ("gatewaytask", "gatewaymodel", "gatewayprovider"):
        if name not in listed:
            raise E2EError(f"`{' '.join(look)}` shows no {name}:\n{listed}")
    _try_port_forward(cluster, forward)
    return seconds


def _try_port_forward(cluster, command):
    port = command[-1].partition(":")[0]
    with cluster.background(*command):
        url = f"http://127.0.0.1:{port}/readyz"

        def answers():
            return cluster.run("python3", "-c", ASK, url, check=False).strip() == "200"

        wait_for(answers, f"`{' '.join(command)}` opens the API", 30)
