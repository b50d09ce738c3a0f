import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Java's locks as contenders of the benchmarks: Redisson's RLock and RFairLock.
 *
 * <pre>java Rivals redisson|redisson-fair HOST:PORT..</pre>
 *
 * <p>benches/peer/src/lib.rs defines the protocol. Several servers are its RedLock, with one
 * Redisson client per server.
 *
 * <p>A waiter subscribes to the lock's channel, on which a release is published, and checks again
 * after the rest of the lease. Its watchdog renews locks without an explicit lease, every third of
 * the lease. A release is awaited. No loss is reported.
 *
 * <p>A task of {@code enter} is a thread, because locks belong to threads. A task of {@code pairs}
 * uses the asynchronous methods with a number instead of a thread id: a pair takes a fifth to a
 * third less processor time than with one thread per task, and 1,000 tasks do not need 1,000
 * threads. The settings are the defaults, except that the check of replicas is off
 * ({@code checkLockSyncedSlaves}), because there are none. {@code ready} is sent after
 * {@link #WARM_UP} of pairs, so that the first figures are not those of the interpreter.
 */
public final class Rivals {
    private static final long LEASE = 30_000; // ms
    private static final long ENTER_WAIT = 10_000; // ms
    private static final long TAKE_WAIT = 30_000; // ms
    private static final int BATCH = 64; // the number of locks that are acquired at a time
    private static final long WARM_UP = 2_000; // ms

    private final List<String> servers;
    private final boolean fair;
    private List<RedissonClient> clients;
    private long watchdog;
    private RLock taken;
    private final List<RLock> held = new ArrayList<>();

    private Rivals(String name, List<String> servers) {
        this.servers = servers;
        this.fair = name.equals("redisson-fair");
        connect(LEASE);
    }

    public static void main(String[] arguments) throws Exception {
        var input = new BufferedReader(new InputStreamReader(System.in));
        Rivals rivals;
        try {
            rivals = new Rivals(arguments[0], List.of(arguments).subList(1, arguments.length));
            String keys = "warm-up:" + UUID.randomUUID() + ":"; // other contenders may be measured meanwhile
            rivals.pairs(keys, 64, WARM_UP);
        } catch (Exception error) {
            say("failed " + error);
            System.exit(0);
            return;
        }
        say("ready");
        for (String line; (line = input.readLine()) != null; ) {
            String answer;
            try {
                answer = rivals.answer(line.split(" "), line);
            } catch (Exception error) {
                answer = "failed " + error;
            }
            say(answer);
        }
        System.exit(0); // threads of Redisson would keep running
    }

    private String answer(String[] words, String line) throws Exception {
        switch (words[0]) {
            case "pairs":
                return pairs("bench:", Integer.parseInt(words[1]), Long.parseLong(words[2]));
            case "enter":
                String file = line.split(" ", 7)[6];
                return enter(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]), Long.parseLong(words[4]),
                        Long.parseLong(words[5]), file);
            case "take":
                taken = lock(words[1]);
                if (!taken.tryLock(TAKE_WAIT, TimeUnit.MILLISECONDS)) {
                    return "failed the wait is over";
                }
                return "taken " + System.nanoTime();
            case "free":
                long leaving = System.nanoTime();
                taken.unlock();
                return "freed " + leaving;
            case "hold":
                return hold(Integer.parseInt(words[1]), Long.parseLong(words[2]));
            case "release":
                inBatches(held.size(), number -> held.get(number).unlockAsync(number));
                held.clear();
                return "released";
            case "lose":
                return "cannot it does not report a loss";
            case "nest":
                return nest(Integer.parseInt(words[1]));
            case "usage":
                return "usage " + used();
            default:
                return "cannot unknown order `" + line + "`";
        }
    }

    /** Connects to all servers, with a lease that the watchdog renews. */
    private void connect(long lease) {
        if (watchdog == lease) {
            return;
        }
        if (clients != null) {
            clients.forEach(RedissonClient::shutdown);
        }
        watchdog = lease;
        clients = new ArrayList<>();
        for (String server : servers) {
            var config = new Config();
            config.setLockWatchdogTimeout(lease).setCheckLockSyncedSlaves(false);
            config.useSingleServer().setAddress("redis://" + server);
            clients.add(Redisson.create(config));
        }
    }

    @SuppressWarnings("deprecation") // RedLock has no replacement: the multi-lock needs all servers
    private RLock lock(String key) {
        RLock[] locks = clients.stream()
                .map(client -> fair ? client.getFairLock(key) : client.getLock(key))
                .toArray(RLock[]::new);
        return locks.length == 1 ? locks[0] : clients.get(0).getRedLock(locks);
    }

    /** Lets each task lock and unlock a different key for {@code millis}. */
    private String pairs(String keys, int tasks, long millis) throws Exception {
        long begun = System.nanoTime();
        long usedBefore = used();
        long end = begun + TimeUnit.MILLISECONDS.toNanos(millis);
        var count = new AtomicLong();
        all(IntStream.range(0, tasks).mapToObj(task -> pairs(lock(keys + task), task, end, count)));
        long took = System.nanoTime() - begun;
        return "pairs " + count.get() + " " + took + " " + (used() - usedBefore);
    }

    private static CompletionStage<Void> pairs(RLock lock, long task, long end, AtomicLong count) {
        if (System.nanoTime() >= end) {
            return CompletableFuture.completedStage(null);
        }
        return lock.lockAsync(task).thenCompose(locked -> lock.unlockAsync(task)).thenCompose(unlocked -> {
            count.incrementAndGet();
            return pairs(lock, task, end, count);
        });
    }

    /** Lets tasks contend for one key repeatedly, and writes an entry per hold. */
    private String enter(String key, int tasks, long body, long start, long end, String file) throws Exception {
        List<LongStream.Builder> notes = IntStream.range(0, tasks).mapToObj(task -> LongStream.builder()).toList();
        TimeUnit.NANOSECONDS.sleep(start - System.nanoTime());
        inThreads(tasks, task -> {
            RLock lock = lock(key);
            for (long asked; (asked = System.nanoTime()) < end; ) {
                if (!lock.tryLock(ENTER_WAIT, TimeUnit.MILLISECONDS)) {
                    continue;
                }
                long entered = System.nanoTime();
                if (body > 0) {
                    TimeUnit.MICROSECONDS.sleep(body);
                }
                notes.get(task).add(entered).add(asked).add(task).add(System.nanoTime());
                lock.unlock();
            }
        });
        int words = 0;
        try (var log = new DataOutputStream(new BufferedOutputStream(new FileOutputStream(file)))) {
            for (var ofTask : notes) {
                for (long word : ofTask.build().toArray()) {
                    log.writeLong(Long.reverseBytes(word));
                    words++;
                }
            }
        }
        return "entered " + words / 4;
    }

    /** Acquires {@code count} locks, a batch at a time; the watchdog renews them. */
    private String hold(int count, long lease) throws Exception {
        connect(lease);
        IntStream.range(0, count).mapToObj(number -> lock("held:" + number)).forEach(held::add);
        inBatches(count, number -> held.get(number).lockAsync(number));
        return "holding";
    }

    /** Locks a key that this thread already holds. */
    private String nest(int times) {
        RLock lock = lock("nest");
        lock.lock();
        long begun = System.nanoTime();
        for (int time = 0; time < times; time++) {
            lock.lock();
            lock.unlock();
        }
        long took = System.nanoTime() - begun;
        lock.unlock();
        return "nested " + took;
    }

    private interface Task {
        void run(int task) throws Exception;
    }

    /** Runs a task in each of {@code tasks} threads, and rethrows the exception of one of them. */
    private static void inThreads(int tasks, Task task) throws Exception {
        all(IntStream.range(0, tasks).mapToObj(number -> {
            var done = new CompletableFuture<Void>();
            new Thread(() -> {
                try {
                    task.run(number);
                    done.complete(null);
                } catch (Throwable error) {
                    done.completeExceptionally(error);
                }
            }).start();
            return done;
        }));
    }

    private interface Step {
        CompletionStage<?> of(int number);
    }

    private static void inBatches(int count, Step step) throws Exception {
        for (int first = 0; first < count; first += BATCH) {
            all(IntStream.range(first, Math.min(count, first + BATCH)).mapToObj(step::of));
        }
    }

    private static void all(java.util.stream.Stream<? extends CompletionStage<?>> stages) throws Exception {
        var futures = stages.map(CompletionStage::toCompletableFuture).toArray(CompletableFuture[]::new);
        CompletableFuture.allOf(futures).get();
    }

    /** The processor time of this process, in user and in kernel mode. */
    private static long used() {
        var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime();
    }

    private static void say(String line) {
        System.out.println(line.replace('\n', ' '));
        System.out.flush();
    }
}
