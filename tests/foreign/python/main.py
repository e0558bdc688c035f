"""Contends with redis-py for a lock: URL KEY RECORD NAME ROUNDS. See ../../foreign.rs.

Or for the bench: contend URL 1, with the lines of ../../../bench/src/contention/line.rs.
"""

import random
import sys
import time

import redis


def share(url, key, record, name, rounds):
    client = redis.Redis.from_url(url)
    for _ in range(int(rounds)):
        lock = client.lock(key, timeout=10)
        lock.acquire()
        client.rpush(record, f"enter {name}")
        time.sleep(random.uniform(0, 0.003))
        client.rpush(record, f"leave {name}")
        # It raises if the lock is not ours any more.
        lock.release()
        time.sleep(random.uniform(0, 0.030))


def contend(url):
    client = redis.Redis.from_url(url)
    client.ping()
    print("ready", time.monotonic_ns(), flush=True)
    for line in sys.stdin:
        keys, begin, end, hold_us = line.split()
        lock = client.lock(keys.split(",")[0], timeout=10)
        time.sleep(max(0, int(begin) - time.monotonic_ns()) / 1e9)
        while (asked := time.monotonic_ns()) < int(end):
            if not lock.acquire(blocking_timeout=(int(end) - asked) / 1e9):
                print(0, asked, 0, 0)
                break
            entered = time.monotonic_ns()
            time.sleep(int(hold_us) / 1e6)
            left = time.monotonic_ns()
            lock.release()
            print(0, asked, entered, left)
        print("over", flush=True)


if sys.argv[1] == "contend":
    contend(sys.argv[2])
else:
    share(*sys.argv[1:])
