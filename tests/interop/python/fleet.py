"""A client that uses SET NX: redis-py's Lock, driven by text lines. See tests/support/fleet.rs."""

import sys
import time

import redis
from redis.exceptions import LockError

REST = 0.03  # after a hold: pollers that do not pause starve each other

server = redis.Redis.from_url(sys.argv[1])
lock = None


def made(name, lease_ms):
    return server.lock(name, timeout=int(lease_ms) / 1000 or None)


def take(name, lease_ms, blocking):
    global lock
    wanted = made(name, lease_ms)
    if not wanted.acquire(blocking=blocking):
        return "taken"
    lock = wanted
    return "locked"


def extend():
    lock.reacquire()
    return "extended"


def unlock():
    lock.release()
    return "unlocked"


def soak(name, counter, seconds, hold_ms, lease_ms):
    end, count = time.monotonic() + float(seconds), 0
    while (left := end - time.monotonic()) > 0:
        acquired = made(name, lease_ms)
        if not acquired.acquire(blocking_timeout=left):
            continue
        seen = int(server.get(counter) or 0)
        time.sleep(int(hold_ms) / 1000)
        server.set(counter, seen + 1)
        acquired.release()
        count += 1
        time.sleep(REST)
    return f"done {count}"


def answer(word, *rest):
    match word:
        case "lock":
            return take(*rest, blocking=True)
        case "try":
            return take(*rest, blocking=False)
        case "extend":
            return extend()
        case "unlock":
            return unlock()
        case "soak":
            return soak(*rest)


server.ping()
print("ready", flush=True)
for line in sys.stdin:
    if line.strip() == "quit":
        break
    try:
        print(answer(*line.split()), flush=True)
    except LockError as error:
        print("failed", error, flush=True)
