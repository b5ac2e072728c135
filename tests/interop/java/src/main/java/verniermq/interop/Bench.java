package verniermq.interop;

import java.util.Arrays;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Measures what bench/client.py measures of the Python client: many sends at a time, one by one, and consuming. */
final class Bench {
    private static final int WARM_UP = 5000;

    static int run(Options options, JsonLines out) throws Exception {
        String topic = options.text("topic");
        int count = options.number("count");
        byte[] body = new byte[options.number("size", 256)];
        Arrays.fill(body, (byte) 'x');
        DefaultMQProducer producer = new DefaultMQProducer("bench-java");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setSendMsgTimeout(30_000);
        producer.start();
        sendMany(producer, topic, body, WARM_UP, options.number("in-flight", 2048));
        double sends = sendMany(producer, topic, body, count, options.number("in-flight", 2048));
        long[] took = sendOneByOne(producer, topic, body, Math.min(count / 20, 3000));
        producer.shutdown();
        double consumed = consume(options, topic, count);
        long all = Arrays.stream(took).sum();
        out.write("figures", "sends", sends, "waiting", took.length * 1e9 / all,
            "p50", took[took.length / 2] / 1e6, "p99", took[took.length * 99 / 100] / 1e6, "consumed", consumed);
        return 0;
    }

    private static double sendMany(DefaultMQProducer producer, String topic, byte[] body, int count, int inFlight)
        throws Exception {
        Semaphore places = new Semaphore(inFlight);
        CountDownLatch answered = new CountDownLatch(count);
        AtomicInteger failed = new AtomicInteger();
        long started = System.nanoTime();
        for (int i = 0; i < count; i++) {
            places.acquire();
            producer.send(new Message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    places.release();
                    answered.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    failed.incrementAndGet();
                    places.release();
                    answered.countDown();
                }
            });
        }
        answered.await();
        if (failed.get() > 0) {
            throw new IllegalStateException(failed.get() + " sends failed");
        }
        return count * 1e9 / (System.nanoTime() - started);
    }

    private static long[] sendOneByOne(DefaultMQProducer producer, String topic, byte[] body, int count)
        throws Exception {
        long[] took = new long[count];
        for (int i = 0; i < count; i++) {
            long started = System.nanoTime();
            producer.send(new Message(topic, body));
            took[i] = System.nanoTime() - started;
        }
        Arrays.sort(took);
        return took;
    }

    private static double consume(Options options, String topic, int count) throws Exception {
        AtomicInteger seen = new AtomicInteger();
        AtomicLong started = new AtomicLong();
        CountDownLatch enough = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "-java-readers");
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            started.compareAndSet(0, System.nanoTime());
            if (seen.addAndGet(messages.size()) >= count) {
                enough.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        enough.await();
        double perSecond = count * 1e9 / (System.nanoTime() - started.get());
        consumer.shutdown();
        return perSecond;
    }

    private Bench() {
    }
}
