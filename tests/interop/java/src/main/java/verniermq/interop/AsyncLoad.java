package verniermq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Sends with callbacks, {@code in-flight} of them on the way: for a stretch of time, or {@code count} to fill a topic. */
final class AsyncLoad {
    static int run(Options options, JsonLines out) throws Exception {
        String topic = options.text("topic");
        byte[] body = LoadClients.body(options);
        long count = options.number("count", Integer.MAX_VALUE);
        int inFlight = options.number("in-flight");
        DefaultMQProducer producer = LoadClients.producer(options);
        Tally tally = new Tally();
        Semaphore places = new Semaphore(inFlight);
        AtomicLong left = new AtomicLong(count);
        long started = System.nanoTime();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < options.number("threads"); number++) {
            Thread thread = new Thread(() -> {
                while (left.getAndDecrement() > 0) {
                    places.acquireUninterruptibly();
                    send(producer, new Message(topic, body), places, tally);
                }
            });
            threads.add(thread);
            thread.start();
        }
        double rate = 0;
        if (count == Integer.MAX_VALUE) {
            rate = tally.rate(options.number("warm-up-ms"), options.number("ms"));
            left.set(0);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        places.acquire(inFlight);
        if (count != Integer.MAX_VALUE) {
            // Whoever reads the topic counts on all of them.
            while (tally.done() < count) {
                producer.send(new Message(topic, body));
                tally.done(1);
            }
            rate = tally.done() * 1e9 / (System.nanoTime() - started);
        }
        LoadClients.close(producer::shutdown);
        tally.report(out, rate);
        return 0;
    }

    private static void send(DefaultMQProducer producer, Message message, Semaphore places, Tally tally) {
        try {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    tally.done(1);
                    places.release();
                }

                @Override
                public void onException(Throwable error) {
                    tally.failed(error);
                    places.release();
                }
            });
        } catch (Exception error) {
            tally.failed(error);
            places.release();
        }
    }

    private AsyncLoad() {
    }
}
