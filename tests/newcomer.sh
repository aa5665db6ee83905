#!/bin/sh
# The first steps of a new user: a fresh clone in an empty environment, `make run`, some calls, Ctrl-C, `make run` again.
# Fails if the first run takes 90 s or more, or the second 10 s or more.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
port=${PORT:-4599}
pid=

cleanup() {
    [ -z "$pid" ] || stop
    rm -rf "$work"
}
trap cleanup EXIT

page() {
    curl -fsS "$1" -o "$work/page.html"
    grep -qi '<html' "$work/page.html"
}

run_once() {
    name=$1 limit=$2
    started=$(date +%s)
    # A background job of a script ignores SIGINT; restore it, since the test sends Ctrl-C.
    env -i HOME="$work/home" PATH=/usr/bin:/bin PORT="$port" python3 -c \
        'import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); os.execvp("make", ["make", "run"])' \
        >"$work/$name.txt" 2>&1 &
    pid=$!
    until grep -q 'Tidegate is up' "$work/$name.txt"; do
        kill -0 "$pid" 2>/dev/null || { cat "$work/$name.txt"; echo "$name run: make run ended before it was up"; exit 1; }
        [ $(($(date +%s) - started)) -lt 300 ] || { cat "$work/$name.txt"; echo "$name run: not up in 300 s"; exit 1; }
        sleep 0.2
    done
    took=$(($(date +%s) - started))
    cat "$work/$name.txt"
    echo "$name run: up after $took s (limit $limit s)"
    [ "$took" -lt "$limit" ]
}

stop() {
    # Ctrl-C in a terminal reaches make and the processes that it started.
    for child in $(ps -o pid= --ppid "$pid"); do kill -INT "$child"; done
    wait "$pid" || true
    pid=
}

mkdir "$work/home"
git clone -q "$root" "$work/clone"
cd "$work/clone"

run_once first 90
url=$(sed -n 's/.*"api_url": "\(.*\)",/\1/p' .local/cloud.json)
key=$(sed -n 's/.*"admin_key": "\(.*\)".*/\1/p' .local/cloud.json)
curl -fsS "$url/healthz"; echo
page "$url/docs"
page "$url/"
curl -fsS "$url/v1/projects" -H "Authorization: Bearer $key" -H 'Content-Type: application/json' -d '{"name": "newcomer"}'; echo
stop

run_once second 10
curl -fsS "$url/v1/projects" -H "Authorization: Bearer $key" | grep -q newcomer
stop
echo "Both runs were up in time, and the second one kept the data."
