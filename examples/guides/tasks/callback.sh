curl -sS "$GATEWAY_BASE_URL/api/v1/$GATEWAY_SERVICE/reference_to_video" \
  -H "Authorization: Bearer $GATEWAY_API_KEY" -H "Content-Type: application/json" \
  -d '{"model": "'"$GATEWAY_MODEL"'", "prompt": "A lighthouse at dawn",
       "reference_image_urls": ["https://example.com/lighthouse.png"],
       "callback_url": "http://127.0.0.1:9000/"}'
