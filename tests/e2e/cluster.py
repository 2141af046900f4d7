"""kubectl and helm on the cluster under test, behind the prefix of $CLUSTER_RUN."""

import contextlib
import json
import os
import shlex
import subprocess
import time

POLL_SECONDS = 0.5
UNTIL_EOF = """
import subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
sys.stdin.read()
process.terminate()
process.wait()
"""
"""Runs a command until the standard input ends: a signal does not go through every prefix."""


class E2EError(Exception):
    """A step failed, or something was not as it must be."""


class Cluster:
    """Runs commands where the cluster can be reached."""

    def __init__(self, namespace):
        self.namespace = namespace
        self._prefix = shlex.split(os.environ.get("CLUSTER_RUN", ""))

    def run(self, *command, stdin=None, check=True, timeout=600):
        """What the command prints; E2EError with what it says if it fails."""
        done = subprocess.run(
            [*self._prefix, *command],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            raise E2EError(f"{' '.join(command[:6])} …: {done.stderr.strip() or done.stdout}")
        return done.stdout

    @contextlib.contextmanager
    def background(self, *command):
        """Runs the command for as long as the `with` block lasts."""
        process = subprocess.Popen(
            [*self._prefix, "python3", "-c", UNTIL_EOF, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(timeout=30)

    def trace(self, *arguments, stdin=None):
        """What kubectl tells of its HTTP exchange, headers and all, whatever the answer."""
        done = subprocess.run(
            [*self._prefix, "kubectl", f"--namespace={self.namespace}", "-v=8", *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stderr

    def kubectl(self, *arguments, **options):
        return self.run("kubectl", f"--namespace={self.namespace}", *arguments, **options)

    def helm(self, command, *arguments, **options):
        return self.run("helm", command, f"--namespace={self.namespace}", *arguments, **options)

    def apply(self, *objects):
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        self.run("kubectl", "apply", "--server-side", "--filename=-", stdin=content)

    def get(self, *arguments):
        """A `kubectl get` as JSON."""
        return json.loads(self.kubectl("get", *arguments, "--output=json"))

    def pods(self, component):
        """The pods of a component that are not leaving, newest first."""
        found = self.get("pods", f"--selector=app.kubernetes.io/component={component}")["items"]
        staying = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(staying, key=lambda pod: pod["metadata"]["creationTimestamp"], reverse=True)

    def impersonate(self, account):
        """Options that have kubectl act as a service account of the namespace."""
        return (
            f"--as=system:serviceaccount:{self.namespace}:{account}",
            "--as-group=system:serviceaccounts",
            "--as-group=system:authenticated",
        )

    def can(self, account, verb, resource, name=""):
        """Whether the service account may do this in the namespace."""
        target = f"{resource}/{name}" if name else resource
        arguments = [verb, target]
        if "/" in resource:
            kind, sub = resource.split("/")
            arguments = [verb, kind, f"--subresource={sub}"]
        command = ("auth", "can-i", *arguments, *self.impersonate(account), "--quiet=false")
        out = self.kubectl(*command, check=False)
        return out.strip() == "yes"


def wait_for(condition, what, seconds=120.0):
    """The first true value of `condition`. E2EError after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise E2EError(f"not within {seconds:.0f} s: {what}")
        time.sleep(POLL_SECONDS)
