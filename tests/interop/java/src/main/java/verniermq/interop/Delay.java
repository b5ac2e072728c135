package verniermq.interop;

import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends delayed messages in several ways, in the order from the last due to the first, and waits for all of them.
 * With {@code --recall true} one more is sent, taken back again, and must not come. With {@code --send-only true}
 * others do the waiting.
 */
final class Delay {
    static int run(Options options, JsonLines out) throws Exception {
        String topic = options.text("topic");
        boolean recall = Boolean.parseBoolean(options.text("recall", "false"));
        int timedMs = options.number("timed-ms");
        CountDownLatch missing = new CountDownLatch(4);
        DefaultMQPushConsumer consumer = consumer(options, message -> {
            out.write("received", "index", Consume.index(message), "at", System.currentTimeMillis(),
                "stored", message.getStoreTimestamp(), "tag", message.getTags(), "topic", message.getTopic());
            missing.countDown();
        });
        DefaultMQProducer producer = new DefaultMQProducer(options.text("group") + "-senders");
        producer.setNamesrvAddr(options.text("namesrv"));
        producer.setSendMsgTimeout(20_000);
        producer.setMqClientApiTimeout(20_000);
        producer.start();
        send(producer, message(topic, 0), out);
        boolean sendOnly = Boolean.parseBoolean(options.text("send-only", "false"));
        if (!sendOnly) {
            consumer.start();
        }

        if (recall) {
            Message doomed = message(topic, 9);
            put(doomed, "TIMER_DELAY_SEC", "4");
            SendResult result = send(producer, doomed, out);
            // Clients of version 4 have neither method.
            Object handle = SendResult.class.getMethod("getRecallHandle").invoke(result);
            Object id = DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class)
                .invoke(producer, topic, handle);
            out.write("recalled", "id", id, "unique", result.getMsgId());
        }
        Message level2 = message(topic, 2);
        level2.setDelayTimeLevel(options.number("level", 2));
        send(producer, level2, out);
        Message timed = message(topic, 3);
        put(timed, "TIMER_DELIVER_MS", Long.toString(System.currentTimeMillis() + timedMs));
        send(producer, timed, out);
        Message level1 = message(topic, 1);
        level1.setDelayTimeLevel(1);
        send(producer, level1, out);

        if (sendOnly) {
            Shutdown.close(producer::shutdown);
            return 0;
        }
        boolean complete = missing.await(options.number("timeout"), TimeUnit.SECONDS);
        Thread.sleep(options.number("linger-ms", 1500));
        Shutdown.close(consumer::shutdown, producer::shutdown);
        return complete ? 0 : 1;
    }

    interface Handler {
        void accept(MessageExt message);
    }

    private static DefaultMQPushConsumer consumer(Options options, Handler handler) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.text("group"));
        consumer.setNamesrvAddr(options.text("namesrv"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setHeartbeatBrokerInterval(3000);
        consumer.setMqClientApiTimeout(20_000);
        consumer.subscribe(options.text("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(handler::accept);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    private static SendResult send(DefaultMQProducer producer, Message message, JsonLines out) throws Exception {
        long before = System.currentTimeMillis();
        SendResult result = producer.send(message);
        out.write("sent", "index", Integer.parseInt(message.getUserProperty("index")), "at", before,
            "status", result.getSendStatus(), "deliver", message.getProperty("TIMER_DELIVER_MS"));
        return result;
    }

    private static Message message(String topic, int index) {
        Message message = new Message(topic, Sample.tag(index), Sample.key(index), Sample.body(index));
        message.putUserProperty("index", Integer.toString(index));
        return message;
    }

    private static void put(Message message, String name, String value) {
        // The client's own setters came with version 5; the property is the same.
        if (MessageConst.STRING_HASH_SET.contains(name)) {
            MessageAccessor.putProperty(message, name, value);
        } else {
            message.putUserProperty(name, value);
        }
    }

    private Delay() {
    }
}
