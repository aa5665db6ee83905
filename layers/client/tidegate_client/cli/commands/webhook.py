"""The commands webhook listen, a receiver of callbacks for development, and webhook secret."""

from __future__ import annotations

import argparse
import json
import os
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from tidegate_client.cli.context import Context, Group, Subparsers
from tidegate_client.cli.output import Output
from tidegate_client.errors import UsageError
from tidegate_client.webhooks import NotVerified, verify

LARGEST_BODY = 1024 * 1024
REMEMBERED_IDS = 1000


def register(subparsers: Subparsers) -> None:
    webhook = Group(subparsers, "webhook", "secrets of servers that Tidegate calls; receive callbacks, for development")
    secret = webhook.command("secret", _secret, "print the secret with which one server verifies what it receives")
    secret.add_argument("--origin", required=True, help="the server's origin: https://host or https://host:port")
    listen = webhook.command("listen", _listen, "receive callbacks on this machine, verify and print them")
    listen.add_argument("--port", type=int, default=8787)
    listen.add_argument("--host", default="127.0.0.1")
    listen.add_argument("--secret", help="whsec_… (default: TIDEGATE_CALLBACK_SECRET, else asked for by your login)")
    listen.add_argument(
        "--answer",
        type=int,
        default=204,
        metavar="STATUS",
        help="HTTP status of the answer to verified callbacks (default 204)",
    )
    listen.add_argument("--count", type=int, metavar="N", help="stop after N verified callbacks")


def _secret(context: Context, args: argparse.Namespace) -> None:
    context.output.record(
        {"origin": args.origin, "callback_secret": context.client.projects.origin_secret(args.origin)}
    )


def _listen(context: Context, args: argparse.Namespace) -> None:
    secret = args.secret or os.environ.get("TIDEGATE_CALLBACK_SECRET")
    secret = secret or context.client.projects.origin_secret(f"http://{args.host}:{args.port}")
    try:
        listener = Listener((args.host, args.port), secret, context.output, args.answer)
    except OSError as error:
        reason = f"{error.strerror}; choose another port with --port"
        raise UsageError(f"cannot listen on {args.host}:{args.port}: {reason}") from error
    with listener as server:
        context.output.note(f"listening on http://{args.host}:{server.server_port}/")
        while server.output_closed is None and (args.count is None or server.verified < args.count):
            server.handle_request()
        if server.output_closed:
            raise server.output_closed


class Listener(HTTPServer):
    """An HTTP server that receives callbacks one at a time, so that the printed lines and --count are in order."""

    def __init__(self, address: tuple[str, int], secret: str, output: Output, answer: int) -> None:
        super().__init__(address, _Receiver)
        self.secret = secret
        self.output = output
        self.answer = answer
        self.verified = 0
        self.seen: OrderedDict[str, None] = OrderedDict()
        # Set when stdout is closed. An exception raised within a request would only be logged by HTTPServer.
        self.output_closed: BrokenPipeError | None = None


class _Receiver(BaseHTTPRequestHandler):
    server: Listener
    timeout = 10

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length") or "0"
        if not length.isdecimal() or not length.isascii():
            self._reply(400)
        elif int(length) > LARGEST_BODY:
            self._reply(413)
        else:
            self._reply(self._receive(self.rfile.read(int(length))))

    def _receive(self, body: bytes) -> int:
        """Verifies and prints a callback; returns the HTTP status of the answer."""
        try:
            message_id = verify(self.server.secret, dict(self.headers.items()), body)
            payload = json.loads(body)
            if not isinstance(payload, dict):
                raise NotVerified("the body is not a JSON object")
        except (NotVerified, ValueError) as error:
            self._event({"verified": False, "reason": str(error)}, f"REFUSED  {error}")
            return 401
        self._print(message_id, payload)
        self.server.verified += 1
        return self.server.answer

    def _print(self, message_id: str, payload: dict[str, Any]) -> None:
        repeated = message_id in self.server.seen
        self.server.seen[message_id] = None
        if len(self.server.seen) > REMEMBERED_IDS:
            self.server.seen.popitem(last=False)
        shown = json.dumps(payload.get("data"), ensure_ascii=False)
        mark = "  (repeated)" if repeated else ""
        self._event(
            {"verified": True, "webhook_id": message_id, "repeated": repeated, **payload},
            f"{payload.get('timestamp', '')}  {payload.get('type', '')}  {message_id}{mark}\n    {shown}",
        )

    def _event(self, record: dict[str, Any], text: str) -> None:
        try:
            self.server.output.event(record, text)
        except BrokenPipeError as error:
            self.server.output_closed = error

    def _reply(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Prints no access log, because only the callbacks are to be printed."""
