"""Python's libraries as contenders of the benchmarks.

    rivals.py redis-py|python-redis-lock|aws-lambda-powertools HOST:PORT..

benches/peer/src/lib.rs defines the protocol. With redis-py a task is an asyncio task, with
python-redis-lock a thread, because it has no asynchronous interface. The common code consists of
coroutines; with threads, they block only their thread.

redis-py: polls every 100 ms, its default; awaits each release; does not renew; has no Redlock. With
its fastest settings: hiredis parses, and 64 connections serve all tasks (1,024 connections for
1,024 tasks are not faster).

python-redis-lock: waits in BLPOP for the element that a release pushes, and therefore needs a
connection per thread. A thread renews each lock on request: `hold` requests it, `pairs` and `enter`
do not, because starting a thread costs more than the short hold. Its leases are whole seconds. It
has no Redlock.

Neither reports a loss.

aws-lambda-powertools: idempotent calls, by the decorator `idempotent_function` over the persistence
layer for caches. It has no asynchronous interface, so duplicates at one time are threads, over one
pool of connections. It does not wait: a duplicate of a running call gets an error. Its key includes
a hash of the argument, and it stores results for an hour, its default.
"""

import asyncio
import sys
import threading
import time
from struct import pack

import redis
import redis.asyncio
import redis_lock

LEASE = 30.0  # seconds
ENTER_WAIT, TAKE_WAIT = 10.0, 30.0  # seconds
CONNECTIONS = 64
BATCH = 64  # the number of locks that are acquired at a time


class Cannot(Exception):
    """The reason why a library does not support an order."""


class RedisPy:
    def __init__(self, server):
        self.loop = asyncio.new_event_loop()
        host, port = server.rsplit(":", 1)
        pool = redis.asyncio.BlockingConnectionPool(host=host, port=int(port), max_connections=CONNECTIONS, timeout=None)
        self.client = redis.asyncio.Redis(connection_pool=pool)
        self.wait_for([self.client.ping()])

    async def lock(self, key, lease, wait, _renewed):
        lock = self.client.lock(key, timeout=lease, blocking_timeout=wait)
        return lock if await lock.acquire() else None

    async def unlock(self, lock):
        await lock.release()

    sleep = staticmethod(asyncio.sleep)

    def wait_for(self, tasks):
        """Runs all coroutines concurrently, and returns their results."""

        async def all_of_them():
            return await asyncio.gather(*tasks)

        return self.loop.run_until_complete(all_of_them())


class PythonRedisLock:
    def __init__(self, server):
        host, port = server.rsplit(":", 1)
        self.client = redis.StrictRedis(host=host, port=int(port), max_connections=1 << 16)
        self.client.ping()

    async def lock(self, key, lease, wait, renewed):
        # Without a renewal, the library does not wait for longer than a lease: it is called again.
        end = time.monotonic() + wait
        lock = redis_lock.Lock(self.client, key, expire=max(1, int(lease)), auto_renewal=renewed)
        while (left := end - time.monotonic()) > 0:
            if lock.acquire(timeout=max(1, min(int(left), int(lease)))):
                return lock
        return None

    async def unlock(self, lock):
        lock.release()

    async def sleep(self, seconds):
        time.sleep(seconds)

    def wait_for(self, tasks):
        """Runs all coroutines concurrently, each in a thread, and returns their results."""
        tasks = list(tasks)
        if len(tasks) == 1:
            return [ran(tasks[0])]
        done, errors = [None] * len(tasks), []

        def run(number, task):
            try:
                done[number] = ran(task)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=each) for each in enumerate(tasks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return done


class Powertools:
    """Calls of a function that runs once per key."""

    def __init__(self, server):
        from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
        from aws_lambda_powertools.utilities.idempotency.exceptions import IdempotencyAlreadyInProgressError
        from aws_lambda_powertools.utilities.idempotency.persistence.cache import CachePersistenceLayer

        host, port = server.rsplit(":", 1)
        client = redis.Redis(host=host, port=int(port), max_connections=1 << 16, decode_responses=True)
        client.ping()
        store = CachePersistenceLayer(client=client)
        self.in_progress = IdempotencyAlreadyInProgressError
        self.bodies = threading.local()

        @idempotent_function(data_keyword_argument="key", persistence_store=store, config=IdempotencyConfig())
        def charge(key, seconds):
            self.bodies.ran = True
            if seconds:
                time.sleep(seconds)
            return "paid"

        self.charge = charge

    def call(self, key, seconds=0.0):
        """Returns 0 if the body ran, 1 if the result is that of another call, and 2 if one runs."""
        self.bodies.ran = False
        try:
            self.charge(key=key, seconds=seconds)
        except self.in_progress:
            return 2
        return 0 if self.bodies.ran else 1


class Caller:
    """The orders of idempotent calls."""

    ORDERS = {"first", "replay", "duplicate", "usage"}

    def __init__(self, library):
        self.library = library

    def first(self, name, count):
        return self.one_by_one(f"{name}:{number}" for number in range(int(count)))

    def replay(self, name, count):
        return self.one_by_one(f"{name}:0" for _ in range(int(count)))

    def one_by_one(self, keys):
        begun, ends = time.monotonic_ns(), [0, 0, 0]
        for key in keys:
            ends[self.library.call(key)] += 1
        return called(ends, begun)

    def duplicate(self, name, count, body_micros):
        seconds, ends, guard = int(body_micros) / 1e6, [0, 0, 0], threading.Lock()
        begun = time.monotonic_ns()

        def run():
            end = self.library.call(name, seconds)
            with guard:
                ends[end] += 1

        threads = [threading.Thread(target=run) for _ in range(int(count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if sum(ends) < int(count):
            raise RuntimeError(f"{int(count) - sum(ends)} calls failed")
        return called(ends, begun)

    def usage(self):
        return f"usage {time.process_time_ns()}"


def called(ends, begun):
    ran, replayed, refused = ends
    return f"called {ran} {replayed} {refused} {time.monotonic_ns() - begun}"


def ran(coroutine):
    """Runs a coroutine that blocks its thread instead of awaiting."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("the coroutine awaited instead of blocking its thread")


class Contender:
    ORDERS = {"pairs", "enter", "take", "free", "hold", "release", "lose", "usage"}

    def __init__(self, library):
        self.library, self.taken, self.held = library, None, []

    async def locked(self, key, lease, wait, renewed=False):
        lock = await self.library.lock(key, lease, wait, renewed)
        if lock is None:
            raise TimeoutError("the wait is over")
        return lock

    def pairs(self, tasks, millis):
        begun, used = time.monotonic_ns(), time.process_time_ns()
        end = begun + int(millis) * 1_000_000

        async def task(number):
            count = 0
            while time.monotonic_ns() < end:
                lock = await self.locked(f"bench:{number}", LEASE, ENTER_WAIT)
                await self.library.unlock(lock)
                count += 1
            return count

        count = sum(self.library.wait_for(task(number) for number in range(int(tasks))))
        return f"pairs {count} {time.monotonic_ns() - begun} {time.process_time_ns() - used}"

    def enter(self, key, tasks, body_micros, start, end, file):
        start, end, body = int(start), int(end), int(body_micros) / 1e6

        async def task(number):
            notes = []
            await self.library.sleep(max(0, start - time.monotonic_ns()) / 1e9)
            while (asked := time.monotonic_ns()) < end:
                lock = await self.library.lock(key, LEASE, ENTER_WAIT, False)
                if lock is None:
                    continue
                entered = time.monotonic_ns()
                if body:
                    await self.library.sleep(body)
                notes.append(pack("<QQQQ", entered, asked, number, time.monotonic_ns()))
                await self.library.unlock(lock)
            return notes

        notes = self.library.wait_for(task(number) for number in range(int(tasks)))
        with open(file, "wb") as log:
            log.write(b"".join(note for of_task in notes for note in of_task))
        return f"entered {sum(map(len, notes))}"

    def take(self, key):
        async def task():
            lock = await self.locked(key, LEASE, TAKE_WAIT)
            return time.monotonic_ns(), lock

        [(inside, self.taken)] = self.library.wait_for([task()])
        return f"taken {inside}"

    def free(self):
        async def task():
            leaving = time.monotonic_ns()
            await self.library.unlock(self.taken)
            return leaving

        [leaving] = self.library.wait_for([task()])
        return f"freed {leaving}"

    def hold(self, count, lease_millis):
        async def task(first):
            locks = []
            for number in range(first, int(count), BATCH):
                locks.append(await self.locked(f"held:{number}", int(lease_millis) / 1000, TAKE_WAIT, renewed=True))
            return locks

        held = self.library.wait_for(task(first) for first in range(min(BATCH, int(count))))
        self.held = [lock for locks in held for lock in locks]
        return "holding"

    def release(self):
        async def task(locks):
            for lock in locks:
                try:
                    await self.library.unlock(lock)
                except (redis.exceptions.LockError, redis_lock.NotAcquired):
                    pass  # a lock that is not renewed may have expired

        self.library.wait_for(task(self.held[first::BATCH]) for first in range(min(BATCH, len(self.held))))
        self.held = []
        return "released"

    def lose(self, _key, _lease):
        raise Cannot("it does not report a loss")

    def usage(self):
        return f"usage {time.process_time_ns()}"


def answer(contender, line):
    order, *words = line.split()
    if order == "enter":
        words[5:] = [line.split(" ", 6)[6].rstrip("\n")]
    try:
        if order not in contender.ORDERS:
            raise Cannot(f"`{order}` is not known")
        said = getattr(contender, order)(*words)
    except Cannot as why:
        said = f"cannot {why}"
    except Exception as error:
        said = f"failed {type(error).__name__} {error}".replace("\n", " ")
    print(said, flush=True)


def main():
    name, *servers = sys.argv[1:]
    if len(servers) > 1:
        return print("cannot it has no Redlock", flush=True)
    if name == "aws-lambda-powertools":
        contender = Caller(Powertools(servers[0]))
    else:
        contender = Contender({"redis-py": RedisPy, "python-redis-lock": PythonRedisLock}[name](servers[0]))
    print("ready", flush=True)
    for line in sys.stdin:
        answer(contender, line)


main()
