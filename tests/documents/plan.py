"""What is done with each block of each page, in the order of the page.

Pages of docs/guides and those that `make generate` writes are not here: other tests have them.
"""

from tests.documents.blocks import (
    Elsewhere,
    NotRun,
    Objects,
    Parsed,
    Python,
    Run,
    Treatment,
    Values,
)

ACCOUNTS = "tests/integration/accounts/test_accounts_guide.py"
CODEX = "tests/integration/llm/test_codex.py"
KUBECTL = "tests/integration/tasks/test_kubectl.py"
MANAGEMENT = "tests/integration/accounts/test_management.py"
MCP = "tests/integration/mcp/test_guide.py"
PRODUCTION = "tests/e2e/production.py"
PROVIDERS = "tests/servers/guide.py"
PUBLIC_APIS = "tests/integration/providers/test_public_apis.py"
REDIS = "tests/ports/test_redis_connections.py"
RESTORE = "tests/crash/outages/test_restore.py"
ROLLBACK = "tests/crash/outages/test_rollback.py"
REMOVAL = "tests/crash/outages/test_removal.py"
RULES = "tests/unit/simulator/test_settings.py"
INSTALLATION = "needs a cluster: tests/e2e installs and upgrades the chart"
FOREIGN = "of a program that is not ours"

OWN_ACCOUNT = "gatewayctl accounts create acme --owner-email ann@example.com\n"
LINES = """
with open("requests.jsonl", "w") as lines:
    lines.write('{"custom_id": "a-1", "method": "POST", "url": "/v1/moderations", ')
    lines.write('"body": {"model": "sim-moderation", "input": "a cat"}}')
"""
CALLBACK = """
import base64, datetime, standardwebhooks
secret = "whsec_" + base64.b64encode(bytes(32)).decode()
now, body = datetime.datetime.now(datetime.UTC), '{"id":"task_a","status":"completed"}'
headers = {
    "webhook-id": "msg_a",
    "webhook-timestamp": str(int(now.timestamp())),
    "webhook-signature": standardwebhooks.Webhook(secret).sign("msg_a", now, body),
}
"""
FILE_ID = "file_id=$(last gatewayfiles)\n"
UPLOADED = "echo video > clip.mp4\ngatewayctl files upload clip.mp4\n" + FILE_ID
NAMESPACE = (("-n model-gateway", '-n "$GATEWAY_NAMESPACE"'),)

PLAN: dict[str, tuple[Treatment, ...]] = {
    "README.md": (
        NotRun("make demo", "starts a local run of its own, or all tests"),
        Run(
            "set -a",
            replace=(
                ("task_...", "$(last_task)"),
                ("--model sim-chat ", "--model sim-chat <<< Hi"),
            ),
            prints='"status":"(processing|completed)"',
        ),
        Python("import os\nfrom openai"),
        Python("import os\nfrom google"),
    ),
    "CONTRIBUTING.md": (NotRun("make lint", "these targets run the tests"),),
    "ARCHITECTURE.md": (NotRun("", "a drawing"),),
    "docs/accounts.md": (*[Elsewhere("", ACCOUNTS)] * 18, Parsed("prices:")),
    "docs/batches.md": (Parsed('{"custom_id"'), Python("import os\nimport time", before=LINES)),
    "docs/benchmarks.md": (NotRun("make bench", "takes an hour of an idle machine"),),
    "docs/callbacks.md": (
        NotRun("POST /hook", "abridged; tests/callbacks compares what arrives"),
        Parsed('{"id"'),
        Python("from standardwebhooks", before=CALLBACK),
        Python("from openai", before=CALLBACK),
        Run("gatewayctl accounts webhook-secret", before=OWN_ACCOUNT, prints="whsec_"),
        Run(
            "kubectl patch gwtask",
            before="create_task http://127.0.0.1:9/\n",
            replace=(("task-…", "$(last_task | tr _ -)"),),
        ),
    ),
    "docs/files.md": (
        Python("import os\nfrom openai"),
        Run("kubectl get gatewayfiles", before=UPLOADED, replace=(("file-...", "$file_id"),)),
    ),
    "docs/gatewayctl.in.md": (
        Run("gatewayctl accounts create", replace=(("key-…", "$(last_key acme)"),)),
        Run(
            "gatewayctl models list",
            replace=(
                ("providers test acme", "providers test simulated-openai"),
                ("gatewayctl tasks list -a acme --watch", "briefly gatewayctl tasks list --watch"),
            ),
        ),
        Run("gatewayctl status", replace=(("gatewayctl top", "briefly gatewayctl top"),)),
        Run(
            "gatewayctl files upload",
            before=UPLOADED
            + "echo '"
            + """{"custom_id": "a-1", "method": "POST", \
"url": "/v1/moderations", "body": {"model": "sim-moderation", "input": "a cat"}}"""
            + "' > requests.jsonl\n",
            replace=(
                ("file-…", "$file_id"),
                (
                    "batch_…",
                    "$(last gatewaybatches | sed 's/-/_/')",
                ),
            ),
        ),
    ),
    "docs/install.md": (
        NotRun("make image", INSTALLATION),
        Values("firstObjects:"),
        NotRun("helm upgrade", INSTALLATION),
        Run("kubectl -n", replace=NAMESPACE),
        Run("kubectl -n", replace=NAMESPACE),
        Elsewhere("gatewayctl install remove", REMOVAL),
        Parsed("spec:"),
        Parsed("spec:"),
    ),
    "docs/keys.md": (
        Objects("apiVersion"),
        Run("kubectl apply", before="block_of docs/keys.md 0 > acme.yaml\n"),
        Run("kubectl patch gatewaykey"),
    ),
    "docs/limits.md": (Objects("apiVersion"),),
    "docs/llm.md": (
        Python("import os\nfrom openai"),
        Python("import os\nfrom google"),
        Parsed("spec:"),
        Elsewhere("model =", CODEX),
        Objects("apiVersion"),
        Objects("apiVersion"),
        NotRun("$ kubectl get", "shows a provider that fails for minutes"),
    ),
    "docs/local-run.md": (
        NotRun("set -a", "tests/integration/tasks/test_kopf.py runs it on ports of its own"),
        NotRun("from gateway_cli", "what tests.servers.world does"),
    ),
    "docs/management.md": (Objects("apiVersion"), *[Elsewhere("curl", MANAGEMENT)] * 5),
    "docs/mcp.md": (
        *[Elsewhere("{", MCP)] * 4,
        Elsewhere("npx", MCP),
        Elsewhere("import asyncio", MCP),
        Elsewhere("import { Client", MCP),
        Run("kubectl get gatewaygrants"),
        Objects("apiVersion"),
    ),
    "docs/moderations.md": (Python("import os\nfrom openai"),),
    "docs/observing.md": (
        Values("monitoring:"),
        NotRun('{"event"', "an abridged line of a log"),
        Values("tracing:"),
    ),
    "docs/operations/backup.md": (
        Elsewhere("gatewayctl record save", RESTORE),
        Elsewhere("kubectl create", RESTORE),
        Elsewhere("jq", RESTORE),
        Elsewhere("gatewayctl record restore", RESTORE),
        Elsewhere("etcdutl snapshot restore", ROLLBACK),
    ),
    "docs/operations/disasters.md": (
        NotRun("kubectl get pods", INSTALLATION),
        Run("kubectl get --raw"),
        NotRun("kubectl scale", INSTALLATION),
        NotRun("gatewayctl doctor", INSTALLATION),
        NotRun("kubectl get gatewayfiles", "jq may be missing"),
        Run(
            "gatewayctl providers list",
            replace=(
                ("providers test NAME", "providers test simulated-openai"),
                ("patch gatewayprovider NAME", "patch --dry-run=server gatewayprovider simulated"),
            ),
        ),
        Run(
            "gatewayctl keys revoke",
            before=OWN_ACCOUNT + "gatewayctl keys create acme --name CI\n",
            replace=(("revoke KEY", "revoke $(last_key acme)"), ("usage ACCOUNT", "usage acme")),
        ),
        Run(
            "kubectl create secret",
            before="echo token > credential\n",
            replace=(("generic NAME", "generic leaked"), ("=FILE", "=credential")),
        ),
        NotRun("kubectl scale", INSTALLATION),
    ),
    "docs/operations/hardening.md": (
        Elsewhere("ACL SETUSER", REDIS),
        NotRun("kubectl auth", INSTALLATION),
    ),
    "docs/operations/production.md": (
        NotRun("make image", "needs a registry: the test loads the image into the cluster's node"),
        Elsewhere("kubectl create namespace", PRODUCTION),
        Elsewhere("apiVersion: cert-manager.io", PRODUCTION),
        Elsewhere("kubectl apply", PRODUCTION),
        Values("image:"),
        Elsewhere("helm install", PRODUCTION),
        Elsewhere("kubectl get ingress", PRODUCTION),
        Elsewhere("apiVersion: gateway.networking", PRODUCTION),
        *[Elsewhere("", PRODUCTION)] * 4,
    ),
    "docs/providers.md": (
        Elsewhere("apiVersion: v1", PROVIDERS),
        Run(
            "kubectl apply",
            before="block_of docs/providers.md 0 > studio.yaml\n",
            replace=NAMESPACE,
        ),
        Elsewhere("apiVersion: v1", PROVIDERS),
        Objects("apiVersion"),
        *[Elsewhere("", PROVIDERS)] * 2,
        Objects("apiVersion"),
        Run(
            "set -a",
            before='ln -s "$PYTHONPATH/examples" .\n',
            prints="gatewaymodel.modelgateway.dev/trial-q4 created",
        ),
        Run("curl -X PUT"),
        Run(
            "kubectl get",
            before="curl -X DELETE $GATEWAY_SIMULATOR_URL/control\ncreate_task\n",
            replace=(
                ("kubectl get -n model-gateway", "briefly kubectl get -n model-gateway"),
                *NAMESPACE,
                ("gatewaytask NAME", "gatewaytask $(last_task | tr _ -)"),
            ),
        ),
    ),
    "docs/providers/public-apis.md": (
        Elsewhere("kubectl apply", PUBLIC_APIS),
        *[Elsewhere("apiVersion", PUBLIC_APIS)] * 3,
        NotRun("vllm serve", FOREIGN),
        Elsewhere("apiVersion", PUBLIC_APIS),
    ),
    "docs/releases.md": (NotRun("skopeo", FOREIGN),),
    "docs/reliability.in.md": (NotRun("make test-long", "takes hours"),),
    "docs/retention.md": (Run("kubectl get gwusage"), NotRun("aws s3", FOREIGN)),
    "docs/sign-in.md": (
        Run("gatewayctl users create"),
        Values("smtp:"),
        *[Values("oidc:")] * 2,
        NotRun("kubectl patch gatewayuser", "after single sign-on: tests/integration/oauth"),
        Run("kubectl get gatewaygrants", replace=(("grant-…", "--all"),)),
    ),
    "docs/simulator.md": (
        NotRun("GATEWAY_SIMULATOR_TOKEN", "the local run starts it"),
        NotRun('{"id"', "abridged"),
        Run(
            "S=http",
            replace=(
                ("S=http://127.0.0.1:9010", "S=$GATEWAY_SIMULATOR_URL"),
                ("Bearer secret", "Bearer $(provider_token)"),
                ("job_4f1c…", "$(job_field id)"),
                ("$S/files/kT2….mp4", "$(sleep 2; job_field outputs.0.url)"),
            ),
        ),
        Run("curl -s $S/v1/moderations"),
        Run("curl -sN $S/v1/chat"),
        Run("curl -s -X PUT $S/control"),
        *[Elsewhere('{"behaviour"', RULES)] * 6,
        Run("curl -s $S/control/history"),
    ),
    "docs/proxies.md": (Values("operator:"),),
    "docs/storage.md": (Parsed('{"Rules"'),),
    "docs/tasks.md": (
        Elsewhere("# A task", KUBECTL),
        Run(
            "kubectl apply",
            before="block_of docs/tasks.md 0 > task.yaml\n",
            replace=(("examples/tasks/task.yaml", "task.yaml"),),
            prints="condition met",
        ),
        Run("kubectl get", prints='"reason":"Completed"'),
        Run("kubectl patch"),
    ),
    "docs/tutorial.md": (
        NotRun("make up", "the test's own local run is there"),
        Run("set -a"),
        Run(
            "python examples",
            before='ln -s "$PYTHONPATH/examples" .\n',
            prints=r"completed for 0\.3 USD\nvideo\.mp4: ",
        ),
        Run("kubectl get gatewaytasks"),
        Run("export GATEWAY_API_KEY"),
        Run(
            "python examples",
            replace=(("python", "! python"),),
            prints="refused with 429: .*limit",
        ),
        Run("gatewayctl keys list", prints="tutorial"),
        Elsewhere("", "tests/documents/plan.py"),
        Run(
            "python studio.py",
            before="block_of docs/tutorial.md 7 > studio.py\ntrap 'kill $!' EXIT\n",
        ),
        Elsewhere("apiVersion: v1", "tests/documents/plan.py"),
        Run(
            "kubectl apply",
            before="block_of docs/tutorial.md 9 > studio.yaml\n",
            prints="gatewaymodel.modelgateway.dev/studio-1 condition met",
        ),
        Run("source", prints=r"completed for 0\.1 USD"),
        Run("gatewayctl top", replace=(("gatewayctl", "briefly gatewayctl"),)),
        Parsed("scrape_configs:"),
    ),
    "docs/uploads.md": (NotRun("POST /v1/uploads", "a table of requests, which SDKs make"),),
    "charts/model-gateway/README.in.md": (NotRun("helm install", INSTALLATION),),
}
