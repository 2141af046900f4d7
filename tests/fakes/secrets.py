"""`SecretClient` in memory. Verified by the tests of the real one."""

import itertools
from collections import deque
from dataclasses import replace

from gateway_core.api.key import Secret
from gateway_core.kube.errors import AlreadyExists, ObjectNotFound, WriteConflict
from tests.fakes.kubernetes import Fault


class FakeSecrets:
    """The Secrets of one namespace; `faults` is what the next writes come to."""

    def __init__(self) -> None:
        self.stored: dict[str, Secret] = {}
        self.faults = deque[Fault | None]()
        self.reads = 0
        self.writes = 0
        self.refusal: Exception | None = None
        self._versions = itertools.count(1)

    async def find(self, name: str) -> Secret | None:
        self.reads += 1
        if self.refusal is not None:
            raise self.refusal
        return self.stored.get(name)

    async def write(self, secret: Secret) -> None:
        self.writes += 1
        fault = self.faults.popleft() if self.faults else None
        if fault is not None and not fault.applied:
            raise fault.error
        old = self.stored.get(secret.name)
        if not secret.version and old is not None:
            raise AlreadyExists(secret.name)
        if secret.version and old is None:
            raise ObjectNotFound(secret.name)
        if old is not None and old.version != secret.version:
            raise WriteConflict(secret.name)
        data = {**(old.data if old else {}), **secret.data}
        labels = {**(old.labels if old else {}), **secret.labels}
        annotations = {**(old.annotations if old else {}), **secret.annotations}
        self.put(replace(secret, data=data, labels=labels, annotations=annotations))
        if fault is not None:
            raise fault.error

    def put(self, secret: Secret) -> None:
        self.stored[secret.name] = replace(secret, version=str(next(self._versions)))
