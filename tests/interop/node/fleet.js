// Two clients that use SET NX: node-redlock and redlock-universal, driven by text lines. See
// tests/support/fleet.rs.

import { createInterface } from "node:readline";
import Redis from "ioredis";
import Redlock from "redlock";
import { IoredisAdapter, createLock } from "redlock-universal";

const REST = 30; // ms after a hold: pollers that do not pause starve each other
const [library, url] = process.argv.slice(2);
const redis = new Redis(url);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Each function acquires a lock within `patience` ms, with the retry delay of the library, and
// returns functions that extend and release it.
const libraries = {
  async redlock(name, lease, patience) {
    const redlock = new Redlock([redis]);
    const { retryDelay } = redlock.settings;
    const once = { retryCount: 0 };
    let lock = await redlock.acquire([name], lease, { retryCount: Math.floor(patience / retryDelay) });
    return {
      extend: async () => (lock = await redlock.extend(lock, lease, once)),
      release: () => redlock.release(lock, once),
    };
  },
  async "redlock-universal"(name, lease, patience) {
    const adapter = new IoredisAdapter(redis);
    const retryDelay = createLock({ adapter, key: name, ttl: lease }).getConfig().retryDelay;
    const retryAttempts = Math.floor(patience / retryDelay);
    const lock = createLock({ adapter, key: name, ttl: lease, retryAttempts });
    const handle = await lock.acquire();
    const done = (done) => {
      if (!done) throw new Error("not the owner");
    };
    return {
      extend: async () => done(await lock.extend(handle, lease)),
      release: async () => done(await lock.release(handle)),
    };
  },
};
const take = libraries[library];
const FOR_EVER = 24 * 3600 * 1000;
let held;

async function soak(name, counter, seconds, hold, lease) {
  const end = Date.now() + seconds * 1000;
  let count = 0;
  while (Date.now() < end) {
    const lock = await take(name, lease, end - Date.now()).catch(() => undefined);
    if (!lock) continue;
    const seen = Number(await redis.get(counter));
    await sleep(hold);
    await redis.set(counter, seen + 1);
    await lock.release();
    count += 1;
    await sleep(REST);
  }
  return `done ${count}`;
}

async function answer(word, name, ...rest) {
  switch (word) {
    case "lock":
      held = await take(name, Number(rest[0]), FOR_EVER);
      return "locked";
    case "try": {
      const wanted = await take(name, Number(rest[0]), 0).catch(() => undefined);
      held = wanted ?? held;
      return wanted ? "locked" : "taken";
    }
    case "extend":
      await held.extend();
      return "extended";
    case "unlock":
      await held.release();
      return "unlocked";
    case "soak":
      return soak(name, rest[0], ...rest.slice(1).map(Number));
  }
}

await redis.ping();
console.log("ready");
for await (const line of createInterface({ input: process.stdin })) {
  if (line === "quit") break;
  console.log(await answer(...line.split(" ")).catch((error) => `failed ${error.message}`));
}
redis.disconnect();
