"""What the test adds to the cluster beside the chart: a volume, a load client, values."""

from pathlib import Path

from gateway_core.accounts.passwords import generate_password, hash_password

SETUP = "model-gateway-e2e-setup"
NAMESPACE = "model-gateway-e2e"
RELEASE = "model-gateway"
CLAIM = "e2e-store"
VOLUME = "model-gateway-e2e"
FOLDER = "model-gateway-e2e"
"""Below /tmp of the node."""
SHELL = "node"
"""The pod that acts on the node, in the namespace SETUP."""
SHORT_NAME = "gwtask"
"""What the kind of tasks lacks in the older chart."""
USER = 10001
LOAD_RATE = 4
BATCH_LINES = 3_000
ACCOUNT = "load"
LIVE_DATA = "live-data"
"""The account of data that lives through an upgrade."""
FUNDS_MICROS = 1_000_000_000_000
PERSON = "e2e@example.com"
PASSWORD = generate_password()
PASSWORD_HASH = hash_password(PASSWORD)
"""Made once: an upgrade that changed it would sign the user out."""
BROWSER = Path(__file__).parents[1] / "servers" / "browser.py"


def describe_namespace(name, *, restricted):
    """A namespace; a restricted one admits only pods without rights."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"} if restricted else {}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def describe_volume():
    """A directory of the node as a volume for all pods, and the claim of it."""
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": VOLUME},
        "spec": {
            **common,
            "capacity": {"storage": "5Gi"},
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"/tmp/{FOLDER}", "type": "Directory"},
            "claimRef": {"namespace": NAMESPACE, "name": CLAIM},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM, "namespace": NAMESPACE},
        "spec": {
            **common,
            "volumeName": VOLUME,
            "resources": {"requests": {"storage": "5Gi"}},
        },
    }
    return volume, claim


def describe_node_shell(image):
    """A pod that sees the node's processes, as root, and has its /tmp at /node."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": SHELL, "namespace": SETUP},
        "spec": {
            "restartPolicy": "Never",
            "hostPID": True,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsUser": 0},
            "containers": [
                {
                    "name": "shell",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["sleep", "infinity"],
                    "volumeMounts": [{"name": "node", "mountPath": "/node"}],
                }
            ],
            "volumes": [{"name": "node", "hostPath": {"path": "/tmp", "type": "Directory"}}],
        },
    }


def describe_values(repository, tag):
    """The chart's values for the test."""
    other = {"repository": repository, "tag": "e2e"}
    return {
        "image": {"repository": repository, "tag": tag},
        "store": {"directory": {"existingClaim": CLAIM}},
        "callbacks": {"allowedCIDRs": ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]},
        "tests": {"callback": True},
        # a provider is not upgraded with the gateway, and this one's jobs go with its pod
        "simulator": {"enabled": True, "seconds": "2-6", "image": other},
        "firstObjects": {
            "keys": [
                {"account": ACCOUNT, "secretName": "load-key"},
                {"account": LIVE_DATA, "secretName": "live-data-key"},
                {
                    "account": LIVE_DATA,
                    "secretName": "live-data-management-key",
                    "management": True,
                },
            ],
            "objects": [
                _describe_account(ACCOUNT),
                _describe_account(LIVE_DATA),
                {
                    "apiVersion": "modelgateway.dev/v1alpha1",
                    "kind": "GatewayUser",
                    "metadata": {"name": "e2e"},
                    "spec": {
                        "displayName": "E2E",
                        "email": PERSON,
                        "passwordHash": PASSWORD_HASH,
                        "memberships": [{"accountName": ACCOUNT, "role": "member"}],
                    },
                },
            ],
        },
    }


def _describe_account(name):
    return {
        "apiVersion": "modelgateway.dev/v1alpha1",
        "kind": "GatewayAccount",
        "metadata": {"name": name},
        "spec": {
            "displayName": name,
            "owner": {"name": "E2E", "email": "e2e@example.com"},
            "funds": {"paidMicros": FUNDS_MICROS, "bonusMicros": 0},
            "requestsPerMinute": 100_000,
        },
    }


def describe_load(name, image):
    """The load client's code and its pod."""
    env = {"LOAD_URL": f"http://{RELEASE}-api", "LOAD_RATE": str(LOAD_RATE)}
    return _describe_client(name, image, "load.py", env, LOAD_KEY="load-key")


def describe_storage_user(name, image):
    """The code and the pod of a user of files, Uploads and batches."""
    env = {
        "GATEWAY_BASE_URL": f"http://{RELEASE}-api",
        "STORAGE_LINES": str(BATCH_LINES),
        "XDG_STATE_HOME": "/tmp/state",
    }
    return _describe_client(name, image, "storage.py", env, GATEWAY_API_KEY="load-key")


def describe_live_data(name, image):
    """The code and the pod of a client whose data lives through an upgrade."""
    env = {
        "GATEWAY_BASE_URL": f"http://{RELEASE}-api",
        "LIVE_DATA_FUNDS_MICROS": str(FUNDS_MICROS),
    }
    secrets = {
        "GATEWAY_API_KEY": "live-data-key",
        "GATEWAY_MANAGEMENT_KEY": "live-data-management-key",
    }
    return _describe_client(name, image, "live_data.py", env, **secrets)


def describe_mcp_user(name, image):
    """The code and the pod of a user of the MCP endpoint, with the browser to sign in by."""
    env = {
        "GATEWAY_BASE_URL": f"http://{RELEASE}-api.{NAMESPACE}.svc",
        "GATEWAY_MCP_URL": f"http://{RELEASE}-mcp.{NAMESPACE}.svc",
        "MCP_EMAIL": PERSON,
        "MCP_PASSWORD": PASSWORD,
        "MCP_ACCOUNT": ACCOUNT,
    }
    script, pod = _describe_client(name, image, "mcp_user.py", env)
    script["data"]["browser.py"] = BROWSER.read_text()
    files = {"mcp_user.py": "mcp_user.py", "browser.py": "tests/servers/browser.py"}
    items = [{"key": key, "path": path} for key, path in files.items()]
    pod["spec"]["volumes"][0]["configMap"]["items"] = items
    return script, pod


def _describe_client(name, image, file, env, **secrets):
    """A ConfigMap with the code of `file`, and a pod that runs it.

    `secrets` are variables and the Secrets whose key they have.
    """
    code = Path(__file__).with_name(file).read_text()
    script = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {file: code},
    }
    keys = [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": "api-key"}}}
        for variable, secret in secrets.items()
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": name}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": name,
                    "image": image,
                    "command": ["python", f"/code/{file}"],
                    "env": [
                        *({"name": word, "value": value} for word, value in env.items()),
                        *keys,
                    ],
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": [{"name": "code", "mountPath": "/code"}],
                }
            ],
            "volumes": [{"name": "code", "configMap": {"name": name}}],
        },
    }
    return script, pod
