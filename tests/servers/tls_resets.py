"""A TLS server that resets each connection at a random moment of the handshake.

Used by the tests of the gateway's TLS clients.
"""

import random
import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from gateway_cli.local.certificates import write_cluster_keys

THREADS = 4
"""Connections that are served at once."""
STEP_SECONDS = 5.0
"""How long the peer waits for the client's next bytes."""


class ResettingPeer:
    """Listens on a free port of loopback while the context is open.

    Its certificate is for `localhost` and 127.0.0.1, signed by the authority in the file `ca`.
    `resets` counts the connections that it has reset.
    """

    def __init__(self, folder: Path) -> None:
        keys = write_cluster_keys(folder)
        self.ca = keys.certificate
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(keys.certificate, keys.key)
        self._listener = socket.socket()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(THREADS)]
        self._lock = threading.Lock()
        self.resets = 0
        self.port = 0

    def __enter__(self) -> Self:
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(512)
        self.port = self._listener.getsockname()[1]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # shutdown wakes the threads that wait in accept; close alone would not
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(STEP_SECONDS)
                with suppress(OSError):
                    self._shake_hands(connection)
                _pause()
                linger = struct.pack("ii", 1, 0)  # close sends RST
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            with self._lock:
                self.resets += 1

    def _shake_hands(self, connection: socket.socket) -> None:
        """Goes through none, a part or all of the handshake."""
        moment = random.choice(("accepted", "hello", "part of hello", "flight", "finished"))
        if moment == "accepted":
            return
        if moment == "part of hello":
            connection.recv(random.randint(1, 400))
            return
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = self._tls.wrap_bio(incoming, outgoing, server_side=True)
        incoming.write(connection.recv(16 * 1024))
        if moment == "hello":
            return
        with suppress(ssl.SSLWantReadError):
            tls.do_handshake()
        flight = outgoing.read()
        if not flight:
            return  # the rest of the hello has not come yet
        if moment == "flight":
            connection.sendall(flight[: random.randint(1, len(flight))])
            return
        connection.sendall(flight)
        connection.recv(16 * 1024)


def _pause() -> None:
    if random.random() < 0.5:
        time.sleep(random.random() * 0.0005)
