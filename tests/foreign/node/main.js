// Contends with node-redlock for a lock: URL KEY RECORD NAME ROUNDS. See ../../foreign.rs.
"use strict";

const { setTimeout: sleep } = require("node:timers/promises");
const Redis = require("ioredis");
const { default: Redlock, ExecutionError } = require("redlock");

const [url, key, record, name, rounds] = process.argv.slice(2);

// After its eleven tries it gives up; here it goes on.
async function acquire(redlock) {
  for (;;) {
    try {
      return await redlock.acquire([key], 10_000);
    } catch (error) {
      if (!(error instanceof ExecutionError)) throw error;
    }
  }
}

async function main() {
  const client = new Redis(url);
  const redlock = new Redlock([client]);
  for (let round = 0; round < Number(rounds); round++) {
    const lock = await acquire(redlock);
    await client.rpush(record, `enter ${name}`);
    await sleep(Math.random() * 3);
    await client.rpush(record, `leave ${name}`);
    // It throws if the lock is not ours any more.
    await lock.release();
    await sleep(Math.random() * 30);
  }
  await client.quit();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
