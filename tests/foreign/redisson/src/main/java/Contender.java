import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Runs Redisson as a contender of {@code ./dev bench contention}: {@code contend ADDRESS THREADS}. It reads and writes
 * the lines of bench/src/contention/line.rs.
 */
public final class Contender {
    private static final int PERMITS = 8;

    private Contender() {
    }

    public static void main(String[] args) throws Exception {
        int threads = Integer.parseInt(args[2]);
        Config config = new Config();
        // Several JVMs share few cores.
        config.setThreads(2).setNettyThreads(2);
        config.useSingleServer().setAddress(args[1]).setDnsMonitoringInterval(-1);
        RedissonClient redisson = Redisson.create(config);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        // On Linux and macOS this clock is the one that all processes share.
        System.out.println("ready " + System.nanoTime());
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            contend(redisson, pool, threads, line.split(" "));
        }
        // The bench has gone. Nothing is released, and nothing is waited for.
        Runtime.getRuntime().halt(0);
    }

    private static void contend(RedissonClient redisson, ExecutorService pool, int threads, String[] order)
            throws Exception {
        String[] keys = order[0].split(",");
        long begin = Long.parseLong(order[1]);
        long end = Long.parseLong(order[2]);
        long hold = TimeUnit.MICROSECONDS.toNanos(Long.parseLong(order[3]));
        List<Future<StringBuilder>> said = new ArrayList<>();
        String mix = order.length > 4 ? order[4] : "";
        for (int task = 0; task < threads; task++) {
            String key = keys[task % keys.length];
            RReadWriteLock both = redisson.getReadWriteLock(key);
            RLock lock = switch (mix) {
                case "" -> redisson.getLock(key);
                case "in-turn" -> redisson.getFairLock(key);
                default -> both.writeLock();
            };
            RPermitExpirableSemaphore permits = redisson.getPermitExpirableSemaphore(key);
            if (mix.equals("permits")) {
                permits.trySetPermits(PERMITS);
            }
            int name = task;
            Callable<StringBuilder> contender = () -> {
                sleepUntil(begin);
                return contend(lock, both.readLock(), permits, mix, name, end, hold);
            };
            said.add(pool.submit(contender));
        }
        StringBuilder all = new StringBuilder();
        for (Future<StringBuilder> one : said) {
            all.append(one.get());
        }
        System.out.print(all.append("over\n"));
        System.out.flush();
    }

    private static StringBuilder contend(
            RLock write, RLock read, RPermitExpirableSemaphore permits, String mix, int task, long end, long hold)
            throws InterruptedException {
        StringBuilder said = new StringBuilder();
        int visit = 0;
        for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
            boolean writes = writes(mix, task, visit++);
            String role = writes ? "" : " read";
            RLock lock = writes ? write : read;
            long wait = Math.max(1, (end - asked) / 1_000_000);
            // These have no watchdog.
            String permit = mix.equals("permits") ? permits.tryAcquire(wait, 30_000, TimeUnit.MILLISECONDS) : null;
            if (permit == null && (mix.equals("permits") || !lock.tryLock(wait, TimeUnit.MILLISECONDS))) {
                return say(said, task, asked, 0, 0, role);
            }
            long entered = System.nanoTime();
            sleepUntil(entered + hold);
            long left = System.nanoTime();
            if (permit == null) {
                lock.unlock();
            } else {
                permits.release(permit);
            }
            say(said, task, asked, entered, left, role);
            if (writes && mix.equals("one-writer")) {
                sleepUntil(System.nanoTime() + 10_000_000);
            }
        }
        return said;
    }

    private static boolean writes(String mix, int task, int visit) {
        return switch (mix) {
            case "reads", "permits" -> false;
            case "one-writer" -> task == 0;
            case "few-writes" -> (task * 7 + visit) % 20 == 19;
            default -> true;
        };
    }

    private static StringBuilder say(
            StringBuilder said, int task, long asked, long entered, long left, String role) {
        return said.append(String.format("%d %d %d %d%s%n", task, asked, entered, left, role));
    }

    private static void sleepUntil(long time) {
        for (long left = time - System.nanoTime(); left > 0; left = time - System.nanoTime()) {
            LockSupport.parkNanos(left);
        }
    }
}
