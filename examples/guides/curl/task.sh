set -euo pipefail
url=$GATEWAY_BASE_URL/api/v1/$GATEWAY_SERVICE/reference_to_video
auth="Authorization: Bearer $GATEWAY_API_KEY"

# read one field of a JSON object, without jq
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

body='{"model": "'$GATEWAY_MODEL'", "prompt": "A lighthouse at dawn",
       "reference_image_urls": ["https://example.com/lighthouse.png"]}'
id=$(curl -sS --fail-with-body "$url" -H "$auth" -H "Content-Type: application/json" \
  -H "Idempotency-Key: order-1042" -d "$body" | field id)
echo "created $id"

# the same key and body once more: the same task, no second charge
curl -sS "$url" -H "$auth" -H "Content-Type: application/json" \
  -H "Idempotency-Key: order-1042" -d "$body" | field id

until [ "$(curl -sS "$url/$id" -H "$auth" | field status)" != processing ]; do sleep 1; done
curl -sS "$url/$id" -H "$auth"
echo
