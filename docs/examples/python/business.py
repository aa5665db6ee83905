"""A business of batches: gets the items one by one and says what became of each.

TIDEGATE_SECRET=whsec_… python business.py 8002
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tidegate_client import NotVerified, verify


class Business(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            verify(os.environ["TIDEGATE_SECRET"], self.headers, body)
        except NotVerified as error:
            self.send_error(401, str(error))
            return
        # An item may come twice, with the same webhook-id: remember it where you keep your data.
        item = json.loads(body)
        sys.stdout.write(f"item {item['index']}, attempt {item['attempt']}\n")
        sys.stdout.flush()
        # Or "error", which is tried again, or "abandon", which is not; both with "msg".
        answer = json.dumps({"result": "ok"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        """One line an item is enough."""


with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Business) as server:
    sys.stdout.write(f"waits for items on port {sys.argv[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
