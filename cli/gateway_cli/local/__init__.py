"""The local run: a real control plane and all processes of the gateway on one machine.

`run.LocalRun` is the whole as a library; `commands` puts it behind `gatewayctl local`, and
`background.BackgroundRun` gives it to tests. Everything it writes is below one folder, `.local`.
"""
