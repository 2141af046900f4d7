"""The versions of the control plane and what they are verified by.

The archives are pinned by the SHA-512 of their release index (envtest-releases.yaml of
kubernetes-sigs/controller-tools); the build is pinned by tools/controlplane/go.mod and go.sum.
"""

BUILD_VERSION = "v1.36.3"
"""Kubernetes version of the modules in tools/controlplane; the binaries must be told it."""

ARCHIVE_VERSION = "v1.36.2"
"""The published envtest archive nearest to `BUILD_VERSION`."""

ARCHIVE_BASE_URL = "https://github.com/kubernetes-sigs/controller-tools/releases/download"

ARCHIVE_SHA512 = {
    "darwin-amd64": (
        "b4fe9f973cd1992e3880f8b230ed32c0c243b83371591e3e3315f4404df2cdbe"
        "f8ee94eeb9bb245b7e5feb987d5c4a76c43e0877654ab73f00d7bbc2b9984514"
    ),
    "darwin-arm64": (
        "9278f9e5af556b2f1f2d139769c1f0d717c7b4426917fdebdba898bcb725a916"
        "e4910d6160886194ff9be9589ea7c5c32c2b8ae0754703874b7c8ba8ddfc41ce"
    ),
    "linux-amd64": (
        "ea743186c8a799f5cf8faf16969f86189d003cb7d130e0ac4b58789f1e5748dc"
        "f30ebe91c837a10d5ac415383da3e10b9e64d65785c938c23e739781cfb76f08"
    ),
    "linux-arm64": (
        "2d72ee985a8e262a3c57dc9f7f0fd891f6a8c7bf7ebaa2db6dc6d8eac8ae2818"
        "1afe51c1f368b67756cdb40b10de9b205609e1726e5f27f7c6d824dd9c6649ac"
    ),
}

GO_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kubectl": "k8s.io/kubernetes/cmd/kubectl",
}
"""Binary to the Go package it is built from, in the order of building."""
