"""Run in a network of its own, where every address there is belongs to this machine: a sink.

`unshare --net python -m tests.callbacks.sink` sends one callback to each of the hostile URLs and
prints, as JSON, what arrived at which address. That a public address does arrive shows that the
sink would have heard of the others.
"""

import asyncio
import json
import subprocess
import sys
from ipaddress import ip_address, ip_network

from gateway_core.callbacks.client import CallbackSender
from gateway_core.egress.addresses import AddressPolicy
from tests.servers.hostile_urls import CORPUS, LyingResolver

PUBLIC = ("http://93.184.216.34/", "http://[2606:4700::1111]/")
ROUTES = (
    ("ip", "link", "set", "lo", "up"),
    ("ip", "route", "add", "local", "0.0.0.0/0", "dev", "lo"),
    ("ip", "-6", "route", "add", "local", "::/0", "dev", "lo"),
)
TIMEOUT = 20
"""Seconds for an attempt. Every one is refused or answered, so nothing waits for it."""
EVERYTHING = AddressPolicy(allowed=(ip_network("0.0.0.0/0"), ip_network("::/0")))
"""What the most careless admin may allow: the metadata stays closed all the same."""
METADATA = ("http://169.254.169.254/", "http://[fd00:ec2::254]/", "http://[::ffff:a9fe:a9fe]/")


async def main():
    """Prints {"refused", "reached", "control", "metadata"}."""
    for route in ROUTES:
        subprocess.run(route, check=True)
    reached = []

    async def take(reader, writer):
        reached.append(str(ip_address(writer.get_extra_info("sockname")[0].partition("%")[0])))
        writer.close()

    for host in ("0.0.0.0", "::"):
        for port in (80, 443):
            await asyncio.start_server(take, host, port)
    told = {}
    for _ in range(2):  # names change their mind
        sender = CallbackSender(AddressPolicy(), timeout=TIMEOUT, resolver=LyingResolver())
        for hostile in CORPUS:
            told[hostile.url] = (await sender.send(hostile.url, {}, b"{}")).text
        await sender.close()
    hostile_reached = list(reached)
    careless = CallbackSender(EVERYTHING, timeout=TIMEOUT, resolver=LyingResolver())
    reached.clear()
    metadata = [(await careless.send(url, {}, b"{}")).text for url in METADATA]
    metadata += reached
    await careless.close()
    reached.clear()
    sender = CallbackSender(AddressPolicy(), timeout=TIMEOUT, resolver=LyingResolver())
    for url in PUBLIC:
        await sender.send(url, {}, b"{}")
    await sender.close()
    document = {"told": told, "reached": hostile_reached, "metadata": metadata, "control": reached}
    json.dump(document, sys.stdout)


if __name__ == "__main__":
    asyncio.run(main())
