"""The peers of a batch's runner: what people write instead, a loop of `requests` in threads or of `httpx` in asyncio.

    python -m tests.bench.loops requests|httpx URL CALLS ITEMS_A_CALL CONCURRENCY

Each keeps its connections, reads every answer, and keeps nothing else: no signature, no rate, no progress that would
survive it, no list of outcomes. Prints items a second and items a processor second.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import threading
import time
from typing import Any


def body_of(number: int, items: int) -> bytes:
    """The body that our runner sends, without the fields of a file."""
    entries = [{"index": index, "attempt": 1} for index in range(number * items, (number + 1) * items)]
    return json.dumps(entries[0] if items == 1 else {"items": entries}).encode()


def check(answer: Any, items: int) -> None:
    results = [answer] if items == 1 else answer["results"]
    if len(results) != items or any(result["result"] != "ok" for result in results):
        raise SystemExit(f"an unexpected answer: {answer}")


def by_requests(url: str, calls: int, items: int, concurrency: int) -> None:
    import requests

    numbers, lock = iter(range(calls)), threading.Lock()

    def call() -> None:
        with requests.Session() as session:
            # Otherwise each call would look for proxies in the environment.
            session.trust_env = False
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                answer = session.post(url, data=body_of(number, items), headers={"Content-Type": "application/json"})
                check(answer.json(), items)

    threads = [threading.Thread(target=call) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_httpx(url: str, calls: int, items: int, concurrency: int) -> None:
    import httpx

    numbers = itertools.islice(itertools.count(), calls)

    async def call(client: httpx.AsyncClient) -> None:
        for number in numbers:
            content = body_of(number, items)
            answer = await client.post(url, content=content, headers={"Content-Type": "application/json"})
            check(answer.json(), items)

    async def run() -> None:
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        async with httpx.AsyncClient(limits=limits, timeout=60, trust_env=False) as client:
            await asyncio.gather(*(call(client) for _ in range(concurrency)))

    asyncio.run(run())


LOOPS = {"requests": by_requests, "httpx": by_httpx}


def main() -> None:
    name, url = sys.argv[1:3]
    calls, items, concurrency = map(int, sys.argv[3:])
    LOOPS[name](url, concurrency, items, concurrency)
    began, cpu = time.perf_counter(), time.process_time()
    LOOPS[name](url, calls, items, concurrency)
    done, seconds, used = calls * items, time.perf_counter() - began, time.process_time() - cpu
    print(json.dumps([done / seconds, done / used]))


if __name__ == "__main__":
    main()
