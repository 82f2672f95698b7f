#!/bin/sh
# A worker over HTTP: worker.sh QUEUE COMMAND…   The command reads the step's input and writes its output; if it fails, the attempt does.
url=${WORKFLOW_MANAGER_URL:-http://127.0.0.1:8088} queue=$1 dir=$(mktemp -d); shift
while :; do
    code=$(curl -s -X POST -D "$dir/head" -o "$dir/input" -w '%{http_code}' "$url/api/queue/$queue/receive")
    if [ "$code" = 204 ]; then continue; fi
    if [ "$code" != 200 ]; then echo "$code $(cat "$dir/input" 2>&-)" >&2; sleep 1; continue; fi
    type=result; "$@" <"$dir/input" >"$dir/output" || { type=error; echo '{"error":"the command failed"}' >"$dir/output"; }
    curl -s -f --retry 60 --retry-connrefused --data-binary "@$dir/output" "$url$(tr -d '\r' <"$dir/head" | sed -n 's/^reply-to: //p')?type=$type"
done
