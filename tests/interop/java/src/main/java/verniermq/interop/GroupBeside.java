package verniermq.interop;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;

/**
 * A consumer that reads a topic while something else is measured on it: {@code group-start} returns once it has the
 * queues, {@code group-stop} waits until it has seen {@code count} messages, says how late the last one was, and ends it.
 */
final class GroupBeside {
    private static final int MESSAGES_PER_CALL = 32;
    private static DefaultMQPushConsumer consumer;
    private static AtomicLong seen;

    static int start(Options options, JsonLines out) throws Exception {
        AtomicLong counter = new AtomicLong();
        consumer = LoadClients.consumer(options, LoadClients.uniqueName());
        consumer.setConsumeMessageBatchMaxSize(MESSAGES_PER_CALL);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            counter.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        seen = counter;
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        while (ConsumeLoad.queuesOf(consumer) < options.number("queues")) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the consumer did not get its queues");
            }
            Thread.sleep(10);
        }
        out.write("result", "rate", 0, "done", 0, "failed", 0, "error", null);
        return 0;
    }

    static int stop(Options options, JsonLines out) throws Exception {
        long count = options.number("count");
        long asked = System.nanoTime();
        long deadline = asked + TimeUnit.MILLISECONDS.toNanos(options.number("timeout-ms"));
        while (seen.get() < count && System.nanoTime() < deadline) {
            Thread.sleep(1);
        }
        double late = (System.nanoTime() - asked) / 1e9;
        LoadClients.close(consumer::shutdown);
        out.write("result", "late", late, "done", seen.get(), "failed", Math.max(0, count - seen.get()), "error", null);
        return 0;
    }

    private GroupBeside() {
    }
}
