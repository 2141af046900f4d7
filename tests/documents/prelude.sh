# Before the commands of each page: variables are those of gateway.env.
set -euo pipefail

# An answer that is an error ends the page.
curl() { command curl --fail-with-body "$@"; }

# A command that does not end by itself.
briefly() { timeout 3 "$@" || [ $? = 124 ]; }

read_json() {
  python -c 'import functools, json, sys
step = lambda value, name: value[int(name) if name.isdigit() else name]
print(functools.reduce(step, sys.argv[1].split("."), json.load(sys.stdin)))' "$1"
}

last() { kubectl get "$@" --sort-by=.metadata.creationTimestamp -o name | tail -1 | sed 's,.*/,,'; }
last_task() { last gatewaytasks | sed 's/-/_/'; }
last_key() { last gatewaykeys -l "modelgateway.dev/account=$1"; }

provider_token() {
  kubectl get secret simulated-provider -o jsonpath='{.data.token}' | base64 -d
}
job_field() { curl -s "$S/control/jobs?client_reference=ref-1" | read_json "jobs.0.$1"; }

# The text of a page's block, with the names of this run.
block_of() {
  python -c 'import sys; from tests.documents.blocks import read_blocks
print(read_blocks(sys.argv[1])[int(sys.argv[2])].text)' "$@" |
    sed "s/\\bacme\\b/$ACCOUNT/g; s/\\bann\\b/$MEMBER/g"
}

# A task of the first account; with an argument, its callback goes there.
create_task() {
  curl -sS "$GATEWAY_BASE_URL/api/v1/$GATEWAY_SERVICE/reference_to_video" \
    -H "Authorization: Bearer $GATEWAY_API_KEY" -H "Content-Type: application/json" \
    -d '{"model": "'"$GATEWAY_MODEL"'", "prompt": "A lighthouse at dawn",
         "reference_image_urls": ["https://example.com/lighthouse.png"]'"${1:+,
         \"callback_url\": \"$1\"}"'}'
}
