package verniermq.interop;

import java.util.Arrays;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** The clients that are measured with: Apache's defaults, but patient, and each with a connection of its own. */
final class LoadClients {
    private static final AtomicInteger NUMBERS = new AtomicInteger();
    private static final int PATIENCE_MS = 10_000;

    /** A producer that has been started. */
    static DefaultMQProducer producer(Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("load-senders");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setInstanceName(uniqueName());
        producer.setSendMsgTimeout(PATIENCE_MS);
        producer.start();
        return producer;
    }

    /** A consumer of a topic from its beginning on; a listener is still missing. */
    static DefaultMQPushConsumer consumer(Options options, String group) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setInstanceName(uniqueName());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // See Consume: by default an Apache broker may serve no pull for the first 30 s.
        consumer.setHeartbeatBrokerInterval(3000);
        consumer.subscribe(options.text("topic"), "*");
        return consumer;
    }

    /** Close a client beside whatever comes next: it may take 3 s, in which its event thread does nothing. */
    static void close(Runnable shutdown) {
        Thread thread = new Thread(shutdown);
        thread.setDaemon(true);
        thread.start();
    }

    static byte[] body(Options options) {
        byte[] body = new byte[options.number("size")];
        Arrays.fill(body, (byte) 'x');
        return body;
    }

    static String uniqueName() {
        return "load-" + ProcessHandle.current().pid() + "-" + NUMBERS.incrementAndGet();
    }

    private LoadClients() {
    }
}
