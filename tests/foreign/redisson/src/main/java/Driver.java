import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.redisson.Redisson;
import org.redisson.RedissonRedLock;
import org.redisson.api.RBucket;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RList;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RTransaction;
import org.redisson.api.RedissonClient;
import org.redisson.api.TransactionOptions;
import org.redisson.client.codec.LongCodec;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.Config;

/**
 * Runs Redisson's locks as lines on stdin say: {@code NUMBER THREAD VERB WORDS...}. When a line is done, it is
 * answered on stdout by {@code NUMBER ok WORD} or {@code NUMBER error EXCEPTION}. The lines of one thread are run in
 * order by one Java thread, which is the owner of its locks. Times are in milliseconds.
 *
 * <pre>
 * connect CLIENT single|cluster ADDRESS[,ADDRESS] WATCHDOG   a client with this lockWatchdogTimeout; answers its id
 * shutdown CLIENT
 * transaction CLIENT BUCKET                                  begins a transaction, and changes this bucket in it
 * rollback
 * permits CLIENT KEY set N|expire LIFETIME|acquire LEASE|acquiremany N LEASE|try LEASE|release ID|free
 *                                                            a semaphore whose permits have leases
 * semaphore CLIENT KEY set N|expire LIFETIME|acquire N|try|release N|free
 *                                                            one whose permits have none
 * latch CLIENT KEY set N|count|left|await|delete             a latch
 * asleep THREAD                                              answers whether this thread waits for an unlock message
 * VERB KIND CLIENT[,CLIENT] KEY ...                          for the lock of this name, or one over several clients:
 *   lock [LEASE]        without a lease the watchdog renews it
 *   try [WAIT]          answers whether it was taken
 *   unlock
 *   force               answers whether it was held
 *   held                answers whether this thread holds it
 *   count               answers this thread's hold count
 *   locked              answers whether anybody holds it
 *   token               locks a "fenced" lock; answers the token
 *   visit RECORD COUNTER NAME LIMIT PAUSE
 *                       locks and unlocks until the counter is at this limit, with random pauses up to this one;
 *                       answers how often
 * </pre>
 *
 * Kinds: plain, fenced, fair, spin, read, write; multi and red, of a plain lock for each client; multifenced, of a
 * fenced lock for each client.
 */
public final class Driver {
    private static final Map<String, ExecutorService> THREADS = new ConcurrentHashMap<>();
    /** The Java thread of each name. */
    private static final Map<String, Thread> JAVA_THREADS = new ConcurrentHashMap<>();
    private static final Map<String, RedissonClient> CLIENTS = new ConcurrentHashMap<>();
    /** Lock objects are kept, as programs keep them: they remember their leases. */
    private static final Map<String, RLock> LOCKS = new ConcurrentHashMap<>();
    /** The transaction of each thread. */
    private static final ThreadLocal<RTransaction> TRANSACTION = new ThreadLocal<>();
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private Driver() {
    }

    public static void main(String[] args) throws IOException {
        answer("0 ok " + ProcessHandle.current().pid());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            String[] rest = Arrays.copyOfRange(words, 3, words.length);
            ExecutorService thread = THREADS.computeIfAbsent(words[1], Driver::thread);
            thread.execute(() -> {
                String said;
                try {
                    said = "ok " + run(words[2], rest);
                } catch (Throwable e) {
                    said = "error " + e.toString().replaceAll("\\s+", " ");
                }
                answer(words[0] + " " + said);
            });
        }
        // The test has gone. Nothing is released, and no client is waited for.
        Runtime.getRuntime().halt(0);
    }

    private static ExecutorService thread(String name) {
        return Executors.newSingleThreadExecutor(lines -> {
            Thread thread = new Thread(lines, name);
            JAVA_THREADS.put(name, thread);
            return thread;
        });
    }

    /** Redisson's waiters sleep on a semaphore, which the message releases. */
    private static boolean isAsleep(Thread thread) {
        List<String> classes = Arrays.stream(thread.getStackTrace()).map(StackTraceElement::getClassName).toList();
        return classes.contains(LockSupport.class.getName()) && classes.contains(Semaphore.class.getName());
    }

    private static synchronized void answer(String line) {
        OUT.print(line + "\n");
        OUT.flush();
    }

    private static Object run(String verb, String[] words) throws Exception {
        switch (verb) {
            case "connect":
                return connect(words[0], words[1], words[2].split(","), Long.parseLong(words[3]));
            case "shutdown":
                LOCKS.keySet().removeIf(name -> Arrays.asList(name.split(" ")[1].split(",")).contains(words[0]));
                CLIENTS.remove(words[0]).shutdown(0, 1, TimeUnit.SECONDS);
                return "";
            case "transaction":
                TRANSACTION.set(CLIENTS.get(words[0]).createTransaction(TransactionOptions.defaults()));
                TRANSACTION.get().getBucket(words[1]).set("changed");
                return "";
            case "rollback":
                TRANSACTION.get().rollback();
                return "";
            case "permits":
                return permits(CLIENTS.get(words[0]), words[1], words[2], Arrays.copyOfRange(words, 3, words.length));
            case "semaphore":
                return semaphore(CLIENTS.get(words[0]), words[1], words[2], Arrays.copyOfRange(words, 3, words.length));
            case "latch":
                return latch(CLIENTS.get(words[0]), words[1], words[2], Arrays.copyOfRange(words, 3, words.length));
            case "asleep":
                return isAsleep(JAVA_THREADS.get(words[0]));
            default:
                String name = words[0] + " " + words[1] + " " + words[2];
                RLock lock = LOCKS.computeIfAbsent(name, n -> lock(words[0], words[1].split(","), words[2]));
                return run(verb, lock, words);
        }
    }

    private static String connect(String client, String mode, String[] addresses, long watchdog) {
        Config config = new Config();
        // Many clients in one process, on few cores.
        config.setLockWatchdogTimeout(watchdog).setThreads(2).setNettyThreads(2);
        switch (mode) {
            case "single":
                config.useSingleServer()
                    .setAddress(addresses[0])
                    .setConnectionMinimumIdleSize(1)
                    .setConnectionPoolSize(8)
                    .setDnsMonitoringInterval(-1);
                break;
            case "cluster":
                config.useClusterServers()
                    .addNodeAddress(addresses)
                    .setMasterConnectionMinimumIdleSize(1)
                    .setSlaveConnectionMinimumIdleSize(1)
                    .setMasterConnectionPoolSize(8)
                    .setDnsMonitoringInterval(-1);
                break;
            default:
                throw new IllegalArgumentException(mode);
        }
        RedissonClient redisson = Redisson.create(config);
        CLIENTS.put(client, redisson);
        return redisson.getId();
    }

    private static Object permits(RedissonClient client, String key, String verb, String[] rest) throws Exception {
        RPermitExpirableSemaphore semaphore = client.getPermitExpirableSemaphore(key);
        switch (verb) {
            case "set":
                return semaphore.trySetPermits(Integer.parseInt(rest[0]));
            case "expire":
                return semaphore.expire(java.time.Duration.ofMillis(Long.parseLong(rest[0])));
            case "acquire":
                return semaphore.acquire(Long.parseLong(rest[0]), TimeUnit.MILLISECONDS);
            case "acquiremany":
                int many = Integer.parseInt(rest[0]);
                return String.join(",", semaphore.acquire(many, Long.parseLong(rest[1]), TimeUnit.MILLISECONDS));
            case "try":
                return String.valueOf(semaphore.tryAcquire(0, Long.parseLong(rest[0]), TimeUnit.MILLISECONDS));
            case "release":
                return semaphore.tryRelease(rest[0]);
            case "free":
                return semaphore.availablePermits();
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    private static Object semaphore(RedissonClient client, String key, String verb, String[] rest) throws Exception {
        RSemaphore semaphore = client.getSemaphore(key);
        switch (verb) {
            case "set":
                return semaphore.trySetPermits(Integer.parseInt(rest[0]));
            case "expire":
                return semaphore.expire(java.time.Duration.ofMillis(Long.parseLong(rest[0])));
            case "acquire":
                semaphore.acquire(Integer.parseInt(rest[0]));
                return "";
            case "try":
                return semaphore.tryAcquire();
            case "release":
                semaphore.release(Integer.parseInt(rest[0]));
                return "";
            case "free":
                return semaphore.availablePermits();
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    private static Object latch(RedissonClient client, String key, String verb, String[] rest) throws Exception {
        RCountDownLatch latch = client.getCountDownLatch(key);
        switch (verb) {
            case "set":
                return latch.trySetCount(Long.parseLong(rest[0]));
            case "count":
                latch.countDown();
                return "";
            case "left":
                return latch.getCount();
            case "await":
                latch.await();
                return "";
            case "delete":
                return latch.delete();
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    @SuppressWarnings("deprecation")
    private static RLock lock(String kind, String[] clients, String key) {
        RedissonClient client = CLIENTS.get(clients[0]);
        switch (kind) {
            case "plain":
                return client.getLock(key);
            case "fenced":
                return client.getFencedLock(key);
            case "fair":
                return client.getFairLock(key);
            case "spin":
                return client.getSpinLock(key);
            case "read":
                return client.getReadWriteLock(key).readLock();
            case "write":
                return client.getReadWriteLock(key).writeLock();
            case "multi":
                return client.getMultiLock(each(clients, key));
            case "multifenced":
                RLock[] fenced = Arrays.stream(clients).map(name -> lock("fenced", new String[] {name}, key))
                    .toArray(RLock[]::new);
                return client.getMultiLock(fenced);
            case "red":
                return new RedissonRedLock(each(clients, key));
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    private static RLock[] each(String[] clients, String key) {
        return Arrays.stream(clients).map(client -> CLIENTS.get(client).getLock(key)).toArray(RLock[]::new);
    }

    private static Object run(String verb, RLock lock, String[] words) throws Exception {
        switch (verb) {
            case "lock":
                if (words.length == 3) {
                    lock.lock();
                } else {
                    lock.lock(Long.parseLong(words[3]), TimeUnit.MILLISECONDS);
                }
                return "";
            case "try":
                if (words.length == 3) {
                    return lock.tryLock();
                }
                return lock.tryLock(Long.parseLong(words[3]), TimeUnit.MILLISECONDS);
            case "unlock":
                lock.unlock();
                return "";
            case "force":
                return lock.forceUnlock();
            case "held":
                return lock.isHeldByCurrentThread();
            case "count":
                return lock.getHoldCount();
            case "locked":
                return lock.isLocked();
            case "token":
                return ((RFencedLock) lock).lockAndGetToken();
            case "visit":
                return visit(lock, CLIENTS.get(words[1].split(",")[0]), Arrays.copyOfRange(words, 3, words.length));
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    private static int visit(RLock lock, RedissonClient client, String[] words) throws InterruptedException {
        RList<String> record = client.getList(words[0], StringCodec.INSTANCE);
        RBucket<Long> counter = client.getBucket(words[1], LongCodec.INSTANCE);
        String name = words[2];
        long limit = Long.parseLong(words[3]);
        long pause = Long.parseLong(words[4]) * 1000;
        for (int visits = 0;; visits++) {
            lock.lock();
            try {
                // A get and a set: if two holders are inside at once, a count is lost.
                Long count = counter.get();
                if (count != null && count >= limit) {
                    return visits;
                }
                record.add("enter " + name);
                counter.set(count == null ? 1 : count + 1);
                record.add("leave " + name);
            } finally {
                lock.unlock();
            }
            TimeUnit.MICROSECONDS.sleep(ThreadLocalRandom.current().nextLong(pause));
        }
    }
}
