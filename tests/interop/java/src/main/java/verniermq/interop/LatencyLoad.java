package verniermq.interop;

import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * From send to receipt at a given rate. A message counts from the moment at which it ought to have been sent, so that
 * a broker that holds everybody up for a while does not hide it.
 */
final class LatencyLoad {
    static int run(Options options, JsonLines out) throws Exception {
        int rate = options.number("rate");
        int warmUp = (int) (rate * (long) options.number("warm-up-ms") / 1000);
        int count = warmUp + (int) (rate * (long) options.number("ms") / 1000);
        long[] took = new long[count];
        CountDownLatch arrived = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = LoadClients.consumer(options, LoadClients.uniqueName());
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                int number = body.getInt();
                if (took[number] == 0) {
                    took[number] = now - body.getLong();
                    arrived.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (ConsumeLoad.queuesOf(consumer) < options.number("queues")) {
            Thread.sleep(20);
        }
        DefaultMQProducer producer = LoadClients.producer(options);
        Tally tally = new Tally();
        sendSteadily(producer, options, rate, count, tally);
        arrived.await(5, TimeUnit.SECONDS);
        LoadClients.close(producer::shutdown);
        LoadClients.close(consumer::shutdown);
        // What did not come in time counts as worse than anything that did.
        long[] measured = Arrays.stream(took, warmUp, count).map(nanos -> nanos == 0 ? Long.MAX_VALUE : nanos).toArray();
        Arrays.sort(measured);
        out.write("result", "p50", percentile(measured, 0.5), "p99", percentile(measured, 0.99),
            "p999", percentile(measured, 0.999), "done", count - arrived.getCount(),
            "failed", arrived.getCount(), "error", null);
        return 0;
    }

    private static void sendSteadily(DefaultMQProducer producer, Options options, int rate, int count, Tally tally)
        throws Exception {
        String topic = options.text("topic");
        int size = options.number("size");
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                tally.done(1);
            }

            @Override
            public void onException(Throwable error) {
                tally.failed(error);
            }
        };
        // The route first: asking for it would hold up the first messages of the schedule.
        producer.fetchPublishMessageQueues(topic);
        long started = System.nanoTime() + 50_000_000;
        for (int number = 0; number < count; number++) {
            long due = started + number * 1_000_000_000L / rate;
            for (long left = due - System.nanoTime(); left > 0; left = due - System.nanoTime()) {
                LockSupport.parkNanos(left);
            }
            byte[] body = ByteBuffer.allocate(size).putInt(number).putLong(due).array();
            producer.send(new Message(topic, body), callback);
        }
    }

    /** @return milliseconds, or null where it is a message that did not come in time: there is no such figure then */
    private static Double percentile(long[] sorted, double share) {
        long nanos = sorted[Math.min(sorted.length - 1, (int) (sorted.length * share))];
        return nanos == Long.MAX_VALUE ? null : nanos / 1e6;
    }

    private LatencyLoad() {
    }
}
