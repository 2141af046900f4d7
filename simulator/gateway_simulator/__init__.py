"""The simulated upstream provider: an asynchronous video API in a process of its own.

It stands where a real provider would, for the local run, the tests and the benchmarks. It
imports nothing of the gateway: what it knows of the gateway is HTTP. `docs/simulator.md`
describes its API and how its misbehaviour is switched on.
"""
