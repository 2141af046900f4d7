"""`gatewayctl`: the command line of Model Gateway, with the local run behind `make up`.

`controlplane/` finds or makes etcd, kube-apiserver and kubectl; `local/` runs them with the
gateway's own processes, for users and for the integration tests alike.
"""
