set -euo pipefail
auth="Authorization: Bearer $GATEWAY_API_KEY"
field() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }

printf 'Hello' > note.txt
id=$(curl -sS --fail-with-body "$GATEWAY_BASE_URL/v1/files" -H "$auth" \
  -F purpose=user_data -F file=@note.txt | field id)
curl -sS "$GATEWAY_BASE_URL/v1/files/$id/content" -H "$auth"
echo

# bytes 1 to 3
curl -sS "$GATEWAY_BASE_URL/v1/files/$id/content" -H "$auth" -r 1-3
echo
curl -sS -X DELETE "$GATEWAY_BASE_URL/v1/files/$id" -H "$auth"
echo
