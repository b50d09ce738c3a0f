import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

import org.redisson.Redisson;
import org.redisson.api.RBucket;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;
import org.redisson.config.BaseConfig;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.Config;
import org.redisson.config.SingleServerConfig;

/**
 * Runs the lock commands of tests/support/redisson.rs, which describes them, with Redisson.
 *
 * <p>Each client is a separate connected Redisson, like that of another process. Each of its threads
 * is a Java thread, because threads own Redisson's locks, and runs its commands in order.
 */
public final class Driver {
    private final Map<String, RedissonClient> clients = new ConcurrentHashMap<>();
    private final Map<String, ExecutorService> threads = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        var driver = new Driver();
        var input = new BufferedReader(new InputStreamReader(System.in));
        say("ready", "-", "");
        for (String line; (line = input.readLine()) != null; ) {
            driver.obey(line.split(" "));
        }
        System.exit(0); // the threads of a waiting client would keep running
    }

    /** Runs the command on the thread that its first word names. */
    private void obey(String[] words) {
        String thread = words[0];
        threads.computeIfAbsent(thread, name -> Executors.newSingleThreadExecutor()).execute(() -> {
            try {
                say(words[1].equals("connect") ? connect(words) : act(words), thread);
            } catch (Exception error) {
                say("failed", thread, error.getClass().getSimpleName() + " " + error.getMessage());
            }
        });
    }

    private String connect(String[] words) {
        var config = new Config();
        config.setThreads(4).setNettyThreads(4).setLockWatchdogTimeout(millis(words[2]));
        String[] addresses = words[5].split(",");
        switch (words[3]) {
            case "single" -> smaller(config.useSingleServer().setAddress(addresses[0]));
            case "sentinel" -> smaller(config.useSentinelServers().setMasterName(words[4]).addSentinelAddress(addresses));
            case "cluster" -> smaller(config.useClusterServers().addNodeAddress(addresses).setScanInterval(500));
            default -> throw new IllegalArgumentException(words[3]);
        }
        clients.put(client(words[0]), Redisson.create(config));
        return "connected";
    }

    private String act(String[] words) throws InterruptedException {
        if (words[1].equals("close")) {
            clients.remove(client(words[0])).shutdown();
            return "closed";
        }
        RedissonClient redisson = clients.get(client(words[0]));
        String key = words[2];
        RLock lock = redisson.getLock(key);
        switch (words[1]) {
            case "lock" -> {
                lock(lock, millis(words[3]));
                return "acquired";
            }
            case "trylock" -> {
                boolean taken = lock.tryLock(millis(words[3]), lease(words[4]), TimeUnit.MILLISECONDS);
                return taken ? "acquired" : "refused";
            }
            case "unlock" -> {
                lock.unlock();
                return "released";
            }
            case "write" -> {
                redisson.getReadWriteLock(key).writeLock().lock();
                return "acquired";
            }
            case "fence" -> {
                RFencedLock fenced = redisson.getFencedLock(key);
                return "token " + fenced.lockAndGetToken();
            }
            case "state" -> {
                return "state " + lock.isLocked() + " " + lock.getHoldCount() + " " + lock.remainTimeToLive();
            }
            case "count" -> {
                return "counted " + count(redisson, lock, words[3], millis(words[4]));
            }
            default -> throw new IllegalArgumentException(words[1]);
        }
    }

    /** Increments a counter for a time, not atomically, and returns how often. */
    private static long count(RedissonClient redisson, RLock lock, String counter, long millis) {
        RBucket<String> bucket = redisson.getBucket(counter, StringCodec.INSTANCE);
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(millis);
        long counted = 0;
        for (; System.nanoTime() < until; counted++) {
            lock.lock();
            try {
                String value = bucket.get();
                bucket.set(Long.toString((value == null ? 0 : Long.parseLong(value)) + 1));
            } finally {
                lock.unlock();
            }
        }
        return counted;
    }

    private static void lock(RLock lock, long lease) {
        if (lease == 0) {
            lock.lock(); // kept alive by the watchdog
        } else {
            lock.lock(lease, TimeUnit.MILLISECONDS);
        }
    }

    /** Limits the connections: the defaults of Redisson open dozens at once. */
    private static void smaller(SingleServerConfig config) {
        patient(config.setConnectionPoolSize(16).setConnectionMinimumIdleSize(1).setSubscriptionConnectionMinimumIdleSize(1));
    }

    private static void smaller(BaseMasterSlaveServersConfig<?> config) {
        config.setMasterConnectionPoolSize(16).setMasterConnectionMinimumIdleSize(1);
        config.setSlaveConnectionPoolSize(16).setSlaveConnectionMinimumIdleSize(1);
        patient(config.setSubscriptionConnectionMinimumIdleSize(1));
    }

    private static void patient(BaseConfig<?> config) {
        config.setTimeout(3000).setRetryAttempts(3);
    }

    private static long lease(String word) {
        return word.equals("0") ? -1 : millis(word);
    }

    private static long millis(String word) {
        return Long.parseLong(word);
    }

    /** Returns the client of a thread: the part before the slash. */
    private static String client(String thread) {
        return thread.substring(0, thread.indexOf('/'));
    }

    private static void say(String event, String thread) {
        String[] parts = event.split(" ", 2);
        say(parts[0], thread, parts.length > 1 ? parts[1] : "");
    }

    private static synchronized void say(String event, String thread, String detail) {
        System.out.println(event + " " + thread + " " + detail.replace('\n', ' '));
        System.out.flush();
    }
}
