import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

public final class Orders {
    public static void main(String[] args) {
        Config config = new Config();
        config.setLockWatchdogTimeout(30_000); // the lease: the same on both sides
        config.useSingleServer().setAddress(System.getenv("REDIS_URL"));
        RedissonClient redisson = Redisson.create(config);
        RFencedLock orders = redisson.getFencedLock("orders:42");
        for (int i = 0; i < 5; i++) {
            Long fence = orders.lockAndGetToken(); // waits for the unlock message
            try {
                System.out.println("java: charged under fence " + fence);
            } finally {
                orders.unlock();
            }
        }
        redisson.shutdown();
    }
}
