// Node's locks as contenders of the benchmarks: node-redlock, and redlock-universal.
//
//     rivals.js redlock|redlock-universal HOST:PORT..
//
// benches/peer/src/lib.rs defines the protocol. A task is an asynchronous function. Both libraries
// use ioredis with its defaults, with one connection for all tasks, and await each release. (Its
// automatic pipelining takes twice the processor time for one task, a third more for 1,024, and the
// same for 64, because all writes of one iteration of the event loop are sent together anyway.)
// Several servers are their Redlock.
//
// redlock: polls every 100 to 300 ms, its default; the retry count is so large that a wait ends by
// its time, not by the default of 10. redlock-universal: polls every 100 ms (Redlock: 200), its
// default; the mode `lean`, its fastest.
//
// `hold` and `lose` lock by `using`, which renews a lock shortly before it expires and signals its
// routine when that fails. `pairs` and `enter` acquire and release directly, which saves a timer
// per lock.

import { createInterface } from "node:readline";
import { writeFileSync } from "node:fs";
import Redis from "ioredis";
import Redlock from "redlock";
import { IoredisAdapter, createLock, createRedlock } from "redlock-universal";

const LEASE = 30_000; // ms
const ENTER_WAIT = 10_000; // ms
const TAKE_WAIT = 30_000; // ms
const BATCH = 64; // the number of locks that are acquired at a time

const now = () => process.hrtime.bigint();
const used = () => {
  const { user, system } = process.cpuUsage();
  return (user + system) * 1000;
};
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const range = (count) => Array.from({ length: count }, (_, number) => number);

class Cannot extends Error {}

// Each creates, from its clients, a function that locks and returns how to unlock, and one that
// locks while a routine runs.
const libraries = {
  redlock(clients) {
    const redlock = new Redlock(clients);
    const within = (wait) => ({ retryCount: Math.ceil(wait / redlock.settings.retryDelay) });
    return {
      async lock(key, lease, wait) {
        const lock = await redlock.acquire([key], lease, within(wait));
        return () => lock.release();
      },
      using: (key, lease, routine) => redlock.using([key], lease, within(TAKE_WAIT), routine),
    };
  },
  "redlock-universal"(clients) {
    const adapters = clients.map((client) => new IoredisAdapter(client));
    const [adapter] = adapters;
    const single = adapters.length === 1;
    const made = (key, ttl, wait) =>
      single
        ? createLock({ adapter, key, ttl, retryAttempts: Math.ceil(wait / 100), performance: "lean" })
        : createRedlock({ adapters, key, ttl, retryAttempts: Math.ceil(wait / 200) });
    return {
      async lock(key, lease, wait) {
        const lock = made(key, lease, wait);
        const handle = await lock.acquire();
        return async () => {
          const done = await lock.release(handle);
          if (!done) throw new Error("the lock was not ours any more");
        };
      },
      using: (key, lease, routine) => made(key, lease, TAKE_WAIT).using(routine),
    };
  },
};

// Locks while a routine runs. Returns, once the lock is held, how to unlock, and the signal of a
// loss.
function kept(library, key, lease) {
  return new Promise((inside, failed) => {
    const done = library.using(key, lease, (signal) => {
      return new Promise((leave) => {
        const unlock = () => {
          leave();
          return done;
        };
        inside({ unlock, signal });
      });
    });
    done.catch(failed);
  });
}

let library;
let taken;
let held = [];

const orders = {
  async pairs(tasks, millis) {
    const begun = now();
    const usedBefore = used();
    const end = begun + BigInt(millis) * 1_000_000n;
    const counts = await Promise.all(
      range(Number(tasks)).map(async (task) => {
        let count = 0;
        for (const key = `bench:${task}`; now() < end; count += 1) {
          const unlock = await library.lock(key, LEASE, ENTER_WAIT);
          await unlock();
        }
        return count;
      }),
    );
    const count = counts.reduce((sum, count) => sum + count, 0);
    return `pairs ${count} ${now() - begun} ${used() - usedBefore}`;
  },

  async enter(key, tasks, bodyMicros, start, end, ...file) {
    const body = Number(bodyMicros) / 1000;
    const notes = [];
    await sleep(Math.max(0, Number(BigInt(start) - now()) / 1e6));
    await Promise.all(
      range(Number(tasks)).map(async (task) => {
        for (let asked; (asked = now()) < BigInt(end); ) {
          const unlock = await library.lock(key, LEASE, ENTER_WAIT);
          const entered = now();
          if (body > 0) await sleep(body);
          notes.push(entered, asked, BigInt(task), now());
          await unlock();
        }
      }),
    );
    writeFileSync(file.join(" "), new Uint8Array(BigUint64Array.from(notes).buffer));
    return `entered ${notes.length / 4}`;
  },

  async take(key) {
    taken = await library.lock(key, LEASE, TAKE_WAIT);
    return `taken ${now()}`;
  },

  async free() {
    const leaving = now();
    await taken();
    return `freed ${leaving}`;
  },

  async hold(count, lease) {
    for (let first = 0; first < Number(count); first += BATCH) {
      const ids = range(Math.min(BATCH, Number(count) - first));
      held.push(...(await Promise.all(ids.map((id) => kept(library, `held:${first + id}`, Number(lease))))));
    }
    return "holding";
  },

  async release() {
    while (held.length > 0) {
      await Promise.all(held.splice(-BATCH).map(({ unlock }) => unlock()));
    }
    return "released";
  },

  async lose(key, lease) {
    const { signal, unlock } = await kept(library, key, Number(lease));
    signal.addEventListener("abort", () => {
      console.log(`lost ${now()}`);
      unlock().catch(() => {}); // the lock is already lost
    });
    return "watching";
  },

  async usage() {
    return `usage ${used()}`;
  },
};

async function answer(order, ...words) {
  if (!Object.hasOwn(orders, order)) throw new Cannot(`unknown order \`${order}\``);
  return orders[order](...words);
}

function refused(error) {
  return `${error instanceof Cannot ? "cannot" : "failed"} ${error.message.replaceAll("\n", " ")}`;
}

const [name, ...servers] = process.argv.slice(2);
const clients = servers.map((server) => {
  const [host, port] = server.split(":");
  return new Redis({ host, port: Number(port) });
});
await Promise.all(clients.map((client) => client.ping()));
library = libraries[name](clients);
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  console.log(await answer(...line.split(" ")).catch(refused));
}
process.exit(0); // held locks keep renewing themselves
