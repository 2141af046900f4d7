"""What `make up` prints once everything is ready: addresses, a key, and commands to paste."""

import json
import shlex
import shutil
import sys
from pathlib import Path

from gateway_cli.local.client import SAMPLE_INPUT
from gateway_cli.local.config import LocalConfig


def describe_run(config: LocalConfig, variables: dict[str, str], kubectl: Path) -> str:
    """The text, with every command complete in itself.

    `kubectl` is named by its path where PATH has none.
    """
    url = f"{config.base_url}/api/v1/{variables['GATEWAY_SERVICE']}/reference_to_video"
    key = variables["GATEWAY_API_KEY"]
    env_file = shlex.quote(str(config.env_file))
    ctl = (
        "gatewayctl"
        if shutil.which("gatewayctl")
        else f"{shlex.quote(sys.executable)} -m gateway_cli"
    )
    bytes_at = f"{config.s3_url} (S3)" if config.store == "s3" else str(config.store_directory)
    body = shlex.quote(json.dumps({"model": variables["GATEWAY_MODEL"], **SAMPLE_INPUT}))
    return f"""
REST API            {config.base_url}   (OpenAPI: {config.base_url}/openapi.json)
Media host          {config.media_url}
Simulated provider  {config.simulator_url}
Bytes               {bytes_at}
API key             {key}
Management key      {variables["GATEWAY_MANAGEMENT_KEY"]}   (the account's keys, limits and usage)
All of it           {config.env_file}
Logs                {config.log_directory}

Create a task:

  curl -sS -X POST {url} \\
    -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' \\
    -d {body}

Then ask after it, with the id from the answer in place of TASK_ID:

  curl -sS {url}/TASK_ID \\
    -H 'Authorization: Bearer {key}'

Bring a file up, and have every line of another moderated:

  set -a; . {env_file}; set +a
  {ctl} files upload PATH
  {ctl} batches create REQUESTS.jsonl --download .

Watch it as a cluster admin does:

  export KUBECONFIG={shlex.quote(variables["KUBECONFIG"])}
  {"kubectl" if shutil.which("kubectl") else shlex.quote(str(kubectl))} get gatewaytasks --watch

Ctrl-C, or `make down` elsewhere, ends it all; the state stays in {config.directory}.
"""
