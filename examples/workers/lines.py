#!/usr/bin/env python3
"""A worker that stays and speaks JSON lines, with nothing but Python's standard library.

    target: {exec: [/usr/local/bin/lines.py, /var/lib/mails.db], keep_alive: true}

Standard output belongs to the answers: print elsewhere to standard error.
"""

import base64
import json
import sqlite3
import sys


def reject(why):
    return {"result": "reject", "error": why}


def handle(db, message):
    """Returns the answer to a message, without its id. What it writes to db is committed with the answer."""
    known = db.execute("SELECT answer FROM done WHERE id = ?", (message["id"],)).fetchone()
    if known:
        return json.loads(known[0])
    if message["type"] != "order.created":
        return reject("unknown type")
    body = message["body"].encode() if "body" in message else base64.b64decode(message["body_base64"])
    try:
        order = json.loads(body)["orderId"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return reject("the body is no JSON object with orderId")
    if not isinstance(order, str):
        return reject("orderId is no text")
    db.execute("INSERT INTO mails (order_id) VALUES (?)", (order,))
    answer = {"result": "done", "events": [{"type": "mail.queued", "key": order[:64], "payload": {"orderId": order}}]}
    db.execute("INSERT INTO done (id, answer) VALUES (?, ?)", (message["id"], json.dumps(answer)))
    return answer


def main():
    db = sqlite3.connect(sys.argv[1], timeout=5)
    db.execute("CREATE TABLE IF NOT EXISTS done (id TEXT PRIMARY KEY, answer TEXT NOT NULL)")
    db.execute("CREATE TABLE IF NOT EXISTS mails (order_id TEXT NOT NULL)")
    db.commit()
    print('{"ready": true}', flush=True)
    for line in sys.stdin.buffer:  # ends when the consumer stops
        message = json.loads(line)
        try:
            with db:  # commits, or rolls back
                answer = handle(db, message)
        except sqlite3.OperationalError:
            answer = {"result": "retry", "error": "the database is busy", "retry_after_ms": 5000}
        print(json.dumps({"id": message["id"], **answer}), flush=True)


if __name__ == "__main__":
    main()
