"""Runs the SQL of the guide on idempotent calls over SQLite.

    outbox.py TABLES CALL WORKER

Each argument is a block of the guide. The program plays the application: it runs the statements in
order, follows the comments between them, and dies between them. It prints `each call once`, or
fails.
"""

import os
import sys
import tempfile

try:
    import sqlite3
except ImportError as why:
    print(f"SKIPPED: the SQL of the guide: this python3 has no sqlite3: {why}")
    sys.exit(0)
# `ON CONFLICT DO NOTHING` without a target.
if sqlite3.sqlite_version_info < (3, 24):
    print(f"SKIPPED: the SQL of the guide: SQLite {sqlite3.sqlite_version} is older than 3.24")
    sys.exit(0)


class Died(Exception):
    """The process has died."""


def statements(block):
    lines = (line for line in block.splitlines() if not line.lstrip().startswith("--"))
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


TABLES, CALL, WORKER = map(statements, sys.argv[1:])
BEGIN, CLAIM, WRITE, COMMIT, READ = CALL
SELECT, MARK = WORKER
FOLDER = tempfile.TemporaryDirectory()
FILE = os.path.join(FOLDER.name, "shop.db")


def connect():
    # Without the implicit transactions of the module: the guide has its own.
    return sqlite3.connect(FILE, isolation_level=None)


def call(key, result, dies_before=None):
    """Makes a call, which dies before the statement of this number. Returns its result."""
    values = {"key": key, "result": result, "message": f"charge {key}"}
    database = connect()
    try:
        steps = iter(range(len(CALL)))

        def run(statement):
            if next(steps) == dies_before:
                raise Died
            return database.execute(statement, {name: values[name] for name in values if f":{name}" in statement})

        run(BEGIN)
        if run(CLAIM).rowcount == 1:
            run(WRITE)
        else:
            next(steps)
        run(COMMIT)
        return run(READ).fetchone()[0]
    finally:
        database.close()


def work(sent, dies_after_sending=False):
    database = connect()
    try:
        for key, message in database.execute(SELECT).fetchall():
            sent.append((key, message))
            if dies_after_sending:
                raise Died
            database.execute(MARK, {"key": key})
    finally:
        database.close()


def rows(table):
    database = connect()
    try:
        return database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    finally:
        database.close()


def fails(function, *arguments):
    try:
        function(*arguments)
    except Died:
        return
    raise AssertionError("it did not die")


for table in TABLES:
    connect().execute(table)

assert call("a", "receipt 1") == "receipt 1"
assert call("a", "receipt 2") == "receipt 1", "a repeated call gets the first result"
assert (rows("processed"), rows("outbox")) == (1, 1)

for statement in range(len(CALL)):
    key = f"dies before {statement}"
    fails(call, key, "receipt 1", statement)
    has_committed = CALL.index(COMMIT) < statement
    again = call(key, "receipt 2")
    assert again == ("receipt 1" if has_committed else "receipt 2"), f"{key}: {again}"
assert rows("processed") == rows("outbox") == 1 + len(CALL), "both rows, or none"

sent = []
fails(work, sent, True)
work(sent)
work(sent)
assert len(sent) == 2 + len(CALL), "one message is sent twice"
assert len(set(sent)) == 1 + len(CALL), "with the same key"
print("each call once")
