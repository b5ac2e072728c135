package verniermq;

import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Sends and receives as fast as it goes, and says how fast that was: see bench/grpc.py. */
final class Bench {
    private Bench() { }

    static void run(ClientServiceProvider provider, ClientConfiguration configuration, Map<String, String> options)
            throws Exception {
        String topic = options.get("topic");
        int count = Integer.parseInt(options.get("count"));
        int flight = Integer.parseInt(options.getOrDefault("flight", "32"));
        byte[] body = new byte[Integer.parseInt(options.getOrDefault("size", "128"))];
        Arrays.fill(body, (byte) 'x');
        Producer producer = provider.newProducerBuilder()
            .setClientConfiguration(configuration).setTopics(topic).build();
        send(provider, producer, topic, body, Math.max(count / 4, 500), flight); // the virtual machine warms up
        long[] micros = send(provider, producer, topic, body, count, flight);
        Arrays.sort(micros, 0, count);
        long seconds = micros[count];
        System.out.printf("{\"event\":\"sends\",\"rate\":%.1f,\"p50_us\":%d,\"p99_us\":%d}%n",
            count * 1e6 / seconds, micros[count / 2], micros[(int) (count * 0.99)]);
        receive(provider, configuration, options, topic, count);
        producer.close();
    }

    /** The time of each send in microseconds, and behind them that of all together. */
    private static long[] send(
            ClientServiceProvider provider, Producer producer, String topic, byte[] body, int count, int flight)
            throws Exception {
        long[] micros = new long[count + 1];
        var room = new Semaphore(flight);
        var failed = new AtomicInteger();
        long began = System.nanoTime();
        for (int i = 0; i < count; i++) {
            room.acquire();
            int number = i;
            long start = System.nanoTime();
            producer.sendAsync(provider.newMessageBuilder().setTopic(topic).setBody(body).build())
                .whenComplete((receipt, error) -> {
                    micros[number] = (System.nanoTime() - start) / 1000;
                    if (error != null) {
                        failed.incrementAndGet();
                    }
                    room.release();
                });
        }
        room.acquire(flight);
        micros[count] = Math.max(1, (System.nanoTime() - began) / 1000);
        if (failed.get() > 0) {
            throw new IllegalStateException(failed.get() + " sends failed");
        }
        return micros;
    }

    private static void receive(
            ClientServiceProvider provider, ClientConfiguration configuration, Map<String, String> options,
            String topic, int count) throws Exception {
        var got = new AtomicInteger();
        var first = new AtomicIntegerArray(1);
        long[] times = new long[2];
        PushConsumer consumer = provider.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(options.get("group"))
            .setMaxCacheMessageCount(4096)
            .setConsumptionThreadCount(8)
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
            .setMessageListener(message -> {
                if (first.compareAndSet(0, 0, 1)) {
                    times[0] = System.nanoTime();
                }
                if (got.incrementAndGet() == count) {
                    times[1] = System.nanoTime();
                }
                return ConsumeResult.SUCCESS;
            })
            .build();
        long deadline = System.nanoTime() + Duration.ofSeconds(120).toNanos();
        while (got.get() < count && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
        double rate = times[1] == 0 ? 0 : count * 1e9 / (times[1] - times[0]);
        System.out.printf("{\"event\":\"receives\",\"rate\":%.1f,\"count\":%d}%n", rate, got.get());
        consumer.close();
    }
}
