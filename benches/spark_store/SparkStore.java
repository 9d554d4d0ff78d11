import io.fabric8.kubernetes.api.model.*;
import java.lang.management.*;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.spark.SparkConf;
import org.apache.spark.scheduler.cluster.k8s.*;
import org.apache.spark.util.SystemClock;
import org.apache.spark.util.ThreadUtils;
import scala.Function1;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.BoxedUnit;

/**
 * Drives Apache Spark's own ExecutorPodsSnapshotsStoreImpl, unmodified and from its published
 * jars, with a synthetic trace of executor pod events, and prints one JSON line.
 *
 * The class is private[spark] in Scala, which the bytecode does not enforce, so plain Java can
 * construct it. One JVM runs one case, so that the heap and the JIT profile of one case do not
 * affect another.
 *
 * With manager=true the subscriber of each store is Spark's ExecutorPodsLifecycleManager, for
 * which Spark has the store, and no executor exits: its removal would need a driver and a cluster.
 *
 * Arguments are key=value: executors, apps, stalled, manager, seconds, max_events (buffered
 * events must fit the heap; applies to a subscriber that keeps up only with manager), interval_ms,
 * warmup_seconds, seed.
 */
public class SparkStore {
  static final int PENDING = 0, RUNNING = 1, FAILED = 2;
  static final MemoryMXBean MEMORY = ManagementFactory.getMemoryMXBean();
  static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

  /** The stores of one run, with the subscriber behaviour they share. */
  static final class Stores {
    final ExecutorPodsSnapshotsStoreImpl[] stores;
    final ScheduledExecutorService pool;
    final AtomicLong delivered = new AtomicLong();
    final AtomicLong largestBatch = new AtomicLong();
    final CountDownLatch firstCall = new CountDownLatch(1);
    final CountDownLatch release = new CountDownLatch(1);

    Stores(int apps, boolean stalled, boolean manager, long intervalMs) throws Exception {
      // KubernetesClusterManager gives each driver's store this pool of two daemon threads. A
      // driver is one process; with many apps in this JVM they share one pool instead of
      // having 2 x apps threads. When stalled, two callbacks hold both threads and the other
      // apps' callbacks are never called, which fills their buffers just the same.
      pool = ThreadUtils.newDaemonThreadPoolScheduledExecutor("snapshots-subscribers", 2);
      // One callback object for all apps, as Spark has one subscriber class for all drivers.
      Function1<Seq<ExecutorPodsSnapshot>, BoxedUnit> callback = snapshots -> {
        firstCall.countDown();
        if (stalled) awaitRelease();
        long n = snapshots.size();
        largestBatch.accumulateAndGet(n, Math::max);
        delivered.addAndGet(n);
        return BoxedUnit.UNIT;
      };
      stores = new ExecutorPodsSnapshotsStoreImpl[apps];
      SparkConf conf = new SparkConf(false);
      Method onNewSnapshots = ExecutorPodsLifecycleManager.class.getDeclaredMethod(
          "onNewSnapshots", KubernetesClusterSchedulerBackend.class, Seq.class);
      onNewSnapshots.setAccessible(true);
      for (int a = 0; a < apps; a++) {
        stores[a] = new ExecutorPodsSnapshotsStoreImpl(pool, new SystemClock(), conf);
        if (!manager) {
          stores[a].addSubscriber(intervalMs, callback);
          continue;
        }
        ExecutorPodsLifecycleManager m =
            new ExecutorPodsLifecycleManager(conf, null, stores[a], new SystemClock());
        stores[a].addSubscriber(intervalMs, snapshots -> {
          try {
            onNewSnapshots.invoke(m, null, snapshots);
          } catch (InvocationTargetException e) {
            // After a full list the manager asks the driver for its executors, and here is no
            // driver. By then it has processed all snapshots of the batch.
            if (!(e.getCause() instanceof NullPointerException)) throw new RuntimeException(e);
          } catch (IllegalAccessException e) {
            throw new RuntimeException(e);
          }
          return callback.apply(snapshots);
        });
      }
    }

    void awaitRelease() {
      try {
        release.await();
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
      }
    }

    /** Calls replaceSnapshot() with all executors, as after a list of the driver's pods. */
    void replaceAll(Pod[][] pods) {
      int apps = stores.length;
      for (int a = 0; a < apps; a++) {
        List<Pod> mine = new ArrayList<>();
        for (int e = a; e < pods.length; e += apps) mine.add(pods[e][PENDING]);
        stores[a].replaceSnapshot(CollectionConverters.asScala(mine).toSeq());
      }
    }

    /** All snapshots created: the empty one at addSubscriber, the replaced one, one per event. */
    long expected(long events) {
      return 2L * stores.length + events;
    }

    void awaitDelivered(long expected) throws InterruptedException {
      long deadline = System.nanoTime() + 40_000_000_000L;
      while (delivered.get() < expected && System.nanoTime() < deadline) Thread.sleep(10);
      if (delivered.get() != expected)
        throw new IllegalStateException(delivered.get() + " snapshots delivered, expected " + expected);
    }
  }

  /** The result of feeding events: their number, and the time that they took. */
  record Fed(long events, long wallNanos, long cpuNanos, byte[] phases) {}

  /**
   * Feeds events until the time or the count runs out. The executor is drawn uniformly, and
   * executor e belongs to app e % apps, so the app is uniform too.
   */
  static Fed feed(Stores s, Pod[][] pods, boolean ends, double seconds, long maxEvents, long seed) {
    int n = pods.length, apps = s.stores.length;
    byte[] phases = new byte[n]; // all PENDING, as replaceAll() left them
    long x = seed, events = 0;
    long cpu0 = THREADS.getCurrentThreadCpuTime();
    long t0 = System.nanoTime(), end = t0 + (long) (seconds * 1e9), now;
    do {
      for (int i = 0; i < 256; i++) { // the clock is read once per 256 events
        x ^= x << 13; x ^= x >>> 7; x ^= x << 17; // xorshift64: deterministic and nearly free
        int e = (int) Math.floorMod(x, (long) n);
        // Pending -> Running -> Failed (exit code 137) -> Running -> ..., or Pending for Failed
        byte next = (byte) (phases[e] != RUNNING ? RUNNING : ends ? FAILED : PENDING);
        phases[e] = next;
        s.stores[e % apps].updatePod(pods[e][next]);
      }
      events += 256;
      now = System.nanoTime();
    } while (now < end && events < maxEvents);
    return new Fed(events, now - t0, THREADS.getCurrentThreadCpuTime() - cpu0, phases);
  }

  /** Checks the store's work: its last snapshots have the states of the trace. */
  static void verify(Stores s, Fed fed) {
    int n = fed.phases.length, apps = s.stores.length;
    for (int e = 0; e < n; e++) {
      ExecutorPodsSnapshot snapshot = s.stores[e % apps]
          .org$apache$spark$scheduler$cluster$k8s$ExecutorPodsSnapshotsStoreImpl$$currentSnapshot();
      ExecutorPodState state = snapshot.executorPods().apply((long) (e / apps + 1));
      boolean right = switch (fed.phases[e]) {
        case PENDING -> state instanceof PodPending;
        case RUNNING -> state instanceof PodRunning;
        default -> state instanceof PodFailed;
      };
      if (!right) throw new IllegalStateException("executor " + e + " is " + state);
    }
  }

  /** One pod of a watch event; every field is a separate object, as after JSON parsing. */
  static Pod pod(int app, int id, int phase) {
    Map<String, String> labels = new LinkedHashMap<>();
    labels.put("spark-app-selector", "spark-application-" + app);
    labels.put("spark-exec-id", Integer.toString(id));
    labels.put("spark-role", "executor");
    ObjectMeta meta = new ObjectMeta();
    meta.setName("app-" + app + "-exec-" + id);
    meta.setNamespace("default");
    meta.setLabels(labels);
    PodSpec spec = new PodSpec();
    spec.setRestartPolicy("Never");
    ContainerState state = new ContainerState();
    if (phase == PENDING) state.setWaiting(new ContainerStateWaiting());
    if (phase == RUNNING) state.setRunning(new ContainerStateRunning());
    if (phase == FAILED)
      state.setTerminated(new ContainerStateTerminatedBuilder().withExitCode(137).build());
    ContainerStatus container = new ContainerStatus();
    container.setName("spark-kubernetes-executor");
    container.setState(state);
    PodStatus status = new PodStatus();
    status.setPhase(phase == PENDING ? "Pending" : phase == RUNNING ? "Running" : "Failed");
    status.setContainerStatuses(new ArrayList<>(List.of(container)));
    Pod pod = new Pod();
    pod.setMetadata(meta);
    pod.setSpec(spec);
    pod.setStatus(status);
    return pod;
  }

  static long usedAfterGc() {
    System.gc();
    return MEMORY.getHeapMemoryUsage().getUsed();
  }

  static long gcMillis() {
    long ms = 0;
    for (GarbageCollectorMXBean gc : ManagementFactory.getGarbageCollectorMXBeans())
      ms += gc.getCollectionTime();
    return ms;
  }

  public static void main(String[] args) throws Exception {
    Map<String, String> opt = new HashMap<>();
    for (String a : args) opt.put(a.substring(0, a.indexOf('=')), a.substring(a.indexOf('=') + 1));
    int executors = Integer.parseInt(opt.getOrDefault("executors", "10000"));
    int apps = Integer.parseInt(opt.getOrDefault("apps", "1"));
    boolean stalled = Boolean.parseBoolean(opt.getOrDefault("stalled", "false"));
    boolean manager = Boolean.parseBoolean(opt.getOrDefault("manager", "false"));
    double seconds = Double.parseDouble(opt.getOrDefault("seconds", "5"));
    double warmup = Double.parseDouble(opt.getOrDefault("warmup_seconds", "3"));
    long maxEvents = Long.parseLong(opt.getOrDefault("max_events", "2000000"));
    long intervalMs = Long.parseLong(opt.getOrDefault("interval_ms", "1000"));
    long seed = Long.parseLong(opt.getOrDefault("seed", "88172645463325252"));
    if (apps < 1 || executors < apps || seed == 0)
      throw new IllegalArgumentException("expected apps >= 1, executors >= apps, seed != 0");

    // KubernetesClusterManager sets both. Otherwise a Running pod would never match its container.
    ExecutorPodsSnapshot.setSparkContainerName("spark-kubernetes-executor");
    ExecutorPodsSnapshot.setShouldCheckAllContainers(false);

    // All pods are built beforehand, so the results include neither their time nor their memory.
    long heapEmpty = usedAfterGc();
    Pod[][] pods = new Pod[executors][];
    for (int e = 0; e < executors; e++) {
      int app = e % apps, id = e / apps + 1;
      pods[e] = new Pod[] {pod(app, id, PENDING), pod(app, id, RUNNING), pod(app, id, FAILED)};
    }
    long podBytes = (usedAfterGc() - heapEmpty) / (3L * executors);

    // Warm-up on separate stores with the same trace, so that the JIT has compiled the code. It
    // always drains, and often, so that it leaves the heap to the measured run.
    if (warmup > 0) {
      long warmEvents = manager ? maxEvents : Long.MAX_VALUE;
      Stores w = new Stores(apps, false, manager, 100);
      w.replaceAll(pods);
      w.awaitDelivered(w.expected(feed(w, pods, !manager, warmup, warmEvents, seed).events));
      w.pool.shutdownNow();
      w.pool.awaitTermination(10, TimeUnit.SECONDS);
    }

    Stores s = new Stores(apps, stalled, manager, intervalMs);
    s.firstCall.await(); // from here on a stalled subscriber is stuck in its callback
    long r0 = System.nanoTime();
    s.replaceAll(pods);
    double replaceSeconds = (System.nanoTime() - r0) / 1e9;
    long heapBefore = usedAfterGc();
    long gc0 = gcMillis();
    long begun = System.nanoTime();
    Fed fed = feed(s, pods, !manager, seconds, stalled || manager ? maxEvents : Long.MAX_VALUE, seed);
    double gcSeconds = (gcMillis() - gc0) / 1e3;
    // A subscriber that keeps up first drains the last interval: the store's own state remains.
    if (!stalled) s.awaitDelivered(s.expected(fed.events));
    double dealtSeconds = (System.nanoTime() - begun) / 1e9;
    long heapAfter = usedAfterGc();

    s.release.countDown();
    s.awaitDelivered(s.expected(fed.events)); // no event was dropped or merged with another
    verify(s, fed);
    s.pool.shutdownNow();
    double wall = fed.wallNanos / 1e9;
    System.out.printf(Locale.ROOT, "{\"peer\":\"spark-%s\",\"apps\":%d,\"executors\":%d,"
            + "\"events\":%d,\"stalled\":%b,\"manager\":%b,\"seconds\":%.3f,\"events_per_second\":%.0f,"
            + "\"bytes_per_event\":%.1f,\"heap_before\":%d,\"heap_after\":%d,"
            + "\"feeder_cpu_seconds\":%.3f,\"gc_seconds\":%.3f,\"replace_seconds\":%.4f,"
            + "\"largest_batch\":%d,\"pod_bytes\":%d,\"interval_ms\":%d,\"java\":\"%s\","
            + "\"collector\":\"%s\",\"heap_max\":%d,\"verified\":true}%n",
        org.apache.spark.package$.MODULE$.SPARK_VERSION(), apps, executors, fed.events, stalled,
        manager, manager ? dealtSeconds : wall, fed.events / (manager ? dealtSeconds : wall), (double) (heapAfter - heapBefore) / fed.events, heapBefore,
        heapAfter, fed.cpuNanos / 1e9, gcSeconds, replaceSeconds, s.largestBatch.get(), podBytes,
        intervalMs, Runtime.version(),
        ManagementFactory.getGarbageCollectorMXBeans().get(0).getName(),
        Runtime.getRuntime().maxMemory());
    // Without this the JVM may free the pods between the two heap readings.
    java.lang.ref.Reference.reachabilityFence(pods);
  }
}
