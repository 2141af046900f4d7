"""The local run: a real control plane and all processes of the gateway on one machine.

`run.LocalRun` is all of it as a library; `commands` has the commands of `gatewayctl local`.
Everything it writes is below one folder, `.local`.
"""
