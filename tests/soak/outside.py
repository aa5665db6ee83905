"""The world outside the product: receivers of callbacks, businesses, sources of rows and files; all are unreliable.

What they see goes to the ledger. Each fails less often than it is asked again, so that everything can end well.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import parse_qs, urlsplit

from standardwebhooks import Webhook, WebhookVerificationError

from tests.soak.ledger import Ledger
from tests.support.http_servers import Handler, serve
from tests.support.ingest.sources import FileSource, Hosted

SIGNED = "callbacks are signed with the project's secret"


class Outside:
    """`seed` decides who fails when. Ports are known while the servers run."""

    def __init__(self, ledger: Ledger, seed: int) -> None:
        self.ledger = ledger
        self._rng = random.Random(f"outside {seed}")
        self._lock = threading.Lock()
        self._failed: Counter[str] = Counter()
        self.calm = threading.Event()
        self.secret = ""
        self.tables: dict[str, list[dict[str, object]]] = {}
        self.files = FileSource(hook=self._file_trouble)
        self.receiver_port = self.business_port = self.rows_port = 0

    def _trouble(self, key: str, share: float, most: int) -> float:
        """Below 1 with this probability, at most so often for one key. What is below 1 says which trouble."""
        with self._lock:
            drawn = self._rng.random()
            if self.calm.is_set() or drawn > share or self._failed[key] >= most:
                return 1.0
            self._failed[key] += 1
            self.ledger.counts["troubles outside"] += 1
            return drawn / share

    # --- callbacks

    def receive(self, request: Handler) -> None:
        body = request.body().decode()
        headers = {name.lower(): value for name, value in request.headers.items()}
        trouble = self._trouble(headers.get("webhook-id", ""), 0.3, 3)
        if trouble < 0.2:
            request.close_connection = True
            return
        if trouble < 1:
            time.sleep(1.0 if trouble > 0.8 else 0)
            request.answer(500 if trouble < 0.6 else 503)
            return
        try:
            said = Webhook(self.secret).verify(body, headers)
        except WebhookVerificationError as error:
            self.ledger.breaks(SIGNED, f"{headers}: {error}")
            request.answer(400)
            return
        data = said["data"]
        record = next(
            (str(data[name]) for name in ("batch_id", "task_id", "job_id", "request_id") if data.get(name)), ""
        )
        notice = (headers["webhook-id"], str(said["type"]), str(data.get("status")))
        self.ledger.write(lambda ledger: ledger.notices.setdefault(record, []).append(notice))
        request.answer(200)

    # --- businesses

    def process(self, request: Handler) -> None:
        if request.path == "/stopped":
            self.receive(request)
            return
        item = json.loads(request.body())
        batch, index, began = str(item["batch_id"]), int(item["index"]), time.monotonic()
        trouble = self._trouble(f"{batch}:{index}", 0.06, 2)
        result = "ok"
        if trouble < 0.4:
            result = "500"
        elif trouble < 0.7:
            result = "error"
        elif trouble < 1:
            time.sleep(1.5)
        self.ledger.write(lambda ledger: ledger.calls.append((batch, index, began, result)))
        if result == "500":
            request.answer(500)
        else:
            request.answer(200, json.dumps({"result": result}).encode())

    # --- rows

    def rows(self, request: Handler) -> None:
        asked = urlsplit(request.path)
        query = {name: values[0] for name, values in parse_qs(asked.query).items()}
        page, size = int(query["page"]), int(query["page_size"])
        trouble = self._trouble(f"{asked.path}:{page}", 0.2, 2)
        if trouble < 0.3:
            request.close_connection = True
            return
        if trouble < 0.7:
            request.answer(503)
            return
        time.sleep(0.5 if trouble < 1 else 0.02)
        rows = self.tables[asked.path]
        data = {"data": rows[page * size : (page + 1) * size], "total": len(rows)}
        request.answer(200, json.dumps({"status": 200, "msg": "", "data": data}).encode())

    # --- files

    def seen(self, path: str) -> bool:
        return self.ledger.fetched[path] > 0

    def host(self, path: str, body: bytes) -> str:
        with self._lock:
            cuts, refused = self._rng.choice((0, 0, 1, 2)), self._rng.choice((0, 0, 1))
            ranges = self._rng.random() < 0.8
        refusals: list[tuple[int, str | None]] = [(503, "1")] * refused
        self.files.files[path] = Hosted(body, ranges=ranges, cuts=cuts, refusals=refusals)
        return self.files.url(path)

    def _file_trouble(self, request: Handler) -> bool:
        self.ledger.write(lambda ledger: ledger.fetched.update([request.path]))
        if self._trouble(request.path, 0.1, 2) < 1:
            request.close_connection = True
            return True
        return False


@contextmanager
def outside(ledger: Ledger, seed: int) -> Iterator[Outside]:
    world = Outside(ledger, seed)
    with ExitStack() as servers:
        world.receiver_port = servers.enter_context(serve(world.receive))
        world.business_port = servers.enter_context(serve(world.process))
        world.rows_port = servers.enter_context(serve(world.rows))
        world.files.port = servers.enter_context(serve(world.files.answer))
        yield world
