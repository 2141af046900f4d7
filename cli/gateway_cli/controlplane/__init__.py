"""Finds or makes the binaries of a control plane: etcd, kube-apiserver and kubectl.

`resolution` tries the sources in order; `sources` has the two that have to work for it; `cache`
keeps what they make. Nothing here needs root.
"""
