set -euo pipefail

# an answer
curl -sS --fail-with-body "$GATEWAY_BASE_URL/v1/chat/completions" \
  -H "Authorization: Bearer $GATEWAY_API_KEY" -H "Content-Type: application/json" \
  -d '{"model": "sim-chat", "messages": [{"role": "user", "content": "Hello there"}]}'
echo

# a stream: -N shows each frame as it comes
curl -sSN --fail-with-body "$GATEWAY_BASE_URL/v1/chat/completions" \
  -H "Authorization: Bearer $GATEWAY_API_KEY" -H "Content-Type: application/json" \
  -d '{"model": "sim-chat", "stream": true, "messages": [{"role": "user", "content": "Hello"}]}'

# in Google's form
curl -sS --fail-with-body "$GATEWAY_BASE_URL/v1beta/models/sim-google:generateContent" \
  -H "x-goog-api-key: $GATEWAY_API_KEY" -H "Content-Type: application/json" \
  -d '{"contents": [{"parts": [{"text": "Hello there"}]}]}'
echo
