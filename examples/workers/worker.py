#!/usr/bin/env python3
"""A worker over HTTP, with nothing but Python's standard library (3.8 or later).

    WORKER_DB=mails.db WORKER_SIGNING_KEY_FILE=key ./worker.py 8080

Point a queue at it with target.http.url. It remembers each message in the transaction of its effect, so that a repeat has none
and gets the same answer: with the events that were lost if the first answer was.
"""

import hashlib
import hmac
import json
import os
import sqlite3
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

MAX_BODY = 16 << 20  # bytes; RabbitMQ from 4.0 takes no more
MAX_AGE = 300  # seconds that a signature holds

DB = os.environ.get("WORKER_DB", "worker.db")
KEY_FILE = os.environ.get("WORKER_SIGNING_KEY_FILE")


class Refused(Exception):
    """The message can never be handled, or is not from Surefoot."""

    def __init__(self, status, why):
        super().__init__(why)
        self.status = status


def handle(db, message_type, body):
    """Has the effect of a message through db, and returns its events."""
    if message_type != "order.created":
        raise Refused(422, "unknown type")
    try:
        order = json.loads(body)["orderId"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise Refused(422, "the body is no JSON object with orderId")
    if not isinstance(order, str):
        raise Refused(422, "orderId is no text")
    db.execute("INSERT INTO mails (order_id) VALUES (?)", (order,))
    return [{"type": "mail.queued", "key": order[:64], "payload": {"orderId": order}}]


def once(message_id, message_type, body):
    """Handles a message, or finds the answer that was given before."""
    db = sqlite3.connect(DB, timeout=5, isolation_level=None)
    try:
        db.execute("BEGIN IMMEDIATE")  # a repeat that comes at the same time waits here
        known = db.execute("SELECT answer FROM done WHERE id = ?", (message_id,)).fetchone()
        if known:
            return known[0]
        answer = json.dumps({"events": handle(db, message_type, body)})
        db.execute("INSERT INTO done (id, answer, at) VALUES (?, ?, ?)", (message_id, answer, time.time()))
        db.execute("COMMIT")
        return answer
    finally:
        db.close()  # rolls back what was not committed


def check_signature(headers, body):
    if not KEY_FILE:
        return
    with open(KEY_FILE, "rb") as file:
        key = file.read().strip()
    parts = dict(part.partition("=")[::2] for part in headers.get("Surefoot-Signature", "").split(","))
    signed = [parts.get("t", "")] + [headers.get(name, "") for name in ("Surefoot-Message-Id", "Surefoot-Message-Type", "Surefoot-Key")]
    mac = hmac.new(key, "".join(text + "\n" for text in signed).encode() + body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(mac.encode(), parts.get("v1", "").encode()):
        raise Refused(401, "wrong signature")
    if abs(time.time() - int(parts["t"])) > MAX_AGE:
        raise Refused(401, "old signature")


class Worker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    wbufsize = -1  # head and body of an answer in one packet
    timeout = 120  # seconds without a word, after which a connection is given up

    def do_POST(self):
        try:
            length = int(self.headers.get("Content-Length", 0))
            if not 0 <= length <= MAX_BODY:
                self.close_connection = True
                raise Refused(413, "the body is too large")
            body = self.rfile.read(length)
            check_signature(self.headers, body)
            message_id = self.headers.get("Surefoot-Message-Id", "")  # escaped it is as good a key
            if not message_id:
                raise Refused(400, "no Surefoot-Message-Id")
            answer = once(message_id, unquote(self.headers.get("Surefoot-Message-Type", "")), body)
            self.answer(200, answer)
        except Refused as refused:
            self.answer(refused.status, json.dumps({"error": str(refused)}))
        except sqlite3.OperationalError:  # locked for too long, or the disk is full: it may pass
            self.answer(503, json.dumps({"error": "the database is busy"}), {"Retry-After": "5"})

    def answer(self, status, text, headers=()):
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


def main():
    db = sqlite3.connect(DB)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("CREATE TABLE IF NOT EXISTS done (id TEXT PRIMARY KEY, answer TEXT NOT NULL, at REAL NOT NULL)")
    db.execute("CREATE TABLE IF NOT EXISTS mails (order_id TEXT NOT NULL)")
    db.close()
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Worker)
    print(f"listening on http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
