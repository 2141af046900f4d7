"""Receive callbacks of tasks. GATEWAY_WEBHOOK_SECRET is the account's secret, `whsec_…`."""

import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["GATEWAY_WEBHOOK_SECRET"])
# ids of callbacks whose work is done; in production a table with a unique column
handled = set()


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        length = int(self.headers.get("Content-Length", 0))
        if length > 1_000_000:
            return self.answer(413)
        body = self.rfile.read(length)
        try:
            # also refuses a time that is more than five minutes away
            task = webhook.verify(body, dict(self.headers))
        except WebhookVerificationError:
            return self.answer(401)
        if self.headers["webhook-id"] not in handled:
            handled.add(self.headers["webhook-id"])
            print(task["id"], task["status"], flush=True)
        return self.answer(204)

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Receiver).serve_forever()
