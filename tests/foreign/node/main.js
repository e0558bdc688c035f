// Contends with node-redlock for a lock: URL KEY RECORD NAME ROUNDS. See ../../foreign.rs.
// Or for the bench: contend URL 1, with the lines of ../../../bench/src/contention/line.rs.
"use strict";

const readline = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");
const Redis = require("ioredis");
const { default: Redlock, ExecutionError } = require("redlock");

const now = () => Number(process.hrtime.bigint());

// After its eleven tries it gives up; here it goes on, until this time.
async function acquire(redlock, key, end = Infinity) {
  for (;;) {
    try {
      return await redlock.acquire([key], 10_000);
    } catch (error) {
      if (!(error instanceof ExecutionError)) throw error;
      if (now() >= end) return null;
    }
  }
}

async function share(url, key, record, name, rounds) {
  const client = new Redis(url);
  const redlock = new Redlock([client]);
  for (let round = 0; round < Number(rounds); round++) {
    const lock = await acquire(redlock, key);
    await client.rpush(record, `enter ${name}`);
    await sleep(Math.random() * 3);
    await client.rpush(record, `leave ${name}`);
    // It throws if the lock is not ours any more.
    await lock.release();
    await sleep(Math.random() * 30);
  }
  await client.quit();
}

async function contend(url) {
  const client = new Redis(url);
  await client.ping();
  const redlock = new Redlock([client]);
  console.log(`ready ${now()}`);
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [keys, ...times] = line.split(" ");
    const [begin, end, holdUs] = times.map(Number);
    await sleep(Math.max(0, begin - now()) / 1e6);
    for (let asked = now(); asked < end; asked = now()) {
      const lock = await acquire(redlock, keys.split(",")[0], end);
      if (lock === null) {
        console.log(`0 ${asked} 0 0`);
        break;
      }
      const entered = now();
      if (holdUs > 0) await sleep(holdUs / 1e3);
      const left = now();
      await lock.release();
      console.log(`0 ${asked} ${entered} ${left}`);
    }
    console.log("over");
  }
  await client.quit();
}

const [word, ...rest] = process.argv.slice(2);
(word === "contend" ? contend(...rest) : share(word, ...rest)).catch((error) => {
  console.error(error);
  process.exit(1);
});
