package verniermq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends nobody answers. What counts is what arrives, so the queues are looked at all the time, over another connection.
 * That also keeps the number on the way at {@code in-flight}: the client itself would take any number and keep it in
 * memory. What has not arrived when nothing has for a while is taken for lost.
 */
final class OnewayLoad {
    private static final long LOST_AFTER_NANOS = 500_000_000L;
    private static final int LOOK_EVERY_MS = 5;

    static int run(Options options, JsonLines out) throws Exception {
        String topic = options.text("topic");
        byte[] body = LoadClients.body(options);
        DefaultMQProducer producer = LoadClients.producer(options);
        DefaultMQProducer observer = LoadClients.producer(options);
        List<MessageQueue> queues = observer.fetchPublishMessageQueues(topic);
        long before = stored(observer, queues);
        Tally sent = new Tally();
        AtomicLong allowed = new AtomicLong(options.number("in-flight"));
        long begin = System.nanoTime() + options.number("warm-up-ms") * 1_000_000L;
        long end = begin + options.number("ms") * 1_000_000L;
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < options.number("threads"); number++) {
            Thread thread = new Thread(() -> sendUntil(end, producer, topic, body, allowed, sent));
            threads.add(thread);
            thread.start();
        }

        long arrived = 0;
        long lost = 0;
        long grown = System.nanoTime();
        long first = -1;
        long firstAt = 0;
        while (System.nanoTime() < end) {
            Thread.sleep(LOOK_EVERY_MS);
            long now = stored(observer, queues) - before;
            if (now > arrived) {
                allowed.addAndGet(now - arrived);
                arrived = now;
                grown = System.nanoTime();
            } else if (System.nanoTime() - grown > LOST_AFTER_NANOS) {
                long missing = sent.done() - arrived - lost;
                lost += missing;
                allowed.addAndGet(missing);
                grown = System.nanoTime();
            }
            if (first < 0 && System.nanoTime() >= begin) {
                first = arrived;
                firstAt = System.nanoTime();
            }
        }
        double rate = (arrived - first) * 1e9 / (System.nanoTime() - firstAt);
        for (Thread thread : threads) {
            thread.join();
        }
        LoadClients.close(producer::shutdown);
        LoadClients.close(observer::shutdown);
        out.write("result", "rate", rate, "done", arrived, "failed", lost + sent.failures(), "error", null);
        return 0;
    }

    private static void sendUntil(
        long end, DefaultMQProducer producer, String topic, byte[] body, AtomicLong allowed, Tally sent) {
        while (System.nanoTime() < end) {
            if (allowed.getAndDecrement() <= 0) {
                allowed.getAndIncrement();
                LockSupport.parkNanos(100_000);
                continue;
            }
            try {
                producer.sendOneway(new Message(topic, body));
                sent.done(1);
            } catch (Exception error) {
                sent.failed(error);
            }
        }
    }

    private static long stored(DefaultMQProducer observer, List<MessageQueue> queues) throws Exception {
        long sum = 0;
        for (MessageQueue queue : queues) {
            sum += observer.maxOffset(queue);
        }
        return sum;
    }

    private OnewayLoad() {
    }
}
