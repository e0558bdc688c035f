"""Contends with redis-py for a lock: URL KEY RECORD NAME ROUNDS. See ../../foreign.rs."""

import random
import sys
import time

import redis

url, key, record, name, rounds = sys.argv[1:]
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
