package verniermq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Threads that share a producer, each of which sends the next message, or batch, when the last one was answered. */
final class SendLoad {
    static int run(Options options, JsonLines out) throws Exception {
        String topic = options.text("topic");
        byte[] body = LoadClients.body(options);
        int batch = options.number("batch", 1);
        DefaultMQProducer producer = LoadClients.producer(options);
        Tally tally = new Tally();
        AtomicBoolean enough = new AtomicBoolean();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < options.number("threads"); number++) {
            Thread thread = new Thread(() -> {
                while (!enough.get()) {
                    try {
                        send(producer, topic, body, batch);
                        tally.done(batch);
                    } catch (Exception error) {
                        tally.failed(error);
                    }
                }
            });
            threads.add(thread);
            thread.start();
        }
        double rate = tally.rate(options.number("warm-up-ms"), options.number("ms"));
        enough.set(true);
        for (Thread thread : threads) {
            thread.join();
        }
        LoadClients.close(producer::shutdown);
        tally.report(out, rate);
        return 0;
    }

    private static void send(DefaultMQProducer producer, String topic, byte[] body, int batch) throws Exception {
        if (batch == 1) {
            producer.send(new Message(topic, body));
            return;
        }
        List<Message> messages = new ArrayList<>(batch);
        for (int i = 0; i < batch; i++) {
            messages.add(new Message(topic, body));
        }
        producer.send(messages);
    }

    private SendLoad() {
    }
}
