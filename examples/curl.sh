#!/bin/sh
# The routes without any client: sh examples/curl.sh
set -eu
URL="${PLAYHEAD_URL:-http://127.0.0.1:8000}"
AUTH="Authorization: Bearer ${PLAYHEAD_API_KEY:-none}"

echo "== is the server ready"
curl -fsS "$URL/ready"

echo; echo "== models"
curl -fsS -H "$AUTH" "$URL/v1/models"

echo; echo "== a chat"
curl -fsS -H "$AUTH" -H "Content-Type: application/json" "$URL/v1/chat/completions" \
  -d '{"messages": [{"role": "user", "content": "Who is there?"}], "max_tokens": 16}'

echo; echo "== the same as a stream (-N shows events as they come)"
curl -fsSN -H "$AUTH" -H "Content-Type: application/json" "$URL/v1/chat/completions" \
  -d '{"messages": [{"role": "user", "content": "Who is there?"}], "max_tokens": 8, "stream": true}'

echo "== a completion"
curl -fsS -H "$AUTH" -H "Content-Type: application/json" "$URL/v1/completions" \
  -d '{"prompt": "To be, or not", "max_tokens": 8, "temperature": 0}'

echo; echo "== tokens of a text"
curl -fsS -H "$AUTH" -H "Content-Type: application/json" "$URL/tokenize" -d '{"prompt": "To be, or not"}'

echo; echo "== metrics"
curl -fsS -H "$AUTH" "$URL/metrics" | head -n 5
