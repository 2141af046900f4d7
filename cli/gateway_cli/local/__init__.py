"""The local run: a real control plane and all processes of the gateway on one machine.

`run.LocalRun` is the whole as a library, `run.BackgroundRun` the same for tests; `commands` puts it
behind `gatewayctl local`. Everything it writes is below one folder, `.local`.
"""
